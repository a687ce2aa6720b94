// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package driver

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/vireo-project/vireo/hack/cluster/csi/internal/loop"
	"github.com/vireo-project/vireo/hack/cluster/csi/internal/pool"
)

type (
	volume   = pool.Item[pool.Volume]
	snapshot = pool.Item[pool.Snapshot]
	group    = pool.Item[pool.Group]
)

// Controller is the service that creates, clones, attaches and expands volumes. It is the only one that changes the
// pool.
type Controller struct {
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer

	pool *pool.Pool
	keys keys
}

// NewController returns the controller of a pool. A pool can have only one. It completes operations during which an
// earlier one was killed.
func NewController(p *pool.Pool) (*Controller, error) {
	if err := p.Own(); err != nil {
		return nil, err
	}
	c := &Controller{pool: p}
	if err := c.dropHalfGroups(); err != nil {
		return nil, err
	}
	volumes, err := p.Volumes.List()
	if err != nil {
		return nil, err
	}
	for _, v := range volumes {
		if err := c.attach(v.ID, len(v.Record.Nodes) > 0); err != nil {
			return nil, err
		}
		if err := c.thawAfterKill(v.ID); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// attach attaches a device of the disk's size to a volume, or detaches it.
func (c *Controller) attach(id string, attached bool) error {
	disk, err := c.pool.Volumes.Open(id)
	if err != nil {
		return err
	}
	if !attached {
		return errors.Join(loop.Detach(disk), disk.Close())
	}
	_, err = loop.Attach(disk)
	return errors.Join(err, loop.Resize(disk), disk.Close())
}

// ControllerGetCapabilities returns what the controller can do.
func (c *Controller) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, kind := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: kind}},
		})
	}
	return response, nil
}

// CreateVolume creates a volume, empty or as a clone of a snapshot or volume.
func (c *Controller) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if r.GetName() == "" {
		return nil, missing("name")
	}
	block, err := parseUses(r.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	if err := errors.Join(checkParameters(r.GetParameters()), checkParameters(r.GetMutableParameters())); err != nil {
		return nil, err
	}
	wanted := pool.Volume{
		Name: r.GetName(), Block: block,
		SourceVolume:   r.GetVolumeContentSource().GetVolume().GetVolumeId(),
		SourceSnapshot: r.GetVolumeContentSource().GetSnapshot().GetSnapshotId(),
	}
	if r.GetVolumeContentSource() != nil && wanted.SourceVolume == "" && wanted.SourceSnapshot == "" {
		return nil, missing("the ID of volume_content_source")
	}
	id := c.pool.Volumes.ID(r.GetName())
	release, err := c.keys.lock(ctx, id, wanted.SourceVolume, wanted.SourceSnapshot)
	if err != nil {
		return nil, err
	}
	defer release()
	existing, err := c.pool.Volumes.Get(id)
	if err == nil {
		return c.existing(existing, wanted, r.GetCapacityRange())
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	created, err := c.create(id, wanted, r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: describeVolume(created)}, nil
}

// existing returns the volume of a repeated request.
func (c *Controller) existing(v volume, wanted pool.Volume, r *csi.CapacityRange) (*csi.CreateVolumeResponse, error) {
	same := v.Record.Block == wanted.Block && v.Record.SourceVolume == wanted.SourceVolume &&
		v.Record.SourceSnapshot == wanted.SourceSnapshot
	fits := v.Size >= r.GetRequiredBytes() && (r.GetLimitBytes() == 0 || v.Size <= r.GetLimitBytes())
	if !same || !fits {
		return nil, status.Errorf(codes.AlreadyExists, "there is another volume %q, of %d bytes", wanted.Name, v.Size)
	}
	return &csi.CreateVolumeResponse{Volume: describeVolume(v)}, nil
}

func (c *Controller) create(id string, wanted pool.Volume, r *csi.CapacityRange) (volume, error) {
	source, least, err := c.source(wanted)
	if err != nil {
		return volume{}, err
	}
	if source != nil {
		defer func() { _ = source.Close() }()
	}
	size, err := c.size(r, wanted.Block, least)
	if err != nil {
		return volume{}, err
	}
	return c.pool.Volumes.Create(id, wanted, func(disk *os.File) error {
		if source != nil {
			if err := clone(disk, source); err != nil {
				return err
			}
		}
		if err := disk.Truncate(size); err != nil {
			return err
		}
		if source == nil && !wanted.Block {
			return format(disk, size)
		}
		return nil // the filesystem of a larger clone is grown when it is mounted
	})
}

// source opens the disk of which a volume is a clone, if it is a clone.
func (c *Controller) source(wanted pool.Volume) (disk *os.File, size int64, err error) {
	switch {
	case wanted.SourceSnapshot != "":
		if disk, err = c.pool.Snapshots.Open(wanted.SourceSnapshot); err != nil {
			return nil, 0, found(err, "snapshot", wanted.SourceSnapshot)
		}
	case wanted.SourceVolume != "":
		if disk, err = c.pool.Volumes.Open(wanted.SourceVolume); err != nil {
			return nil, 0, found(err, "volume", wanted.SourceVolume)
		}
	default:
		return nil, 0, nil
	}
	info, err := disk.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, disk.Close())
	}
	return disk, info.Size(), nil
}

// size is sizeFor with the pool's size as the limit. The free space does not matter, because disks are sparse.
func (c *Controller) size(r *csi.CapacityRange, block bool, least int64) (int64, error) {
	size, err := sizeFor(r, block, least)
	if err != nil {
		return 0, err
	}
	total, _, err := c.pool.Space()
	if err != nil {
		return 0, err
	}
	if size > total {
		return 0, status.Errorf(codes.OutOfRange, "%d bytes are more than the %d bytes of the pool", size, total)
	}
	return size, nil
}

