// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package vmstate prepares the persistent state on the claim of a launcher Pod before libvirtd uses it, and writes its
// changes to the disk.
package vmstate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Adopt makes state that is on the claim under another name the guest's own, and returns its former names. The claim
// belongs to one VM. The TPM's state is named after the UUID of the firmware, and the file with the EFI variables after
// the VM: both names may have changed, because the VM was restored under another name, or has another UUID in its
// template. State that has the guest's names is never replaced. If there is more than one other state, the guest gets
// the one that was written last, which is the one that the VM used last.
func Adopt(claim, vmi, uuid string) (adopted []string, err error) {
	for _, kind := range []struct {
		dir, own string
		state    func(name string) (written time.Time, found bool)
	}{
		{launcherpod.TPMState, uuid, tpmWritten},
		{launcherpod.NVRAMState, filepath.Base(launcherpod.NVRAMStateFile(vmi)), variablesWritten},
	} {
		if kind.own == "" || kind.own != filepath.Base(kind.own) {
			continue // The UUID in the spec of a VMI is any text.
		}
		name, kindErr := adopt(filepath.Join(claim, kind.dir), kind.own, kind.state)
		if kindErr != nil {
			err = errors.Join(err, fmt.Errorf("adopt the persistent state in %s: %w", kind.dir, kindErr))
		}
		if name != "" {
			adopted = append(adopted, filepath.Join(kind.dir, name))
		}
	}
	return adopted, err
}

func adopt(dir, own string, state func(string) (time.Time, bool)) (string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	newest, at := "", time.Time{}
	for _, entry := range entries {
		written, found := state(filepath.Join(dir, entry.Name()))
		switch {
		case entry.Name() == own && found:
			return "", nil
		case entry.Name() == own: // libvirt has created the directory, and no TPM has used it.
			if err := os.RemoveAll(filepath.Join(dir, own)); err != nil {
				return "", err
			}
		case found && (newest == "" || written.After(at)):
			newest, at = entry.Name(), written
		}
	}
	if newest == "" {
		return "", nil
	}
	if err := os.Rename(filepath.Join(dir, newest), filepath.Join(dir, own)); err != nil {
		return "", err
	}
	return newest, syncFile(dir)
}

// tpmFiles is the prefix of the files with a TPM's state. Source: swtpm src/swtpm/swtpm_nvstore_dir.c.
const tpmFiles = "tpm2-"

// tpmWritten returns when the newest file of a TPM was written, and whether there is one. A file that is empty counts:
// the state is damaged then, which virt-handler reports.
func tpmWritten(name string) (written time.Time, found bool) {
	entries, err := os.ReadDir(filepath.Join(name, "tpm2"))
	if err != nil {
		return written, false
	}
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() && strings.HasPrefix(entry.Name(), tpmFiles) {
			found = true
			if info.ModTime().After(written) {
				written = info.ModTime()
			}
		}
	}
	return written, found
}

func variablesWritten(name string) (written time.Time, found bool) {
	info, err := os.Lstat(name)
	if err != nil || !info.Mode().IsRegular() || !strings.HasSuffix(name, launcherpod.NVRAMSuffix) {
		return written, false
	}
	return info.ModTime(), true
}

// RemoveTornAuthority removes the authority that signs the certificates of new TPMs if one of its files is empty, as
// after a crash of the node. swtpm_setup would fail with it, and creates another one. It returns the empty files.
func RemoveTornAuthority(claim string) (empty []string, err error) {
	dir := filepath.Join(claim, launcherpod.AuthorityState)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the authority of the TPM's certificates: %w", err)
	}
	// Its lock is a hidden file, which is always empty.
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool {
		return !e.Type().IsRegular() ||
			strings.HasPrefix(e.Name(), ".")
	})
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && info.Size() == 0 {
			empty = append(empty, filepath.Join(launcherpod.AuthorityState, entry.Name()))
		}
	}
	if len(empty) == 0 {
		return nil, nil
	}
	for _, entry := range entries {
		if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return empty, fmt.Errorf("remove the damaged authority of the TPM's certificates: %w", err)
		}
	}
	return empty, nil
}

// Sync returns when all files on the claim are on its disk, each directory after what is in it. It does nothing if the
// Pod has no claim.
func Sync(claim string) error {
	if err := syncTree(claim); err != nil {
		return fmt.Errorf("write the TPM's and EFI's state to its claim: %w", err)
	}
	return nil
}

func syncTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := filepath.Join(dir, entry.Name())
		switch {
		case entry.IsDir():
			err = errors.Join(err, syncTree(name))
		case entry.Type().IsRegular():
			err = errors.Join(err, syncFile(name))
		}
	}
	return errors.Join(err, syncFile(dir))
}

// syncFile writes a file or a directory to the disk. swtpm and QEMU replace and remove files meanwhile. Some file
// systems do not support it for directories, because they write entries synchronously.
func syncFile(name string) error {
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0) //nolint:gosec // in the Pod's own claim
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if err := file.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// Keeper writes what changes on a claim to its disk.
type Keeper struct{ watcher *fsnotify.Watcher }

// NewKeeper returns a Keeper of a claim. What changes from now on is not lost; Run writes it. swtpm and QEMU only write
// to the cache of the node, so that for half a minute a snapshot of the claim, or the disk after a crash of the node,
// would have files that are empty.
func NewKeeper(claim string) (*Keeper, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch the TPM's and EFI's state: %w", err)
	}
	if err := watchTree(watcher, claim); err != nil {
		_ = watcher.Close()
		return nil, fmt.Errorf("watch the TPM's and EFI's state: %w", err)
	}
	return &Keeper{watcher}, nil
}

// Run writes each change to the disk, until the context ends.
func (k *Keeper) Run(ctx context.Context, claim string) {
	log := logr.FromContextOrDiscard(ctx)
	defer func() { _ = k.watcher.Close() }()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case event := <-k.watcher.Events:
			err = k.write(event)
		case lost := <-k.watcher.Errors:
			log.V(1).Info("Events about the guest's persistent state were lost", "reason", lost.Error())
			err = errors.Join(watchTree(k.watcher, claim), Sync(claim))
		}
		if err != nil {
			log.Error(err, "Cannot write the guest's persistent state to its disk")
		}
	}
}

func (k *Keeper) write(event fsnotify.Event) error {
	if info, err := os.Lstat(event.Name); event.Has(fsnotify.Create) && err == nil && info.IsDir() {
		// It may have files already.
		return errors.Join(watchTree(k.watcher, event.Name), syncTree(event.Name), syncFile(filepath.Dir(event.Name)))
	}
	switch {
	case event.Has(fsnotify.Create):
		return errors.Join(syncFile(event.Name), syncFile(filepath.Dir(event.Name)))
	case event.Has(fsnotify.Write):
		return syncFile(event.Name)
	case event.Has(fsnotify.Remove):
		return syncFile(filepath.Dir(event.Name))
	}
	return nil
}

// watchTree watches a directory and all directories in it.
func watchTree(watcher *fsnotify.Watcher, dir string) error {
	if err := watcher.Add(dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if entry.IsDir() {
			err = errors.Join(err, watchTree(watcher, filepath.Join(dir, entry.Name())))
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
