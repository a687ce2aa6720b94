// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/decide/backup"
)

const (
	// maxCheckpoints is how many checkpoints of a domain are read. A guest has one more than it keeps.
	maxCheckpoints = 64
	// maxCheckpointDisks is how many disks of a checkpoint are read, and maxTargetName how long the names of their targets
	// can be.
	maxCheckpointDisks, maxTargetName = 256, 16
	// SmallCheckpoints is how many bytes the checkpoints of a domain may have before they take memory of the budget for
	// large responses.
	SmallCheckpoints = 16 << 10
	// stringBytes is the size of a string without its text.
	stringBytes = 16
)

// Checkpoints returns the checkpoints that libvirt has of a domain. They are gone with the domain's QEMU.
func (c *Conn) Checkpoints(ctx context.Context, domain string) ([]hypervisor.Checkpoint, error) {
	ctx, end := c.startConversation(ctx)
	defer end()
	var found []hypervisor.Checkpoint
	var kept int
	err := c.onDomain(ctx, domain, "read the checkpoints", func(d *libvirt.Domain) error {
		list, err := d.ListAllCheckpoints(0)
		if err != nil {
			return err
		}
		defer func() {
			for i := range list {
				_ = list[i].Free()
			}
		}()
		for i := range list[:min(len(list), maxCheckpoints)] {
			text, err := list[i].GetXMLDesc(libvirt.DOMAIN_CHECKPOINT_XML_NO_DOMAIN)
			if isCode(err, libvirt.ERR_NO_DOMAIN_CHECKPOINT) {
				continue
			}
			if err != nil {
				return err
			}
			parsed := &libvirtxml.DomainCheckpoint{}
			if err := hypervisor.ReadXML(ctx, text, parsed); err != nil {
				return fmt.Errorf("parse the XML of a checkpoint: %w", err)
			}
			checkpoint, bytes := checkpointOf(parsed)
			if kept += bytes; kept > SmallCheckpoints {
				if err := hypervisor.Reserve(ctx); err != nil {
					return err
				}
			}
			if hypervisor.IsCheckpointName(checkpoint.Name) {
				found = append(found, checkpoint)
			}
		}
		return nil
	})
	return found, err
}

// checkpointOf returns a checkpoint with the disks that it has a bitmap of, and how many bytes of memory it takes. A
// hostile launcher may have written it.
func checkpointOf(parsed *libvirtxml.DomainCheckpoint) (checkpoint hypervisor.Checkpoint, bytes int) {
	checkpoint.Name = parsed.Name
	bytes = len(checkpoint.Name) + stringBytes
	if parsed.Disks == nil {
		return checkpoint, bytes
	}
	for _, disk := range parsed.Disks.Disks[:min(len(parsed.Disks.Disks), maxCheckpointDisks)] {
		if disk.Checkpoint == checkpointBitmap && len(disk.Name) <= maxTargetName {
			checkpoint.Targets = append(checkpoint.Targets, disk.Name)
			bytes += len(disk.Name) + stringBytes
		}
	}
	return checkpoint, bytes
}

// DeleteCheckpoint deletes a checkpoint with its bitmaps. It does nothing if there is none.
func (c *Conn) DeleteCheckpoint(ctx context.Context, domain, name string) error {
	return c.onDomain(ctx, domain, "delete the checkpoint "+name, func(d *libvirt.Domain) error {
		checkpoint, err := d.CheckpointLookupByName(name, 0)
		if isCode(err, libvirt.ERR_NO_DOMAIN_CHECKPOINT) {
			return nil
		}
		if err != nil {
			return err
		}
		defer func() { _ = checkpoint.Free() }()
		return checkpoint.Delete(0)
	})
}

// RedefineCheckpoint makes libvirt know a checkpoint of which QEMU has a bitmap for each of these disks, as it has
// after a migration. It fails if one of the bitmaps is missing or incomplete.
func (c *Conn) RedefineCheckpoint(ctx context.Context, domain string, checkpoint hypervisor.Checkpoint) error {
	definition, err := redefinition(checkpoint, c.options.clock().Now())
	if err != nil {
		return err
	}
	return c.onDomain(ctx, domain, "define the checkpoint "+checkpoint.Name+" again", func(d *libvirt.Domain) error {
		created, err := d.CreateCheckpointXML(definition,
			libvirt.DOMAIN_CHECKPOINT_CREATE_REDEFINE|libvirt.DOMAIN_CHECKPOINT_CREATE_REDEFINE_VALIDATE)
		if err != nil {
			return err
		}
		return created.Free()
	})
}

