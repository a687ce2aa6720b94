// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
)

// LoseNode sets the condition by which virt-controller reports that a VMI's node is lost.
func LoseNode(vmi *v1.VirtualMachineInstance) {
	GinkgoHelper()
	WithCondition(v1.VirtualMachineInstanceNodeUnresponsive, corev1.ConditionTrue, v1.VirtualMachineInstanceReasonNodeLost,
		"")(&vmi.Status)
	ExpectStatus(vmi)
}

// SetVMIStatus sets a VMI's phase and status fields, whichever component owns them.
func SetVMIStatus(vmi *v1.VirtualMachineInstance, phase v1.VirtualMachineInstancePhase,
	changes ...func(*v1.VirtualMachineInstanceStatus),
) {
	GinkgoHelper()
	ExpectExists(vmi)
	vmistatus.SetPhase(&vmi.Status, phase, metav1.Now())
	for _, change := range changes {
		change(&vmi.Status)
	}
	ExpectStatus(vmi)
}

// WithCondition sets a condition in a VMI's status.
func WithCondition(kind v1.VirtualMachineInstanceConditionType, status corev1.ConditionStatus, reason, message string,
) func(*v1.VirtualMachineInstanceStatus) {
	return func(s *v1.VirtualMachineInstanceStatus) {
		vmistatus.SetCondition(s, v1.VirtualMachineInstanceCondition{
			Type: kind, Status: status, Reason: reason, Message: message,
		}, metav1.Now())
	}
}

// PersistentVMI returns a VMI with a persistent TPM and EFI.
func PersistentVMI() *builder.VMI {
	return builder.MakeVMI("vm").EFI().With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(true)}
		vmi.Spec.Domain.Firmware.Bootloader.EFI.Persistent = ptr.To(true)
	})
}

// PodOf returns the launcher Pod of a VMI, by its name.
func PodOf(vmi *v1.VirtualMachineInstance) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: vmi.Namespace, Name: podspec.PodName(vmi)}}
}

// Running is a status whose guest runs.
func Running(status *v1.VirtualMachineInstanceStatus) {
	vmistatus.SetPhase(status, v1.Running, metav1.Now())
	status.SelinuxContext = "none"
	vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceReady, Status: corev1.ConditionTrue,
	}, metav1.Now())
}

// IsDeleted reports whether the Pod is deleted or being deleted.
func IsDeleted(pod *corev1.Pod) bool {
	err := K8sClient.Get(ctx, client.ObjectKeyFromObject(pod), pod)
	return err != nil || pod.DeletionTimestamp != nil
}

// CreateVMI creates a VMI with the finalizer of its reconciler, as the webhook does.
func CreateVMI(ns string, b *builder.VMI) *v1.VirtualMachineInstance {
	GinkgoHelper()
	vmi := b.Namespace(ns).Finalizers(v1.VirtualMachineInstanceFinalizer).Obj()
	ExpectCreated(vmi)
	return ExpectExists(vmi)
}

// ReportAsAgent patches the status as virt-handler does.
func ReportAsAgent(vmi *v1.VirtualMachineInstance, change func(*v1.VirtualMachineInstanceStatus)) {
	GinkgoHelper()
	before := ExpectExists(vmi).DeepCopy()
	change(&vmi.Status)
	_, err := vmistatus.Patch(ctx, K8sClient, vmistatus.Handler, before, vmi)
	Expect(err).NotTo(HaveOccurred())
}

// ShownFor is how long the final phase of a deleted VMI is shown.
const ShownFor = 1500 * time.Millisecond

