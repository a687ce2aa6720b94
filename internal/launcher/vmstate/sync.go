// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmstate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
)

// Sync returns when all files on the claim are on its disk, each directory after what is in it. It does nothing if the Pod has no claim.
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

// syncFile writes a file or a directory to the disk. swtpm and QEMU replace and remove files meanwhile. Some file systems do not support it
// for directories, because they write entries synchronously.
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

// NewKeeper returns a Keeper of a claim. What changes from now on is not lost; Run writes it. swtpm and QEMU only write to the cache of the
// node, so that for half a minute a snapshot of the claim, or the disk after a crash of the node, would have files that are empty.
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
