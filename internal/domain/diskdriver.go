// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/diskbus"
)

// maxQueues is KubeVirt's limit for the queues of a multi-queue device.
const maxQueues = 256

// driver sets how QEMU reads and writes the disk.
func (b *diskBuilder) driver(disk *libvirtxml.DomainDisk, bus v1.DiskBus) (*libvirtxml.DomainDiskDriver, error) {
	driver := &libvirtxml.DomainDiskDriver{Name: "qemu", Type: b.fact.Format}
	var err error
	if driver.Cache, err = b.cache(); err != nil {
		return nil, err
	}
	if driver.IO, err = b.io(disk, driver.Cache); err != nil {
		return nil, err
	}
	if driver.ErrorPolicy, err = b.errorPolicy(); err != nil {
		return nil, err
	}
	if disk.ReadOnly == nil && !b.fact.KeepsSpace {
		// Without this, blocks that the guest discards stay allocated.
		driver.Discard = "unmap"
	}
	if disk.Device == diskbus.Disk && diskbus.Of(bus).Virtio {
		b.plan.apply(b.spec.Name, driver)
		if isTrue(b.vmi.Spec.Domain.Devices.BlockMultiQueue) {
			t := topologyOf(&b.vmi.Spec.Domain)
			queues := min(t.vcpus(), maxQueues)
			driver.Queues = &queues
		}
	}
	return driver, nil
}

// cache defaults to none, which bypasses the node's page cache, if the file system supports direct I/O. Otherwise the
// default is writethrough.
func (b *diskBuilder) cache() (string, error) {
	path := b.path.Child("cache")
	switch cache := b.spec.Cache; {
	case isTrue(b.spec.Shareable) && cache != "" && cache != v1.CacheNone:
		return "", field.Invalid(path, cache, "a shareable disk must not be cached: set none, or leave it out")
	case cache == v1.CacheNone && !b.fact.DirectIO:
		return "", field.Invalid(path, cache,
			"the volume's file system does not support direct I/O: set writethrough or writeback, or leave it out")
	case cache == v1.CacheNone, cache == v1.CacheWriteThrough, cache == v1.CacheWriteBack:
		return string(cache), nil
	case cache != "":
		return "", field.NotSupported(path, cache, []v1.DriverCache{v1.CacheNone, v1.CacheWriteThrough, v1.CacheWriteBack})
	case b.fact.DirectIO:
		return string(v1.CacheNone), nil
	case isTrue(b.spec.Shareable):
		return "", field.Invalid(b.path.Child("shareable"), true,
			"a shareable disk must not be cached and the volume's file system does not support direct I/O: use a block volume")
	}
	return string(v1.CacheWriteThrough), nil
}

// io defaults to native for block devices and for files without holes, to which the kernel submits requests without
// blocking QEMU. Otherwise libvirt's default, threads, applies. Files of read-only disks also use threads: each QEMU
// with native I/O takes a part of the node's fs.aio-max-nr, and a guest does not start if that is used up.
func (b *diskBuilder) io(disk *libvirtxml.DomainDisk, cache string) (string, error) {
	path := b.path.Child("io")
	filled := b.fact.Block || b.fact.DataBlock || b.fact.Filled && disk.ReadOnly == nil
	switch mode := b.spec.IO; {
	case mode == v1.IONative && cache != string(v1.CacheNone):
		return "", field.Invalid(path, mode, "needs cache none and this disk has "+cache+": set threads, or leave it out")
	case mode == v1.IONative, mode == v1.IOThreads:
		return string(mode), nil
	case mode != "":
		return "", field.NotSupported(path, mode, []v1.DriverIO{v1.IONative, v1.IOThreads})
	case filled && cache == string(v1.CacheNone):
		return string(v1.IONative), nil
	}
	return "", nil
}

// errorPolicy defaults to stop: the guest is paused on an I/O error, and resumed when the error is resolved.
func (b *diskBuilder) errorPolicy() (string, error) {
	if b.spec.ErrorPolicy == nil {
		return string(v1.DiskErrorPolicyStop), nil
	}
	switch policy := *b.spec.ErrorPolicy; policy {
	case v1.DiskErrorPolicyStop, v1.DiskErrorPolicyIgnore, v1.DiskErrorPolicyReport, v1.DiskErrorPolicyEnospace:
		return string(policy), nil
	default:
		return "", field.NotSupported(b.path.Child("errorPolicy"), policy, []v1.DiskErrorPolicy{
			v1.DiskErrorPolicyStop, v1.DiskErrorPolicyIgnore, v1.DiskErrorPolicyReport, v1.DiskErrorPolicyEnospace,
		})
	}
}
