// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/vireo-project/vireo/hack/cluster/csi/internal/pool"
)

// GroupControllerGetCapabilities returns that there are group snapshots.
func (c *Controller) GroupControllerGetCapabilities(
	context.Context, *csi.GroupControllerGetCapabilitiesRequest,
) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
			Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT,
		}},
	}}}, nil
}

// CreateVolumeGroupSnapshot stores the contents of volumes. Filesystems are frozen, so that their contents are of one
// moment. Block volumes are cloned one after the other, so their contents are of different moments unless the caller
// stops the writes, for example by freezing a guest.
func (c *Controller) CreateVolumeGroupSnapshot(
	ctx context.Context, r *csi.CreateVolumeGroupSnapshotRequest,
) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	if r.GetName() == "" {
		return nil, missing("name")
	}
	volumes := slices.Compact(slices.Sorted(slices.Values(r.GetSourceVolumeIds())))
	if len(volumes) == 0 {
		return nil, missing("source_volume_ids")
	}
	if err := checkParameters(r.GetParameters()); err != nil {
		return nil, err
	}
	id := c.pool.Groups.ID(r.GetName())
	release, err := c.keys.lock(ctx, append([]string{id}, volumes...)...)
	if err != nil {
		return nil, err
	}
	defer release()
	g, err := c.pool.Groups.Get(id)
	switch {
	case err == nil && !slices.Equal(slices.Sorted(maps.Keys(g.Record.Snapshots)), volumes):
		return nil, status.Errorf(codes.AlreadyExists, "group snapshot %q is of other volumes", r.GetName())
	case errors.Is(err, fs.ErrNotExist):
		g, err = c.group(id, r.GetName(), volumes)
	}
	if err != nil {
		return nil, err
	}
	described, err := c.describeGroup(g)
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: described}, err
}

// group creates the snapshots of a group, and then its record, without which they are ignored.
func (c *Controller) group(id, name string, volumes []string) (group, error) {
	if err := c.dropMembers(id); err != nil {
		return group{}, err
	}
	record := pool.Group{Name: name, Snapshots: map[string]string{}, Created: time.Now().UTC()}
	err := c.frozen(volumes, func() error {
		for _, v := range volumes {
			member := c.pool.Snapshots.ID(fmt.Sprintf("\x00%s/%s", id, v))
			if _, err := c.snapshot(member,
				pool.Snapshot{Name: name, SourceVolume: v, Group: id, Created: record.Created}); err != nil {
				return err
			}
			record.Snapshots[v] = member
		}
		return nil
	})
	if err != nil {
		return group{}, errors.Join(err, c.dropMembers(id))
	}
	return c.pool.Groups.Create(id, record, func(*os.File) error { return nil })
}

// dropMembers deletes the snapshots of a group.
func (c *Controller) dropMembers(id string) error {
	snapshots, err := c.pool.Snapshots.List()
	for _, s := range snapshots {
		if s.Record.Group == id {
			err = errors.Join(err, c.pool.Snapshots.Delete(s.ID))
		}
	}
	return err
}

// dropHalfGroups deletes the snapshots of groups that were not completed.
func (c *Controller) dropHalfGroups() error {
	snapshots, err := c.pool.Snapshots.List()
	for _, s := range snapshots {
		if s.Record.Group == "" {
			continue
		}
		if _, absent := c.pool.Groups.Get(s.Record.Group); errors.Is(absent, fs.ErrNotExist) {
			err = errors.Join(err, c.pool.Snapshots.Delete(s.ID))
		}
	}
	return err
}

// DeleteVolumeGroupSnapshot deletes a group and its snapshots.
func (c *Controller) DeleteVolumeGroupSnapshot(
	ctx context.Context, r *csi.DeleteVolumeGroupSnapshotRequest,
) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	id := r.GetGroupSnapshotId()
	if id == "" {
		return nil, missing("group_snapshot_id")
	}
	release, err := c.keys.lock(ctx, append([]string{id}, r.GetSnapshotIds()...)...)
	if err != nil {
		return nil, err
	}
	defer release()
	g, err := c.pool.Groups.Get(id)
	if errors.Is(err, fs.ErrNotExist) {
		return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
	}
	if err := errors.Join(err, members(g, r.GetSnapshotIds())); err != nil {
		return nil, err
	}
	// The record is deleted last, so that a repeated call finds the remaining snapshots.
	return &csi.DeleteVolumeGroupSnapshotResponse{}, errors.Join(c.dropMembers(id), c.pool.Groups.Delete(id))
}

// GetVolumeGroupSnapshot returns a group and its snapshots.
func (c *Controller) GetVolumeGroupSnapshot(
	_ context.Context, r *csi.GetVolumeGroupSnapshotRequest,
) (*csi.GetVolumeGroupSnapshotResponse, error) {
	id := r.GetGroupSnapshotId()
	if id == "" {
		return nil, missing("group_snapshot_id")
	}
	g, err := c.pool.Groups.Get(id)
	if err != nil {
		return nil, found(err, "group snapshot", id)
	}
	if err := members(g, r.GetSnapshotIds()); err != nil {
		return nil, err
	}
	described, err := c.describeGroup(g)
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: described}, err
}

// members returns an error if a caller names snapshots that are not those of the group. The caller may also name none.
func members(g group, ids []string) error {
	if len(ids) > 0 && !slices.Equal(slices.Sorted(slices.Values(ids)), slices.Sorted(maps.Values(g.Record.Snapshots))) {
		return status.Errorf(codes.InvalidArgument, "the snapshots of group %s are others", g.ID)
	}
	return nil
}

func (c *Controller) describeGroup(g group) (*csi.VolumeGroupSnapshot, error) {
	described := &csi.VolumeGroupSnapshot{GroupSnapshotId: g.ID, CreationTime: timestamppb.New(g.Record.Created),
		ReadyToUse: true}
	for _, id := range slices.Sorted(maps.Values(g.Record.Snapshots)) {
		s, err := c.pool.Snapshots.Get(id)
		if err != nil {
			return nil, found(err, "snapshot", id)
		}
		described.Snapshots = append(described.Snapshots, describeSnapshot(s))
	}
	return described, nil
}
