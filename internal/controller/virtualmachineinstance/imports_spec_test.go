// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachineInstance with DataVolumes", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	imported := func() *builder.VMI {
		return builder.MakeVMI("vm").Volume("root", v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root"}})
	}

	It("creates its Pod when the DataVolumes have succeeded", func() {
		dv := DataVolume(w.ns, "root")
		ExpectCreated(dv)
		vmi := w.create(imported())
		w.Step(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Pending))
		Expect(vmi).To(HaveCondition(v1.VirtualMachineInstanceDataVolumesReady, corev1.ConditionUnknown, "NotAllDVsReady",
			"Not all of the VMI's DVs are ready"))
		w.expectQuiet(vmi)
		ProvideClaim(dv, true)
		FillDataVolume(dv, "ImportInProgress",
			DataVolumeCondition(cdi.DataVolumeReady, corev1.ConditionFalse, "TransferRunning", ""))
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(
			HaveCondition(v1.VirtualMachineInstanceDataVolumesReady, corev1.ConditionFalse, "NotAllDVsReady", ""))
		ExpectGone(PodOf(vmi))
		Expect(w.events.Take()).To(BeEmpty(), "a running import records no event")

		FillDataVolume(dv, cdi.DataVolumeSucceeded, DataVolumeCondition(cdi.DataVolumeReady, corev1.ConditionTrue, "", ""))
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(
			HaveCondition(v1.VirtualMachineInstanceDataVolumesReady, corev1.ConditionTrue, "AllDVsReady",
				"All of the VMI's DVs are bound and ready"))
		pod := ExpectExists(PodOf(vmi))
		var claims []string
		for _, volume := range pod.Spec.Volumes {
			if volume.PersistentVolumeClaim != nil {
				claims = append(claims, volume.PersistentVolumeClaim.ClaimName)
			}
		}
		Expect(claims).To(ConsistOf("root"))
	})

	It("creates its Pod when the DataVolumes wait for it in PendingPopulation", func() {
		dv := DataVolume(w.ns, "root")
		ExpectCreated(dv)
		ProvideClaim(dv, false)
		FillDataVolume(dv, cdi.DataVolumePendingPopulation)
		vmi := w.create(imported())
		w.Step(vmi)
		ExpectExists(PodOf(vmi))
	})

	It("creates a Pod that binds the volumes if the DataVolumes are in WaitForFirstConsumer", func() {
		dv := DataVolume(w.ns, "root")
		ExpectCreated(dv)
		ProvideClaim(dv, false)
		FillDataVolume(dv, cdi.DataVolumeWaitForFirstConsumer)
		vmi := w.create(imported().Label("app", "db"))
		w.Step(vmi)
		ExpectGone(PodOf(vmi))
		binder := PodOf(vmi)
		binder.Name = podspec.BinderName(vmi)
		ExpectExists(binder)
		Expect(binder.Annotations).To(HaveKeyWithValue(v1.EphemeralProvisioningObject, "true"))
		Expect(binder.Labels).NotTo(HaveKey("app"), "no Service selects it")
		Expect(ExpectExists(vmi)).To(HaveCondition(v1.VirtualMachineInstanceProvisioning, corev1.ConditionTrue, "", ""))
		w.events.Take()
		w.expectQuiet(vmi)

		binder.Status = builder.MakePodStatus().Unschedulable("0/1 nodes are available").Obj()
		ExpectStatus(binder)
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(
			HaveCondition(v1.VirtualMachineInstancePodScheduled, corev1.ConditionFalse, "Unschedulable", "0/1 nodes"))
		w.events.Take()

		binder.Status = builder.MakePodStatus().Terminated(0, "Completed", "").Obj()
		ExpectStatus(binder)
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveNoCondition(v1.VirtualMachineInstancePodScheduled))
		FillDataVolume(dv, "ImportInProgress")
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(HaveNoCondition(v1.VirtualMachineInstanceProvisioning))
		ExpectGone(PodOf(vmi))

		FillDataVolume(dv, cdi.DataVolumeSucceeded)
		w.Step(vmi)
		ExpectGone(binder)
		ExpectExists(PodOf(vmi))
	})

	It("replaces the Pod that binds the volumes when it failed", func() {
		dv := DataVolume(w.ns, "root")
		ExpectCreated(dv)
		ProvideClaim(dv, false)
		FillDataVolume(dv, cdi.DataVolumeWaitForFirstConsumer)
		vmi := w.create(imported())
		w.Step(vmi)
		binder := PodOf(vmi)
		binder.Name = podspec.BinderName(vmi)
		failed := ExpectExists(binder).UID
		binder.Status = builder.MakePodStatus().Evicted("the node was low on memory").Obj()
		ExpectStatus(binder)
		w.clock.SetTime(binder.CreationTimestamp.Time)
		result := w.Step(vmi)
		Expect(result).NotTo(BeZero())
		Expect(ExpectExists(vmi)).To(
			HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "FailedCreate", "low on memory"))
		w.clock.SetTime(w.clock.Now().Add(result.RequeueAfter))
		w.Step(vmi)
		ExpectGone(binder)
		Eventually(func() error {
			w.Step(vmi)
			return K8sClient.Get(ctx, client.ObjectKeyFromObject(binder), binder)
		}, "10s").Should(Succeed())
		Expect(binder.UID).NotTo(Equal(failed))
	})

	It("fails when a DataVolume has failed", func() {
		dv := DataVolume(w.ns, "root")
		ExpectCreated(dv)
		FillDataVolume(dv, cdi.DataVolumeFailed)
		vmi := w.create(imported())
		w.Step(vmi)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Failed))
		ExpectGone(PodOf(vmi))
		Expect(w.events.Take()).To(
			ContainElement("Warning FailedDataVolumeImport: DataVolume root for volume root failed to import its disk image."))
		w.expectQuiet(vmi)
	})

	It("waits for the DataVolume that controls its claim", func() {
		dv := DataVolume(w.ns, "root")
		ExpectCreated(dv)
		ProvideClaim(dv, true)
		FillDataVolume(dv, "ImportInProgress")
		vmi := w.create(builder.MakeVMI("vm").PVC("root", "root"))
		w.Step(vmi)
		ExpectGone(PodOf(vmi))
		FillDataVolume(dv, cdi.DataVolumeSucceeded)
		w.Step(vmi)
		ExpectExists(PodOf(vmi))
	})

	It("does not use a claim whose DataVolume is gone", func() {
		dv := DataVolume(w.ns, "root")
		ExpectCreated(dv)
		ProvideClaim(dv, true)
		Expect(K8sClient.Delete(ctx, dv)).To(Succeed())
		vmi := w.create(imported())
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(
			HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "FailedDataVolumeImport",
				"DataVolume "+w.ns+"/root (UID "+string(dv.UID)+") does not exist"))
		ExpectGone(PodOf(vmi))
	})

	It("does not use a claim of an earlier DataVolume of the same name", func() {
		dv := DataVolume(w.ns, "root")
		ExpectCreated(dv)
		ProvideClaim(dv, true)
		Expect(K8sClient.Delete(ctx, dv)).To(Succeed())
		again := DataVolume(w.ns, "root")
		ExpectCreated(again)
		FillDataVolume(again, cdi.DataVolumeSucceeded)
		for _, vmi := range []*v1.VirtualMachineInstance{w.create(imported()),
			w.create(builder.MakeVMI("by-claim").PVC("root", "root"))} {
			w.Step(vmi)
			ExpectGone(PodOf(vmi))
			Expect(ExpectExists(vmi)).To(
				HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "FailedDataVolumeImport",
					"(UID "+string(dv.UID)+") does not exist"))
		}
	})

	It("recognizes an imported claim by its owner's group, not by the kind alone", func() {
		claim := builder.MakePVC("root").Namespace(w.ns).Bound("1Gi").Obj()
		claim.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "team.example/v1", Kind: "DataVolume", Name: "root", UID: "a", Controller: ptr.To(true),
		}}
		ExpectCreated(claim)
		vmi := w.create(builder.MakeVMI("vm").PVC("root", "root"))
		w.Step(vmi)
		ExpectExists(PodOf(vmi))
	})

	It("uses a claim of the DataVolume's name if there is no DataVolume, also without an importer", func() {
		w.DataVolumes = NoDataVolumes{}
		vmi := w.create(imported())
		w.Step(vmi)
		Expect(ExpectExists(vmi)).To(
			HaveCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "FailedPvcNotFound",
				"install the Containerized Data Importer (CDI)"))
		ExpectGone(PodOf(vmi))
		ExpectCreated(builder.MakePVC("root").Namespace(w.ns).Bound("1Gi").Obj())
		w.Step(vmi)
		ExpectExists(PodOf(vmi))
	})
})
