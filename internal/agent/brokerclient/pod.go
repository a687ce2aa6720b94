// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package brokerclient

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// Files inspects the files of a launcher Pod.
type Files struct {
	client *Client
	pod    types.UID
}

// Files returns access to the files of a Pod.
func (c *Client) Files(pod types.UID) Files { return Files{client: c, pod: pod} }

// inspectTimeout bounds the inspection of a file, which may be on network storage that hangs.
const inspectTimeout = 5 * time.Second

// HasDevice reports whether the Pod has a character device at a path.
func (f Files) HasDevice(ctx context.Context, path string) (bool, error) {
	result, err := f.inspect(ctx, brokerapi.InspectArguments{Path: path})
	return result.Mode&unix.S_IFMT == unix.S_IFCHR, err
}

// selinuxContext is what an SELinux context may be: user, role, type and level.
var selinuxContext = regexp.MustCompile(`^[A-Za-z0-9_.]+(:[A-Za-z0-9_.]+){2}:s[A-Za-z0-9_.,:-]+$`)

// SELinuxContext returns the SELinux context of the Pod's root directory, or brokerapi.NoSELinux on a node without
// SELinux.
func (f Files) SELinuxContext(ctx context.Context) (string, error) {
	result, err := f.request(ctx, brokerapi.InspectArguments{Path: "/", SELinux: true})
	switch found := result.SELinuxContext; {
	case err != nil:
		return "", fmt.Errorf("read the SELinux context of the launcher Pod: %w", err)
	case found == brokerapi.NoSELinux || selinuxContext.MatchString(found):
		return found, nil
	default:
		return "", fmt.Errorf("the launcher Pod has no SELinux context but %.64q", found)
	}
}

// DirectIO reports whether a regular file of the Pod can be opened with O_DIRECT.
func (f Files) DirectIO(ctx context.Context, path string) (bool, error) {
	result, err := f.inspect(ctx, brokerapi.InspectArguments{Path: path, DirectIO: true})
	return result.DirectIO, err
}

// BlockSizes returns the block sizes of a disk.
func (f Files) BlockSizes(ctx context.Context, path string) (facts.BlockSizes, error) {
	result, err := f.inspect(ctx, brokerapi.InspectArguments{Path: path})
	return blockSizes(sysBlock, result), err
}

// DeviceBytes returns the size of a block device, or 0 if it is not known.
func (f Files) DeviceBytes(ctx context.Context, path string) (uint64, error) {
	result, err := f.inspect(ctx, brokerapi.InspectArguments{Path: path})
	return deviceBytes(sysBlock, result), err
}

// inspect returns what is known about a file: nothing, if it does not exist or its storage does not respond. A broker
// that does not respond or is busy is an error, because the caller can try again.
func (f Files) inspect(ctx context.Context, arguments brokerapi.InspectArguments) (brokerapi.InspectResult, error) {
	result, err := f.request(ctx, arguments)
	code := brokerapi.CodeOf(err)
	if errors.Is(err, brokerapi.ErrUnreachable) || code == brokerapi.CodeNoLauncher || code == brokerapi.CodeBusy {
		return brokerapi.InspectResult{}, err
	}
	if err != nil {
		return brokerapi.InspectResult{}, ctx.Err()
	}
	return result, nil
}

// request requests an inspection, and returns every error.
func (f Files) request(ctx context.Context, arguments brokerapi.InspectArguments) (brokerapi.InspectResult, error) {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	result := brokerapi.InspectResult{}
	_, err := f.client.call(ctx, brokerapi.Inspect, f.pod, arguments, &result)
	return result, err
}

// CPUs returns the CPUs on which the Pod may run.
func (f Files) CPUs(ctx context.Context) ([]uint, error) {
	result := brokerapi.CPUsResult{}
	_, err := f.client.call(ctx, brokerapi.CPUs, f.pod, nil, &result)
	return result.CPUs, err
}