// clone fills a disk with the current content of another one.
func clone(disk, source *os.File) error {
	if err := loop.Flush(source); err != nil {
		return err
	}
	err := pool.Clone(disk, source)
	if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	device, err := loop.Find(source)
	if err != nil {
		return err
	}
	if device != "" {
		return status.Error(codes.FailedPrecondition,
			"the volume is in use, and the pool's filesystem cannot clone files (XFS and Btrfs can): a copy would mix contents of different times")
	}
	return pool.Copy(disk, source)
}

// DeleteVolume deletes a volume. Its snapshots and clones have their own disks.
func (c *Controller) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	id := r.GetVolumeId()
	if id == "" {
		return nil, missing("volume_id")
	}
	release, err := c.keys.lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	v, err := c.pool.Volumes.Get(id)
	if errors.Is(err, fs.ErrNotExist) {
		return &csi.DeleteVolumeResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if len(v.Record.Nodes) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is attached to nodes %v", id,
			slices.Sorted(maps.Keys(v.Record.Nodes)))
	}
	if err := c.attach(id, false); err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeResponse{}, c.pool.Volumes.Delete(id)
}

// ValidateVolumeCapabilities confirms that a volume can be used as requested.
func (c *Controller) ValidateVolumeCapabilities(
	_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, missing("volume_id")
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, missing("volume_capabilities")
	}
	v, err := c.pool.Volumes.Get(r.GetVolumeId())
	if err != nil {
		return nil, found(err, "volume", r.GetVolumeId())
	}
	if reason := refusal(v, r); reason != "" {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: reason}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(),
		Parameters: r.GetParameters(), MutableParameters: r.GetMutableParameters(),
	}}, nil
}

// refusal returns why a volume cannot be used as requested, or an empty text.
func refusal(v volume, r *csi.ValidateVolumeCapabilitiesRequest) string {
	block, err := parseUses(r.GetVolumeCapabilities())
	if err == nil && block != v.Record.Block {
		err = status.Error(codes.InvalidArgument, "the volume has the other access type")
	}
	if err := errors.Join(err, checkParameters(r.GetParameters()), checkParameters(r.GetMutableParameters())); err != nil {
		return err.Error()
	}
	return ""
}

// ListVolumes lists volumes, and the nodes to which they are attached.
func (c *Controller) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	if token := r.GetStartingToken(); token != "" && !c.pool.Volumes.IsID(token) {
		return nil, status.Errorf(codes.Aborted, "%q is not a token", token)
	}
	volumes, err := c.pool.Volumes.List()
	if err != nil {
		return nil, err
	}
	volumes, next, err := page(volumes, func(v volume) string { return v.ID }, r.GetStartingToken(), r.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	response := &csi.ListVolumesResponse{NextToken: next}
	for _, v := range volumes {
		response.Entries = append(response.Entries, &csi.ListVolumesResponse_Entry{
			Volume: describeVolume(v),
			Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: slices.Sorted(maps.Keys(v.Record.Nodes))},
		})
	}
	return response, nil
}

// GetCapacity returns the pool's free space.
func (c *Controller) GetCapacity(_ context.Context, r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	least := smallest(r)
	if least == 0 {
		return &csi.GetCapacityResponse{}, nil // no space for volumes that are not supported
	}
	total, free, err := c.pool.Space()
	if err != nil {
		return nil, err
	}
	return &csi.GetCapacityResponse{
		AvailableCapacity: free, MaximumVolumeSize: wrapperspb.Int64(total / grain * grain),
		MinimumVolumeSize: wrapperspb.Int64(least),
	}, nil
}

// smallest returns the size of the smallest volume with the requested properties, or 0 if no volume can have them.
func smallest(r *csi.GetCapacityRequest) int64 {
	if len(r.GetVolumeCapabilities()) == 0 {
		return grain
	}
	block, err := parseUses(r.GetVolumeCapabilities())
	switch {
	case err != nil || checkParameters(r.GetParameters()) != nil:
		return 0
	case block:
		return grain
	default:
		return minFilesystem
	}
}

// ControllerExpandVolume expands a volume, and its device if it has one. The node expands the filesystem.
func (c *Controller) ControllerExpandVolume(
	ctx context.Context, r *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	id := r.GetVolumeId()
	if id == "" {
		return nil, missing("volume_id")
	}
	if r.GetCapacityRange() == nil {
		return nil, missing("capacity_range")
	}
	release, err := c.keys.lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	v, err := c.pool.Volumes.Get(id)
	if err != nil {
		return nil, found(err, "volume", id)
	}
	size := v.Size
	if r.GetCapacityRange().GetRequiredBytes() > v.Size {
		if size, err = c.size(r.GetCapacityRange(), v.Record.Block, v.Size); err != nil {
			return nil, err
		}
	} else if limit := r.GetCapacityRange().GetLimitBytes(); limit > 0 && v.Size > limit {
		return nil, status.Errorf(codes.OutOfRange, "the volume has %d bytes, and none can be taken away", v.Size)
	}
	disk, err := c.pool.Volumes.Open(id)
	if err != nil {
		return nil, err
	}
	// The device is resized even if the disk already has the size, because an earlier call may have been killed in
	// between.
	if err := errors.Join(disk.Truncate(size), disk.Sync(), loop.Resize(disk), disk.Close()); err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: !v.Record.Block}, nil
}

func describeVolume(v volume) *csi.Volume {
	described := &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Size}
	switch {
	case v.Record.SourceSnapshot != "":
		described.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: v.Record.SourceSnapshot},
		}}
	case v.Record.SourceVolume != "":
		described.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.Record.SourceVolume},
		}}
	}
	return described
}
