// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirt

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// poolAt returns the pool of a directory. The caller holds mu.
func (l *Launcher) poolAt(dir string) *pool {
	p, ok := l.pools[dir]
	if !ok {
		p = &pool{dir: dir}
		l.pools[dir] = p
	}
	return p
}

// Pool returns a directory as a pool.
func (l *Launcher) Pool(ctx context.Context, name, dir string) (*hypervisor.Pool, error) {
	if err := l.enter(ctx, "pool"); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.poolAt(dir)
	l.pools["name:"+name] = p
	free := uint64(10 << 30)
	if l.backups.free != nil {
		free = *l.backups.free
	}
	return &hypervisor.Pool{Available: free, Capacity: 20 << 30, Volumes: slices.Clone(p.volumes)}, nil
}

// poolNamed returns the pool of a name. The caller holds mu.
func (l *Launcher) poolNamed(name string) (*pool, error) {
	p, ok := l.pools["name:"+name]
	if !ok {
		return nil, fmt.Errorf("no storage pool %q", name)
	}
	return p, nil
}

// Create creates a volume.
func (l *Launcher) Create(ctx context.Context, poolName string, v hypervisor.Volume) error {
	if err := l.enter(ctx, "create"); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p, err := l.poolNamed(poolName)
	if err != nil {
		return err
	}
	if _, refused := l.rootDirs[p.dir]; refused {
		return fmt.Errorf("cannot create path %q: %w", path.Join(p.dir, v.Name), fs.ErrPermission)
	}
	for _, old := range p.volumes {
		if old.Name == v.Name {
			return fmt.Errorf("storage volume %q exists already", v.Name)
		}
	}
	if below := l.file(v.BackingPath); v.Capacity == 0 && below != nil {
		v.Capacity = below.Capacity
	}
	v.Path = path.Join(p.dir, v.Name)
	p.volumes = append(p.volumes, v)
	return nil
}

// Resize grows a volume.
func (l *Launcher) Resize(ctx context.Context, poolName, name string, bytes uint64, filled bool) error {
	if err := l.enter(ctx, "resize"); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p, err := l.poolNamed(poolName)
	if err != nil {
		return err
	}
	v := l.file(path.Join(p.dir, name))
	if v == nil || v.Capacity > bytes {
		return fmt.Errorf("storage volume %q does not exist, or has more than %d bytes", name, bytes)
	}
	v.Capacity = bytes
	if filled {
		v.Allocation = bytes
	}
	return l.respond("resize")
}

// file returns the file at a path, or nil. The caller holds mu.
func (l *Launcher) file(name string) *hypervisor.Volume {
	p, ok := l.pools[path.Dir(name)]
	if !ok {
		return nil
	}
	for i := range p.volumes {
		if p.volumes[i].Path == name {
			return &p.volumes[i]
		}
	}
	return nil
}

// UploadFrom stores the content of a volume.
func (l *Launcher) UploadFrom(ctx context.Context, pool, name string, size uint64, content io.Reader) error {
	data, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	if uint64(len(data)) != size {
		return fmt.Errorf("%d bytes were sent to the volume %q, not %d", len(data), name, size)
	}
	return l.Upload(ctx, pool, name, data)
}

// UploadAt stores a part of a volume's content.
func (l *Launcher) UploadAt(ctx context.Context, _, name string, at uint64, data []byte) error {
	if err := l.enter(ctx, "part"); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	content := l.content[name]
	if end := at + uint64(len(data)); end > uint64(len(content)) {
		content = append(content, make([]byte, end-uint64(len(content)))...)
	}
	copy(content[at:], data)
	l.content[name] = content
	return l.respond("part")
}

// ReadTracked reads the content of an overlay.
func (l *Launcher) ReadTracked(ctx context.Context, name string, read func(io.ReaderAt) error) error {
	if err := l.enter(ctx, "overlay"); err != nil {
		return err
	}
	l.mu.Lock()
	content, found := l.content[name]
	l.mu.Unlock()
	if !found {
		return fmt.Errorf("open %q: %w", name, fs.ErrNotExist)
	}
	return read(bytes.NewReader(content))
}

// Upload stores a volume's content.
func (l *Launcher) Upload(ctx context.Context, _, name string, data []byte) error {
	if err := l.enter(ctx, "upload"); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.content[name] = slices.Clone(data)
	return l.respond("upload")
}
