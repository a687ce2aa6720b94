// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/mount-utils"
	utilexec "k8s.io/utils/exec"

	"github.com/vireo-project/vireo/hack/cluster/csi/internal/loop"
	"github.com/vireo-project/vireo/hack/cluster/csi/internal/pool"
)

// Node is the service that mounts volumes on a node, in whose mount namespace it runs. It changes nothing in the pool.
//
// A filesystem is mounted once per node, and writable even if Pods may only read: all nodes share one kernel, and so
// the same filesystem.
type Node struct {
	csi.UnimplementedNodeServer

	name    string
	pool    *pool.Pool
	mounter mount.Interface
	keys    keys
}

// NewNode returns the service of a node, and makes the node known to the controller.
func NewNode(p *pool.Pool, name string) (*Node, error) {
	if err := p.AddNode(name); err != nil {
		return nil, err
	}
	return &Node{name: name, pool: p, mounter: mount.NewWithoutSystemd("")}, nil
}

// NodeGetInfo returns the node's name. Volumes are available on all nodes, so there is no topology.
func (n *Node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.name}, nil
}

// NodeGetCapabilities returns what a node can do.
func (n *Node) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	response := &csi.NodeGetCapabilitiesResponse{}
	for _, kind := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		response.Capabilities = append(response.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: kind}},
		})
	}
	return response, nil
}

