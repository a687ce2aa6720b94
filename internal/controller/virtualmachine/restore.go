// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import "fmt"

// beingRestored reports whether the VM is locked by a restore: its disks, ControllerRevisions and spec are being
// replaced. It neither starts meanwhile nor gets DataVolumes, and the revisions that it does not refer to yet stay.
func (s *Scope) beingRestored() bool { return s.VM.Status.RestoreInProgress != nil }

// failRestoring sets the failure that the VM cannot be started until its restore has ended. The words are those with
// which KubeVirt has refused such a start.
func (s *Scope) failRestoring() {
	s.fail(ReasonFailedCreate, actionStart, fmt.Errorf("Cannot start VM until restore %q completes", *s.VM.Status.RestoreInProgress), createFailed) //nolint:staticcheck // KubeVirt's message
}
