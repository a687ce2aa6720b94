// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-logr/logr"

	"github.com/vireo-project/vireo/internal/launcher/reaper"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// probedMachine is the machine type whose capabilities tell what the node can do: the default of the architecture.
const probedMachine = "q35"

// WriteCapabilities starts libvirtd as for a VM, asks what guests can have on this node, and writes the answers to
// capabilities.xml and domcapabilities.xml in a folder. The node agent runs it in an init container from the
// launcher image, since only libvirt and QEMU of that image know.
func WriteCapabilities(ctx context.Context, dir string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	log := logr.FromContextOrDiscard(ctx)
	children := reaper.New()
	go children.Run(ctx)
	if err := prepare(log); err != nil {
		return err
	}
	libvirtd, err := startLibvirtd(log, children, "")
	if err != nil {
		return fmt.Errorf("start libvirtd: %w", err)
	}
	defer stopLibvirtd(log, libvirtd)
	client, err := connect(ctx, launcherpod.LibvirtSocket)
	if err != nil {
		return err
	}
	defer client.Close()
	return saveCapabilities(ctx, client, dir)
}

// capabilitySource is libvirtd, as far as it knows what guests can have.
type capabilitySource interface {
	Capabilities(ctx context.Context) (string, error)
	DomainCapabilities(ctx context.Context, machine string) (string, error)
}

// saveCapabilities asks before it writes: half a report would be taken for a whole one.
func saveCapabilities(ctx context.Context, source capabilitySource, dir string) error {
	host, err := source.Capabilities(ctx)
	if err != nil {
		return fmt.Errorf("ask libvirtd for the host's capabilities: %w", err)
	}
	domain, err := source.DomainCapabilities(ctx, probedMachine)
	if err != nil {
		return fmt.Errorf("ask libvirtd for the capabilities of %s: %w", probedMachine, err)
	}
	for name, text := range map[string]string{"capabilities.xml": host, "domcapabilities.xml": domain} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil { //nolint:gosec // for the agent, which is another user
			return fmt.Errorf("write the node's capabilities: %w", err)
		}
	}
	return nil
}
