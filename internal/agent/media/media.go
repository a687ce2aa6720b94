// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package media prepares a VMI's disks in its launcher Pod: overlays on images, empty disks, cloud-init media and disk
// images on claims. libvirtd creates the files, in the Pod and as the Pod's user, so that a Pod cannot redirect the
// agent's writes. Every step is idempotent, so that it can be repeated after a restart of the agent, but not once the
// domain runs.
package media

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Storage creates files in the launcher Pod.
type Storage interface {
	// Pool returns a directory of the Pod as a pool with its present volumes. It creates the pool if there is none.
	Pool(ctx context.Context, name, dir string) (*hypervisor.Pool, error)
	// Create creates a sparse volume.
	Create(ctx context.Context, pool string, v hypervisor.Volume) error
	// GiveHostDir makes QEMU's user the owner of a directory of the node if the kubelet created it for this Pod.
	GiveHostDir(ctx context.Context, dir string) error
	// Resize enlarges a raw volume, and allocates its space if filled is set.
	Resize(ctx context.Context, pool, name string, bytes uint64, filled bool) error
	// Upload writes a volume's content.
	Upload(ctx context.Context, pool, name string, data []byte) error
	// UploadFrom writes a volume's content, which has this size, as it is read.
	UploadFrom(ctx context.Context, pool, name string, size uint64, content io.Reader) error
}

// PoolName returns the name of libvirt's pool for the directory with a volume's disk image.
func PoolName(volume string) string { return "disk-" + volume }

// Limits are the cluster's rules for disk images on claims.
type Limits struct {
	// ReserveBytes are kept free on a claim.
	ReserveBytes uint64
	// TolerateLessPercent is how much smaller than the claim a disk may be if there is less space.
	TolerateLessPercent int
}

// Result is the input for the domain.
type Result struct {
	// Disks are the prepared volumes by name. DirectIO is set later, by package facts.
	Disks map[string]domain.DiskFact
	// KernelBoot is set for a VMI that boots a kernel from an image.
	KernelBoot *domain.KernelBootFact
	// ACPI is set for a VMI with ACPI tables of its own.
	ACPI domain.ACPIFact
	// Untracked explains to users which disks have no overlay, although their changed blocks are to be tracked.
	Untracked []string
}

// ErrWait means that another component has not yet provided something.
var ErrWait = errors.New("not available yet")

// InvalidError means that a volume cannot be prepared as the VMI's spec describes it.
type InvalidError struct {
	// Volume is the volume's name.
	Volume string
	// Retryable means that the error is not in the VMI's spec but in an object that it names and that can be corrected.
	Retryable bool
	// Err is the error.
	Err error
}

// Error returns the volume and the error.
func (e *InvalidError) Error() string { return fmt.Sprintf("volume %q: %v", e.Volume, e.Err) }

// Unwrap returns Err.
func (e *InvalidError) Unwrap() error { return e.Err }

// Prepare prepares the disks of a VMI whose domain does not run.
func Prepare(
	ctx context.Context, s Storage, content Content, limits Limits, vmi *v1.VirtualMachineInstance,
) (*Result, error) {
	p := &preparer{storage: s, content: content, limits: limits, vmi: vmi}
	result := &Result{Disks: map[string]domain.DiskFact{}, KernelBoot: kernelBoot(vmi)}
	for i := range vmi.Spec.Volumes {
		volume := &vmi.Spec.Volumes[i]
		fact, err := p.prepare(ctx, volume)
		var invalid *InvalidError
		switch {
		case errors.As(err, &invalid):
			invalid.Volume = volume.Name
			return nil, err
		case err != nil:
			return nil, fmt.Errorf("volume %q: %w", volume.Name, err)
		case fact != nil:
			result.Disks[volume.Name] = *fact
		}
	}
	var err error
	result.ACPI, err = p.acpi()
	return result, err
}

type preparer struct {
	storage Storage
	content Content
	limits  Limits
	vmi     *v1.VirtualMachineInstance
	// ephemeral is the pool of overlays, once it is needed.
	ephemeral *hypervisor.Pool
}

func (p *preparer) prepare(ctx context.Context, v *v1.Volume) (*domain.DiskFact, error) {
	if medium := filesVolumeOf(v); medium != nil {
		return p.fileDisk(ctx, v, medium)
	}
	switch {
	case v.ContainerDisk != nil:
		return p.containerDisk(ctx, v)
	case v.CloudInitNoCloud != nil:
		return p.cloudInit(ctx, v, noCloud(v.CloudInitNoCloud))
	case v.CloudInitConfigDrive != nil:
		return p.cloudInit(ctx, v, configDrive(v.CloudInitConfigDrive))
	case v.EmptyDisk != nil:
		return p.emptyDisk(ctx, v)
	case v.PersistentVolumeClaim != nil, v.DataVolume != nil:
		return p.claim(ctx, v)
	case v.Ephemeral != nil:
		return p.ephemeralClaim(ctx, v)
	case v.HostDisk != nil:
		return p.hostDisk(ctx, v)
	default:
		return nil, invalid("volumes of this kind cannot be given to a guest yet")
	}
}

