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

// Usable says that a VM may use the claim: it is filled, or will be when a Pod asks for it.
func Usable(dv *cdi.DataVolume) bool {
	return dv.Status.Phase == cdi.DataVolumeSucceeded || dv.Status.Phase == cdi.DataVolumePendingPopulation
}

// WaitsForConsumer says that the claim is filled only after a Pod has used it: that Pod must not be the VM's.
func WaitsForConsumer(dv *cdi.DataVolume) bool {
	return dv.Status.Phase == cdi.DataVolumeWaitForFirstConsumer
}

// Provisioning says that the importer is at work.
func Provisioning(dv *cdi.DataVolume) bool {
	if Usable(dv) {
		return false
	}
	bound := dv.Status.Condition(cdi.DataVolumeBound)
	return !WaitsForConsumer(dv) || bound != nil && bound.Status == corev1.ConditionTrue
}

// Failed says that the importer has given up.
func Failed(dv *cdi.DataVolume) bool { return dv.Status.Phase == cdi.DataVolumeFailed }

// Problem says what keeps the importer from filling the claim, or nothing.
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

// ExceedsQuota says that the importer waits for room in a quota, in its words, or nothing.
func ExceedsQuota(dv *cdi.DataVolume) string {
	bound := dv.Status.Condition(cdi.DataVolumeBound)
	if dv.Status.Phase != cdi.DataVolumePending || bound == nil || bound.Status == corev1.ConditionTrue ||
		bound.Reason != reasonExceededQuota {
		return ""
	}
	return fmt.Sprintf("DataVolume %s importer is not running due to an error: %s", dv.Name, bound.Message)
}
