// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// plugWorld is a world with hotplugged volumes.
type plugWorld struct{ *world }

func newPlugWorld() plugWorld {
	w := newWorld()
	config := w.Config.Current()
	config.HotplugVolumes = true
	w.Config = FixedConfig{Config: config}
	return plugWorld{w}
}

// claim creates a claim.
func (w plugWorld) claim(b *builder.PVC) *corev1.PersistentVolumeClaim {
	GinkgoHelper()
	pvc := b.Namespace(w.ns).Obj()
	status := pvc.Status
	ExpectCreated(pvc)
	pvc.Status = status
	ExpectStatus(pvc)
	return pvc
}

// runs returns a VMI whose guest runs.
func (w plugWorld) runs(b *builder.VMI) *v1.VirtualMachineInstance {
	GinkgoHelper()
	vmi := w.assigned(b)
	ReportAsAgent(vmi, Running)
	return ExpectExists(vmi)
}

// setAttachment sets the status of an attachment Pod as the kubelet does.
func (w plugWorld) setAttachment(vmi *v1.VirtualMachineInstance, name string, to corev1.PodStatus) *corev1.Pod {
	GinkgoHelper()
	pod := ExpectExists(AttachmentOf(vmi, name))
	pod.Status = to
	Expect(K8sClient.Status().Update(ctx, pod)).To(Succeed())
	return pod
}

// attached plugs a volume until the guest has it.
func (w plugWorld) attached(vmi *v1.VirtualMachineInstance, name string) {
	GinkgoHelper()
	w.Step(vmi)
	w.setAttachment(vmi, name, PodIsReady)
	w.Step(vmi)
	Expect(HotpluggedVolume(vmi, name)).To(HaveSuffix("(ready)"))
	SetVolumePhase(vmi, name, v1.HotplugVolumeMounted, "VolumeMountedToPod")
	SetVolumePhase(vmi, name, v1.VolumeReady, "VolumeReady")
	w.events.Take()
	w.expectQuiet(vmi)
}

