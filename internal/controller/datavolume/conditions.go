// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package datavolume

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/vireo-project/vireo/api/cdi"
)

// Reasons of a DataVolume's conditions. Source: kubevirt/kubevirt pkg/storage/types, HasDataVolumeErrors and
// HasDataVolumeExceededQuotaError.
const (
	reasonError           = "Error"
	reasonImagePullFailed = "ImagePullFailed"
	reasonExceededQuota   = "ErrExceededQuota"
)

// Usable reports whether a VM may use the claim: it is filled, or will be filled when a Pod uses it.
func Usable(dv *cdi.DataVolume) bool {
	return dv.Status.Phase == cdi.DataVolumeSucceeded || dv.Status.Phase == cdi.DataVolumePendingPopulation
}

// WaitsForConsumer reports whether the claim is filled only after a Pod has used it, which must not be the VM's launcher Pod.
func WaitsForConsumer(dv *cdi.DataVolume) bool {
	return dv.Status.Phase == cdi.DataVolumeWaitForFirstConsumer
}

// Provisioning reports whether the importer is filling the claim.
func Provisioning(dv *cdi.DataVolume) bool {
	if Usable(dv) {
		return false
	}
	bound := dv.Status.Condition(cdi.DataVolumeBound)
	return !WaitsForConsumer(dv) || bound != nil && bound.Status == corev1.ConditionTrue
}

// Failed reports whether the importer has failed for good.
func Failed(dv *cdi.DataVolume) bool { return dv.Status.Phase == cdi.DataVolumeFailed }

// Problem returns what prevents the importer from filling the claim, or "".
func Problem(dv *cdi.DataVolume) string {
	if Failed(dv) {
		return fmt.Sprintf("DataVolume %s is in Failed phase", dv.Name)
	}
	running := dv.Status.Condition(cdi.DataVolumeRunning)
	if running != nil && running.Status == corev1.ConditionFalse &&
		(running.Reason == reasonError || running.Reason == reasonImagePullFailed) {
		return fmt.Sprintf("DataVolume %s importer has stopped running due to an error: %s", dv.Name, running.Message)
	}
	return ""
}

// ExceedsQuota returns the importer's message if a quota is exceeded, or "".
func ExceedsQuota(dv *cdi.DataVolume) string {
	bound := dv.Status.Condition(cdi.DataVolumeBound)
	if dv.Status.Phase != cdi.DataVolumePending || bound == nil || bound.Status == corev1.ConditionTrue ||
		bound.Reason != reasonExceededQuota {
		return ""
	}
	return fmt.Sprintf("DataVolume %s importer is not running due to an error: %s", dv.Name, bound.Message)
}
