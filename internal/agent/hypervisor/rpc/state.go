// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/podprocess"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const (
	// nvramPool is the name of libvirt's storage pool with the EFI variables.
	nvramPool = "vm-state-nvram"
	// tpmStateFile is the permanent state of a TPM 2.0. Source: swtpm src/swtpm/swtpm_nvstore_dir.c.
	tpmStateFile = "tpm2-00.permall"
	// maxStateEntries is the limit for the entries of a claim. There are about ten files and directories.
	maxStateEntries = 256
)

// ReadNVRAM reads a file of the Pod with persistent EFI variables.
func (c *Conn) ReadNVRAM(ctx context.Context, name string) ([]byte, error) {
	var content []byte
	err := c.inPod(ctx, func(root *podprocess.Root) error {
		f, _, err := openStateFile(root, name)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		content, err = io.ReadAll(io.LimitReader(f, hypervisor.MaxNVRAM+1))
		if err == nil && (len(content) == 0 || len(content) > hypervisor.MaxNVRAM) {
			err = fmt.Errorf("it has %d bytes or more", len(content))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the EFI variables in %s: %w", name, err)
	}
	return content, nil
}

// KeepState writes the EFI variables of the Pod's guest, which does not run yet, and returns when they and the TPM's state are on
// the claim's disk.
func (c *Conn) KeepState(ctx context.Context, files hypervisor.StateFiles, nvram []byte) error {
	if files.NVRAM != "" {
		if err := c.writeNVRAM(ctx, files.NVRAM, nvram); err != nil {
			return fmt.Errorf("write the EFI variables to %s: %w", files.NVRAM, err)
		}
	}
	err := c.inPod(ctx, func(root *podprocess.Root) error { return syncState(root, files) })
	if err != nil {
		return fmt.Errorf("write the persistent state to the disk: %w", err)
	}
	return nil
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

// mountsBefore is how long before a Pod's own directory the kubelet may create a directory of the node for the Pod, because it
// starts both at the same time. Source: kubernetes pkg/kubelet/kubelet.go (makePodDataDirs) and pkg/kubelet/volumemanager.
const mountsBefore = 10 * time.Second

// GiveHostDir makes the user that QEMU runs as the owner of a directory of the node, if the kubelet created it for this Pod. It
// does nothing with an older directory.
func (c *Conn) GiveHostDir(ctx context.Context, dir string) error {
	err := c.inPod(ctx, func(root *podprocess.Root) error {
		since, err := c.podMade()
		if err != nil || since.IsZero() {
			return err
		}
		return root.ChownNewDirectory(dir, launcherpod.QEMUUser, since.Add(-mountsBefore))
	})
	if err != nil {
		return fmt.Errorf("check whether the kubelet created %s: %w", dir, err)
	}
	return nil
}

// podMade returns when the kubelet created the Pod's directory, or zero if its file system does not record that.
func (c *Conn) podMade() (time.Time, error) {
	pods, err := openDir(c.options.PodsDir)
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = pods.Close() }()
	// The UID is valid, because the path to the Pod's socket contains it too.
	pod, err := openBeneath(pods, string(c.pod.UID))
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = pod.Close() }()
	return podprocess.CreationTime(pod)
}

// inPod calls a function with the root directory of the Pod's libvirtd.
func (c *Conn) inPod(ctx context.Context, do func(root *podprocess.Root) error) error {
	root, err := c.openRoot()
	if err != nil {
		return fmt.Errorf("open the launcher Pod's root directory: %w", err)
	}
	return root.Do(ctx, c.process.Pod, do)
}

func (c *Conn) openRoot() (*podprocess.Root, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return nil, hypervisor.ErrUnreachable
	}
	return podprocess.OpenRoot(c.process.Dir)
}

// syncState returns when all files of the claim are on its disk. It opens nothing but the claim, whatever links the Pod has
// created.
func syncState(root *podprocess.Root, files hypervisor.StateFiles) error {
	dir, err := root.OpenWithin(launcherpod.StateDir, ".")
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if files.TPM != "" {
		if err := findTPMState(root, files.TPM); err != nil {
			return errors.Join(fmt.Errorf("the TPM's state is not complete in %s", files.TPM), err)
		}
	}
	claim, err := os.OpenRoot(throughFD(dir))
	if err != nil {
		return err
	}
	defer func() { _ = claim.Close() }()
	entries := 0
	return fs.WalkDir(claim.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if entries++; err != nil || entries > maxStateEntries {
			return errors.Join(err, fmt.Errorf("%d entries were read", entries))
		}
		if !entry.IsDir() && !entry.Type().IsRegular() {
			return nil
		}
		return syncFile(root, name)
	})
}

// findTPMState returns an error unless a directory of the claim has the state of a TPM.
func findTPMState(root *podprocess.Root, dir string) error {
	f, size, err := openStateFile(root, path.Join(dir, tpmStateFile))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if size == 0 {
		return errors.New("it is empty")
	}
	return nil
}

// openStateFile opens a regular file of the claim by its path in the Pod, and returns its size too.
func openStateFile(root *podprocess.Root, name string) (*os.File, int64, error) {
	within, err := filepath.Rel(launcherpod.StateDir, name)
	if err != nil {
		return nil, 0, err
	}
	f, err := root.OpenWithin(launcherpod.StateDir, within)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, 0, errors.Join(err, errors.New("it is not a regular file"), f.Close())
	}
	return f, info.Size(), nil
}

func syncFile(root *podprocess.Root, name string) error {
	f, err := root.OpenWithin(launcherpod.StateDir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // swtpm replaces its files.
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	// Some file systems do not support fsync on directories, because they write entries synchronously.
	if err := f.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}
