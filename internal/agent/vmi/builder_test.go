// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"fmt"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
	"github.com/vireo-project/vireo/test/kubelet"
)

var guests atomic.Int32

// guest is a VMI, its launcher Pod and that Pod's launcher.
type guest struct {
	// claims and tracking are written to the status when the VMI is assigned.
	claims   []v1.VolumeStatus
	tracking *v1.ChangedBlockTrackingStatus
	vmi      *v1.VirtualMachineInstance
	pod      *corev1.Pod
	launcher *libvirt.Launcher
	// node is the node of the Pod.
	node string
}

// finalized adds the finalizer that keeps a deleted VMI until virt-controller removes it.
func finalized(vmi *v1.VirtualMachineInstance) {
	vmi.Finalizers = []string{v1.VirtualMachineInstanceFinalizer}
}

// writeVolume does what a kubelet does when the object of a Pod's volume has changed.
func (g *guest) writeVolume(kind media.VolumeKind, volume string, files map[string]string) *guest {
	GinkgoHelper()
	Expect(kubelet.WriteVolume(podsDir, g.pod.UID, string(kind), volume, files)).To(Succeed())
	return g
}

// userDataFrom makes the user data come from a Secret.
func userDataFrom(secret string) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Volumes[1].CloudInitNoCloud = &v1.CloudInitNoCloudSource{
			UserDataSecretRef: &corev1.LocalObjectReference{Name: secret},
		}
	}
}

// makeGuest returns a guest with a containerDisk, cloud-init and a masquerade network.
func makeGuest(changes ...func(*v1.VirtualMachineInstance)) *guest {
	name := fmt.Sprintf("vm-%d", guests.Add(1))
	memory := resource.MustParse("64Mi")
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	vmi.Spec.Architecture = "amd64"
	vmi.Spec.Domain.Machine = &v1.Machine{Type: "q35"}
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: &memory}
	vmi.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30)
	disk := v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}
	vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "root", DiskDevice: disk}, {Name: "seed", DiskDevice: disk}}
	vmi.Spec.Volumes = []v1.Volume{
		{Name: "root", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "example/disk"}}},
		{Name: "seed", VolumeSource: v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: "#cloud-config\n"}}},
	}
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{
		Name: "default", InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}},
	}}
	vmi.Spec.Networks = []v1.Network{{Name: "default", NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}}}
	for _, change := range changes {
		change(vmi)
	}
	return &guest{vmi: vmi, claims: vmi.Status.VolumeStatus, tracking: vmi.Status.ChangedBlockTracking}
}

// schedule creates the VMI and a running launcher Pod on this node.
func (g *guest) schedule(launchers *libvirt.Node) *guest {
	GinkgoHelper()
	return g.scheduleOn(thisNode, launchers)
}

// scheduleOn creates the VMI and a running launcher Pod on a node.
func (g *guest) scheduleOn(node string, launchers *libvirt.Node) *guest {
	GinkgoHelper()
	g.node = node
	Expect(api.Create(ctx, g.vmi)).To(Succeed())
	DeferCleanup(g.remove)
	g.pod = g.launcherPod("virt-launcher-"+g.vmi.Name, node)
	Expect(api.Create(ctx, g.pod)).To(Succeed())
	g.launcher = launchers.Launcher(g.pod.UID)
	g.launcher.AddFile(launcherpod.ContainerDiskDir("root")+"/disk",
		hypervisor.Volume{Name: "disk.img", Format: hypervisor.FormatRaw, Capacity: 1 << 20})
	setRunning(g.pod, "10.244.0.5")
	return g
}

// launcherPod returns a launcher Pod of the VMI.
func (g *guest) launcherPod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: g.vmi.Namespace, Name: name,
			Labels:      map[string]string{v1.AppLabel: launcherpod.AppLabelValue, v1.CreatedByLabel: string(g.vmi.UID)},
			Annotations: map[string]string{v1.MemoryOverheadAnnotationBytes: "104857600"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: g.vmi.Name, UID: g.vmi.UID,
				Controller: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: ptr.To[int64](60),
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: v1.VirtualMachineUnpaused}},
			Containers:     []corev1.Container{{Name: launcherpod.ComputeContainer, Image: "launcher"}},
		},
	}
}