// SetLauncherStatus sets the node and the status of the launcher Pod, as scheduler and kubelet do.
func SetLauncherStatus(vmi *v1.VirtualMachineInstance, node string, status *builder.PodStatus) *corev1.Pod {
	GinkgoHelper()
	pod := ExpectExists(PodOf(vmi))
	if node != "" && pod.Spec.NodeName == "" {
		Expect(K8sClient.SubResource("binding").Create(ctx, pod, &corev1.Binding{
			ObjectMeta: pod.ObjectMeta, Target: corev1.ObjectReference{Kind: "Node", Name: node},
		})).To(Succeed())
		pod = ExpectExists(PodOf(vmi))
	}
	conditions, class := pod.Status.Conditions, pod.Status.QOSClass
	pod.Status = status.Obj()
	pod.Status.QOSClass = class
	for _, c := range conditions {
		if c.Type == v1.VirtualMachineUnpaused || c.Type == corev1.PodScheduled && len(pod.Status.Conditions) == 0 {
			pod.Status.Conditions = append(pod.Status.Conditions, c)
		}
	}
	Expect(K8sClient.Status().Update(ctx, pod)).To(Succeed())
	return ExpectExists(PodOf(vmi))
}

// CreatePodEvent creates an event of the launcher Pod, as the kubelet does.
func CreatePodEvent(vmi *v1.VirtualMachineInstance, at time.Time, reason, message string) {
	GinkgoHelper()
	pod := ExpectExists(PodOf(vmi))
	ExpectCreated(&corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: vmi.Namespace, GenerateName: pod.Name + "."},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Type:           corev1.EventTypeWarning, Reason: reason, Message: message,
		Source:         corev1.EventSource{Component: "kubelet"},
		FirstTimestamp: metav1.NewTime(at), LastTimestamp: metav1.NewTime(at),
	})
}

// StateClaimOf expects one state claim of a VMI and returns it.
func StateClaimOf(vmi *v1.VirtualMachineInstance) *corev1.PersistentVolumeClaim {
	GinkgoHelper()
	list := &corev1.PersistentVolumeClaimList{}
	ofVMI := client.MatchingLabels{"persistent-state-for": vmi.Name}
	Expect(K8sClient.List(ctx, list, client.InNamespace(vmi.Namespace), ofVMI)).To(Succeed())
	Expect(list.Items).To(HaveLen(1))
	return &list.Items[0]
}

// StateClaimIn returns the name of the state claim that a Pod uses.
func StateClaimIn(pod *corev1.Pod) string {
	for _, volume := range pod.Spec.Volumes {
		if volume.Name == launcherpod.StateVolume {
			return volume.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// Growable lets a guest have up to 4 sockets and 4 GiB.
func Growable(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Domain.CPU.MaxSockets = 4
	vmi.Spec.Domain.Memory.MaxGuest = ptr.To(resource.MustParse("4Gi"))
	vmi.Spec.Architecture = "amd64"
}

// Resized returns what the agent reports about a guest that was started with 1 GiB.
func Resized(sockets uint32, memory string) func(*v1.VirtualMachineInstanceStatus) {
	return func(s *v1.VirtualMachineInstanceStatus) {
		s.CurrentCPUTopology = &v1.CPUTopology{Sockets: sockets, Cores: 1, Threads: 1}
		s.Memory = &v1.MemoryStatus{
			GuestAtBoot: ptr.To(resource.MustParse("1Gi")), GuestCurrent: ptr.To(resource.MustParse(memory)),
			GuestRequested: ptr.To(resource.MustParse(memory)),
		}
	}
}

// HaveCondition matches a VMI with a condition whose message contains a text.
func HaveCondition(kind v1.VirtualMachineInstanceConditionType, status corev1.ConditionStatus, reason, message string,
) gomegatypes.GomegaMatcher {
	return WithTransform(func(vmi *v1.VirtualMachineInstance) string {
		c := vmistatus.FindCondition(&vmi.Status, kind)
		if c == nil {
			return "none"
		}
		return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
	}, And(HavePrefix("%s %s ", status, reason), ContainSubstring(message)))
}

// HaveNoCondition matches a VMI without a condition of this type.
func HaveNoCondition(kind v1.VirtualMachineInstanceConditionType) gomegatypes.GomegaMatcher {
	return WithTransform(func(vmi *v1.VirtualMachineInstance) any {
		return vmistatus.FindCondition(&vmi.Status, kind)
	}, BeNil())
}
