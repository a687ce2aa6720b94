// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/migration/qemutls"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// keyMode allows only libvirtd and QEMU to read a key.
const keyMode = "0600"

// file is a file in the directory of a migration's certificates.
type file struct {
	name    string
	content []byte
}

// tlsFiles returns the files with the names that QEMU expects. Source: qemu include/crypto/tlscredsx509.h.
func tlsFiles(files qemutls.Files) []file {
	if files.Server {
		return []file{
			{"ca-cert.pem", files.CA}, {"server-cert.pem", files.Certificate}, {"server-key.pem", files.Key},
			{"dh-params.pem", []byte(qemutls.DHParameters)},
		}
	}
	return []file{{"ca-cert.pem", files.CA}, {"client-cert.pem", files.Certificate}, {"client-key.pem", files.Key}}
}

// PutMigrationTLS writes the certificates of a migration for the Pod's QEMU, in place of any others. libvirtd writes them: the
// agent opens no path that the Pod controls.
func (c *Conn) PutMigrationTLS(ctx context.Context, files qemutls.Files) error {
	if err := c.RemoveMigrationTLS(ctx); err != nil {
		return err
	}
	for _, f := range tlsFiles(files) {
		if err := c.createVolume(ctx, launcherpod.MigrationTLSPool, keyVolume(f)); err != nil {
			return err
		}
		if err := c.Upload(ctx, launcherpod.MigrationTLSPool, f.name, f.content); err != nil {
			return err
		}
	}
	return nil
}

// keyVolume describes a file that only libvirtd and QEMU can read.
func keyVolume(f file) *libvirtxml.StorageVolume {
	return &libvirtxml.StorageVolume{
		Name:     f.name,
		Capacity: &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: uint64(len(f.content))},
		Target: &libvirtxml.StorageVolumeTarget{
			Format:      &libvirtxml.StorageVolumeTargetFormat{Type: "raw"},
			Permissions: &libvirtxml.StorageVolumeTargetPermissions{Mode: keyMode},
		},
	}
}

// RemoveMigrationTLS removes the certificates of a migration from the Pod.
func (c *Conn) RemoveMigrationTLS(ctx context.Context) error {
	return c.call(ctx, actTimeout, "remove a migration's certificates", func(l *libvirt.Connect) error {
		pool, err := ensurePool(l, launcherpod.MigrationTLSPool, launcherpod.MigrationTLSDir)
		if err != nil {
			return err
		}
		defer func() { _ = pool.Free() }()
		for _, side := range []bool{true, false} {
			for _, f := range tlsFiles(qemutls.Files{Server: side}) {
				if err := removeVolume(pool, f.name); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// removeVolume deletes a volume, if there is one.
func removeVolume(pool *libvirt.StoragePool, name string) error {
	volume, err := pool.LookupStorageVolByName(name)
	if err == nil {
		defer func() { _ = volume.Free() }()
		err = volume.Delete(libvirt.STORAGE_VOL_DELETE_NORMAL)
	}
	if isCode(err, libvirt.ERR_NO_STORAGE_VOL) {
		return nil
	}
	return err
}
