// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"path"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Resources of the container of an attachment Pod, KubeVirt's. Source: kubevirt/kubevirt pkg/virt-controller/services,
// hotplugContainerResourceRequirementsForVMI.
const (
	attachmentCPURequest    = "10m"
	attachmentMemoryRequest = "2M"
	attachmentCPULimit      = "100m"
	attachmentMemoryLimit   = "80M"
)

// podKind is the kind of Pods in owner references.
const podKind = "Pod"

// IsHotplugged reports whether the claim of a volume is not in the launcher Pod, but in an attachment Pod. Once the VMI
// has a node, that no longer depends on the configuration.
func IsHotplugged(vmi *v1.VirtualMachineInstance, v *v1.Volume, cfg Config) bool {
	if status := vmistatus.FindVolume(&vmi.Status, v.Name); status != nil {
		return vmistatus.IsHotplugged(status)
	}
	return cfg.HotplugVolumes && v.IsHotpluggable() && !vmi.Spec.Domain.Devices.DisableHotplug
}

// HasClaim reports whether a Pod has a claim among its volumes.
func HasClaim(pod *corev1.Pod, claim string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
	})
}

// IsAttachmentOf reports whether a Pod is an attachment Pod of a VMI. Its label and its annotation prove it, because
// only virt-controller can set the label, and change the annotation of a Pod with it (policy kubevirt-launcher-pods in
// config/admission).
func IsAttachmentOf(pod *corev1.Pod, vmi *v1.VirtualMachineInstance) bool {
	return pod.Namespace == vmi.Namespace && AttachmentUser(pod) == vmi.UID
}

// AttachmentUser returns the UID of the VMI that an attachment Pod is for, or "" if the Pod is none.
func AttachmentUser(pod *corev1.Pod) types.UID {
	if pod.Labels[v1.AppLabel] != launcherpod.AttachmentLabelValue {
		return ""
	}
	return types.UID(pod.Annotations[launcherpod.AttachmentUserAnnotation])
}

// AttachmentLauncher returns the controller reference of an attachment Pod, which is a launcher Pod, or nil.
func AttachmentLauncher(pod *corev1.Pod) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != podKind || owner.APIVersion != corev1.SchemeGroupVersion.String() {
		return nil
	}
	return owner
}

// Attachment is the input of BuildAttachment about a volume.
type Attachment struct {
	// Volume is the volume of the VMI.
	Volume *v1.Volume
	// Claim is its claim.
	Claim *corev1.PersistentVolumeClaim
	// Launcher is the launcher Pod, which has a node.
	Launcher *corev1.Pod
	// Ranges are the LimitRanges of the namespace.
	Ranges []corev1.LimitRange
	// Files is set for a volume that is no disk: its claim gets no disk image.
	Files bool
	// Trigger is set for a Pod whose only purpose is that its claim is bound and filled: it completes.
	Trigger bool
}

// AttachmentName returns the name of the attachment Pod of a volume in a launcher Pod. It is a function of both, so
// that a stale cache cannot lead to a second Pod.
func AttachmentName(launcher types.UID, volume string) string {
	return launcherpod.AttachmentPod(string(launcher), volume)
}

// TriggerName returns the name of the Pod by which the claim of a volume is bound and filled.
func TriggerName(launcher types.UID, volume string) string {
	return podName(launcherpod.AttachmentPrefix, volume, string(launcher)+"/"+volume+"/trigger")
}

