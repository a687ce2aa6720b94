// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package export decides the next step of a VirtualMachineExport: which claims are exported in which formats, its Pod,
// Service and Secrets, and its status. It is pure: the reconciler reads a Observed, applies the Step and writes the
// status.
package export

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	backupapi "github.com/vireo-project/vireo/api/backup"
	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	"github.com/vireo-project/vireo/api/csi"
	exportapi "github.com/vireo-project/vireo/api/export"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/exporter/content"
)

// Kinds of sources.
const (
	KindClaim    = "PersistentVolumeClaim"
	KindVM       = "VirtualMachine"
	KindSnapshot = "VirtualMachineSnapshot"
	KindBackup   = "VirtualMachineBackup"
)

// Observed contains what was observed for an export. Its objects must not be changed.
type Observed struct {
	// Now is the time.
	Now time.Time
	// Export is the export.
	Export *exportv1.VirtualMachineExport
	// VM is the VM if the source is a VM, with its instance type and preference applied, or nil if there is none.
	VM *v1.VirtualMachine
	// Running reports whether the VM has a VMI that has not finished.
	Running bool
	// Snapshot and Content are set if the source is a snapshot, and Stored is the VM in the content, with its instance
	// type and preference applied.
	Snapshot *v1beta1.VirtualMachineSnapshot
	Content  *v1beta1.VirtualMachineSnapshotContent
	Stored   *v1.VirtualMachine
	// Problem is why the instance type or preference of the VM cannot be applied, so that there are no manifests.
	Problem string
	// Backup is set if the source is a backup, and Guest is the VMI that has its intent, or nil.
	Backup *v1alpha1.VirtualMachineBackup
	Guest  *v1.VirtualMachineInstance
	// VolumeSnapshots are those of the content, by name.
	VolumeSnapshots map[string]*csi.VolumeSnapshot
	// Claims are the claims of the namespace, by name, and State is the VM's state claim, or nil.
	Claims map[string]*corev1.PersistentVolumeClaim
	State  *corev1.PersistentVolumeClaim
	// Unfilled are the claims that the importer has not filled, by name, with what users have to do, or "" if they only
	// have to wait.
	Unfilled map[string]string
	// Used are claims that other Pods use, by name. The list may be incomplete, because one such claim suffices to
	// prevent the export.
	Used map[string]bool
	// Service and Pod are those of the export, or nil.
	Service *corev1.Service
	Pod     *corev1.Pod
	// Config is the configuration of the installation.
	Config Config
}

// Config is the configuration of the installation.
type Config struct {
	// Image is the exporter's image; empty if the installation has none.
	Image string
	// PullPolicy is the image's pull policy.
	PullPolicy corev1.PullPolicy
	// Resources override single requests and limits of the exporter.
	Resources corev1.ResourceRequirements
	// Verbosity is the exporter's log verbosity.
	Verbosity uint
	// OCI reports whether VMs are also exported as OCI images: the feature gate OCIExport.
	OCI bool
	// CA contains the certificates by which exporters are verified, as PEM, and CAEnd is when the one that signs
	// expires. CA is empty if there is none yet.
	CA    string
	CAEnd time.Time
	// AgentCA contains the certificates by which exporters verify the agents of guests whose disks they read, as PEM.
	// It is empty if there is none yet.
	AgentCA string
	// External is where virt-exportproxy can be reached from outside, or nil.
	External *External
}

// External is where virt-exportproxy can be reached from outside.
type External struct {
	// Host is the host.
	Host string
	// CA contains the certificates by which it is verified, as PEM; empty if they are not known.
	CA string
}

// SourceKind returns the kind of the source of an export, or "" for a kind that cannot be exported.
func SourceKind(vmExport *exportv1.VirtualMachineExport) string {
	group, kind := ptr.Deref(vmExport.Spec.Source.APIGroup, ""), vmExport.Spec.Source.Kind
	for _, known := range []struct{ group, kind string }{
		{"", KindClaim}, {v1.GroupVersion.Group, KindVM}, {snapshot.GroupName, KindSnapshot},
		{backupapi.GroupName, KindBackup},
	} {
		if known.group == group && known.kind == kind {
			return kind
		}
	}
	return ""
}