// NodeStageVolume mounts the filesystem of a volume, and expands it to the volume's size. It does nothing for a block
// volume.
func (n *Node) NodeStageVolume(
	ctx context.Context, r *csi.NodeStageVolumeRequest,
) (*csi.NodeStageVolumeResponse, error) {
	staging := r.GetStagingTargetPath()
	if staging == "" {
		return nil, missing("staging_target_path")
	}
	wanted, device, release, err := n.begin(ctx, r.GetVolumeId(), r.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	defer release()
	if wanted.block {
		return &csi.NodeStageVolumeResponse{}, nil
	}
	mounted, err := n.isMounted(device, staging)
	if err != nil {
		return nil, err
	}
	if !mounted {
		if err := os.MkdirAll(staging, 0o750); err != nil {
			return nil, fmt.Errorf("make the staging directory: %w", err)
		}
		// A clone has the UUID of its source, and both may be mounted.
		if err := n.mounter.Mount(device, staging, filesystem, append(wanted.flags, "nouuid")); err != nil {
			return nil, err
		}
	}
	return &csi.NodeStageVolumeResponse{}, grow(device, staging)
}

// begin validates what is common to staging and publishing, and locks the volume.
func (n *Node) begin(
	ctx context.Context, id string, c *csi.VolumeCapability,
) (wanted use, device string, release func(), err error) {
	if id == "" {
		return use{}, "", nil, missing("volume_id")
	}
	if wanted, err = parseUse(c); err != nil {
		return use{}, "", nil, err
	}
	if release, err = n.keys.lock(ctx, id); err != nil {
		return use{}, "", nil, err
	}
	v, device, err := n.device(id)
	switch {
	case err != nil:
	case v.Record.Block != wanted.block:
		err = status.Error(codes.InvalidArgument, "the volume has the other access type")
	case device == "" || v.Record.Nodes[n.name] == "":
		err = status.Errorf(codes.FailedPrecondition, "volume %s is not attached to node %s", id, n.name)
	}
	if err != nil {
		release()
		return use{}, "", nil, err
	}
	return wanted, device, release, nil
}

// device returns a volume and the path of its device, which is empty if it is not attached.
func (n *Node) device(id string) (volume, string, error) {
	v, err := n.pool.Volumes.Get(id)
	if err != nil {
		return v, "", found(err, "volume", id)
	}
	disk, err := n.pool.Volumes.Open(id)
	if err != nil {
		return v, "", found(err, "volume", id)
	}
	device, err := loop.Find(disk)
	return v, device, errors.Join(err, disk.Close())
}

// isMounted reports whether the filesystem or the node of a device is mounted on a path. It returns an error if
// something else is.
func (n *Node) isMounted(device, path string) (bool, error) {
	mounted, err := n.mounter.IsMountPoint(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || !mounted {
		return false, err
	}
	isVolume, err := isOf(device, path)
	if err == nil && !isVolume {
		err = status.Errorf(codes.Internal, "something else is mounted on %s", path)
	}
	return isVolume, err
}

// isOf reports whether a path is in the filesystem of a device, or the node of the device.
func isOf(device, path string) (bool, error) {
	var stat [2]unix.Stat_t
	for i, name := range []string{device, path} {
		if err := unix.Stat(name, &stat[i]); err != nil {
			return false, fmt.Errorf("read the properties of %s: %w", name, err)
		}
	}
	if stat[1].Mode&unix.S_IFMT == unix.S_IFBLK {
		return stat[1].Rdev == stat[0].Rdev, nil
	}
	return stat[1].Dev == stat[0].Rdev, nil
}

func grow(device, path string) error {
	_, err := mount.NewResizeFs(utilexec.New()).Resize(device, path)
	return err
}

// NodeUnstageVolume unmounts the filesystem of a volume.
func (n *Node) NodeUnstageVolume(
	ctx context.Context, r *csi.NodeUnstageVolumeRequest,
) (*csi.NodeUnstageVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, missing("volume_id")
	}
	staging := r.GetStagingTargetPath()
	if staging == "" {
		return nil, missing("staging_target_path")
	}
	release, err := n.keys.lock(ctx, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer release()
	mounted, err := n.mounter.IsMountPoint(staging)
	if errors.Is(err, fs.ErrNotExist) {
		return &csi.NodeUnstageVolumeResponse{}, nil
	}
	if err == nil && mounted {
		err = n.mounter.Unmount(staging)
	}
	return &csi.NodeUnstageVolumeResponse{}, err
}

// NodePublishVolume makes a volume available to a Pod: its filesystem, or its device.
func (n *Node) NodePublishVolume(
	ctx context.Context, r *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	staging, target := r.GetStagingTargetPath(), r.GetTargetPath()
	if target == "" {
		return nil, missing("target_path")
	}
	wanted, device, release, err := n.begin(ctx, r.GetVolumeId(), r.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	defer release()
	if mounted, err := n.isMounted(device, target); err != nil || mounted {
		return &csi.NodePublishVolumeResponse{}, err
	}
	source := device
	if !wanted.block {
		source = staging
		mounted, err := n.isMounted(device, staging)
		if err != nil {
			return nil, err
		}
		if !mounted {
			return nil, status.Error(codes.FailedPrecondition, "the volume is not staged at staging_target_path")
		}
	}
	if wanted.mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER {
		if err := onlyStaged(device, staging); err != nil {
			return nil, err
		}
	}
	if err := makeTarget(target, wanted.block); err != nil {
		return nil, err
	}
	options := []string{"bind"}
	if r.GetReadonly() || readOnly(wanted.mode) {
		options = append(options, "ro")
	}
	return &csi.NodePublishVolumeResponse{}, n.mounter.Mount(source, target, "", options)
}

func makeTarget(path string, block bool) error {
	if !block {
		if err := os.MkdirAll(path, 0o750); err != nil {
			return fmt.Errorf("make the target directory: %w", err)
		}
		return nil
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return fmt.Errorf("make the target file: %w", err)
	}
	return file.Close()
}

// onlyStaged returns an error if a device or its filesystem is mounted on a path other than the staging path.
func onlyStaged(device, staging string) error {
	var stat unix.Stat_t
	if err := unix.Stat(device, &stat); err != nil {
		return fmt.Errorf("read the properties of %s: %w", device, err)
	}
	// A bind-mounted device node appears as a file of the filesystem of /dev.
	isVolume := func(m *mountinfo.Info) bool {
		return unix.Mkdev(uint32(m.Major), uint32(m.Minor)) == stat.Rdev ||
			m.Root == "/"+filepath.Base(device) && strings.HasSuffix(m.FSType, "tmpfs")
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !isVolume(m) ||
			m.Mountpoint == staging, false
	})
	if err != nil {
		return fmt.Errorf("list the mounts: %w", err)
	}
	if len(mounts) > 0 {
		return status.Errorf(codes.FailedPrecondition, "the volume is in use at %s, and may be at one path only",
			mounts[0].Mountpoint)
	}
	return nil
}

// NodeUnpublishVolume removes a volume from a Pod.
func (n *Node) NodeUnpublishVolume(
	ctx context.Context, r *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, missing("volume_id")
	}
	if r.GetTargetPath() == "" {
		return nil, missing("target_path")
	}
	release, err := n.keys.lock(ctx, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer release()
	return &csi.NodeUnpublishVolumeResponse{}, mount.CleanupMountPoint(r.GetTargetPath(), n.mounter, true)
}

// NodeExpandVolume grows the filesystem of a volume to the size of its device, which the controller has expanded.
func (n *Node) NodeExpandVolume(
	ctx context.Context, r *csi.NodeExpandVolumeRequest,
) (*csi.NodeExpandVolumeResponse, error) {
	v, device, release, err := n.at(ctx, r.GetVolumeId(), r.GetVolumePath())
	if err != nil {
		return nil, err
	}
	defer release()
	if v.Size < r.GetCapacityRange().GetRequiredBytes() {
		return nil, status.Errorf(codes.OutOfRange, "the volume has %d bytes: the controller did not expand it", v.Size)
	}
	response := &csi.NodeExpandVolumeResponse{CapacityBytes: v.Size}
	if v.Record.Block {
		return response, nil
	}
	// The staging path is preferred, because the Pod's mount may be read-only.
	path := r.GetStagingTargetPath()
	if path == "" {
		path = r.GetVolumePath()
	}
	return response, grow(device, path)
}

// NodeGetVolumeStats returns how much of a volume is used.
func (n *Node) NodeGetVolumeStats(
	ctx context.Context, r *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	v, _, release, err := n.at(ctx, r.GetVolumeId(), r.GetVolumePath())
	if err != nil {
		return nil, err
	}
	defer release()
	if v.Record.Block {
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: v.Size}}}, nil
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(r.GetVolumePath(), &stat); err != nil {
		return nil, fmt.Errorf("read the statistics of %s: %w", r.GetVolumePath(), err)
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{
			Unit: csi.VolumeUsage_BYTES, Total: int64(stat.Blocks) * stat.Frsize,
			Available: int64(stat.Bavail) * stat.Frsize, Used: int64(stat.Blocks-stat.Bfree) * stat.Frsize,
		},
		{Unit: csi.VolumeUsage_INODES, Total: int64(stat.Files), Available: int64(stat.Ffree), Used: int64(stat.Files - stat.Ffree)},
	}}, nil
}

// at locks a volume that is mounted on a path.
func (n *Node) at(ctx context.Context, id, path string) (v volume, device string, release func(), err error) {
	if id == "" {
		return v, "", nil, missing("volume_id")
	}
	if path == "" {
		return v, "", nil, missing("volume_path")
	}
	if release, err = n.keys.lock(ctx, id); err != nil {
		return v, "", nil, err
	}
	v, device, err = n.device(id)
	if err == nil {
		isVolume := false
		if device != "" {
			isVolume, err = isOf(device, path)
		}
		if errors.Is(err, fs.ErrNotExist) || err == nil && !isVolume {
			err = status.Errorf(codes.NotFound, "volume %s is not at %s", id, path)
		}
	}
	if err != nil {
		release()
		return v, "", nil, err
	}
	return v, device, release, nil
}
