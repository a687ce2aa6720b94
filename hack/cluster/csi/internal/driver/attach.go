// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package driver

import (
	"context"
	"errors"
	"io/fs"
	"maps"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ControllerPublishVolume allows a node to use a volume. Its device is attached for the first node.
func (c *Controller) ControllerPublishVolume(
	ctx context.Context, r *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	id, node := r.GetVolumeId(), r.GetNodeId()
	if id == "" {
		return nil, missing("volume_id")
	}
	if node == "" {
		return nil, missing("node_id")
	}
	wanted, err := parseUse(r.GetVolumeCapability())
	if err != nil {
		return nil, err
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
	known, err := c.pool.HasNode(node)
	if err != nil {
		return nil, err
	}
	if !known {
		return nil, status.Errorf(codes.NotFound, "there is no node %q with the driver", node)
	}
	if wanted.block != v.Record.Block {
		return nil, status.Error(codes.InvalidArgument, "the volume has the other access type")
	}
	if err := mayAttach(v.Record.Nodes, node, wanted.mode); err != nil {
		return nil, err
	}
	if _, attached := v.Record.Nodes[node]; !attached {
		// The record is written first: the next start repeats what it contains.
		nodes := maps.Clone(v.Record.Nodes)
		if nodes == nil {
			nodes = map[string]string{}
		}
		nodes[node] = wanted.mode.String()
		v.Record.Nodes = nodes
		if err := c.pool.Volumes.Update(id, v.Record); err != nil {
			return nil, err
		}
	}
	return &csi.ControllerPublishVolumeResponse{}, c.attach(id, true)
}

// mayAttach returns an error if a node may not use a volume with an access mode because of the nodes that already use
// it.
func mayAttach(nodes map[string]string, node string, mode csi.VolumeCapability_AccessMode_Mode) error {
	for other, otherMode := range nodes {
		switch {
		case other == node && otherMode != mode.String():
			return status.Errorf(codes.AlreadyExists, "the volume is attached to the node as %s", otherMode)
		case other == node:
		case oneNode(mode) || oneNode(
			csi.VolumeCapability_AccessMode_Mode(csi.VolumeCapability_AccessMode_Mode_value[otherMode])):
			return status.Errorf(codes.FailedPrecondition, "the volume is attached to node %s as %s", other, otherMode)
		}
	}
	return nil
}

// ControllerUnpublishVolume revokes the use of a volume by a node, or by all nodes if the name is empty. The device is
// detached after the last node.
func (c *Controller) ControllerUnpublishVolume(
	ctx context.Context, r *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
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
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	nodes := maps.Clone(v.Record.Nodes)
	maps.DeleteFunc(nodes, func(name, _ string) bool { return r.GetNodeId() == "" || name == r.GetNodeId() })
	if len(nodes) != len(v.Record.Nodes) {
		record := v.Record
		record.Nodes = nodes
		if err := c.pool.Volumes.Update(id, record); err != nil {
			return nil, err
		}
	}
	return &csi.ControllerUnpublishVolumeResponse{}, c.attach(id, len(nodes) > 0)
}
