// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package fake

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// SetAgent is what the guest agent answers from now on; nil means that there is none.
func (l *Launcher) SetAgent(agent *hypervisor.GuestAgent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.agent = agent
}

// ask lets a question to the guest agent through.
func (l *Launcher) ask(ctx context.Context, call, name string) (*hypervisor.GuestAgent, error) {
	if err := l.running(ctx, call, name); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.agent == nil {
		return nil, hypervisor.ErrGuestSilent
	}
	answer := *l.agent
	answer.Frozen = l.domain.Freeze() != nil
	return &answer, nil
}

// GuestAgent answers with all that the agent tells.
func (l *Launcher) GuestAgent(ctx context.Context, name string) (*hypervisor.GuestAgent, error) {
	return l.ask(ctx, "agent", name)
}

// GuestUsers answers with the users.
func (l *Launcher) GuestUsers(ctx context.Context, name string) (hypervisor.List[hypervisor.GuestUser], error) {
	agent, err := l.ask(ctx, "agent", name)
	if err != nil {
		return hypervisor.List[hypervisor.GuestUser]{}, err
	}
	return agent.Users, nil
}

// GuestFilesystems answers with the file systems.
func (l *Launcher) GuestFilesystems(ctx context.Context, name string) (hypervisor.List[hypervisor.GuestFilesystem], error) {
	agent, err := l.ask(ctx, "agent", name)
	if err != nil {
		return hypervisor.List[hypervisor.GuestFilesystem]{}, err
	}
	return agent.Filesystems, nil
}

// Freeze notes the freeze in the domain, as the real one does.
func (l *Launcher) Freeze(ctx context.Context, name string, limit time.Duration) error {
	if _, err := l.ask(ctx, "freeze", name); err != nil {
		return err
	}
	freeze := hypervisor.Freeze{}
	if limit > 0 {
		freeze.Thaw = time.Now().Add(limit)
	}
	l.note(&freeze)
	return nil
}

// Thaw takes the note away.
func (l *Launcher) Thaw(ctx context.Context, name string) error {
	if _, err := l.ask(ctx, "thaw", name); err != nil {
		return err
	}
	l.note(nil)
	return nil
}

// note writes a freeze into the domain's metadata, or takes it away.
func (l *Launcher) note(freeze *hypervisor.Freeze) {
	note := ""
	if freeze != nil {
		note = prefixed(freeze.Note(), launcherpod.FreezePrefix, launcherpod.FreezeURI)
	}
	l.setNote(launcherpod.FreezeURI, note)
}

// PauseProbes writes the note into the domain's metadata, or takes it away.
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

// prefixed is an element with the prefix that libvirt gives it.
func prefixed(note, prefix, uri string) string {
	name, attributes, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(note, "<"), "/>"), " ")
	return "<" + prefix + ":" + name + " xmlns:" + prefix + "='" + uri + "' " + attributes + "/>"
}

// KeepThaw notes when the guest is to be thawed.
func (l *Launcher) KeepThaw(_ string, freeze *hypervisor.Freeze) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.thawAt = time.Time{}
	if freeze != nil {
		l.thawAt = freeze.Thaw
	}
}

// ThawAt is when the guest is to be thawed, as the agent said last.
func (l *Launcher) ThawAt() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.thawAt
}

// SetScreen is what Screenshot gives from now on: PNG if it looks like that, else libvirt's PPM.
func (l *Launcher) SetScreen(image []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.screen = image
}

// Screenshot gives what SetScreen was given.
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
