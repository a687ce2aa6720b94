// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonSuccessfulHandOver is the reason of the event when a Pod was assigned. KubeVirt's name.
const ReasonSuccessfulHandOver = "SuccessfulHandOver"

// assignPod prepares the assignment of the Pod to its node's agent as soon as the Pod runs. The agent waits for the
// phase Scheduled, which is written with the status. Once the VMI is live, assignPod only updates the Pod.
func (s *scope) assignPod(ctx context.Context) error {
	if s.pod == nil || s.final != nil || s.deleting() || podstate.Finished(s.pod) || s.pod.DeletionTimestamp != nil {
		return nil
	}
	switch {
	case s.stage() == vmistatus.Live:
		return s.syncAssignedPod(ctx, client.MergeFromWithOptimisticLock{})
	case s.stage() != vmistatus.Preparing || !podstate.Running(s.pod) || s.problem != nil:
		return nil
	}
	if err := s.refreshClaims(ctx); err != nil {
		return err
	}
	if err := s.assignVSOCK(ctx); err != nil {
		return err
	}
	if err := s.decideTracking(ctx); err != nil {
		return err
	}
	overhead, read := podspec.MemoryOverhead(s.vmi, s.podConfig), s.vmi
	err := s.patchMetadata(ctx, func(vmi *v1.VirtualMachineInstance) {
		metav1.SetMetaDataLabel(&vmi.ObjectMeta, v1.NodeNameLabel, s.pod.Spec.NodeName)
		metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, v1.MemoryOverheadAnnotationBytes,
			strconv.FormatInt(overhead.Value(), 10))
	})
	if err != nil {
		return err
	}
	// If the VMI had no label until now, its Pod was not written either. Otherwise it may have been, and a stale cache may
	// not show it: the lock makes the second write fail.
	var lock []client.MergeFromOption
	if s.vmi == read {
		lock = append(lock, client.MergeFromWithOptimisticLock{})
	}
	if err := s.syncAssignedPod(ctx, lock...); err != nil {
		return err
	}
	s.assigned = true
	return nil
}

// syncAssignedPod patches the labels of the Pod, and its readiness gate. The gate is False while the guest is paused,
// so that Services send it no requests.
func (s *scope) syncAssignedPod(ctx context.Context, lock ...client.MergeFromOption) error {
	pod := s.pod.DeepCopy()
	podspec.CopyLiveLabels(&pod.ObjectMeta, s.vmi.Labels)
	if !s.setReadinessGate(pod) && maps.Equal(pod.Labels, s.pod.Labels) {
		return nil
	}
	// A strategic merge keeps the kubelet's conditions. The status subresource accepts labels as well.
	if err := s.client.Status().Patch(ctx, pod, client.StrategicMergeFrom(s.pod, lock...)); err != nil {
		return fmt.Errorf("patch readiness gate and labels of Pod %s: %w", s.pod.Name, err)
	}
	s.pod = pod
	return nil
}

// setReadinessGate updates the readiness gate and reports whether that changed it.
func (s *scope) setReadinessGate(pod *corev1.Pod) bool {
	want := corev1.PodCondition{Type: v1.VirtualMachineUnpaused, Status: corev1.ConditionTrue, Reason: "NotPaused"}
	if vmistatus.IsConditionTrue(&s.vmi.Status, v1.VirtualMachineInstancePaused) {
		want.Status, want.Reason = corev1.ConditionFalse, "Paused"
	}
	gate := podstate.Condition(pod, want.Type)
	if gate != nil && gate.Status == want.Status {
		return false
	}
	want.LastTransitionTime = metav1.NewTime(s.now)
	if gate != nil {
		*gate = want
	} else {
		pod.Status.Conditions = append(pod.Status.Conditions, want)
	}
	return true
}

// decideTracking decides whether the changed blocks of a guest that is assigned to its agent are tracked. It does not
// change after that: the agent has then laid overlays over the disks, or has not. docs/adr/0090
func (s *scope) decideTracking(ctx context.Context) error {
	owner := vmistatus.VMOf(s.vmi)
	if !s.config.IsEnabled(clusterconfig.GateIncrementalBackup) || owner == nil {
		return nil
	}
	vm, err := kit.Read(ctx, client.ObjectKeyFromObject(s.vmi), &v1.VirtualMachine{}, s.client)
	if err != nil || vm == nil || vm.UID != owner.UID {
		return err
	}
	selected, err := kit.SelectsForTracking(ctx, s.client, s.config.ChangedBlockTracking, vm)
	switch {
	case err != nil:
		return err
	case selected:
		s.tracking = v1.ChangedBlockTrackingInitializing
	case vm.Status.ChangedBlockTracking != nil:
		s.tracking = v1.ChangedBlockTrackingDisabled // It was selected before.
	}
	return nil
}

// setTracking reports whether the changed blocks of all disks that can be tracked are.
func setTracking(o *observed, status *v1.VirtualMachineInstanceStatus) {
	if !backup.WantsTracking(status) {
		return
	}
	want := backup.Disks(&o.vmi.Spec)
	state := v1.ChangedBlockTrackingInitializing
	if len(want) > 0 && !slices.ContainsFunc(want,
		func(name string) bool { return !slices.Contains(status.TrackedVolumes, name) }) {
		state = v1.ChangedBlockTrackingEnabled
	}
	changed := *status.ChangedBlockTracking
	changed.State = state
	status.ChangedBlockTracking = &changed
}

// VSOCKIndex finds VMIs by their VSOCK address.
const VSOCKIndex = "status.VSOCKCID"

const (
	// firstCID and lastCID are the first and the last address of guests. The ones before mean the hypervisor, the local
	// system and the host; the one after means any. Source: linux/vm_sockets.h.
	firstCID, lastCID uint32 = 3, 1<<32 - 2
	// cidAttempts caps the search for a free address. Of four billion, the first one tried is rarely in use.
	cidAttempts = 16
)

// errNoCID is practically impossible.
var errNoCID = errors.New("found no free address on VSOCK, trying again")

// VSOCKAddress returns the value of VSOCKIndex: the address of the VMI, if it has one.
func VSOCKAddress(vmi *v1.VirtualMachineInstance) []string {
	if vmi.Status.VSOCKCID == nil {
		return nil
	}
	return []string{formatCID(*vmi.Status.VSOCKCID)}
}

// assignVSOCK assigns a VMI an address that is unique in the cluster: a migration must not have to change it. It is
// derived from the UID, so that it survives a restart and does not depend on a stale cache.
func (s *scope) assignVSOCK(ctx context.Context) error {
	if wanted := s.vmi.Spec.Domain.Devices.AutoattachVSOCK; wanted == nil || !*wanted {
		return nil
	}
	cid := CIDOf(s.vmi.UID)
	for range cidAttempts {
		others := &v1.VirtualMachineInstanceList{}
		if err := s.client.List(ctx, others, client.MatchingFields{VSOCKIndex: formatCID(cid)}); err != nil {
			return fmt.Errorf("list VirtualMachineInstances by address on VSOCK: %w", err)
		}
		if len(others.Items) == 0 || others.Items[0].UID == s.vmi.UID {
			s.vsockCID = ptr.To(cid)
			return nil
		}
		cid = firstCID + (cid-firstCID+1)%(lastCID-firstCID+1)
	}
	return errNoCID
}

// CIDOf is the address of a VMI unless another VMI has it. It spreads UIDs over the addresses.
func CIDOf(uid types.UID) uint32 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(uid)) // never fails
	return firstCID + hash.Sum32()%(lastCID-firstCID+1)
}

func formatCID(cid uint32) string { return strconv.FormatUint(uint64(cid), 10) }
