// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Bodies of the requests to subresources.kubevirt.io that change what a VM does. Those with apiVersion and kind are
// optional in KubeVirt's API: a request without a body has the defaults.

// StartOptions is the body of start.
type StartOptions struct {
	metav1.TypeMeta `json:",inline"`
	// paused starts the guest paused, until it is unpaused. Default: false.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// dryRun with the value All checks the request and changes nothing.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// Keys and values of the data of a state change request (status.stateChangeRequests[].data).
const (
	// StartRequestDataPausedKey defines whether the guest starts paused.
	StartRequestDataPausedKey = "paused"
	// StartRequestDataPausedTrue is the value for a paused start.
	StartRequestDataPausedTrue = "true"
	// RequestDataRunStrategyKey is the run strategy of the VM when the request was made. It is not KubeVirt's.
	RequestDataRunStrategyKey = "runStrategy"
)

// StopOptions is the body of stop.
type StopOptions struct {
	metav1.TypeMeta `json:",inline"`
	// gracePeriod is how many seconds the guest has to shut down. Default: the VMI's terminationGracePeriodSeconds.
	// +optional
	GracePeriod *int64 `json:"gracePeriod,omitempty"`
	// dryRun with the value All checks the request and changes nothing.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// RestartOptions is the body of restart.
type RestartOptions struct {
	metav1.TypeMeta `json:",inline"`
	// gracePeriodSeconds may be 0, which does not wait for the guest to shut down. Default: the VMI's
	// terminationGracePeriodSeconds. No other value is taken.
	// +optional
	GracePeriodSeconds *int64 `json:"gracePeriodSeconds,omitempty"`
	// dryRun with the value All checks the request and changes nothing.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// PauseOptions is the body of pause.
type PauseOptions struct {
	metav1.TypeMeta `json:",inline"`
	// dryRun with the value All checks the request and changes nothing.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// UnpauseOptions is the body of unpause.
type UnpauseOptions struct {
	metav1.TypeMeta `json:",inline"`
	// dryRun with the value All checks the request and changes nothing.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// MigrateOptions is the body of migrate.
type MigrateOptions struct {
	metav1.TypeMeta `json:",inline"`
	// dryRun with the value All checks the request and changes nothing.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
	// addedNodeSelector are labels that the target node must have besides what the VMI requests. A key that the VMI's own
	// nodeSelector has keeps the VMI's value.
	// +optional
	AddedNodeSelector map[string]string `json:"addedNodeSelector,omitempty"`
}

// EvacuateCancelOptions is the body of evacuate/cancel.
type EvacuateCancelOptions struct {
	metav1.TypeMeta `json:",inline"`
	// dryRun with the value All checks the request and changes nothing.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
	// evacuationNodeName is the node that the VMI no longer has to leave. Required.
	EvacuationNodeName string `json:"evacuationNodeName"`
}

// FreezeUnfreezeTimeout is the body of freeze.
type FreezeUnfreezeTimeout struct {
	// unfreezeTimeout is after how long the guest's file systems are thawed without a request. 0 is never.
	UnfreezeTimeout *metav1.Duration `json:"unfreezeTimeout"`
}

// ScreenshotOptions are the options of vnc/screenshot.
type ScreenshotOptions struct {
	// moveCursor moves the guest's mouse first, so that a screen saver gives way.
	MoveCursor bool `json:"moveCursor"`
}

// VSOCKOptions are the options of vsock.
type VSOCKOptions struct {
	// targetPort is the port in the guest.
	TargetPort uint32 `json:"targetPort"`
	// useTLS encrypts the connection up to the guest. Default: true.
	UseTLS *bool `json:"useTLS,omitempty"`
}

// GuestfsInfo is the image that virtctl guestfs runs, the response to guestfs. It is KubeVirt's type
// (kubevirt.io/client-go/kubecli, GuestfsInfo). The image is gsImage if that is set, and otherwise
// registry/imagePrefix+libguestfs-tools with the digest, or the tag if there is no digest.
type GuestfsInfo struct {
	// registry is the image's registry and path, without its name.
	Registry string `json:"registry"`
	// tag is the image's tag.
	Tag string `json:"tag"`
	// digest is the image's digest.
	Digest string `json:"digest"`
	// imagePrefix is what the image's name starts with.
	ImagePrefix string `json:"imagePrefix"`
	// gsImage is the whole reference of the image.
	GsImage string `json:"gsImage"`
}
