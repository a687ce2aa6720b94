// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirt

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// SetAgent sets the guest agent's responses; nil means that there is no agent.
func (l *Launcher) SetAgent(agent *hypervisor.GuestAgent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.agent = agent
}

// guestAgent returns the guest agent's responses for a call.
func (l *Launcher) guestAgent(ctx context.Context, call, name string) (*hypervisor.GuestAgent, error) {
	if err := l.running(ctx, call, name); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.agent == nil {
		return nil, hypervisor.ErrGuestSilent
	}
	agent := *l.agent
	agent.Frozen = l.frozen
	return &agent, nil
}

// GuestAgent returns the full report.
func (l *Launcher) GuestAgent(ctx context.Context, name string) (*hypervisor.GuestAgent, error) {
	return l.guestAgent(ctx, "agent", name)
}

// GuestUsers returns the users.
func (l *Launcher) GuestUsers(ctx context.Context, name string) (hypervisor.List[hypervisor.GuestUser], error) {
	agent, err := l.guestAgent(ctx, "agent", name)
	if err != nil {
		return hypervisor.List[hypervisor.GuestUser]{}, err
	}
	return agent.Users, nil
}

// GuestFilesystems returns the file systems.
func (l *Launcher) GuestFilesystems(
	ctx context.Context, name string,
) (hypervisor.List[hypervisor.GuestFilesystem], error) {
	agent, err := l.guestAgent(ctx, "agent", name)
	if err != nil {
		return hypervisor.List[hypervisor.GuestFilesystem]{}, err
	}
	return agent.Filesystems, nil
}

// SetUsage sets what the guest agent last reported about the use of the guest.
func (l *Launcher) SetUsage(usage *hypervisor.GuestUsage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.usage = usage
}

// Usage returns what the guest agent last reported about the use of the guest.
func (l *Launcher) Usage() *hypervisor.GuestUsage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.usage
}

// Freeze writes the freeze to the domain's metadata, as rpc does.
func (l *Launcher) Freeze(ctx context.Context, name string, limit time.Duration) error {
	if _, err := l.guestAgent(ctx, "freeze", name); err != nil {
		return err
	}
	freeze := hypervisor.Freeze{}
	if limit > 0 {
		freeze.Thaw = time.Now().Add(limit)
	}
	l.SetFrozen(true)
	l.note(&freeze)
	return nil
}

// Thaw removes the freeze. The guest stays frozen during a snapshot.
func (l *Launcher) Thaw(ctx context.Context, name string) error {
	if _, err := l.guestAgent(ctx, "thaw", name); err != nil {
		return err
	}
	if d := l.Snapshot(); d.Freeze() == nil || !d.FrozenForSnapshot() {
		l.SetFrozen(false)
	}
	l.note(nil)
	return nil
}

// note writes a freeze to the domain's metadata, or removes it.
func (l *Launcher) note(freeze *hypervisor.Freeze) {
	note := ""
	if freeze != nil {
		note = prefixed(freeze.Note(), launcherpod.FreezePrefix, launcherpod.FreezeURI)
	}
	l.setNote(launcherpod.FreezeURI, note)
}

// PauseProbes writes to the domain's metadata whether probes are paused.
func (l *Launcher) PauseProbes(ctx context.Context, name string, paused bool) error {
	if err := l.running(ctx, "probes", name); err != nil {
		return err
	}
	note := ""
	if paused {
		note = prefixed(launcherpod.ProbesNote, launcherpod.ProbesPrefix, launcherpod.ProbesURI)
	}
	l.setNote(launcherpod.ProbesURI, note)
	return nil
}

// setNote replaces the element of a namespace in the domain's metadata.
func (l *Launcher) setNote(uri, note string) {
	l.Alter(func(d *libvirtxml.Domain) {
		var notes []string
		if d.Metadata != nil {
			notes = strings.Split(d.Metadata.XML, "\n")
		}
		notes = slices.DeleteFunc(notes, func(n string) bool { return n == "" || strings.Contains(n, "='"+uri+"'") })
		if note != "" {
			notes = append(notes, note)
		}
		d.Metadata = nil
		if len(notes) > 0 {
			d.Metadata = &libvirtxml.DomainMetadata{XML: strings.Join(notes, "\n")}
		}
	})
}

// prefixed returns an element with the prefix that libvirt adds.
func prefixed(note, prefix, uri string) string {
	name, attributes, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(note, "<"), "/>"), " ")
	return "<" + prefix + ":" + name + " xmlns:" + prefix + "='" + uri + "' " + attributes + "/>"
}

// KeepThaw stores when the guest is to be thawed.
func (l *Launcher) KeepThaw(_ string, freeze *hypervisor.Freeze) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.thawAt = time.Time{}
	if freeze != nil {
		l.thawAt = freeze.Thaw
	}
}

// ThawAt returns when the guest is to be thawed, as set with KeepThaw.
func (l *Launcher) ThawAt() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.thawAt
}

// SetScreen sets the image of Screenshot: PNG if it starts like one, or else libvirt's PPM.
func (l *Launcher) SetScreen(image []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.screen = image
}

// Screenshot returns the image that was set with SetScreen.
func (l *Launcher) Screenshot(ctx context.Context, name string, take func(mime string, image io.Reader) error) error {
	if err := l.running(ctx, "screenshot", name); err != nil {
		return err
	}
	l.mu.Lock()
	image := l.screen
	l.mu.Unlock()
	mime := "image/x-portable-pixmap"
	if bytes.HasPrefix(image, []byte("\x89PNG")) {
		mime = "image/png"
	}
	return take(mime, bytes.NewReader(image))
}
