// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtwire

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
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

// JobActive reports whether libvirt has a job for the domain as a whole: an outgoing migration, a save or a dump. For
// an incoming migration it returns an error (CodeOperationInvalid).
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

// DumpMemory writes the memory of a domain to a new file, as ELF, while the domain is suspended. libvirtd continues if
// the connection ends, and removes the file if it fails.
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

// SetMetadata sets the element of a namespace in the running domain's metadata, with a prefix for the namespace. An
// empty element removes it, and fails with CodeNoDomainMetadata if there is none.
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

// Metadata returns the element of a namespace in the running domain's metadata. It fails with CodeNoDomainMetadata if
// there is none.
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

// DomainCapabilities returns the capabilities for domains of a machine type on this host as XML. libvirt chooses the
// emulator and whether to use KVM.
func (c *Client) DomainCapabilities(ctx context.Context, machine string) (string, error) {
	var args encoder
	args.optionalStr("") // the emulator
	args.optionalStr("") // the architecture: the host's
	args.optionalStr(machine)
	args.optionalStr("") // KVM where it can be used
	args.u32(0)
	return c.text(ctx, procGetDomainCapabilities, args.buf)
}

// expandFeatures means to name the features of the CPU's model too.
const expandFeatures = 1

// ExpandCPU returns a CPU of guests of a machine type on this host, with all its features, as XML. libvirt chooses the
// emulator and whether to use KVM.
func (c *Client) ExpandCPU(ctx context.Context, machine, cpu string) (string, error) {
	var args encoder
	args.optionalStr("") // the emulator
	args.optionalStr("") // the architecture: the host's
	args.optionalStr(machine)
	args.optionalStr("") // KVM where it can be used
	args.u32(1)          // the number of CPUs
	args.str(cpu)
	args.u32(expandFeatures)
	return c.text(ctx, procBaselineHypervisorCPU, args.buf)
}

// AgentCommand sends a JSON command to the guest agent and returns the response. libvirtd waits for it for the given
// time, in whole seconds.
func (c *Client) AgentCommand(ctx context.Context, domain Domain, command string, wait time.Duration) (string, error) {
	body, err := c.agentCommand(ctx, domain, command, wait)
	if err != nil {
		return "", err
	}
	d := decoder{buf: body}
	return d.optionalStr(), d.err
}

// AgentCommandLong is AgentCommand for responses of up to 4 MiB, libvirt's limit (REMOTE_STRING_MAX).
func (c *Client) AgentCommandLong(
	ctx context.Context, domain Domain, command string, wait time.Duration,
) ([]byte, error) {
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

// Procedures of statistics (src/remote/remote_protocol.x).
const (
	procGetAllDomainStats  = 344
	procStartDirtyRateCalc = 427
)

// StatsGroups are groups of statistics (virDomainStatsTypes).
type StatsGroups uint32

// Groups of statistics.
const (
	StatsCPU       StatsGroups = 1 << 1
	StatsBalloon   StatsGroups = 1 << 2
	StatsVCPU      StatsGroups = 1 << 3
	StatsInterface StatsGroups = 1 << 4
	StatsBlock     StatsGroups = 1 << 5
	StatsDirtyRate StatsGroups = 1 << 9
)

// Flags of virConnectGetAllDomainStats: domains that run or are paused, without waiting for a job of a domain. With
// that flag libvirt omits what it would have to wait for.
const statsFlags = 1<<4 | 1<<5 | 1<<29

// Kinds of a typed parameter, besides those in migrate.go.
const (
	paramUInt    = 2
	paramLLong   = 3
	paramDouble  = 5
	paramBoolean = 6
)

// Stats calls a function with each statistic of the running domain with a name: its name, as net.0.rx.bytes, and its
// value, which is a number or a text. It requests those of all domains in one call, because the daemon of a launcher
// has only one.
func (c *Client) Stats(
	ctx context.Context, domain string, groups StatsGroups, visit func(name string, number float64, text string),
) error {
	var args encoder
	args.u32(0) // no list of domains: all
	args.u32(uint32(groups))
	args.u32(statsFlags)
	body, err := c.call(ctx, procGetAllDomainStats, args.buf)
	if err != nil {
		return err
	}
	d := decoder{buf: body}
	for records := d.u32(); records > 0 && d.err == nil; records-- {
		is := d.domain().Name == domain
		for params := d.u32(); params > 0 && d.err == nil; params-- {
			name, number, text := d.param()
			if is && d.err == nil {
				visit(name, number, text)
			}
		}
	}
	if d.err != nil {
		return fmt.Errorf("read the statistics: %w", d.err)
	}
	return nil
}

// param reads a typed parameter.
func (d *decoder) param() (name string, number float64, text string) {
	name = d.str()
	switch kind := d.u32(); kind {
	case paramInt, paramBoolean:
		number = float64(d.i32())
	case paramUInt:
		number = float64(d.u32())
	case paramLLong:
		number = float64(int64(d.u64()))
	case paramULong:
		number = float64(d.u64())
	case paramDouble:
		number = math.Float64frombits(d.u64())
	case paramString:
		text = d.str()
	default:
		if d.err == nil {
			d.err = fmt.Errorf("a parameter has the unknown type %d", kind)
		}
	}
	return name, number, text
}

func (d *decoder) u64() uint64 {
	b := d.take(8)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// StartDirtyRate starts a measurement of how fast the guest changes its memory. The result is in StatsDirtyRate
// afterwards.
func (c *Client) StartDirtyRate(ctx context.Context, domain Domain, seconds int32) error {
	var args encoder
	args.domain(domain)
	args.i32(seconds)
	args.u32(0)
	_, err := c.call(ctx, procStartDirtyRateCalc, args.buf)
	return err
}
