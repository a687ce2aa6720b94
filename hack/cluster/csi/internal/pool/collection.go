// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pool

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	diskFile   = "disk"
	recordFile = "record.json"
	// idBytes is how many bytes of a name's digest an ID contains.
	idBytes = 16
)

// Collection contains the volumes, the snapshots or the groups.
type Collection[T any] struct {
	pool        *Pool
	dir, prefix string
}

// Item is a volume, snapshot or group.
type Item[T any] struct {
	ID string
	// Size of the disk in bytes.
	Size   int64
	Record T
}

// ID returns the ID of the item that was requested with a name. It depends only on the name, so that a repeated request
// finds the item of the first one, and a name may be any text.
func (c Collection[T]) ID(name string) string {
	sum := sha256.Sum256([]byte(name))
	return c.prefix + hex.EncodeToString(sum[:idBytes])
}

// IsID reports whether an item may have that ID.
func (c Collection[T]) IsID(id string) bool {
	digest, found := strings.CutPrefix(id, c.prefix)
	decoded, err := hex.DecodeString(digest)
	return found && err == nil && len(decoded) == idBytes
}

// Get returns an item. If there is none, the error is fs.ErrNotExist.
func (c Collection[T]) Get(id string) (Item[T], error) {
	item := Item[T]{ID: id}
	if !c.IsID(id) {
		return item, fmt.Errorf("%q: %w", id, fs.ErrNotExist)
	}
	info, err := c.pool.root.Stat(filepath.Join(c.dir, id, diskFile))
	if err != nil {
		return item, fmt.Errorf("find the disk: %w", err)
	}
	item.Size = info.Size()
	data, err := c.pool.root.ReadFile(filepath.Join(c.dir, id, recordFile))
	if err != nil {
		return item, fmt.Errorf("read the record: %w", err)
	}
	if err := json.Unmarshal(data, &item.Record); err != nil {
		return item, fmt.Errorf("decode the record of %s: %w", id, err)
	}
	return item, nil
}

// List returns all items, sorted by their IDs.
func (c Collection[T]) List() ([]Item[T], error) {
	ids, err := c.pool.entries(c.dir)
	if err != nil {
		return nil, err
	}
	slices.Sort(ids)
	items := make([]Item[T], 0, len(ids))
	for _, id := range ids {
		item, err := c.Get(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}

// Open opens the disk of an item.
func (c Collection[T]) Open(id string) (*os.File, error) {
	if !c.IsID(id) {
		return nil, fmt.Errorf("%q: %w", id, fs.ErrNotExist)
	}
	file, err := c.pool.root.OpenFile(filepath.Join(c.dir, id, diskFile), os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open the disk: %w", err)
	}
	return file, nil
}

// Create creates an item whose disk the function fills. No other process observes it before it is complete.
func (c Collection[T]) Create(id string, record T, fill func(disk *os.File) error) (Item[T], error) {
	half := filepath.Join(halfMadeDir, id)
	if err := c.make(half, record, fill); err != nil {
		return Item[T]{}, errors.Join(fmt.Errorf("make %s: %w", id, err), c.pool.root.RemoveAll(half))
	}
	if err := c.pool.root.Rename(half, filepath.Join(c.dir, id)); err != nil {
		return Item[T]{}, errors.Join(fmt.Errorf("add %s: %w", id, err), c.pool.root.RemoveAll(half))
	}
	if err := c.pool.sync(c.dir); err != nil {
		return Item[T]{}, err
	}
	return c.Get(id)
}

func (c Collection[T]) make(half string, record T, fill func(disk *os.File) error) error {
	// An earlier attempt may have failed to clean up.
	if err := c.pool.root.RemoveAll(half); err != nil {
		return fmt.Errorf("remove a former attempt: %w", err)
	}
	if err := c.pool.root.Mkdir(half, 0o700); err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	disk, err := c.pool.root.OpenFile(filepath.Join(half, diskFile), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("make a disk: %w", err)
	}
	if err := fill(disk); err != nil {
		return errors.Join(err, disk.Close())
	}
	if err := errors.Join(disk.Sync(), disk.Close()); err != nil {
		return fmt.Errorf("write a disk: %w", err)
	}
	return c.write(half, record)
}

// Update replaces the record of an item.
func (c Collection[T]) Update(id string, record T) error {
	if !c.IsID(id) {
		return fmt.Errorf("%q: %w", id, fs.ErrNotExist)
	}
	return c.write(filepath.Join(c.dir, id), record)
}

// write replaces a record durably.
func (c Collection[T]) write(dir string, record T) error {
	data, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encode a record: %w", err)
	}
	path := filepath.Join(dir, recordFile)
	file, err := c.pool.root.Create(path + ".new")
	if err != nil {
		return fmt.Errorf("make a record: %w", err)
	}
	_, err = file.Write(data)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("write a record: %w", err)
	}
	if err := c.pool.root.Rename(path+".new", path); err != nil {
		return fmt.Errorf("replace a record: %w", err)
	}
	return c.pool.sync(dir)
}

// Delete deletes an item. It succeeds if there is none.
func (c Collection[T]) Delete(id string) error {
	if !c.IsID(id) {
		return nil
	}
	half := filepath.Join(halfMadeDir, id)
	if err := c.pool.root.RemoveAll(half); err != nil {
		return fmt.Errorf("remove a former attempt: %w", err)
	}
	err := c.pool.root.Rename(filepath.Join(c.dir, id), half)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", id, err)
	}
	if err := c.pool.sync(c.dir); err != nil {
		return err
	}
	if err := c.pool.root.RemoveAll(half); err != nil {
		return fmt.Errorf("delete %s: %w", id, err)
	}
	return nil
}
