// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package plan

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/export"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/export/content"
)

// status returns the status of an export.
func (w *World) status(s *source, ready exportv1.Condition) *exportv1.VirtualMachineExportStatus {
	status := w.Export.Status.DeepCopy()
	if status == nil {
		status = &exportv1.VirtualMachineExportStatus{}
	}
	token, _ := TokenName(w.Export)
	status.TokenSecretRef = &token
	status.TTLExpirationTime = ptr.To(metav1.NewTime(Expiry(w.Export)).Rfc3339Copy())
	status.ServiceName = content.ServiceName(w.Export.Name)
	status.VirtualMachineName = s.vmName
	status.Links = &exportv1.VirtualMachineExportLinks{} // As in KubeVirt, it is set but empty while the export is not ready.
	switch {
	case ready.Status == corev1.ConditionTrue:
		status.Phase, status.Links = exportv1.Ready, w.links(s)
	case s.empty:
		status.Phase = exportv1.Skipped
	case ready.Reason == export.PodCompletedReason:
		status.Phase = exportv1.Terminated
	default:
		status.Phase = exportv1.Pending
	}
	w.set(status, ready)
	s.keepRead(status)
	if s.condition != nil {
		w.set(status, *s.condition)
	}
	w.setImage(status, s)
	return status
}

// setImage sets the condition OCIReady of an export that can be an OCI image. As in KubeVirt, the exporter is ready when the digests are
// known.
func (w *World) setImage(status *exportv1.VirtualMachineExportStatus, s *source) {
	kind := SourceKind(w.Export)
	if !w.Config.OCI || kind != KindVM && kind != KindSnapshot {
		conditions.Remove(&status.Conditions, exportv1.ConditionOCIReady)
		return
	}
	pending := condition(exportv1.ConditionOCIReady, corev1.ConditionFalse, export.OCIDigestsPendingReason, "")
	switch {
	case status.Phase != exportv1.Ready:
	case !w.hasImage(s):
		pending.Message = "There is no manifest of the VM, which an OCI image needs"
	default:
		pending = condition(exportv1.ConditionOCIReady, corev1.ConditionTrue, export.OCIDigestsComputedReason, "")
	}
	w.set(status, *pending)
}

// set sets a condition. As in KubeVirt, its lastTransitionTime also changes with its reason, and so shows since when the export has been
// waiting for the same reason.
func (w *World) set(status *exportv1.VirtualMachineExportStatus, c exportv1.Condition) {
	c.LastTransitionTime = metav1.NewTime(w.Now).Rfc3339Copy()
	if known := conditions.Find(status.Conditions, c.Type); known != nil && known.Reason != c.Reason {
		*known = c
		return
	}
	conditions.Set(&status.Conditions, c)
}

// Failed returns the status of an export whose step failed.
func Failed(w *World, err error) *exportv1.VirtualMachineExportStatus {
	s := w.source()
	return w.status(&s, *condition(exportv1.ConditionReady, corev1.ConditionFalse, export.PodPendingReason, short(err.Error())))
}
