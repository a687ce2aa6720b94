// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"crypto/sha256"
	"encoding/base32"
	"maps"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// LauncherAppValue is the value of the label kubevirt.io on a launcher Pod.
const LauncherAppValue = "virt-launcher"

// Annotations that others understand.
const (
	// defaultContainerAnnotation makes kubectl logs and exec take the compute container.
	defaultContainerAnnotation = "kubectl.kubernetes.io/default-container"
	// safeToEvictAnnotation tells the cluster autoscaler which local volumes hold nothing that outlives the Pod.
	safeToEvictAnnotation = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
	// evictRequestAnnotation tells the descheduler that an eviction only asks for a move.
	evictRequestAnnotation = "descheduler.alpha.kubernetes.io/request-evict-only"
	// lastAppliedAnnotation is kubectl's copy of the VMI, which is none of the Pod's business.
	lastAppliedAnnotation = "kubectl.kubernetes.io/last-applied-configuration"
)

// liveLabels of a VMI are those of the Pod in which its guest is. Source: kubevirt/kubevirt pkg/virt-controller/watch/vmi (dynamic labels).
var liveLabels = []string{v1.NodeNameLabel, v1.OutdatedLauncherImageLabel}

// CopyLiveLabels makes those of a VMI those of its Pod.
func CopyLiveLabels(to *metav1.ObjectMeta, from map[string]string) {
	for _, key := range liveLabels {
		if value, wanted := from[key]; wanted {
			metav1.SetMetaDataLabel(to, key, value)
		} else {
			delete(to.Labels, key)
		}
	}
}

// hashLength is the length of the part of a Pod's name that tells VMIs of the same name apart.
const hashLength = 8

// PodName is the name of a VMI's launcher Pod. It follows from the VMI's name and UID, so that making the Pod twice
// from a stale cache is refused by the API server, and a new VMI of the same name gets a Pod of another name. It
// fits a host name whatever the VMI is called.
func PodName(vmi *v1.VirtualMachineInstance) string {
	return podName(LauncherAppValue+"-", vmi.Name, string(vmi.UID))
}

// podName makes the name of a Pod for the VMI of a name. What is in the seed tells it from others.
func podName(prefix, vmiName, seed string) string {
	sum := sha256.Sum256([]byte(seed))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:hashLength]
	name := prefix + vmiName
	if limit := validation.DNS1123LabelMaxLength - hashLength - 1; len(name) > limit {
		name = strings.TrimRight(name[:limit], "-.")
	}
	return name + "-" + hash
}

func metadata(vmi *v1.VirtualMachineInstance, cfg Config) (metav1.ObjectMeta, error) {
	meta := metav1.ObjectMeta{
		Name:            PodName(vmi),
		Namespace:       vmi.Namespace,
		Labels:          labels(vmi),
		Annotations:     annotations(vmi, cfg),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)},
	}
	annotateForSidecar(meta.Annotations, meta.Labels, vmi)
	return meta, annotateNetworks(meta.Annotations, vmi, cfg.MigrationNetwork)
}

// labels are the VMI's, so that Services select guests by the labels of their VMs, and those that tools go by.
func labels(vmi *v1.VirtualMachineInstance) map[string]string {
	out := maps.Clone(vmi.Labels)
	if out == nil {
		out = map[string]string{}
	}
	// The VMI's own bookkeeping says nothing about the Pod.
	delete(out, v1.NodeNameLabel)
	delete(out, v1.MigrationTargetNodeNameLabel)
	delete(out, v1.OutdatedLauncherImageLabel)
	// A VMI does not say which Pod a migration goes to.
	delete(out, v1.MigrationJobLabel)
	out[v1.AppLabel] = LauncherAppValue
	out[v1.CreatedByLabel] = string(vmi.UID)
	out[v1.DeprecatedVirtualMachineNameLabel] = hostname(vmi)
	out[v1.VirtualMachineInstanceIDLabel] = launcherpod.InstanceID(vmi.Name)
	labelForSidecar(out, vmi)
	return out
}

func annotations(vmi *v1.VirtualMachineInstance, cfg Config) map[string]string {
	out := maps.Clone(vmi.Annotations)
	if out == nil {
		out = map[string]string{}
	}
	delete(out, lastAppliedAnnotation)
	delete(out, v1.MigrationJobNameAnnotation)
	delete(out, v1.ControllerAPILatestVersionObservedAnnotation)
	delete(out, v1.ControllerAPIStorageVersionObservedAnnotation)
	setBackupHooks(out, vmi, cfg)
	overhead := MemoryOverhead(vmi, cfg)
	out[v1.MemoryOverheadAnnotationBytes] = strconv.FormatInt(overhead.Value(), 10)
	out[v1.DomainAnnotation] = vmi.Name
	out[v1.MigrationTransportUnixAnnotation] = yes
	out[defaultContainerAnnotation] = launcherpod.ComputeContainer
	out[evictRequestAnnotation] = ""
	local := []string{launcherpod.SocketsVolume, launcherpod.RuntimeVolume, launcherpod.EphemeralDisksVolume}
	if LogsConsole(vmi) {
		local = append(local, launcherpod.ConsoleLogVolume)
	}
	out[safeToEvictAnnotation] = strings.Join(local, ",")
	return out
}

// LabelValue is a name that fits a label's value: the name itself, or its beginning and a hash.
func LabelValue(name string) string {
	if len(name) <= validation.LabelValueMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:hashLength]
	return strings.TrimRight(name[:validation.LabelValueMaxLength-hashLength-1], "-.") + "-" + hash
}

// hostname is spec.hostname, or what fits a host name of the VMI's own.
func hostname(vmi *v1.VirtualMachineInstance) string {
	if vmi.Spec.Hostname != "" {
		return vmi.Spec.Hostname
	}
	name, _, _ := strings.Cut(vmi.Name, ".")
	if len(name) > validation.DNS1123LabelMaxLength {
		name = strings.TrimRight(name[:validation.DNS1123LabelMaxLength], "-")
	}
	return name
}
