// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package pool stores volumes and snapshots in one directory, which is the driver's only state:
//
//	volumes/<id>/disk, record.json     a volume: its content, and what was requested
//	snapshots/<id>/disk, record.json   a snapshot
//	groups/<id>/disk, record.json      a group of snapshots of one moment, whose disk is empty
//	nodes/<name>                       a node that runs the driver
//	half-made/                         items that are being created or deleted
//
// A process can be killed at any time. A volume or snapshot appears and disappears by one rename, and a record is
// replaced by one.
package pool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	nodesDir    = "nodes"
	halfMadeDir = "half-made"
	lockFile    = "controller.lock"
)

// Volume is the record of a volume. Its size is that of its disk.
type Volume struct {
	// Name is the name that was requested.
	Name string `json:"name"`
	// Block is set if the disk is given to Pods as a device; otherwise it contains a filesystem.
	Block bool `json:"block"`
	// SourceVolume or SourceSnapshot is the ID of the source from which the disk was cloned.
	SourceVolume   string `json:"sourceVolume,omitempty"`
	SourceSnapshot string `json:"sourceSnapshot,omitempty"`
	// Nodes are the access modes with which nodes may use the volume, by the nodes' names.
	Nodes map[string]string `json:"nodes,omitempty"`
}

// Snapshot is the record of a snapshot.
type Snapshot struct {
	// Name is the name that was requested.
	Name string `json:"name"`
	// SourceVolume is the ID of the volume.
	SourceVolume string `json:"sourceVolume"`
	// Created is the time from which the content is.
	Created time.Time `json:"created"`
	// Group is the ID of its group. If that group has no record, the snapshot is ignored.
	Group string `json:"group,omitempty"`
}

// Group is the record of a group of snapshots.
type Group struct {
	// Name is the name that was requested.
	Name string `json:"name"`
	// Snapshots are the IDs of its snapshots, by those of their volumes.
	Snapshots map[string]string `json:"snapshots"`
	// Created is the time from which the contents are.
	Created time.Time `json:"created"`
}

// Pool is the directory.
type Pool struct {
	Volumes   Collection[Volume]
	Snapshots Collection[Snapshot]
	Groups    Collection[Group]

	root *os.Root
	dir  string
	lock *os.File
}

// Open opens the directory, and creates what it lacks.
func Open(dir string) (*Pool, error) {
	p := &Pool{dir: dir}
	p.Volumes = Collection[Volume]{pool: p, dir: "volumes", prefix: "vol-"}
	p.Snapshots = Collection[Snapshot]{pool: p, dir: "snapshots", prefix: "snap-"}
	p.Groups = Collection[Group]{pool: p, dir: "groups", prefix: "group-"}
	for _, name := range []string{p.Volumes.dir, p.Snapshots.dir, p.Groups.dir, nodesDir, halfMadeDir} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			return nil, fmt.Errorf("make the pool: %w", err)
		}
	}
	var err error
	if p.root, err = os.OpenRoot(dir); err != nil {
		return nil, fmt.Errorf("open the pool: %w", err)
	}
	return p, nil
}

// Close releases the directory.
func (p *Pool) Close() error {
	if p.lock != nil {
		return errors.Join(p.lock.Close(), p.root.Close())
	}
	return p.root.Close()
}

// Own makes this process the only one that changes volumes and snapshots, until it ends, and removes what an earlier
// one has left half-made.
func (p *Pool) Own() error {
	file, err := p.root.OpenFile(lockFile, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open the lock of the pool: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.Join(fmt.Errorf("another controller uses %s: %w", p.dir, err), file.Close())
	}
	p.lock = file
	remaining, err := p.entries(halfMadeDir)
	if err != nil {
		return err
	}
	for _, name := range remaining {
		if err := p.root.RemoveAll(filepath.Join(halfMadeDir, name)); err != nil {
			return fmt.Errorf("remove what is half-made: %w", err)
		}
	}
	return nil
}

// AddNode records that a node runs the driver.
func (p *Pool) AddNode(name string) error {
	if !isName(name) {
		return fmt.Errorf("%q is not the name of a node", name)
	}
	file, err := p.root.OpenFile(filepath.Join(nodesDir, name), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("record the node: %w", err)
	}
	return file.Close()
}

// HasNode reports whether a node of that name runs the driver.
func (p *Pool) HasNode(name string) (bool, error) {
	if !isName(name) {
		return false, nil
	}
	_, err := p.root.Stat(filepath.Join(nodesDir, name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENAMETOOLONG) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find the node: %w", err)
	}
	return true, nil
}

// Space returns how many bytes the pool's filesystem has in total, and how many are free.
func (p *Pool) Space() (total, free int64, err error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(p.dir, &stat); err != nil {
		return 0, 0, fmt.Errorf("read the free space of the pool: %w", err)
	}
	return int64(stat.Blocks) * stat.Frsize, int64(stat.Bavail) * stat.Frsize, nil
}

func (p *Pool) entries(dir string) ([]string, error) {
	file, err := p.root.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("list the pool: %w", err)
	}
	names, err := file.Readdirnames(-1)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("list the pool: %w", err)
	}
	return names, nil
}

// sync makes renames in a directory durable.
func (p *Pool) sync(dir string) error {
	file, err := p.root.Open(dir)
	if err != nil {
		return fmt.Errorf("open a directory of the pool: %w", err)
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("sync a directory of the pool: %w", err)
	}
	return nil
}

// isName reports whether a text is the name of a file, and not a path.
func isName(name string) bool {
	return filepath.IsLocal(name) && filepath.Base(name) == name && name != "."
}
