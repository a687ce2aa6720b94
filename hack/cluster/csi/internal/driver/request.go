// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package driver

import (
	"math"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	mib = int64(1) << 20
	gib = int64(1) << 30

	// grain is the unit to which sizes are rounded up: a block of XFS, which is a multiple of a loop device's sector.
	grain = int64(4096)
	// minFilesystem is the smallest volume with a filesystem. XFS needs 16 MiB, of which little would be free.
	minFilesystem = 32 * mib
	// defaultSize is the size of a volume for which none was requested.
	defaultSize = gib
)

// use is the use of a volume that a volume capability requests.
type use struct {
	block bool
	mode  csi.VolumeCapability_AccessMode_Mode
	flags []string
}

// parseUse validates a volume capability.
func parseUse(c *csi.VolumeCapability) (use, error) {
	if c == nil {
		return use{}, missing("volume_capability")
	}
	u := use{mode: c.GetAccessMode().GetMode()}
	if _, known := csi.VolumeCapability_AccessMode_Mode_name[int32(u.mode)]; !known ||
		u.mode == csi.VolumeCapability_AccessMode_UNKNOWN {
		return use{}, missing("access_mode")
	}
	switch {
	case c.GetBlock() != nil:
		u.block = true
	case c.GetMount() != nil:
		if kind := c.GetMount().GetFsType(); kind != "" && kind != filesystem {
			return use{}, status.Errorf(codes.InvalidArgument, "there is no filesystem %q: leave it out, or use %s", kind,
				filesystem)
		}
		u.flags = c.GetMount().GetMountFlags()
	default:
		return use{}, missing("access_type")
	}
	return u, nil
}

// parseUses validates the capabilities of one volume, and reports whether it is a block volume.
func parseUses(list []*csi.VolumeCapability) (block bool, err error) {
	if len(list) == 0 {
		return false, missing("volume_capabilities")
	}
	for i, c := range list {
		u, err := parseUse(c)
		if err != nil {
			return false, err
		}
		if i > 0 && u.block != block {
			return false, status.Error(codes.InvalidArgument, "a volume is a block device or has a filesystem, not both")
		}
		block = u.block
	}
	return block, nil
}

// oneNode reports whether an access mode allows only one node at a time.
func oneNode(mode csi.VolumeCapability_AccessMode_Mode) bool {
	switch mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		return true
	default:
		return false
	}
}

// readOnly reports whether an access mode forbids writes.
func readOnly(mode csi.VolumeCapability_AccessMode_Mode) bool {
	return mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY ||
		mode == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
}

// sizeFor returns the size of a volume that has at least least bytes, the size of its source or its current size.
func sizeFor(r *csi.CapacityRange, block bool, least int64) (int64, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	if required < 0 || limit < 0 || limit > 0 && required > limit {
		return 0, status.Errorf(codes.InvalidArgument, "no size is from %d to %d bytes", required, limit)
	}
	size := required
	switch {
	case size == 0 && least > 0:
		size = least
	case size == 0:
		size = defaultSize
		if limit > 0 {
			size = min(size, limit/grain*grain)
		}
	case size < least:
		return 0, status.Errorf(codes.OutOfRange, "%d bytes are less than the %d bytes of its content", size, least)
	}
	smallest := grain
	if !block {
		smallest = minFilesystem
	}
	if size > math.MaxInt64-grain {
		return 0, status.Errorf(codes.OutOfRange, "no volume has %d bytes", size)
	}
	size = (max(size, smallest)-1)/grain*grain + grain
	if limit > 0 && size > limit {
		return 0, status.Errorf(codes.OutOfRange, "the smallest size is %d bytes, more than the limit of %d", size, limit)
	}
	return size, nil
}

// checkParameters rejects parameters of a class, because the driver has none. It accepts those that sidecars add, which
// have a prefix.
func checkParameters(parameters map[string]string) error {
	for name := range parameters {
		if !strings.HasPrefix(name, "csi.storage.k8s.io/") {
			return status.Errorf(codes.InvalidArgument, "there is no parameter %q", name)
		}
	}
	return nil
}

// page returns the items that follow a token, at most as many as requested, and the token of the next page. A token is
// the ID of the last item of the page before, which may be deleted meanwhile. The items are sorted by their IDs.
func page[T any](items []T, id func(T) string, token string, limit int32) ([]T, string, error) {
	if limit < 0 {
		return nil, "", status.Errorf(codes.InvalidArgument, "max_entries is %d", limit)
	}
	for len(items) > 0 && token != "" && id(items[0]) <= token {
		items = items[1:]
	}
	if limit == 0 || len(items) <= int(limit) {
		return items, "", nil
	}
	items = items[:limit]
	return items, id(items[limit-1]), nil
}
