// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/migration/peer"
)

// verifyImages fails unless the images in the target's Pod are the same as those that the guest runs from. Only what the guest has written
// above them is transferred: on another image it would be garbage.
func (t *Transfers) verifyImages(
	ctx context.Context, transfer *Transfer, a peer.Attempt, d *peer.Destination, live, built *libvirtxml.Domain,
) error {
	// The target's files have the same paths at the source. Those of the running domain take precedence, but may be incomplete: the launcher
	// is not trusted, and a drive may be empty.
	files := peer.ImageFiles(built)
	maps.Copy(files, peer.ImageFiles(live))
	// An image that both Pods' specs name by the same digest is the same.
	maps.DeleteFunc(files, func(_ string, file peer.ImageFile) bool {
		digest := transfer.digests[file.Mount]
		return digest != "" && digest == d.Digests[file.Mount]
	})
	if len(files) == 0 {
		return nil
	}
	if !d.Images {
		return fmt.Errorf("virt-handler on node %s is of a version that does not compare images: migrate again when it is updated", a.TargetNode)
	}
	ctx, cancel := transfer.cancelable(ctx)
	defer cancel()
	var source map[string]peer.Checksum
	var target *peer.Images
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() (err error) {
		source, err = t.Checksum.All(ctx, transfer.pod, files)
		return err
	})
	both.Go(func() error {
		return t.retry(ctx, transfer, func() (err error) {
			target, err = t.Peer.Images(ctx, a)
			return err
		})
	})
	if err := both.Wait(); err != nil {
		return fmt.Errorf("compare the images of both launcher Pods: %w", err)
	}
	if err := compareImages(transfer.vmi, source, target.Checksums); err != nil {
		t.recordEvent(transfer.vmi, reasonImagesDiffer, "CompareImages", "Aborting migration as "+err.Error())
		return err
	}
	return nil
}

// reasonImagesDiffer is the reason of the event about images that differ. KubeVirt's releases that compared them used it too.
const reasonImagesDiffer v1.SyncEvent = "ContainerDiskFailedChecksum"

// compareImages returns an error that names the images that differ at the target, and what to do about it.
func compareImages(vmi *v1.VirtualMachineInstance, source, target map[string]peer.Checksum) error {
	var different []string
	for key, checksum := range source {
		if other, found := target[key]; !found || other != checksum {
			different = append(different, describeImage(vmi, key))
		}
	}
	if len(different) == 0 {
		return nil
	}
	slices.Sort(different)
	return fmt.Errorf("the source and target containerdisks/kernelboot do not match: launcher Pod %s has another content of %s "+
		"than the guest was started with. The tag was moved: name the image by its digest, or move the tag back",
		vmi.Status.MigrationState.TargetPod, strings.Join(different, ", "))
}

// describeImage names an image and what uses it.
func describeImage(vmi *v1.VirtualMachineInstance, key string) string {
	if key == peer.KernelFile || key == peer.InitrdFile {
		image := ""
		if f := vmi.Spec.Domain.Firmware; f != nil && f.KernelBoot != nil && f.KernelBoot.Container != nil {
			image = f.KernelBoot.Container.Image
		}
		return fmt.Sprintf("image %s (%s)", image, key)
	}
	for i := range vmi.Spec.Volumes {
		if v := &vmi.Spec.Volumes[i]; v.Name == key && v.ContainerDisk != nil {
			return fmt.Sprintf("image %s (volume %s)", v.ContainerDisk.Image, key)
		}
	}
	return "volume " + key
}