// BuildAttachment returns the Pod by which the kubelet of the launcher's node attaches the claim of a volume, for the
// agent to mount it into the launcher Pod. A Pod cannot get another volume while it runs.
//
// A claim without a disk image gets one, as a claim does that a launcher Pod has: the Pod creates it as the user of the
// disk, without privileges. KubeVirt waits for an image that no component makes.
//
// The Pod is restarted if its container ends, because the kubelet would detach the volumes of a Pod that has finished.
func BuildAttachment(vmi *v1.VirtualMachineInstance, cfg Config, a Attachment) *corev1.Pod {
	vmi = vmi.DeepCopy() // The Pod must not share memory with the VMI.
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vmi.Namespace, Name: AttachmentName(a.Launcher.UID, a.Volume.Name),
			// Without the labels of the VMI, Services do not select the Pod. A sidecar would be one more container, and would
			// delay it.
			Labels:      map[string]string{v1.AppLabel: launcherpod.AttachmentLabelValue, SidecarLabel: "false"},
			Annotations: map[string]string{launcherpod.AttachmentUserAnnotation: string(vmi.UID), SidecarLabel: "false"},
			// It does not block the deletion of the launcher Pod, for which virt-controller would need a permission.
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: corev1.SchemeGroupVersion.String(), Kind: podKind, Name: a.Launcher.Name, UID: a.Launcher.UID,
				Controller: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{
			Containers:                    []corev1.Container{attachmentContainer(vmi, cfg, a)},
			RestartPolicy:                 corev1.RestartPolicyAlways,
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			EnableServiceLinks:            ptr.To(false),
			AutomountServiceAccountToken:  ptr.To(false),
			SecurityContext:               podSecurity(cfg),
			Affinity: &corev1.Affinity{
				NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: onNode(
					a.Launcher.Spec.NodeName)}},
			Tolerations:       slices.Concat(nodeTolerations(), vmi.Spec.Tolerations),
			PriorityClassName: vmi.Spec.PriorityClassName,
			SchedulerName:     vmi.Spec.SchedulerName,
			Volumes: []corev1.Volume{{Name: a.Volume.Name,
				VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: attachmentClaim(a)}}},
		},
	}
	if level := levelOf(vmi, a.Launcher); level != "" {
		pod.Spec.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Level: level}
	}
	if a.Trigger {
		pod.Name = TriggerName(a.Launcher.UID, a.Volume.Name)
		pod.Annotations[v1.EphemeralProvisioningObject] = yes
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	}
	return pod
}

// levelOf returns the SELinux level of a launcher Pod, or "". The VMI has that of the Pod in which the guest runs; the
// target of a migration may have another one.
func levelOf(vmi *v1.VirtualMachineInstance, launcher *corev1.Pod) string {
	if security := launcher.Spec.SecurityContext; security != nil && security.SELinuxOptions != nil {
		return security.SELinuxOptions.Level
	}
	if launcher.Name != OwnPodName(vmi) {
		return ""
	}
	return SELinuxLevel(vmi.Status.SelinuxContext)
}

func attachmentContainer(vmi *v1.VirtualMachineInstance, cfg Config, a Attachment) corev1.Container {
	security := containerSecurity(vmi)
	security.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{allCapabilities}}
	container := corev1.Container{
		Name:            launcherpod.AttachmentContainer,
		Image:           cfg.LauncherImage,
		ImagePullPolicy: cfg.ImagePullPolicy,
		Command:         []string{launcherpod.TailBinary, launcherpod.HoldArgument},
		Resources:       attachmentResources(vmi, cfg, a.Ranges),
		SecurityContext: security,
	}
	if a.Trigger {
		container.Command = []string{launcherpod.LauncherBinary, launcherpod.BindVolumesCommand}
	}
	if vmistatus.IsBlockClaim(a.Claim) {
		container.VolumeDevices = []corev1.VolumeDevice{{
			Name: a.Volume.Name, DevicePath: launcherpod.AttachmentDevice(a.Volume.Name, string(a.Claim.UID)),
		}}
		return container
	}
	dir, readOnly := launcherpod.AttachmentDir(a.Volume.Name), attachmentClaim(a).ReadOnly
	container.VolumeMounts = []corev1.VolumeMount{{Name: a.Volume.Name, MountPath: dir, ReadOnly: readOnly}}
	if size := vmistatus.ClaimBytes(a.Claim.Status.Capacity, a.Claim.Spec.Resources.Requests); !a.Files && !a.Trigger &&
		!readOnly && size > 0 {
		container.Command = append(container.Command, path.Join(dir, launcherpod.DiskImage), strconv.FormatInt(size, 10),
			strconv.FormatUint(cfg.ImageReserveBytes, 10), strconv.Itoa(cfg.ImageTolerateLessPercent))
	}
	return container
}

