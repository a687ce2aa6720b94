// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"strings"

	"github.com/vireo-project/vireo/internal/agent/hanging"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// nvramPool is the name of libvirt's storage pool with the EFI variables.
const nvramPool = "vm-state-nvram"

// ReadNVRAM reads a file of the Pod with persistent EFI variables.
func (c *Conn) ReadNVRAM(ctx context.Context, name string) ([]byte, error) {
	content, err := c.readNVRAM(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read the EFI variables in %s: %w", name, err)
	}
	return content, nil
}

func (c *Conn) readNVRAM(ctx context.Context, name string) ([]byte, error) {
	within, err := filepath.Rel(launcherpod.StateDir, name)
	if err != nil {
		return nil, err
	}
	f, err := c.options.Broker.OpenFile(ctx, c.pod.UID, launcherpod.StateDir, within)
	if err != nil {
		return nil, err
	}
	read := make(chan []byte, 1)
	err = hanging.Do(ctx, c.pod.UID, f, func() error {
		content, err := io.ReadAll(io.LimitReader(f, hypervisor.MaxNVRAM+1))
		if err == nil && (len(content) == 0 || len(content) > hypervisor.MaxNVRAM) {
			err = fmt.Errorf("it has %d bytes or more", len(content))
		}
		read <- content
		return err
	})
	if err != nil {
		return nil, err
	}
	return <-read, nil
}

// KeepState writes the EFI variables of the Pod's guest, which does not run yet, and returns when they and the TPM's state are on
// the claim's disk.
func (c *Conn) KeepState(ctx context.Context, files hypervisor.StateFiles, nvram []byte) error {
	if files.NVRAM != "" {
		if err := c.writeNVRAM(ctx, files.NVRAM, nvram); err != nil {
			return fmt.Errorf("write the EFI variables to %s: %w", files.NVRAM, err)
		}
	}
	if err := c.options.Broker.SyncState(ctx, c.pod.UID, files.TPM); err != nil {
		return fmt.Errorf("write the persistent state to the disk: %w", err)
	}
	return nil
}

// syncState returns when the Pod's persistent state is on the claim's disk. It does nothing if the Pod has no such claim.
func (c *Conn) syncState(ctx context.Context) error {
	if err := c.options.Broker.SyncState(ctx, c.pod.UID, ""); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write the persistent state to the disk: %w", err)
	}
	return nil
}

// CheckState returns hypervisor.ErrStateDamaged with the name of a file of the persistent state that exists and is empty. swtpm and QEMU
// fail with such a file. It is what a snapshot or a crash of the node leaves of a file that was written shortly before.
func (c *Conn) CheckState(ctx context.Context, files hypervisor.StateFiles) error {
	names := []string{files.NVRAM}
	if files.TPM != "" {
		names = append(names, path.Join(files.TPM, launcherpod.TPMStateFile))
	}
	for _, name := range names {
		if name == "" {
			continue
		}
		size, err := c.stateSize(ctx, name)
		switch {
		case errors.Is(err, fs.ErrNotExist): // It is created with the guest.
		case err != nil:
			return fmt.Errorf("inspect %s: %w", name, err)
		case size == 0:
			return fmt.Errorf("%w: %s is empty", hypervisor.ErrStateDamaged, strings.TrimPrefix(name, launcherpod.StateDir+"/"))
		}
	}
	return nil
}

// stateSize returns the size of a file of the persistent state.
func (c *Conn) stateSize(ctx context.Context, name string) (int64, error) {
	f, err := c.options.Broker.OpenFile(ctx, c.pod.UID, launcherpod.StateDir, strings.TrimPrefix(name, launcherpod.StateDir+"/"))
	if err != nil {
		return 0, err
	}
	read := make(chan int64, 1)
	err = hanging.Do(ctx, c.pod.UID, f, func() error {
		info, err := f.Stat()
		if err == nil {
			read <- info.Size()
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return <-read, nil
}

// writeNVRAM lets libvirtd write the file, because libvirtd has access to its own Pod only.
func (c *Conn) writeNVRAM(ctx context.Context, file string, content []byte) error {
	pool, err := c.Pool(ctx, nvramPool, path.Dir(file))
	if err != nil {
		return err
	}
	volume := pool.Find(path.Base(file))
	switch {
	case volume == nil:
		return errors.New("libvirt has not created the file")
	case volume.Capacity != uint64(len(content)):
		return fmt.Errorf("the firmware here has room for %d bytes, and there are %d", volume.Capacity, len(content))
	}
	return c.Upload(ctx, nvramPool, volume.Name, content)
}

// GiveHostDir makes the user that QEMU runs as the owner of a directory of the node, if the kubelet created it for this Pod. It
// does nothing with an older directory.
func (c *Conn) GiveHostDir(ctx context.Context, dir string) error {
	return c.options.Broker.GiveHostDir(ctx, c.pod.UID, dir)
}
