// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
)

// selinuxLabel is the SELinux context of the Pod, which never changes. It is empty if the broker could not read it.
type selinuxLabel struct {
	read    bool
	context string
}

// readSELinux reads the SELinux context of the Pod's files. With its level, the target of a migration and attachment
// Pods may use the same volumes.
func (r *Reconciler) readSELinux(ctx context.Context, s *scope) (err error) {
	if label := &s.cache.label; !label.read && s.Domain.Active() {
		label.context, err = r.Files(s.Pod.UID).SELinuxContext(ctx)
		label.read = err == nil
	}
	return err
}

// setSELinux sets the SELinux context in the status, once it is known.
func setSELinux(s *scope) {
	if context := s.cache.label.context; context != "" {
		s.VMI.Status.SelinuxContext = context
	}
}
