// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonPVCNotFound is the reason while a claim is missing or has lost its volume. KubeVirt's name.
const ReasonPVCNotFound = "FailedPvcNotFound"

// ClaimNames returns the names of the claims of a VMI's volumes.
func ClaimNames(vmi *v1.VirtualMachineInstance) []string {
	var names []string
	for i := range vmi.Spec.Volumes {
		if name := podspec.ClaimName(&vmi.Spec.Volumes[i]); name != "" {
			names = append(names, name)
		}
	}
	for i := range vmi.Spec.UtilityVolumes {
		names = append(names, vmi.Spec.UtilityVolumes[i].ClaimName)
	}
	return names
}

// readClaims reads the claims of a VMI that prepares. A claim that is missing or has lost its volume is a problem. An
// unbound claim is not: it may be bound only when a Pod uses it.
func (s *scope) readClaims(ctx context.Context) error {
	if !s.preparing() {
		return nil
	}
	s.claims = map[string]*corev1.PersistentVolumeClaim{}
	s.podConfig.Claims = map[string]podspec.Claim{}
	return s.eachClaim(ctx, func(volume *v1.Volume, claim *corev1.PersistentVolumeClaim) error {
		if s.isLeftOut(volume) {
			return nil
		}
		imports := len(s.dataVolumes)
		if err := s.readDataVolume(ctx, volume, claim); err != nil {
			return err
		}
		switch {
		case claim == nil && len(s.dataVolumes) > imports:
			s.importing = true // The importer will create the claim.
			return nil
		case claim == nil:
			// KubeVirt's text.
			s.missingClaim("PVC %s/%s does not exist, waiting for it to appear%s", s.vmi.Namespace, podspec.ClaimName(volume),
				s.hint(volume))
			return nil
		case claim.Status.Phase == corev1.ClaimLost:
			s.missingClaim("PersistentVolumeClaim %s/%s of volume %s has lost its PersistentVolume",
				s.vmi.Namespace, claim.Name, volume.Name)
		}
		s.claims[volume.Name] = claim
		s.podConfig.Claims[volume.Name] = podspec.Claim{Block: vmistatus.IsBlockClaim(claim)}
		return nil
	})
}

// isLeftOut reports whether the launcher Pod is, or will be, without a hotpluggable volume. The guest waits for its
// claim, the Pod does not.
func (s *scope) isLeftOut(volume *v1.Volume) bool {
	return podspec.IsHotplugged(s.vmi, volume, s.podConfig) &&
		(s.pod == nil || !podspec.HasClaim(s.pod, volume.WrittenClaim()))
}

// eachClaim calls visit for each of the VMI's volumes that is a claim, with a nil claim if it does not exist. It stops
// at the first error.
func (s *scope) eachClaim(ctx context.Context, visit func(*v1.Volume, *corev1.PersistentVolumeClaim) error) error {
	for i := range s.vmi.Spec.Volumes {
		volume := &s.vmi.Spec.Volumes[i]
		name := podspec.ClaimName(volume)
		if name == "" {
			continue
		}
		claim, err := readClaim(ctx, s.client, s.vmi.Namespace, name)
		if err != nil {
			return err
		}
		if err := visit(volume, claim); err != nil {
			return err
		}
	}
	return nil
}

// readClaim reads a claim. It returns nil if there is none.
func readClaim(
	ctx context.Context, reader client.Reader, namespace, name string,
) (*corev1.PersistentVolumeClaim, error) {
	return kit.Read(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &corev1.PersistentVolumeClaim{}, reader)
}

// missingClaim reports a problem with a claim unless there is one already.
func (s *scope) missingClaim(format string, args ...any) {
	if s.problem == nil {
		s.problem = &problem{reason: ReasonPVCNotFound, message: fmt.Sprintf(format, args...), unschedulable: true}
	}
}

// Suffixes of the annotations by which an importer or a user demands that a claim's space stays allocated, with any
// prefix, such as cdi.kubevirt.io. Source: kubevirt/kubevirt pkg/storage/types, IsPreallocated.
const (
	preallocationAnnotation    = "/storage.preallocation"
	thickProvisionedAnnotation = "/storage.thick-provisioned"
)

func isPreallocated(annotations map[string]string) bool {
	for key, value := range annotations {
		isMarker := strings.Contains(key, preallocationAnnotation) || strings.Contains(key, thickProvisionedAnnotation)
		if isMarker && value == "true" {
			return true
		}
	}
	return false
}

// refreshClaims reads claims from the API server whose capacity the cache does not have although a Pod uses them: the
// agent sizes disks by it.
func (s *scope) refreshClaims(ctx context.Context) error {
	for volume, claim := range s.claims {
		if len(claim.Status.Capacity) > 0 {
			continue
		}
		fresh := &corev1.PersistentVolumeClaim{}
		if err := s.apiReader.Get(ctx, client.ObjectKeyFromObject(claim), fresh); err != nil {
			return fmt.Errorf("get PersistentVolumeClaim %s: %w", client.ObjectKeyFromObject(claim), err)
		}
		s.claims[volume] = fresh
	}
	return s.readOverheads(ctx)
}

// volumeStatus describes the state claim and those of the VMI's volumes, sorted by name.
func volumeStatus(o *observed) []v1.VolumeStatus {
	out := stateVolumeStatus(o)
	for i := range o.vmi.Spec.Volumes {
		name := o.vmi.Spec.Volumes[i].Name
		claim := o.claims[name]
		if claim == nil || o.isPlug(name) {
			continue
		}
		out = append(out, v1.VolumeStatus{Name: name, PersistentVolumeClaimInfo: ClaimInfo(claim, o.overheads)})
	}
	vmistatus.SortVolumes(out)
	return out
}

