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

// machineType is the machine type whose capabilities are reported: the default of the architecture.
const machineType = "q35"

// WriteCapabilities starts libvirtd as for a VM and writes its capabilities on this node to capabilities.xml and
// domcapabilities.xml in a directory. It is run by an init container of the node agent with the launcher image, since they depend
// on libvirt and QEMU of that image.
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

// capabilitySource is the part of libvirtd that reports capabilities.
type capabilitySource interface {
	Capabilities(ctx context.Context) (string, error)
	DomainCapabilities(ctx context.Context, machine string) (string, error)
}

// saveCapabilities writes the files when it has read both: an incomplete report could not be recognized.
func saveCapabilities(ctx context.Context, source capabilitySource, dir string) error {
	host, err := source.Capabilities(ctx)
	if err != nil {
		return fmt.Errorf("read the host's capabilities from libvirtd: %w", err)
	}
	domain, err := source.DomainCapabilities(ctx, machineType)
	if err != nil {
		return fmt.Errorf("read the capabilities of %s from libvirtd: %w", machineType, err)
	}
	for name, text := range map[string]string{"capabilities.xml": host, "domcapabilities.xml": domain} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil { //nolint:gosec // for the agent, which is another user
			return fmt.Errorf("write the node's capabilities: %w", err)
		}
	}
	return nil
}
