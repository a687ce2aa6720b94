// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcherpod

// Outcome is what virt-launcher writes as its termination message, as one line of JSON. The exit code says whether the guest
// succeeded (0) or failed; the outcome says why. The guest may have taken the launcher over: cap what is read, and trust it
// for its own VMI only.
type Outcome struct {
	// Reason is one of the Outcome constants.
	Reason string `json:"reason"`
	// Message explains the reason to users.
	Message string `json:"message"`
	// Stopped reports whether the launcher was requested to stop before the guest ended.
	Stopped bool `json:"stopped,omitempty"`
}

// Reasons of an Outcome.
const (
	// OutcomeShutdown means that the guest powered off, by itself or when asked to.
	OutcomeShutdown = "GuestShutdown"
	// OutcomeMigrated means that libvirt has handed the guest over to another Pod: it can never run here again.
	OutcomeMigrated = "GuestMigrated"
	// OutcomeDestroyed means that the guest was requested to shut down and was destroyed when its grace period ended.
	OutcomeDestroyed = "GracePeriodExpired"
	// OutcomeNotStarted means that the launcher was stopped before any guest ran.
	OutcomeNotStarted = "NotStarted"
	// OutcomeCrashed means that QEMU ended without being asked to.
	OutcomeCrashed = "GuestCrashed"
	// OutcomePanicked means that the guest's kernel panicked.
	OutcomePanicked = "GuestPanicked"
	// OutcomeKilled means that someone destroyed the domain without a request to stop it.
	OutcomeKilled = "GuestDestroyed"
	// OutcomeLibvirtFailed means that libvirtd ended or never became ready.
	OutcomeLibvirtFailed = "LibvirtFailed"
	// OutcomeInternal means that virt-launcher could not do its work.
	OutcomeInternal = "LauncherFailed"
)