// ClaimInfo describes a claim as the status of a VMI does.
func ClaimInfo(claim *corev1.PersistentVolumeClaim, overheads Overheads) *v1.PersistentVolumeClaimInfo {
	return &v1.PersistentVolumeClaimInfo{
		ClaimName:          claim.Name,
		AccessModes:        claim.Spec.AccessModes,
		VolumeMode:         ptr.To(ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)),
		Capacity:           claim.Status.Capacity,
		Requests:           claim.Spec.Resources.Requests,
		Preallocated:       isPreallocated(claim.Annotations),
		FilesystemOverhead: ptr.To(overheads.of(claim)),
	}
}

// readLiveClaims reads the claims of a running guest: its disks grow with them.
func (s *scope) readLiveClaims(ctx context.Context) error {
	if s.stage() != vmistatus.Live || s.deleting() {
		return nil
	}
	s.claims = map[string]*corev1.PersistentVolumeClaim{}
	return s.eachClaim(ctx, func(volume *v1.Volume, claim *corev1.PersistentVolumeClaim) error {
		if claim != nil {
			s.claims[volume.Name] = claim
		}
		return nil
	})
}

// setClaims reports the sizes of a running guest's claims. It skips a volume that is to move to another claim, because
// the guest uses the claim of the status until then, and a claim whose capacity the cache does not have yet.
func setClaims(o *observed, status *v1.VirtualMachineInstanceStatus) {
	for i := range status.VolumeStatus {
		info, claim := status.VolumeStatus[i].PersistentVolumeClaimInfo, o.claims[status.VolumeStatus[i].Name]
		if info == nil || claim == nil || claim.Name != info.ClaimName || len(claim.Status.Capacity) == 0 {
			continue
		}
		if !equality.Semantic.DeepEqual(info.Capacity, claim.Status.Capacity) {
			info.Capacity = claim.Status.Capacity
		}
		if !equality.Semantic.DeepEqual(info.Requests, claim.Spec.Resources.Requests) {
			info.Requests = claim.Spec.Resources.Requests
		}
	}
}

// The share of a file system, or a block device, that stays free for metadata unless the importer configures another
// one. Source: kubevirt/kubevirt pkg/storage/types, DefaultFSOverhead.
const (
	filesystemOverhead v1.Percent = "0.055"
	blockOverhead      v1.Percent = "0"
)

// importerConfig is the kind of the importer's configuration. Its status has the shares in force.
var importerConfig = schema.GroupVersionKind{Group: "cdi.kubevirt.io", Version: "v1beta1", Kind: "CDIConfig"}

// importerConfigName is the name of the cluster's one. Source: kubevirt/containerized-data-importer pkg/common,
// ConfigName.
const importerConfigName = "config"

// percent matches the shares that the importer accepts. Source: its types_overlay.go, Percent.
var percent = regexp.MustCompile(`^(0(\.\d{1,3})?|1)$`)

// Overheads are the shares of file systems on claims that disks leave free, as the importer configures them. The zero
// value has none.
type Overheads struct {
	// Global is the share of storage classes without one of their own, "" if unset.
	Global v1.Percent `json:"global"`
	// StorageClass has the shares of storage classes, by name.
	StorageClass map[string]v1.Percent `json:"storageClass"`
}

// of returns the overhead of a claim. It ignores invalid shares.
func (o Overheads) of(claim *corev1.PersistentVolumeClaim) v1.Percent {
	if vmistatus.IsBlockClaim(claim) {
		return blockOverhead
	}
	if class := claim.Spec.StorageClassName; class != nil && percent.MatchString(string(o.StorageClass[*class])) {
		return o.StorageClass[*class]
	}
	if percent.MatchString(string(o.Global)) {
		return o.Global
	}
	return filesystemOverhead
}

// ReadOverheads reads the importer's configuration, if the cluster has an importer. claim is any claim.
func ReadOverheads(
	ctx context.Context, apiReader client.Reader, importer datavolume.Reader, claim client.ObjectKey,
) (Overheads, error) {
	if _, err := importer.Get(ctx, claim); errors.Is(err, datavolume.ErrNotInstalled) {
		return Overheads{}, nil
	}
	config := &unstructured.Unstructured{}
	config.SetGroupVersionKind(importerConfig)
	err := apiReader.Get(ctx, client.ObjectKey{Name: importerConfigName}, config)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return Overheads{}, nil
	}
	if err != nil {
		return Overheads{}, fmt.Errorf("get CDIConfig %s: %w", importerConfigName, err)
	}
	var overheads Overheads
	content, _, err := unstructured.NestedMap(config.Object, "status", "filesystemOverhead")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(content, &overheads)
	}
	if err != nil {
		return Overheads{}, fmt.Errorf("read status.filesystemOverhead of CDIConfig %s: %w", importerConfigName, err)
	}
	return overheads, nil
}

// readOverheads reads the overheads once for each assignment, and only for a VMI with disk images in file systems.
func (s *scope) readOverheads(ctx context.Context) error {
	for _, claim := range s.claims {
		if vmistatus.IsBlockClaim(claim) {
			continue
		}
		overheads, err := ReadOverheads(ctx, s.apiReader, s.importer, client.ObjectKeyFromObject(claim))
		s.overheads = overheads
		return err
	}
	return nil
}
