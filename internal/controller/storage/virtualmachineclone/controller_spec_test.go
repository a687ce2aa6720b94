// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineclone_test

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

const (
	processing = "; Progressing=True Still processing; Ready=False Still processing"
	pending    = "; Progressing=False Pending; Ready=False "
)

var _ = Describe("VirtualMachineClone", func() {
	It("clones a VM phase by phase, deletes what is temporary, and writes nothing afterwards", func() {
		c := newClones()
		of := c.clone()
		By("the snapshot, and then its name")
		snapshot, restore := snapshotOfClone(of), restoreOfClone(of)
		c.Step(of)
		Expect(c.events.Take()).To(ConsistOf("Normal SnapshotCreated: created snapshot " + snapshot.Name + " for clone c"))
		Expect(DescribeClone(of)).To(Equal("SnapshotInProgress" + processing))
		Expect(of.Status.SnapshotName).To(HaveValue(Equal(snapshot.Name)))
		Expect(metav1.IsControlledBy(ExpectExists(snapshot), of)).To(BeTrue())
		Expect(snapshot.Spec.Source.Name).To(Equal("vm"))
		Expect(c.expectQuiet(of).RequeueAfter).To(BeZero())
		By("the restore, when the snapshot is ready")
		c.others(of)
		c.Step(of)
		Expect(c.events.Take()).To(
			ConsistOf("Normal SnapshotReady: snapshot " + snapshot.Name + " for clone c is ready to use"))
		Expect(DescribeClone(of)).To(Equal("RestoreInProgress" + processing))
		ExpectGone(restore)
		c.Step(of)
		Expect(c.events.Take()).To(ConsistOf("Normal RestoreCreated: created restore " + restore.Name + " for clone c"))
		Expect(DescribeClone(of)).To(Equal("RestoreInProgress" + processing))
		Expect(of.Status.RestoreName).To(HaveValue(Equal(restore.Name)))
		Expect(metav1.IsControlledBy(ExpectExists(restore), of)).To(BeTrue())
		c.expectQuiet(of)
		By("the target, when it is restored")
		c.others(of)
		c.Step(of)
		Expect(c.events.Take()).To(ConsistOf("Normal RestoreReady: restore " + restore.Name + " for clone c is ready to use"))
		Expect(DescribeClone(of)).To(Equal("CreatingTargetVM" + processing))
		Expect(ExpectExists(snapshot).DeletionTimestamp).To(BeNil())
		Expect(ExpectExists(restore).DeletionTimestamp).To(BeNil())
		c.Step(of)
		Expect(c.events.Take()).To(
			ConsistOf("Normal TargetVMCreated: created target VM copy for clone c",
				"Normal PVCBound: all PVC for clone c are bound"))
		Expect(DescribeClone(of)).To(Equal(CloneSucceeded))
		Expect(of.Status.TargetName).To(HaveValue(Equal("copy")))
		Expect(of.Status.CreationTime).NotTo(BeNil())
		Expect(of.Status.SnapshotName).To(BeNil())
		Expect(of.Status.RestoreName).To(BeNil())
		c.others(of)
		Expect(c.expectQuiet(of).RequeueAfter).To(BeZero())
		ExpectGone(snapshot)
		ExpectGone(restore)
		ExpectExists(c.target())
	})

	It("makes a VM that shares nothing with its source", func() {
		c := newClones(func(vm *v1.VirtualMachine) {
			vm.Labels = map[string]string{"app": "db", "tier": "gold"}
			vm.Annotations = map[string]string{"note": "mine", "other": "x", corev1.LastAppliedConfigAnnotation: "{}"}
			vm.Spec.Template.ObjectMeta.Labels = map[string]string{"app": "db", "zone": "a"}
			spec := &vm.Spec.Template.Spec
			spec.Domain.Firmware = &v1.Firmware{UUID: "5d307ca9-b3ef-428c-8861-06e72d69f223", Serial: "one"}
			spec.Networks = []v1.Network{{Name: "default", NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}}}
			spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default", MacAddress: "02:00:00:00:00:01"}}
			spec.Domain.Devices.Interfaces[0].Masquerade = &v1.InterfaceMasquerade{}
		})
		of := c.clone(func(spec *cloneSpec) {
			spec.NewMacAddresses, spec.NewSMBiosSerial = map[string]string{"default": "02-00-00-00-00-02"}, ptr.To("two")
			spec.LabelFilters, spec.AnnotationFilters = []string{"*", "!tier"}, []string{"note"}
			spec.Template.LabelFilters = []string{"zone"}
			spec.VolumeNamePolicy = ptr.To(clonev1beta1.VolumeNamePolicyPrefixTargetName)
			spec.Patches = []string{`{"op":"add","path":"/spec/template/metadata/labels/example","value":"new:label"}`}
		})
		c.finishClone(of)
		target := ExpectExists(c.target())
		Expect(target.Spec.RunStrategy).To(HaveValue(Equal(v1.RunStrategyHalted)))
		Expect(target.Labels).To(Equal(map[string]string{"app": "db"}))
		Expect(target.Annotations).To(HaveLen(2))
		Expect(target.Annotations).To(HaveKeyWithValue("note", "mine"))
		Expect(target.Annotations).To(HaveKey("restore.kubevirt.io/lastRestoreUID"))
		Expect(target.Spec.Template.ObjectMeta.Labels).To(Equal(map[string]string{"zone": "a", "example": "new:label"}))
		spec := target.Spec.Template.Spec
		Expect(*spec.Domain.Firmware).To(Equal(v1.Firmware{Serial: "two"}))
		Expect(spec.Domain.Devices.Interfaces[0].MacAddress).To(Equal("02-00-00-00-00-02"))
		Expect(target.Spec.DataVolumeTemplates[0].Name).To(Equal("copy-root"))
		Expect(spec.Volumes[0].DataVolume.Name).To(Equal("copy-root"))
		Expect(spec.Volumes[1].PersistentVolumeClaim.ClaimName).To(Equal("copy-data"))
		Expect(target.Spec.Instancetype.RevisionName).To(Equal("copy-small-1"))
		Expect(metav1.IsControlledBy(c.Claims()["copy-data"], target)).To(BeTrue())
	})

	It("clones a snapshot of the user's, which stays", func() {
		c := newClones()
		before := c.Snapshot.DeepCopy()
		c.finishClone(c.clone(FromSnapshot))
		ExpectExists(c.target())
		Expect(ExpectExists(c.Snapshot).UID).To(Equal(before.UID))
		Expect(c.Snapshot.DeletionTimestamp).To(BeNil())
	})

	It("gives a VM that is created again under its name another identity", func() {
		c := newClones()
		Expect(K8sClient.Delete(ctx, c.VM)).To(Succeed())
		revision := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: c.NS, Name: RevisionOfVM}}
		Expect(K8sClient.Delete(ctx, revision)).To(Succeed(), "in place of the garbage collector")
		c.finishClone(c.clone(FromSnapshot, func(spec *cloneSpec) { spec.Target.Name = "vm" }))
		firmware := ExpectExists(c.VM).Spec.Template.Spec.Domain.Firmware
		Expect(ptr.Deref(firmware, v1.Firmware{})).To(Equal(v1.Firmware{}))
	})

	It("keeps the snapshot until the claims are bound at the first start", func() {
		c := newClonesOn(storagev1.VolumeBindingWaitForFirstConsumer)
		c.Unbound = true
		of := c.clone()
		c.reach(of, clonev1beta1.Succeeded)
		Expect(DescribeClone(of)).To(Equal(CloneSucceeded))
		c.events.Take()
		c.expectQuiet(of)
		ExpectExists(snapshotOfClone(of))
		Expect(of.Status.RestoreName).NotTo(BeNil())
		By("a cache that shows no claims")
		c.Writes.Blind = func(_ client.ObjectKey, object client.Object) bool {
			_, isClaim := object.(*corev1.PersistentVolumeClaim)
			return isClaim
		}
		c.expectQuiet(of)
		c.Writes.Blind = nil
		By("a restore that a user has deleted")
		Expect(K8sClient.Delete(ctx, restoreOfClone(of))).To(Succeed())
		c.others(of)
		ExpectGone(restoreOfClone(of))
		reader, lists := CountLists[*metav1.PartialObjectMetadataList]()
		c.reconciler.APIReader = reader
		c.expectQuiet(of)
		ExpectExists(snapshotOfClone(of))
		Expect(*lists).To(BeZero(), "the cache shows that claims wait")
		By("no restore, and a cache that shows no claims")
		c.Writes.StaleList = &corev1.PersistentVolumeClaimList{}
		c.expectQuiet(of)
		ExpectExists(snapshotOfClone(of))
		c.Writes.StaleList, *lists = nil, 0
		By("the first start")
		c.Unbound = false
		c.Provision()
		c.Step(of)
		Expect(*lists).To(Equal(1))
		Expect(c.events.Take()).To(ConsistOf(HavePrefix("Normal PVCBound: ")))
		ExpectGone(snapshotOfClone(of))
		Expect(ExpectExists(of).Status.SnapshotName).To(BeNil())
		Expect(of.Status.RestoreName).To(BeNil())
		c.expectQuiet(of)
	})

	It("waits for its source, and for snapshots of its volumes", func() {
		c := newClones()
		of := c.clone(func(spec *cloneSpec) { spec.Source.Name = "later" })
		c.Step(of)
		missing := "Source doesnt exist: VirtualMachine " + c.NS + "/later"
		Expect(c.events.Take()).To(ConsistOf("Normal SourceDoesNotExist: " + missing))
		Expect(DescribeClone(of)).To(Equal(pending + missing))
		c.expectQuiet(of)
		of.Spec.Source.Name = "vm"
		Expect(K8sClient.Update(ctx, of)).To(Succeed())
		c.snapshottable(false)
		c.Step(of)
		Expect(c.events.Take()).To(
			ConsistOf("Normal VMVolumeSnapshotsInvalid: Virtual Machine volume root does not support snapshots"))
		Expect(DescribeClone(of)).To(Equal(pending + "Virtual Machine volume root does not support snapshots"))
		c.expectQuiet(of)
		ExpectGone(snapshotOfClone(of))
		c.snapshottable(true)
		c.finishClone(of)
	})

	It("waits for a target that is gone before it has succeeded", func() {
		c := newClones()
		of := c.clone()
		c.reach(of, clonev1beta1.CreatingTargetVM)
		Expect(K8sClient.Delete(ctx, c.target())).To(Succeed())
		c.events.Take()
		c.Step(of)
		Expect(DescribeClone(of)).To(
			Equal("CreatingTargetVM" + processing + " (target VM copy is not created yet for clone c)"))
		c.expectQuiet(of)
		ExpectExists(snapshotOfClone(of))
		ExpectExists(restoreOfClone(of))
	})

	It("does not touch a VM of its target's name, and goes on without it", func() {
		c := newClones()
		of := c.clone(FromSnapshot, func(spec *cloneSpec) { spec.Target.Name = "vm" })
		c.reach(of, clonev1beta1.RestoreInProgress)
		before := ExpectExists(c.VM).ResourceVersion
		c.events.Take()
		Expect(c.Step(of).RequeueAfter).To(Equal(15 * time.Second))
		exists := "VirtualMachine " + c.NS + "/vm exists already: delete it, or clone to another name"
		Expect(c.events.Take()).To(ConsistOf("Warning RestoreCreationFailed: " + exists))
		Expect(DescribeClone(of)).To(Equal("RestoreInProgress" + processing + " (" + exists + ")"))
		c.expectQuiet(of)
		ExpectGone(restoreOfClone(of))
		Expect(ExpectExists(c.VM).ResourceVersion).To(Equal(before))
		Expect(c.LockedBy()).To(BeEmpty())
		ExpectExists(of).Spec.Target.Name = "copy"
		Expect(K8sClient.Update(ctx, of)).To(Succeed())
		c.finishClone(of)
	})

	It("fails when its restore fails, and says why", func() {
		c := newClones()
		of := c.clone(func(spec *cloneSpec) { spec.Patches = []string{`{"op":"remove","path":"/spec/none"}`} })
		c.reach(of, clonev1beta1.RestoreInProgress)
		c.stepUntil(of, func() bool { return strings.Contains(DescribeClone(of), "error patching VM copy") })
		Expect(DescribeClone(of)).To(
			HavePrefix("Failed; Progressing=False Failed; Ready=False restore " + restoreOfClone(of).Name + " has failed: "))
		Expect(c.events.Take()).To(ContainElement(HavePrefix("Normal RestoreFailed: ")))
		c.events.Take()
		c.expectQuiet(of)
		ExpectGone(c.target())
	})

	It("fails for a source with persistent state", func() {
		c := newClones(func(vm *v1.VirtualMachine) {
			vm.Spec.Template.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(true)}
		})
		of := c.clone()
		c.Step(of)
		text := "Clone of source with backendstorage is not supported: VM " + c.NS + "/vm"
		Expect(c.events.Take()).To(ConsistOf("Normal SourceVMWithBackendStorageInvalid: " + text))
		Expect(DescribeClone(of)).To(Equal("Failed; Progressing=False Failed; Ready=False " + text))
		Expect(c.expectQuiet(of).RequeueAfter).To(BeZero())
		ExpectGone(snapshotOfClone(of))
	})
})