func attachmentClaim(a Attachment) *corev1.PersistentVolumeClaimVolumeSource {
	source := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: a.Claim.Name}
	if a.Volume.PersistentVolumeClaim != nil {
		source.ReadOnly = a.Volume.PersistentVolumeClaim.ReadOnly
	}
	return source
}

// onNode selects a node by its name, as a DaemonSet does. Setting the Pod's node would bypass the scheduler, which
// binds claims.
func onNode(name string) *corev1.NodeSelector {
	return &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{name},
		}}}}}
}

// nodeTolerations let the Pod onto the launcher's node whatever the state of the node is, because the guest runs there
// already.
func nodeTolerations() []corev1.Toleration {
	keys := []string{
		corev1.TaintNodeUnschedulable, corev1.TaintNodeNetworkUnavailable,
		corev1.TaintNodeDiskPressure, corev1.TaintNodeMemoryPressure, corev1.TaintNodePIDPressure,
	}
	out := make([]corev1.Toleration, 0, len(keys))
	for _, key := range keys {
		out = append(out, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists,
			Effect: corev1.TaintEffectNoSchedule})
	}
	return out
}

// attachmentResources returns the resources of the container, changed by as little as the LimitRanges demand.
func attachmentResources(
	vmi *v1.VirtualMachineInstance, cfg Config, ranges []corev1.LimitRange,
) corev1.ResourceRequirements {
	out := corev1.ResourceRequirements{
		Requests: corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse(attachmentCPURequest),
			corev1.ResourceMemory: resource.MustParse(attachmentMemoryRequest),
		},
		Limits: corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse(attachmentCPULimit),
			corev1.ResourceMemory: resource.MustParse(attachmentMemoryLimit),
		},
	}
	override(out.Requests, cfg.HotplugResources.Requests)
	override(out.Limits, cfg.HotplugResources.Limits)
	fit(out, ranges, wantsGuaranteed(vmi), corev1.LimitTypeContainer, corev1.LimitTypePod)
	return out
}

// binderPrefix is the prefix of the names of Pods that only bind volumes.
const binderPrefix = "virt-provision-"

// BinderName returns the name of the Pod that binds the volumes of a VMI.
func BinderName(vmi *v1.VirtualMachineInstance) string {
	return podName(binderPrefix, vmi.Name, string(vmi.UID))
}

// BuildBinder returns a Pod that uses the claims of the launcher Pod and completes. Some storage binds a claim when the
// first Pod uses it (WaitForFirstConsumer), and importers fill it after that. The launcher Pod must not be the first,
// because its guest would have an empty disk. The Pod has the launcher's scheduling constraints and resources, so that
// the claims are bound on a node with room for the guest.
func BuildBinder(vmi *v1.VirtualMachineInstance, cfg Config) (*corev1.Pod, error) {
	pod, err := Build(vmi, cfg)
	if err != nil {
		return nil, err
	}
	pod.ObjectMeta = metav1.ObjectMeta{
		Name: BinderName(vmi), Namespace: vmi.Namespace, OwnerReferences: pod.OwnerReferences,
		// Without the labels of the VMI, Services do not select the Pod.
		Labels:      map[string]string{v1.AppLabel: launcherpod.AppLabelValue, v1.CreatedByLabel: string(vmi.UID)},
		Annotations: map[string]string{v1.EphemeralProvisioningObject: "true"},
	}
	isClaim := map[string]bool{}
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		isClaim[v.Name] = v.PersistentVolumeClaim != nil
		return !isClaim[v.Name]
	})
	pod.Spec.Containers = pod.Spec.Containers[:1]
	compute := &pod.Spec.Containers[0]
	compute.VolumeMounts = slices.DeleteFunc(compute.VolumeMounts,
		func(m corev1.VolumeMount) bool { return !isClaim[m.Name] })
	compute.Command, compute.Args = []string{launcherpod.LauncherBinary, launcherpod.BindVolumesCommand}, nil
	compute.Ports, compute.ReadinessProbe, compute.LivenessProbe = nil, nil, nil
	pod.Spec.ReadinessGates = nil
	pod.Spec.Hostname, pod.Spec.Subdomain = "", ""
	pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
	return pod, nil
}
