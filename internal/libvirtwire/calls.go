// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtwire

import (
	"context"
	"time"
)

// SubscribeLifecycle subscribes to the lifecycle events of all domains.
func (c *Client) SubscribeLifecycle(ctx context.Context) error {
	var args encoder
	args.i32(eventIDLifecycle)
	args.u32(0) // no domain: all of them
	_, err := c.call(ctx, procEventRegisterAny, args.buf)
	return err
}

// Lookup finds a domain by name.
func (c *Client) Lookup(ctx context.Context, name string) (Domain, error) {
	var args encoder
	args.str(name)
	body, err := c.call(ctx, procDomainLookupByName, args.buf)
	if err != nil {
		return Domain{}, err
	}
	d := decoder{buf: body}
	return d.domain(), d.err
}

// State returns the domain's state and its reason.
func (c *Client) State(ctx context.Context, domain Domain) (State, int32, error) {
	var args encoder
	args.domain(domain)
	args.u32(0)
	body, err := c.call(ctx, procDomainGetState, args.buf)
	if err != nil {
		return StateNone, 0, err
	}
	d := decoder{buf: body}
	state, reason := d.i32(), d.i32()
	return State(state), reason, d.err
}

// JobActive reports whether libvirt has a job for the domain as a whole: an outgoing migration, a save or a dump. For an incoming
// migration it returns an error (CodeOperationInvalid).
func (c *Client) JobActive(ctx context.Context, domain Domain) (bool, error) {
	var args encoder
	args.domain(domain)
	body, err := c.call(ctx, procDomainGetJobInfo, args.buf)
	if err != nil {
		return false, err
	}
	d := decoder{buf: body}
	kind := d.i32()
	return kind == jobBounded || kind == jobUnbounded, d.err
}

// Shutdown presses the guest's ACPI power button, as virt-handler does.
func (c *Client) Shutdown(ctx context.Context, domain Domain) error {
	return c.domainCall(ctx, procDomainShutdownFlags, domain, shutdownACPI)
}

// Destroy ends the domain at once.
func (c *Client) Destroy(ctx context.Context, domain Domain) error {
	return c.domainCall(ctx, procDomainDestroyFlags, domain, 0)
}

// Values of virDomainCoreDumpFormat and virDomainCoreDumpFlags.
const (
	dumpRaw        = 0
	dumpMemoryOnly = 16
)

// DumpMemory writes the memory of a domain to a new file, as ELF, while the domain is suspended. libvirtd continues if the connection ends,
// and removes the file if it fails.
func (c *Client) DumpMemory(ctx context.Context, domain Domain, path string) error {
	var args encoder
	args.domain(domain)
	args.str(path)
	args.u32(dumpRaw)
	args.u32(dumpMemoryOnly)
	_, err := c.call(ctx, procDomainCoreDump, args.buf)
	return err
}

// Values of virDomainMetadataType and virDomainModificationImpact.
const (
	metadataElement = 2
	affectLive      = 1
)

// SetMetadata sets the element of a namespace in the running domain's metadata, with a prefix for the namespace. An empty element
// removes it, and fails with CodeNoDomainMetadata if there is none.
func (c *Client) SetMetadata(ctx context.Context, domain Domain, element, prefix, namespace string) error {
	var args encoder
	args.domain(domain)
	args.i32(metadataElement)
	args.optionalStr(element)
	args.optionalStr(prefix)
	args.optionalStr(namespace)
	args.u32(affectLive)
	_, err := c.call(ctx, procDomainSetMetadata, args.buf)
	return err
}

// Metadata returns the element of a namespace in the running domain's metadata. It fails with CodeNoDomainMetadata if there is
// none.
func (c *Client) Metadata(ctx context.Context, domain Domain, namespace string) (string, error) {
	var args encoder
	args.domain(domain)
	args.i32(metadataElement)
	args.optionalStr(namespace)
	args.u32(affectLive)
	return c.text(ctx, procDomainGetMetadata, args.buf)
}

// Capabilities returns the capabilities of the host as XML.
func (c *Client) Capabilities(ctx context.Context) (string, error) {
	return c.text(ctx, procGetCapabilities, nil)
}

// DomainCapabilities returns the capabilities for domains of a machine type on this host as XML. libvirt chooses the emulator and
// whether to use KVM.
func (c *Client) DomainCapabilities(ctx context.Context, machine string) (string, error) {
	var args encoder
	args.optionalStr("") // the emulator
	args.optionalStr("") // the architecture: the host's
	args.optionalStr(machine)
	args.optionalStr("") // KVM where it can be used
	args.u32(0)
	return c.text(ctx, procGetDomainCapabilities, args.buf)
}

// AgentCommand sends a JSON command to the guest agent and returns the response. libvirtd waits for it for the given time, in
// whole seconds.
func (c *Client) AgentCommand(ctx context.Context, domain Domain, command string, wait time.Duration) (string, error) {
	body, err := c.agentCommand(ctx, domain, command, wait)
	if err != nil {
		return "", err
	}
	d := decoder{buf: body}
	return d.optionalStr(), d.err
}

// AgentCommandLong is AgentCommand for responses of up to 4 MiB, libvirt's limit (REMOTE_STRING_MAX).
func (c *Client) AgentCommandLong(ctx context.Context, domain Domain, command string, wait time.Duration) ([]byte, error) {
	body, err := c.agentCommand(ctx, domain, command, wait)
	if err != nil {
		return nil, err
	}
	d := decoder{buf: body}
	if d.u32() == 0 {
		return nil, d.err
	}
	return d.take(int(d.u32())), d.err
}

func (c *Client) agentCommand(ctx context.Context, domain Domain, command string, wait time.Duration) ([]byte, error) {
	var args encoder
	args.domain(domain)
	args.str(command)
	args.i32(int32(max(wait.Round(time.Second), time.Second) / time.Second))
	args.u32(0)
	return c.callProgram(ctx, programQEMU, procQEMUAgentCommand, args.buf)
}

// text makes a call whose response is one string.
func (c *Client) text(ctx context.Context, proc int32, args []byte) (string, error) {
	body, err := c.call(ctx, proc, args)
	if err != nil {
		return "", err
	}
	d := decoder{buf: body}
	return d.str(), d.err
}

func (c *Client) domainCall(ctx context.Context, proc int32, domain Domain, flags uint32) error {
	var args encoder
	args.domain(domain)
	args.u32(flags)
	_, err := c.call(ctx, proc, args.buf)
	return err
}
