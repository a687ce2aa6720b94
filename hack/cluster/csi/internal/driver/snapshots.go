// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package driver

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/vireo-project/vireo/hack/cluster/csi/internal/pool"
)

// CreateSnapshot stores the current content of a volume.
func (c *Controller) CreateSnapshot(
	ctx context.Context, r *csi.CreateSnapshotRequest,
) (*csi.CreateSnapshotResponse, error) {
	if r.GetName() == "" {
		return nil, missing("name")
	}
	if r.GetSourceVolumeId() == "" {
		return nil, missing("source_volume_id")
	}
	if err := checkParameters(r.GetParameters()); err != nil {
		return nil, err
	}
	id := c.pool.Snapshots.ID(r.GetName())
	release, err := c.keys.lock(ctx, id, r.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	defer release()
	s, err := c.pool.Snapshots.Get(id)
	switch {
	case err == nil && s.Record.SourceVolume != r.GetSourceVolumeId():
		return nil, status.Errorf(codes.AlreadyExists, "snapshot %q is of volume %s", r.GetName(), s.Record.SourceVolume)
	case errors.Is(err, fs.ErrNotExist):
		s, err = c.snapshot(id,
			pool.Snapshot{Name: r.GetName(), SourceVolume: r.GetSourceVolumeId(), Created: time.Now().UTC()})
	}
	if err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: describeSnapshot(s)}, nil
}

func (c *Controller) snapshot(id string, wanted pool.Snapshot) (snapshot, error) {
	source, err := c.pool.Volumes.Open(wanted.SourceVolume)
	if err != nil {
		return snapshot{}, found(err, "volume", wanted.SourceVolume)
	}
	defer func() { _ = source.Close() }()
	return c.pool.Snapshots.Create(id, wanted, func(disk *os.File) error { return clone(disk, source) })
}

// DeleteSnapshot deletes a snapshot. Volumes that are clones of it have their own disks.
func (c *Controller) DeleteSnapshot(
	ctx context.Context, r *csi.DeleteSnapshotRequest,
) (*csi.DeleteSnapshotResponse, error) {
	if r.GetSnapshotId() == "" {
		return nil, missing("snapshot_id")
	}
	release, err := c.keys.lock(ctx, r.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	defer release()
	if s, err := c.pool.Snapshots.Get(r.GetSnapshotId()); err == nil && s.Record.Group != "" {
		return nil, status.Errorf(codes.InvalidArgument, "the snapshot is deleted with its group %s", s.Record.Group)
	}
	return &csi.DeleteSnapshotResponse{}, c.pool.Snapshots.Delete(r.GetSnapshotId())
}

// ListSnapshots lists snapshots: all, one, or those of a volume.
func (c *Controller) ListSnapshots(_ context.Context, r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	if token := r.GetStartingToken(); token != "" && !c.pool.Snapshots.IsID(token) {
		return nil, status.Errorf(codes.Aborted, "%q is not a token", token)
	}
	snapshots, err := c.pool.Snapshots.List()
	if err != nil {
		return nil, err
	}
	snapshots = slices.DeleteFunc(snapshots, func(s snapshot) bool {
		return r.GetSnapshotId() != "" && s.ID != r.GetSnapshotId() ||
			r.GetSourceVolumeId() != "" && s.Record.SourceVolume != r.GetSourceVolumeId()
	})
	snapshots, next, err := page(snapshots, func(s snapshot) string { return s.ID }, r.GetStartingToken(),
		r.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	response := &csi.ListSnapshotsResponse{NextToken: next}
	for _, s := range snapshots {
		response.Entries = append(response.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: describeSnapshot(s)})
	}
	return response, nil
}

func describeSnapshot(s snapshot) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: s.ID, SourceVolumeId: s.Record.SourceVolume, SizeBytes: s.Size,
		CreationTime: timestamppb.New(s.Record.Created), ReadyToUse: true, GroupSnapshotId: s.Record.Group,
	}
}