var _ = Describe("VirtualMachineInstance with hotplugged volumes", func() {
	var w plugWorld
	BeforeEach(func() { w = newPlugWorld() })

	It("attaches a volume to the node, lets the agent attach it to the guest, and takes both back", func() {
		w.claim(builder.MakePVC("data-claim").Bound("2Gi"))
		vmi := w.runs(builder.MakeVMI("vm").ContainerDisk("root", "registry.example/debian:13"))
		w.expectQuiet(vmi)
		Plug(vmi, "data", "data-claim")
		w.Step(vmi)
		pod := ExpectExists(AttachmentOf(vmi, "data"))
		created := "Created hotplug attachment pod " + pod.Name + ", for volume data"
		Expect(HotpluggedVolume(vmi, "data")).To(Equal("AttachedToNode SuccessfulCreate: " + created))
		Expect(w.events.Take()).To(
			ConsistOf("Normal SuccessfulCreate: Created attachment pod "+pod.Name, "Normal SuccessfulCreate: "+created))
		status := vmistatus.FindVolume(&vmi.Status, "data")
		Expect(status.HotplugVolume.AttachPodName).To(Equal(pod.Name))
		Expect(status.PersistentVolumeClaimInfo.ClaimName).To(Equal("data-claim"))
		Expect(status.PersistentVolumeClaimInfo.FilesystemOverhead).To(HaveValue(BeEquivalentTo("0.055")))
		w.expectQuiet(vmi)

		By("telling the agent which Pod has the volume")
		pod = w.setAttachment(vmi, "data", PodIsReady)
		w.Step(vmi)
		Expect(HotpluggedVolume(vmi, "data")).To(HaveSuffix("(ready)"))
		Expect(vmistatus.FindVolume(&vmi.Status, "data").HotplugVolume.AttachPodUID).To(Equal(pod.UID))
		w.expectQuiet(vmi)
		SetVolumePhase(vmi, "data", v1.HotplugVolumeMounted, "VolumeMountedToPod")
		w.expectQuiet(vmi)
		SetVolumePhase(vmi, "data", v1.VolumeReady, "VolumeReady")
		w.expectQuiet(vmi)

		By("a restart of the Pod's container")
		w.setAttachment(vmi, "data", corev1.PodStatus{Phase: corev1.PodRunning})
		w.expectQuiet(vmi)

		By("waiting for the agent before the Pod is deleted")
		Unplug(vmi, "data")
		w.expectQuiet(vmi)
		SetVolumePhase(vmi, "data", v1.HotplugVolumeUnMounted, "VolumeUnMountedFromPod")
		w.Step(vmi)
		deleted := "Deleted hotplug attachment pod " + pod.Name + ", for volume data"
		Expect(HotpluggedVolume(vmi, "data")).To(Equal("Detaching SuccessfulDelete: " + deleted + " (ready)"))
		Expect(w.events.Take()).To(
			ConsistOf("Normal SuccessfulDelete: Deleted attachment pod "+pod.Name, "Normal SuccessfulDelete: "+deleted))
		ExpectGone(pod)
		w.Step(vmi)
		Expect(HotpluggedVolume(vmi, "data")).To(Equal("none"))
		w.expectQuiet(vmi)
	})

	It("attaches with the SELinux level of the launcher, and not before it is known", func() {
		w.claim(builder.MakePVC("data-claim").Bound("2Gi"))
		vmi := w.assigned(builder.MakeVMI("vm").Hotpluggable("data", "data-claim"))
		w.events.Take()
		w.expectQuiet(vmi)
		ReportAsAgent(vmi, func(s *v1.VirtualMachineInstanceStatus) {
			s.SelinuxContext = "system_u:object_r:container_file_t:s0:c1,c2"
		})
		w.Step(vmi)
		Expect(ExpectExists(AttachmentOf(vmi, "data")).Spec.SecurityContext.SELinuxOptions).To(
			HaveValue(Equal(corev1.SELinuxOptions{Level: "s0:c1,c2"})))
	})

	It("attaches a utility volume to the node, and takes it back", func() {
		w.claim(builder.MakePVC("files").Bound("2Gi"))
		w.claim(builder.MakePVC("device").Bound("2Gi").Block())
		vmi := w.runs(builder.MakeVMI("vm").ContainerDisk("root", "registry.example/debian:13"))
		ChangeVMISpec(vmi, func(spec *v1.VirtualMachineInstanceSpec) {
			for _, claim := range []string{"files", "device"} {
				u := v1.UtilityVolume{Name: "to-" + claim}
				u.ClaimName = claim
				spec.UtilityVolumes = append(spec.UtilityVolumes, u)
			}
		})
		w.Step(vmi)
		Expect(HotpluggedVolume(vmi, "to-device")).To(Equal("Bound PVCNotReady: PVC device has volumeMode Block, " +
			"and no file system for the files of a backup or memory dump"))
		pod := w.setAttachment(vmi, "to-files", PodIsReady)
		Expect(podspec.HasClaim(pod, "files")).To(BeTrue())
		w.Step(vmi)
		Expect(HotpluggedVolume(vmi, "to-files")).To(HaveSuffix("(ready)"))
		SetVolumePhase(vmi, "to-files", v1.HotplugVolumeMounted, "VolumeMountedToPod")
		w.events.Take()
		w.expectQuiet(vmi)
		ChangeVMISpec(vmi, func(spec *v1.VirtualMachineInstanceSpec) { spec.UtilityVolumes = nil })
		w.Step(vmi)
		Expect(HotpluggedVolume(vmi, "to-device")).To(Equal("none"))
		SetVolumePhase(vmi, "to-files", v1.HotplugVolumeUnMounted, "VolumeUnMountedFromPod")
		w.Step(vmi)
		Expect(w.events.Take()).To(
			ConsistOf(HavePrefix("Normal SuccessfulDelete: Deleted hotplug attachment pod hp-volume-to-files"),
				HavePrefix("Normal SuccessfulDelete: Deleted attachment pod hp-volume-to-files")))
		ExpectGone(pod)
		w.Step(vmi)
		Expect(HotpluggedVolume(vmi, "to-files")).To(Equal("none"))
		w.expectQuiet(vmi)
	})

	It("starts a guest with them: the launcher Pod is without them, and the status says so when the agent gets it",
		func() {
			w.claim(builder.MakePVC("root-claim").Bound("2Gi"))
			w.claim(builder.MakePVC("data-claim").Bound("2Gi").Block())
			vmi := w.create(builder.MakeVMI("vm").PVC("root", "root-claim").Hotpluggable("data",
				"data-claim").Hotpluggable("later", "later-claim"))
			w.Step(vmi)
			launcher := ExpectExists(PodOf(vmi))
			Expect(podspec.HasClaim(launcher, "root-claim")).To(BeTrue())
			Expect(podspec.HasClaim(launcher, "data-claim")).To(BeFalse())
			w.assign(vmi, "node-1")
			ReportAsAgent(vmi, func(s *v1.VirtualMachineInstanceStatus) { s.SelinuxContext = "none" })
			w.Step(vmi)
			Expect(HotpluggedVolume(vmi, "data")).To(HavePrefix("AttachedToNode SuccessfulCreate"))
			Expect(HotpluggedVolume(vmi, "later")).To(Equal("Pending FailedPvcNotFound: PVC later-claim not found"))
			Expect(HotpluggedVolume(vmi, "root")).To(Equal("none"))
			Expect(vmi.Status.VolumeStatus).To(HaveLen(3))
			device := ExpectExists(AttachmentOf(vmi, "data")).Spec.Containers[0].VolumeDevices
			Expect(device).To(HaveLen(1))
			Expect(device[0].DevicePath).To(HavePrefix("/path/data/"))
			w.events.Take()
			w.expectQuiet(vmi)
		})

	It("has the hotpluggable volumes in the launcher Pod as long as hotplug is off, and leaves them there", func() {
		config := w.Config.Current()
		config.HotplugVolumes = false
		w.Config = FixedConfig{Config: config}
		w.claim(builder.MakePVC("data-claim").Bound("2Gi"))
		vmi := w.runs(builder.MakeVMI("vm").Hotpluggable("data", "data-claim"))
		Expect(HotpluggedVolume(vmi, "data")).To(Equal("none"))
		w.Config = newPlugWorld().Config
		w.expectQuiet(vmi)
		Expect(HotpluggedVolume(vmi, "data")).To(Equal("none"))
	})

	It("reports why a claim cannot be attached", func() {
		vmi := w.runs(builder.MakeVMI("vm").ContainerDisk("root", "registry.example/debian:13"))
		Plug(vmi, "data", "data-claim")
		w.Step(vmi)
		Expect(HotpluggedVolume(vmi, "data")).To(Equal("Pending FailedPvcNotFound: PVC data-claim not found"))
		Expect(w.events.Take()).To(ConsistOf("Warning FailedPvcNotFound: PVC data-claim not found"))
		w.expectQuiet(vmi)

		lost := builder.MakePVC("data-claim").Obj()
		lost.Status.Phase = corev1.ClaimLost
		lost.Namespace = w.ns
		status := lost.Status
		ExpectCreated(lost)
		lost.Status = status
		ExpectStatus(lost)
		w.Step(vmi)
		Expect(HotpluggedVolume(vmi, "data")).To(Equal("Pending PVCNotReady: PVC is in phase Lost"))

		By("removing it: no agent has anything of it")
		Unplug(vmi, "data")
		w.Step(vmi)
		Expect(HotpluggedVolume(vmi, "data")).To(Equal("none"))
	})

	It("creates the Pod for a claim that is bound when a Pod uses it, and tells its size before the agent mounts it",
		func() {
			pvc := w.claim(builder.MakePVC("data-claim"))
			vmi := w.runs(builder.MakeVMI("vm").ContainerDisk("root", "registry.example/debian:13"))
			Plug(vmi, "data", "data-claim")
			w.Step(vmi)
			w.setAttachment(vmi, "data", PodIsReady)
			w.ExpectSteady(vmi)
			Expect(HotpluggedVolume(vmi, "data")).NotTo(HaveSuffix("(ready)"))
			ExpectExists(pvc)
			pvc.Status.Phase, pvc.Status.Capacity = corev1.ClaimBound,
				corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
			ExpectStatus(pvc)
			w.Step(vmi)
			Expect(HotpluggedVolume(vmi, "data")).To(HaveSuffix("(ready)"))
			Expect(vmistatus.FindVolume(&vmi.Status, "data").PersistentVolumeClaimInfo.Capacity.Storage().String()).
				To(Equal("1Gi"))
		})

	It("has a Pod of its own bind the claim of a DataVolume that waits for its first consumer", func() {
		vmi := w.runs(builder.MakeVMI("vm").ContainerDisk("root", "registry.example/debian:13"))
		dv := DataVolume(w.ns, "data-claim")
		ExpectCreated(dv)
		FillDataVolume(dv, cdi.DataVolumeWaitForFirstConsumer)
		pvc := w.claim(builder.MakePVC("data-claim"))
		Plug(vmi, "data", "data-claim")
		ChangeVMISpec(vmi, func(spec *v1.VirtualMachineInstanceSpec) {
			spec.Volumes[1].VolumeSource = v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "data-claim",
				Hotpluggable: true}}
		})
		w.Step(vmi)
		launcher := ExpectExists(PodOf(vmi))
		trigger := ExpectExists(
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: podspec.TriggerName(launcher.UID, "data")}})
		Expect(trigger.Annotations).To(HaveKey(v1.EphemeralProvisioningObject))
		Expect(w.events.Take()).To(ContainElement("Normal SuccessfulCreate: Created hotplug trigger pod for volume data"))
		Expect(HotpluggedVolume(vmi, "data")).To(
			HavePrefix("Pending PVCNotReady: PVC is in phase ClaimPending, DataVolume data-claim is in phase WaitForFirstConsumer"))
		w.expectQuiet(vmi)

		FillDataVolume(dv, cdi.DataVolumeSucceeded)
		pvc.Status.Phase, pvc.Status.Capacity = corev1.ClaimBound,
			corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		ExpectStatus(pvc)
		w.Step(vmi)
		Expect(HotpluggedVolume(vmi, "data")).To(HavePrefix("AttachedToNode"))
		ExpectExists(AttachmentOf(vmi, "data"))
		ExpectGone(trigger)
	})

	It("reports why an attachment Pod does not start", func() {
		w.claim(builder.MakePVC("data-claim").Bound("2Gi"))
		vmi := w.runs(builder.MakeVMI("vm").ContainerDisk("root", "registry.example/debian:13"))
		Plug(vmi, "data", "data-claim")
		w.Step(vmi)
		w.events.Take()
		w.setAttachment(vmi, "data",
			builder.MakePodStatus().Unschedulable("0/1 nodes are available: 1 node(s) had volume node affinity conflict").Obj())
		w.advance(time.Minute)
		w.Step(vmi)
		Expect(HotpluggedVolume(vmi, "data")).To(
			Equal("AttachedToNode Unschedulable: 0/1 nodes are available: 1 node(s) had volume node affinity conflict"))
		Expect(w.events.Take()).To(
			ConsistOf("Warning Unschedulable: 0/1 nodes are available: 1 node(s) had volume node affinity conflict"))
		w.expectQuiet(vmi)
	})

	It("creates an attachment Pod again that was evicted or deleted, and the guest keeps its disk", func() {
		w.claim(builder.MakePVC("data-claim").Bound("2Gi"))
		vmi := w.runs(builder.MakeVMI("vm").ContainerDisk("root", "registry.example/debian:13"))
		Plug(vmi, "data", "data-claim")
		w.attached(vmi, "data")
		first := w.setAttachment(vmi, "data", corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"})
		w.advance(time.Minute)
		w.Step(vmi)
		ExpectGone(first)
		Expect(HotpluggedVolume(vmi, "data")).To(HavePrefix("Ready VolumeReady"))
		w.Step(vmi)
		second := w.setAttachment(vmi, "data", PodIsReady)
		Expect(second.UID).NotTo(Equal(first.UID))
		w.Step(vmi)
		Expect(vmistatus.FindVolume(&ExpectExists(vmi).Status, "data").HotplugVolume.AttachPodUID).To(Equal(second.UID))
		w.events.Take()
		w.expectQuiet(vmi)
	})

	It("creates an attachment Pod less and less often that is deleted again and again", func() {
		w.claim(builder.MakePVC("data-claim").Bound("2Gi"))
		vmi := w.runs(builder.MakeVMI("vm").ContainerDisk("root", "registry.example/debian:13"))
		Plug(vmi, "data", "data-claim")
		w.attached(vmi, "data")
		deleted := func() (again bool) {
			GinkgoHelper()
			Expect(client.IgnoreNotFound(K8sClient.Delete(ctx, AttachmentOf(vmi, "data"), client.GracePeriodSeconds(0)))).
				To(Succeed())
			result := w.Step(vmi)
			err := K8sClient.Get(ctx, client.ObjectKeyFromObject(AttachmentOf(vmi, "data")), &corev1.Pod{})
			Expect(client.IgnoreNotFound(err)).To(Succeed())
			if err != nil {
				Expect(result.RequeueAfter).To(And(BeNumerically(">", 0), BeNumerically("<=", 2*time.Minute)))
			}
			return err == nil
		}
		created := 0
		for range 60 {
			w.advance(2 * time.Second)
			if deleted() {
				created++
			}
		}
		Expect(created).To(BeNumerically("~", 6, 2), "in two minutes")

		By("not delaying a volume that is unplugged and plugged")
		w.advance(2 * time.Minute)
		Expect(deleted()).To(BeTrue())
		Unplug(vmi, "data")
		SetVolumePhase(vmi, "data", v1.HotplugVolumeUnMounted, "VolumeUnMountedFromPod")
		w.Settle(vmi)
		ExpectGone(AttachmentOf(vmi, "data"))
		Plug(vmi, "data", "data-claim")
		w.Step(vmi)
		ExpectExists(AttachmentOf(vmi, "data"))
	})

	It("detaches first if the volume gets another claim, or comes back too early", func() {
		w.claim(builder.MakePVC("data-claim").Bound("2Gi"))
		w.claim(builder.MakePVC("other-claim").Bound("2Gi"))
		vmi := w.runs(builder.MakeVMI("vm").ContainerDisk("root", "registry.example/debian:13"))
		Plug(vmi, "data", "data-claim")
		w.attached(vmi, "data")
		Unplug(vmi, "data")
		Plug(vmi, "data", "other-claim")
		w.expectQuiet(vmi)
		SetVolumePhase(vmi, "data", v1.HotplugVolumeUnMounted, "VolumeUnMountedFromPod")
		w.Step(vmi)
		Expect(HotpluggedVolume(vmi, "data")).To(HavePrefix("Detaching"))
		w.Step(vmi)
		Expect(HotpluggedVolume(vmi, "data")).To(Equal("none"))
		w.Step(vmi)
		Expect(podspec.HasClaim(ExpectExists(AttachmentOf(vmi, "data")), "other-claim")).To(BeTrue())
	})

	It("does not let one volume that fails delay another, and repeats", func() {
		w.claim(builder.MakePVC("a-claim").Bound("2Gi"))
		w.claim(builder.MakePVC("b-claim").Bound("2Gi"))
		vmi := w.runs(builder.MakeVMI("vm").ContainerDisk("root", "registry.example/debian:13"))
		Plug(vmi, "a", "a-claim")
		Plug(vmi, "b", "b-claim")
		foreign := AttachmentOf(vmi, "a")
		foreign.Spec = corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		ExpectCreated(foreign)
		_, err := w.Try(vmi)
		Expect(err).To(MatchError(ContainSubstring("belongs to another owner")))
		Expect(HotpluggedVolume(vmi, "b")).To(HavePrefix("AttachedToNode"))
		Expect(HotpluggedVolume(vmi, "a")).To(HavePrefix("Bound"))
		Expect(K8sClient.Delete(ctx, foreign, client.GracePeriodSeconds(0))).To(Succeed())
		w.Step(vmi)
		Expect(HotpluggedVolume(vmi, "a")).To(HavePrefix("AttachedToNode"))
	})

	It("deletes attachment Pods when the guest has ended, and those of which nothing else is left", func() {
		w.claim(builder.MakePVC("data-claim").Bound("2Gi"))
		vmi := w.runs(builder.MakeVMI("vm").ContainerDisk("root", "registry.example/debian:13"))
		launcher := ExpectExists(PodOf(vmi))
		stray := podspec.BuildAttachment(vmi, w.Config.Current().Pods(), podspec.Attachment{
			Volume: &v1.Volume{Name: "stray"}, Claim: builder.MakePVC("stray").Obj(), Launcher: launcher,
		})
		ExpectCreated(stray)
		w.Step(vmi)
		ExpectGone(stray)

		Plug(vmi, "data", "data-claim")
		w.attached(vmi, "data")
		pod := ExpectExists(AttachmentOf(vmi, "data"))
		SetLauncherStatus(vmi, "", builder.MakePodStatus().Terminated(0, "Completed", ""))
		w.Step(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Succeeded))
		ExpectGone(pod)
		w.Step(vmi)
		w.events.Take()
		w.expectQuiet(vmi)
	})

	It("places the launcher Pod where its bound hotpluggable volumes are", func() {
		pv := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv-" + w.ns},
			Spec: corev1.PersistentVolumeSpec{
				Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d",
					VolumeHandle: "h"}},
				NodeAffinity: &corev1.VolumeNodeAffinity{
					Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
						MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn,
							Values: []string{"a"}}},
					}}}},
			},
		}
		Expect(K8sClient.Create(ctx, pv)).To(Succeed())
		DeferCleanup(func() { Expect(client.IgnoreNotFound(K8sClient.Delete(ctx, pv))).To(Succeed()) })
		pvc := builder.MakePVC("data-claim").Namespace(w.ns).Bound("1Gi").Obj()
		pvc.Spec.VolumeName = pv.Name
		status := pvc.Status
		ExpectCreated(pvc)
		pvc.Status = status
		ExpectStatus(pvc)
		vmi := w.create(builder.MakeVMI("vm").Hotpluggable("data", "data-claim"))
		w.Step(vmi)
		terms := ExpectExists(
			PodOf(vmi)).Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		Expect(terms).To(HaveLen(1))
		Expect(slices.ContainsFunc(terms[0].MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == "zone" && strings.Join(r.Values, "") == "a"
		})).To(BeTrue())
	})
})