// OwnDevices makes QEMU's user the owner of the devices in the Pod's /dev.
func (f Files) OwnDevices(ctx context.Context) error {
	_, err := f.client.call(ctx, brokerapi.OwnDevices, f.pod, nil, nil)
	return err
}

// SetRealtime sets the realtime priority of vCPUs of the Pod's guest, on CPUs that the kubelet has assigned to it
// exclusively.
func (f Files) SetRealtime(ctx context.Context, vcpus []uint) error {
	_, err := f.client.call(ctx, brokerapi.SetRealtime, f.pod, brokerapi.SetRealtimeArguments{VCPUs: vcpus}, nil)
	return err
}

// AttachVolume gives the launcher Pod the claim of an attachment Pod. block reports whether it is a block device.
func (f Files) AttachVolume(ctx context.Context, volume string, attachment types.UID, block bool) error {
	arguments := brokerapi.VolumeArguments{Volume: volume, Attachment: string(attachment), Block: block}
	_, err := f.client.call(ctx, brokerapi.AttachVolume, f.pod, arguments, nil)
	return err
}

// AttachDevice gives the launcher Pod the block device of an attachment Pod as soon as the container of that Pod is
// started. It waits for that until the context is done.
func (f Files) AttachDevice(ctx context.Context, volume string, attachment types.UID) error {
	arguments := brokerapi.VolumeArguments{Volume: volume, Attachment: string(attachment), Block: true, Wait: true}
	_, err := f.client.callPatiently(ctx, brokerapi.AttachVolume, f.pod, arguments, nil)
	return err
}

// AttachDirectory gives the launcher Pod all files of the claim of an attachment Pod.
func (f Files) AttachDirectory(ctx context.Context, volume string, attachment types.UID) error {
	arguments := brokerapi.VolumeArguments{Volume: volume, Attachment: string(attachment), Directory: true}
	_, err := f.client.call(ctx, brokerapi.AttachVolume, f.pod, arguments, nil)
	return err
}

// DetachVolume takes from the launcher Pod what AttachVolume or AttachDirectory has given it. The attachment Pod may be
// gone, and its UID unknown.
func (f Files) DetachVolume(ctx context.Context, volume string, attachment types.UID, block bool) error {
	arguments := brokerapi.VolumeArguments{Volume: volume, Attachment: string(attachment), Block: block}
	_, err := f.client.call(ctx, brokerapi.DetachVolume, f.pod, arguments, nil)
	return err
}

// Content reads the files that the kubelet wrote to a launcher Pod's volumes, so that virt-handler needs no permission
// to read Secrets.
type Content struct {
	client *Client
	pod    types.UID
}

// Content returns access to the volumes of a Pod.
func (c *Client) Content(pod types.UID) Content { return Content{client: c, pod: pod} }

// Secret returns the value of the first key that a Secret's volume has. The error wraps fs.ErrNotExist if it has none
// of them.
func (c Content) Secret(volume string, keys ...string) ([]byte, error) {
	files, err := c.Files(media.SecretVolume, volume)
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if data, found := files[key]; found {
			return data, nil
		}
	}
	return nil, fs.ErrNotExist
}

// Files returns all files of a volume by their path in it, of one version. The error wraps media.ErrTooMuch if they are
// too large.
func (c Content) Files(kind media.VolumeKind, volume string) (map[string][]byte, error) {
	// The files are in memory or on the node's disk, and the broker responds at once.
	result := brokerapi.ReadVolumeResult{}
	_, err := c.client.call(context.Background(), brokerapi.ReadVolume, c.pod,
		brokerapi.ReadVolumeArguments{Kind: string(kind), Volume: volume}, &result)
	if errors.Is(err, fs.ErrNotExist) {
		// Not wrapped: the volume is missing, not a key of its object.
		err = errors.New(err.Error())
	}
	if brokerapi.CodeOf(err) == brokerapi.CodeTooMuch {
		err = fmt.Errorf("%w: %w", media.ErrTooMuch, err)
	}
	return result.Files, err
}