// redefinition returns the definition of a checkpoint that exists. libvirt requires a time, which it does not use.
func redefinition(checkpoint hypervisor.Checkpoint, now time.Time) (string, error) {
	definition := &libvirtxml.DomainCheckpoint{
		Name: checkpoint.Name, CreationTime: strconv.FormatInt(now.Unix(), 10), Disks: &libvirtxml.DomainCheckpointDisks{},
	}
	for _, target := range checkpoint.Targets {
		definition.Disks.Disks = append(definition.Disks.Disks, libvirtxml.DomainCheckpointDisk{
			Name: target, Checkpoint: checkpointBitmap, Bitmap: checkpoint.Name,
		})
	}
	text, err := definition.Marshal()
	if err != nil {
		return "", fmt.Errorf("write the checkpoint's XML: %w", err)
	}
	return text, nil
}

// Values of attributes of libvirt's XML of backups and checkpoints.
const (
	checkpointBitmap  = "bitmap"
	checkpointNone    = "no"
	modeIncremental   = "incremental"
	includedInABackup = "yes"
)

// backupXML returns the definitions of a backup and of its checkpoint, which is empty if the backup creates none.
func backupXML(r hypervisor.BackupRequest) (definition, checkpoint string, err error) {
	if r.Socket != "" {
		definition, err = pullOf(r).Marshal()
	} else {
		definition, err = pushOf(r).Marshal()
	}
	if err != nil {
		return "", "", fmt.Errorf("write the backup's XML: %w", err)
	}
	if r.Checkpoint == "" {
		return definition, "", nil
	}
	created := &libvirtxml.DomainCheckpoint{Name: r.Checkpoint, Disks: &libvirtxml.DomainCheckpointDisks{}}
	for _, image := range r.Images {
		tracked := libvirtxml.DomainCheckpointDisk{Name: image.Target, Checkpoint: checkpointNone}
		if image.Tracked {
			tracked.Checkpoint = checkpointBitmap
		}
		created.Disks.Disks = append(created.Disks.Disks, tracked)
	}
	if checkpoint, err = created.Marshal(); err != nil {
		return "", "", fmt.Errorf("write the checkpoint's XML: %w", err)
	}
	return definition, checkpoint, nil
}

// pushOf returns a backup that copies disks to images.
func pushOf(r hypervisor.BackupRequest) *libvirtxml.DomainBackup {
	disks := &libvirtxml.DomainBackupPushDisks{}
	for _, image := range r.Images {
		disk := libvirtxml.DomainBackupPushDisk{
			Name: image.Target, Backup: includedInABackup,
			Driver: &libvirtxml.DomainBackupDiskDriver{Type: hypervisor.FormatQCOW2}, Target: fileOf(r.File(image)),
		}
		if r.Since != "" {
			disk.BackupMode, disk.Incremental = modeIncremental, r.Since
		}
		disks.Disks = append(disks.Disks, disk)
	}
	return &libvirtxml.DomainBackup{Push: &libvirtxml.DomainBackupPush{Disks: disks}}
}

// pullOf returns a backup in which QEMU serves disks at a socket, and keeps in scratch files what the guest overwrites.
func pullOf(r hypervisor.BackupRequest) *libvirtxml.DomainBackup {
	disks := &libvirtxml.DomainBackupPullDisks{}
	for _, image := range r.Images {
		disk := libvirtxml.DomainBackupPullDisk{
			Name: image.Target, Backup: includedInABackup, ExportName: image.Export,
			Driver: &libvirtxml.DomainBackupDiskDriver{Type: hypervisor.FormatQCOW2}, Scratch: fileOf(r.File(image)),
		}
		if r.Since != "" {
			disk.BackupMode, disk.Incremental, disk.ExportBitmap = modeIncremental, r.Since, backup.DirtyBitmap
		}
		disks.Disks = append(disks.Disks, disk)
	}
	server := &libvirtxml.DomainBackupPullServer{UNIX: &libvirtxml.DomainBackupPullServerUNIX{Socket: r.Socket}}
	return &libvirtxml.DomainBackup{Pull: &libvirtxml.DomainBackupPull{Server: server, Disks: disks}}
}

func fileOf(path string) *libvirtxml.DomainDiskSource {
	return &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: path}}
}
