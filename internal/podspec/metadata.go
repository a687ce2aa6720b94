// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"crypto/sha256"
	"encoding/base32"
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Annotations for other programs.
const (
	// defaultContainerAnnotation makes kubectl logs and exec take the compute container.
	defaultContainerAnnotation = "kubectl.kubernetes.io/default-container"
	// safeToEvictAnnotation lists the local volumes that the cluster autoscaler may ignore, because their content is not
	// needed later.
	safeToEvictAnnotation = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
	// evictRequestAnnotation marks Pods whose eviction, for the descheduler, is only a request.
	evictRequestAnnotation = "descheduler.alpha.kubernetes.io/request-evict-only"
	// lastAppliedAnnotation is kubectl's copy of the VMI. It is not copied to the Pod.
	lastAppliedAnnotation = "kubectl.kubernetes.io/last-applied-configuration"
)

// liveLabels are labels of a VMI that are copied to the running Pod of its guest. Source: kubevirt/kubevirt
// pkg/virt-controller/watch/vmi (dynamic labels).
var liveLabels = []string{v1.NodeNameLabel, v1.OutdatedLauncherImageLabel}

// CopyLiveLabels copies the live labels of a VMI to the metadata of its Pod, and removes those that the VMI does not
// have.
func CopyLiveLabels(to *metav1.ObjectMeta, from map[string]string) {
	for _, key := range liveLabels {
		if value, wanted := from[key]; wanted {
			metav1.SetMetaDataLabel(to, key, value)
		} else {
			delete(to.Labels, key)
		}
	}
}

// hashLength is the length of the hash in a Pod's name, which differs for VMIs of the same name.
const hashLength = 8

// PodName returns the name of a VMI's launcher Pod. It is derived from the name and the UID of the VMI: if a stale
// cache leads to a second creation of the Pod, the API server refuses it, and a new VMI of the same name has a Pod of
// another name. It is a valid host name.
func PodName(vmi *v1.VirtualMachineInstance) string {
	return podName(launcherpod.AppLabelValue+"-", vmi.Name, string(vmi.UID))
}

// podName returns the name of a Pod of a VMI. Different seeds give different names.
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

// labels returns the labels of a launcher Pod: those of the VMI, by which Services select guests, and KubeVirt's.
func labels(vmi *v1.VirtualMachineInstance) map[string]string {
	out := maps.Clone(vmi.Labels)
	if out == nil {
		out = map[string]string{}
	}
	// These labels of the VMI are not about this Pod.
	delete(out, v1.NodeNameLabel)
	delete(out, v1.MigrationTargetNodeNameLabel)
	delete(out, v1.OutdatedLauncherImageLabel)
	// Only BuildTarget sets the label of a migration's target.
	delete(out, v1.MigrationJobLabel)
	out[v1.AppLabel] = launcherpod.AppLabelValue
	out[v1.CreatedByLabel] = string(vmi.UID)
	out[v1.DeprecatedVirtualMachineNameLabel] = Hostname(vmi)
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
	resize.Annotate(out, resize.Desired(vmi))
	out[v1.DomainAnnotation] = vmi.Name
	out[v1.MigrationTransportUnixAnnotation] = yes
	out[defaultContainerAnnotation] = launcherpod.ComputeContainer
	out[evictRequestAnnotation] = ""
	local := []string{launcherpod.SocketsVolume, launcherpod.RuntimeVolume, launcherpod.EphemeralDisksVolume}
	if !vmi.Spec.Domain.Devices.DisableHotplug {
		local = append(local, launcherpod.HotplugDisksVolume)
	}
	if LogsConsole(vmi) {
		local = append(local, launcherpod.ConsoleLogVolume)
	}
	out[safeToEvictAnnotation] = strings.Join(local, ",")
	return out
}

// LabelValue returns a name as the value of a label: the name itself, or if it is too long a prefix of it and a hash.
func LabelValue(name string) string {
	if len(name) <= validation.LabelValueMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:hashLength]
	return strings.TrimRight(name[:validation.LabelValueMaxLength-hashLength-1], "-.") + "-" + hash
}

// Hostname returns the host name of a launcher Pod, which is also its label with the VM's name: spec.hostname, or else
// the VMI's name up to the first dot, cut to the length of a host name.
func Hostname(vmi *v1.VirtualMachineInstance) string {
	if vmi.Spec.Hostname != "" {
		return vmi.Spec.Hostname
	}
	name, _, _ := strings.Cut(vmi.Name, ".")
	if len(name) > validation.DNS1123LabelMaxLength {
		name = strings.TrimRight(name[:validation.DNS1123LabelMaxLength], "-")
	}
	return name
}

// LiveMetadata has the keys of annotations and labels that are copied to running objects: from a VM's template to its
// VMI, and from there to the Pod. A key that ends in * is a prefix. The annotations always include those of the
// descheduler. Source: kubevirt/kubevirt pkg/virt-controller/watch/application.go, AddFlags.
type LiveMetadata struct {
	Annotations, Labels []string
}

// deschedulerAnnotations are the annotations that the descheduler reads from running Pods. Source: kubevirt/kubevirt
// pkg/virt-controller/watch/descheduler.
var deschedulerAnnotations = []string{
	"descheduler.alpha.kubernetes.io/evict",
	"descheduler.alpha.kubernetes.io/prefer-no-eviction",
}

// Copy copies the live annotations and labels of an object to another one, and removes those that the first does not
// have.
func (l LiveMetadata) Copy(to, from *metav1.ObjectMeta) {
	to.Annotations = copyLive(to.Annotations, from.Annotations, l.isAnnotation)
	to.Labels = copyLive(to.Labels, from.Labels, l.isLabel)
}

// Remove removes the live annotations and labels.
func (l LiveMetadata) Remove(from *metav1.ObjectMeta) { l.Copy(from, &metav1.ObjectMeta{}) }

func (l LiveMetadata) isAnnotation(key string) bool {
	return slices.Contains(deschedulerAnnotations, key) || matches(l.Annotations, key)
}

func (l LiveMetadata) isLabel(key string) bool { return matches(l.Labels, key) }

func copyLive(to, from map[string]string, live func(key string) bool) map[string]string {
	for key := range to {
		if _, wanted := from[key]; !wanted && live(key) {
			delete(to, key)
		}
	}
	for key, value := range from {
		if !live(key) {
			continue
		}
		if to == nil {
			to = map[string]string{}
		}
		to[key] = value
	}
	return to
}

func matches(patterns []string, key string) bool {
	return !reserved(key) && slices.ContainsFunc(patterns, func(pattern string) bool {
		if prefix, found := strings.CutSuffix(pattern, "*"); found {
			return strings.HasPrefix(key, prefix)
		}
		return key == pattern
	})
}

// reservedDomains are domains of keys, including their subdomains, that are never copied. Other programs derive from
// them the owner of a Pod, its networks and the commands to run in it.
var reservedDomains = []string{
	"kubevirt.io", "descheduler.alpha.kubernetes.io", "k8s.v1.cni.cncf.io", "v1.multus-cni.io", "istio.io",
	"kubectl.kubernetes.io", strings.TrimSuffix(preHook, "/"), strings.TrimSuffix(postHook, "/"),
}

// reserved reports whether a key is never copied to a running Pod.
func reserved(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return key == safeToEvictAnnotation || slices.ContainsFunc(reservedDomains, func(reserved string) bool {
		return domain == reserved || strings.HasSuffix(domain, "."+reserved)
	})
}
