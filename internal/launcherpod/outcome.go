// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcherpod

// Outcome is what virt-launcher writes as its termination message, as one line of JSON. The exit code reports whether the guest
// succeeded (0) or failed; the outcome says why. A hostile guest may control the launcher: readers cap the size, and use the
// outcome for this VMI only.
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
	// OutcomeShutdown means that the guest powered off, by itself or on request.
	OutcomeShutdown = "GuestShutdown"
	// OutcomeMigrated means that libvirt has migrated the guest to another Pod: it can never run in this one again.
	OutcomeMigrated = "GuestMigrated"
	// OutcomeDestroyed means that the guest was requested to shut down and was destroyed when its grace period ended.
	OutcomeDestroyed = "GracePeriodExpired"
	// OutcomeNotStarted means that the launcher was stopped before any guest ran.
	OutcomeNotStarted = "NotStarted"
	// OutcomeCrashed means that QEMU exited without a request to stop.
	OutcomeCrashed = "GuestCrashed"
	// OutcomePanicked means that the guest's kernel panicked.
	OutcomePanicked = "GuestPanicked"
	// OutcomeKilled means that the domain was destroyed without a request to stop it.
	OutcomeKilled = "GuestDestroyed"
	// OutcomeLibvirtFailed means that libvirtd exited or never became ready.
	OutcomeLibvirtFailed = "LibvirtFailed"
	// OutcomeInternal means that virt-launcher could not do its work.
	OutcomeInternal = "LauncherFailed"
)