// Expiry returns when an export is deleted.
func Expiry(vmExport *exportv1.VirtualMachineExport) time.Time {
	ttl := exportv1.DefaultDurationTTL
	if vmExport.Spec.TTLDuration != nil {
		ttl = vmExport.Spec.TTLDuration.Duration
	}
	return vmExport.CreationTimestamp.Add(ttl)
}

// TokenName returns the name of the Secret with the token, and whether virt-controller creates it.
func TokenName(vmExport *exportv1.VirtualMachineExport) (name string, generated bool) {
	if given := ptr.Deref(vmExport.Spec.TokenSecretRef, ""); given != "" {
		return given, false
	}
	return shortened("export-token-" + vmExport.Name), true
}

// shortened returns the name of an object. If it is too long, a hash replaces its end.
func shortened(name string) string {
	const most = validation.DNS1123SubdomainMaxLength
	if len(name) <= most {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	suffix := "-" + hex.EncodeToString(sum[:])[:8]
	return strings.TrimRight(name[:most-len(suffix)], "-.") + suffix
}

// status returns the status of an export.
func (o *Observed) status(s *source, ready exportv1.Condition) *exportv1.VirtualMachineExportStatus {
	status := o.Export.Status.DeepCopy()
	if status == nil {
		status = &exportv1.VirtualMachineExportStatus{}
	}
	token, _ := TokenName(o.Export)
	status.TokenSecretRef = &token
	status.TTLExpirationTime = ptr.To(metav1.NewTime(Expiry(o.Export)).Rfc3339Copy())
	status.ServiceName = content.ServiceName(o.Export.Name)
	status.VirtualMachineName = s.vmName
	// As in KubeVirt, it is set but empty while the export is not ready.
	status.Links = &exportv1.VirtualMachineExportLinks{}
	switch {
	case ready.Status == corev1.ConditionTrue:
		status.Phase, status.Links = exportv1.Ready, o.links(s)
	case s.empty:
		status.Phase = exportv1.Skipped
	case ready.Reason == exportapi.PodCompletedReason:
		status.Phase = exportv1.Terminated
	default:
		status.Phase = exportv1.Pending
	}
	o.set(status, ready)
	s.keepRead(status)
	if s.condition != nil {
		o.set(status, *s.condition)
	}
	o.setImage(status, s)
	return status
}

// setImage sets the condition OCIReady of an export that can be an OCI image. As in KubeVirt, the exporter is ready
// when the digests are known.
func (o *Observed) setImage(status *exportv1.VirtualMachineExportStatus, s *source) {
	kind := SourceKind(o.Export)
	if !o.Config.OCI || kind != KindVM && kind != KindSnapshot {
		conditions.Remove(&status.Conditions, exportv1.ConditionOCIReady)
		return
	}
	pending := condition(exportv1.ConditionOCIReady, corev1.ConditionFalse, exportapi.OCIDigestsPendingReason, "")
	switch {
	case status.Phase != exportv1.Ready:
	case !o.hasImage(s):
		pending.Message = "There is no manifest of the VM, which an OCI image needs"
	default:
		pending = condition(exportv1.ConditionOCIReady, corev1.ConditionTrue, exportapi.OCIDigestsComputedReason, "")
	}
	o.set(status, *pending)
}

// set sets a condition. As in KubeVirt, its lastTransitionTime also changes with its reason, and so shows since when
// the export has been waiting for the same reason.
func (o *Observed) set(status *exportv1.VirtualMachineExportStatus, c exportv1.Condition) {
	c.LastTransitionTime = metav1.NewTime(o.Now).Rfc3339Copy()
	if known := conditions.Find(status.Conditions, c.Type); known != nil && known.Reason != c.Reason {
		*known = c
		return
	}
	conditions.Set(&status.Conditions, c)
}

// Failed returns the status of an export whose step failed.
func Failed(o *Observed, err error) *exportv1.VirtualMachineExportStatus {
	s := o.source()
	return o.status(&s, *condition(exportv1.ConditionReady, corev1.ConditionFalse, exportapi.PodPendingReason,
		short(err.Error())))
}
