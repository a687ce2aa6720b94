// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

const (
	// dumpPool is the pool of the directory of a memory dump. It exists only while the directory is read.
	dumpPool = "memory-dump"
	// dumpRefusal is how long libvirt may take to refuse a memory dump. It does not respond before one is complete.
	dumpRefusal = 2 * time.Second
)

// BeginMemoryDump removes earlier memory dumps from a directory of the Pod and begins to write the guest's memory to a
// file there. It does not wait until that is done; MemoryDump returns how far it is.
func (c *Conn) BeginMemoryDump(ctx context.Context, domain, dir, file string) error {
	err := c.inDumpDirectory(ctx, dir, "remove earlier memory dumps from "+dir, func(pool *libvirt.StoragePool) error {
		volumes, err := pool.ListAllStorageVolumes(0)
		if err != nil {
			return err
		}
		var errs []error
		for i := range volumes {
			if name, err := volumes[i].GetName(); err == nil && strings.HasSuffix(name, hypervisor.DumpSuffix) {
				errs = append(errs, volumes[i].Delete(libvirt.STORAGE_VOL_DELETE_NORMAL))
			}
			_ = volumes[i].Free()
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	opening, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	client, found, err := c.direct(opening, domain)
	if err != nil {
		return err
	}
	defer client.Close()
	refusal, cancel := context.WithTimeout(ctx, dumpRefusal)
	defer cancel()
	if err := client.DumpMemory(refusal, found, path.Join(dir, file)); err != nil && refusal.Err() == nil {
		return fromClient("dump the guest's memory", err)
	}
	return ctx.Err()
}

// MemoryDump returns how far a memory dump is.
func (c *Conn) MemoryDump(ctx context.Context, domain, dir, file string) (hypervisor.DumpState, error) {
	// The job is read before the directory: libvirt removes the file of one that fails before the job ends.
	active := false
	err := c.onDomain(ctx, domain, "read the state of the memory dump", func(d *libvirt.Domain) error {
		job, err := d.GetJobStats(0)
		if err != nil {
			return err
		}
		active = job.Type != libvirt.DOMAIN_JOB_NONE && job.OperationSet && job.Operation == libvirt.DOMAIN_JOB_OPERATION_DUMP
		return nil
	})
	if err != nil || active {
		return hypervisor.DumpActive, err
	}
	state := hypervisor.DumpAbsent
	err = c.inDumpDirectory(ctx, dir, "look for the memory dump in "+dir, func(pool *libvirt.StoragePool) error {
		volume, err := pool.LookupStorageVolByName(file)
		switch {
		case isCode(err, libvirt.ERR_NO_STORAGE_VOL):
			return nil
		case err != nil:
			return err
		}
		state = hypervisor.DumpDone
		return volume.Free()
	})
	return state, err
}

// inDumpDirectory calls a function with a pool of a directory, which ends afterwards: the directory is mounted only for
// the dump.
func (c *Conn) inDumpDirectory(ctx context.Context, dir, what string, do func(*libvirt.StoragePool) error) error {
	ctx, end := c.startConversation(ctx)
	defer end()
	return c.call(ctx, actTimeout, what, func(l *libvirt.Connect) error {
		pool, err := ensurePool(l, dumpPool, dir)
		if err != nil {
			return fmt.Errorf("open the directory: %w", err)
		}
		defer func() { _ = pool.Free() }()
		return errors.Join(c.large(ctx, func() error { return do(pool) }), pool.Destroy())
	})
}
