// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"slices"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// readSELinux reads the SELinux context of the Pod's files, which never changes. With its level, the target of a
// migration and attachment Pods may use the same volumes; without the context, neither is created.
func (r *Reconciler) readSELinux(ctx context.Context, s *scope) (err error) {
	if s.Assigned && s.cache.selinuxContext == "" {
		s.cache.selinuxContext, err = r.Files(s.Pod.UID).SELinuxContext(ctx)
	}
	return err
}

// setSELinux sets the SELinux context in the status, once it is known. Before the guest runs, only attachment Pods need
// it.
func setSELinux(s *scope) {
	status := &s.VMI.Status
	plugs := slices.ContainsFunc(status.VolumeStatus, func(v v1.VolumeStatus) bool { return vmistatus.IsHotplugged(&v) })
	if context := s.cache.selinuxContext; context != "" && (s.Domain.Active() || plugs) {
		status.SelinuxContext = context
	}
}