// overlay creates a qcow2 file in the Pod's ephemeral storage, with or without a backing image. Its default capacity is
// that of the backing image.
func (p *preparer) overlay(
	ctx context.Context, name string, capacity uint64, backingPath, backingFormat string,
) (*domain.DiskFact, error) {
	volume := hypervisor.Volume{
		Name: name + ".qcow2", Format: hypervisor.FormatQCOW2, Capacity: capacity,
		BackingPath: backingPath, BackingFormat: backingFormat,
	}
	if err := p.ensure(ctx, volume); err != nil {
		return nil, err
	}
	return &domain.DiskFact{
		Path:   path.Join(launcherpod.EphemeralDisksDir, volume.Name),
		Format: hypervisor.FormatQCOW2, CapacityBytes: int64(capacity),
		BackingPath: backingPath, BackingFormat: backingFormat,
	}, nil
}

// medium creates a read-only medium with files for the guest.
func (p *preparer) medium(ctx context.Context, name, label string, files map[string][]byte) (*domain.DiskFact, error) {
	data, err := buildISO(label, files)
	if err != nil {
		return nil, err
	}
	volume := hypervisor.Volume{Name: name + ".iso", Format: hypervisor.FormatRaw, Capacity: uint64(len(data))}
	if err := p.ensure(ctx, volume); err != nil {
		return nil, err
	}
	// Always: an earlier attempt may have been interrupted after it created the file, or the files may have changed.
	if err := p.storage.Upload(ctx, launcherpod.EphemeralPool, volume.Name, data); err != nil {
		return nil, err
	}
	return &domain.DiskFact{
		Path: path.Join(launcherpod.EphemeralDisksDir, volume.Name), Format: hypervisor.FormatRaw,
		CapacityBytes: int64(len(data)),
	}, nil
}

// ensure creates a volume in the Pod's ephemeral storage unless it exists.
func (p *preparer) ensure(ctx context.Context, v hypervisor.Volume) error {
	if p.ephemeral == nil {
		pool, err := p.storage.Pool(ctx, launcherpod.EphemeralPool, launcherpod.EphemeralDisksDir)
		if err != nil {
			return err
		}
		p.ephemeral = pool
	}
	if p.ephemeral.Find(v.Name) != nil {
		return nil
	}
	return p.storage.Create(ctx, launcherpod.EphemeralPool, v)
}

func (p *preparer) emptyDisk(ctx context.Context, v *v1.Volume) (*domain.DiskFact, error) {
	capacity := v.EmptyDisk.Capacity.Value()
	if capacity <= 0 {
		return nil, invalid("emptyDisk.capacity must be more than 0")
	}
	// A disk of QEMU consists of whole sectors.
	return p.overlay(ctx, v.Name, alignUp(uint64(capacity), sectorBytes), "", "")
}

func kernelBoot(vmi *v1.VirtualMachineInstance) *domain.KernelBootFact {
	firmware := vmi.Spec.Domain.Firmware
	if firmware == nil || firmware.KernelBoot == nil || firmware.KernelBoot.Container == nil {
		return nil
	}
	fact := &domain.KernelBootFact{}
	container := firmware.KernelBoot.Container
	if container.KernelPath != "" {
		fact.Kernel = inImage(launcherpod.KernelBootDir, container.KernelPath)
	}
	if container.InitrdPath != "" {
		fact.Initrd = inImage(launcherpod.KernelBootDir, container.InitrdPath)
	}
	return fact
}

// inImage returns the path of a file of an image that is mounted at a directory. It is never outside of that directory.
func inImage(mount, inside string) string { return path.Join(mount, path.Join("/", inside)) }

func invalid(format string, args ...any) error {
	return &InvalidError{Err: fmt.Errorf(format, args...)}
}

const sectorBytes = 512

func alignUp(n, to uint64) uint64 { return (n + to - 1) / to * to }

func alignDown(n, to uint64) uint64 { return n / to * to }

// Content reads the files that the kubelet wrote to the launcher Pod's volumes.
type Content interface {
	// Secret returns the value of the first key that a Secret's volume has. The error wraps fs.ErrNotExist if it has none
	// of them.
	Secret(volume string, keys ...string) ([]byte, error)
	// Files returns all files of a volume by their path in it. The error wraps ErrTooMuch if they are too large.
	Files(kind VolumeKind, volume string) (map[string][]byte, error)
}

// VolumeKind is the kubelet's name of a kind of volume, and of the directory with a Pod's volumes of that kind.
type VolumeKind string

// Kinds of volumes with files. Sources: kubernetes pkg/volume/{configmap,secret,downwardapi,projected}.
const (
	ConfigMapVolume   VolumeKind = "kubernetes.io~configmap"
	SecretVolume      VolumeKind = "kubernetes.io~secret" //nolint:gosec // a path, no secret
	DownwardAPIVolume VolumeKind = "kubernetes.io~downward-api"
	ProjectedVolume   VolumeKind = "kubernetes.io~projected"
)

// ErrTooMuch means that the files of a volume exceed the limits of a medium.
var ErrTooMuch = errors.New("too much for a medium")

// maxFileBytes bounds the SSH keys on a medium, which may come from several Secrets.
const maxFileBytes = 2 << 20