// settle returns after a whole reconcile that started after the call: reconciles of a VMI do not overlap, so the first
// of two has ended when the second starts.
func (g *guest) settle() {
	GinkgoHelper()
	before := g.launcher.Opens()
	Eventually(func() int {
		g.launcher.Notify()
		return g.launcher.Opens()
	}).Should(BeNumerically(">", before+1))
}

// deletePod deletes the Pod, which stays until its grace period has passed.
func (g *guest) deletePod() {
	GinkgoHelper()
	Expect(api.Delete(ctx, g.pod)).To(Succeed())
}

// removePod removes the Pod at once.
func (g *guest) removePod() {
	GinkgoHelper()
	Expect(api.Delete(ctx, g.pod, client.GracePeriodSeconds(0))).To(Succeed())
}

// remove deletes everything that agents of other specs could find.
func (g *guest) remove() {
	GinkgoHelper()
	Expect(client.IgnoreNotFound(api.Delete(ctx, g.pod, client.GracePeriodSeconds(0)))).To(Succeed())
	Expect(client.IgnoreNotFound(api.Patch(ctx, g.vmi.DeepCopy(),
		client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))).To(Succeed())
	Expect(client.IgnoreNotFound(api.Delete(ctx, g.vmi))).To(Succeed())
	Eventually(func() bool {
		return apierrors.IsNotFound(api.Get(ctx, client.ObjectKeyFromObject(g.pod), &corev1.Pod{})) &&
			apierrors.IsNotFound(api.Get(ctx, client.ObjectKeyFromObject(g.vmi), &v1.VirtualMachineInstance{}))
	}).Should(BeTrue())
}

// assign does what virt-controller does when the Pod runs.
func (g *guest) assign() *guest {
	GinkgoHelper()
	before := g.read()
	after := before.DeepCopy()
	after.Status.Phase, after.Status.NodeName, after.Status.VolumeStatus = v1.Scheduled, g.node, g.claims
	if g.tracking != nil {
		after.Status.ChangedBlockTracking = g.tracking
	}
	_, err := vmistatus.Patch(ctx, api, vmistatus.Controller, before, after)
	Expect(err).NotTo(HaveOccurred())
	return g
}

func (g *guest) read() *v1.VirtualMachineInstance {
	GinkgoHelper()
	vmi := &v1.VirtualMachineInstance{}
	Expect(api.Get(ctx, client.ObjectKeyFromObject(g.vmi), vmi)).To(Succeed())
	return vmi
}

// expectPhase waits for a phase.
func (g *guest) expectPhase(phase v1.VirtualMachineInstancePhase) *v1.VirtualMachineInstance {
	GinkgoHelper()
	Eventually(func() v1.VirtualMachineInstancePhase { return g.read().Status.Phase }).Should(Equal(phase))
	return g.read()
}

// expectCondition waits for a condition to have a status and a reason.
func (g *guest) expectCondition(
	kind v1.VirtualMachineInstanceConditionType, status corev1.ConditionStatus, reason string,
) v1.VirtualMachineInstanceCondition {
	GinkgoHelper()
	var found v1.VirtualMachineInstanceCondition
	Eventually(func(e Gomega) {
		vmi := g.read()
		c := vmistatus.FindCondition(&vmi.Status, kind)
		e.Expect(c).NotTo(BeNil(), "%v", vmi.Status.Conditions)
		found = *c
		e.Expect(c.Status).To(Equal(status), "%v", *c)
		e.Expect(c.Reason).To(Equal(reason), "%v", *c)
	}).Should(Succeed())
	return found
}

// expectNoCondition waits for a condition to be removed.
func (g *guest) expectNoCondition(kind v1.VirtualMachineInstanceConditionType) {
	GinkgoHelper()
	Eventually(func() *v1.VirtualMachineInstanceCondition {
		return vmistatus.FindCondition(&g.read().Status, kind)
	}).Should(BeNil())
}

// expectEvent waits for an event that contains a text, and drops the events before it.
func (a *agent) expectEvent(text string) {
	GinkgoHelper()
	Eventually(a.recorder.Events).Should(Receive(ContainSubstring(text)))
}
