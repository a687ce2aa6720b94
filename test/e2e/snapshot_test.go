// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	"github.com/vireo-project/vireo/api/csi"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// The specs use one guest with a disk of each volume mode. It counts its boots on both.
var _ = Describe("Snapshots of a VM", extended(1), func() {
	It("are consistent while the guest runs, are exported, restored in place and to another VM, and clone it",
		func(ctx context.Context) {
			needSnapshots(ctx)
			namespace, name := newNamespace(ctx), "keeper"
			create(ctx, makeClaim(namespace, "files", corev1.PersistentVolumeFilesystem),
				makeClaim(namespace, "block", corev1.PersistentVolumeBlock),
				makeVM(namespace, name, withGracePeriod(60), withClaim("files", "files"), withClaim("block", "block")))
			before := expectReady(ctx, namespace, name)
			expectBoots(ctx, namespace, name, 1)
			expectAgent(ctx, namespace, name, shortTimeout)
			Eventually(readVM).WithArguments(ctx, namespace,
				name).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(
				HaveField("Status.VolumeSnapshotStatuses", ContainElements(
					And(HaveField("Name", "files"), HaveField("Enabled", true)),
					And(HaveField("Name", "block"), HaveField("Enabled", true)),
					And(HaveField("Name", "root"), HaveField("Enabled", false)))))

			By("taking a snapshot of the running guest")
			writeOn(ctx, namespace, name, writeExported, "files", "block")
			create(ctx, makeSnapshot(namespace, "first", name))
			first := expectSnapshot(ctx, namespace, "first")
			Expect(first.Status.Indications).To(
				ConsistOf(snapshotv1beta1.VMSnapshotOnlineSnapshotIndication, snapshotv1beta1.VMSnapshotGuestAgentIndication))
			Expect(first.Status.SnapshotVolumes).To(HaveField("IncludedVolumes", ConsistOf("files", "block")))
			instance := vmi(ctx, namespace, name)
			Expect(instance.UID).To(Equal(before.UID))
			Expect(instance.Status.SnapshotFreezeRecord).NotTo(BeNil())
			AddReportEntry("frozen", instance.Status.SnapshotFreezeRecord)

			By("downloading it while the guest runs")
			expectExported(ctx, namespace, "first", name)
			Expect(vmi(ctx, namespace, name).UID).To(Equal(before.UID))

			By("restoring it in place after another boot")
			setRunStrategy(ctx, namespace, name, v1.RunStrategyHalted)
			expectGone(ctx, instance)
			setRunStrategy(ctx, namespace, name, v1.RunStrategyAlways)
			instance = expectReady(ctx, namespace, name)
			expectBoots(ctx, namespace, name, 2)
			back := makeRestore(namespace, "back", name, "first")
			back.Spec.TargetReadinessPolicy = ptr.To(snapshotv1beta1.VirtualMachineRestoreStopTarget)
			create(ctx, back)
			expectRestored(ctx, back)
			setRunStrategy(ctx, namespace, name, v1.RunStrategyAlways)
			expectNewInstance(ctx, instance)
			expectReady(ctx, namespace, name)
			expectBoots(ctx, namespace, name, 2)

			By("restoring it to another VM, which does not touch the first")
			copied := makeRestore(namespace, "copied", "another", "first")
			create(ctx, copied)
			expectRestored(ctx, copied)
			setRunStrategy(ctx, namespace, "another", v1.RunStrategyAlways)
			expectReady(ctx, namespace, "another")
			expectBoots(ctx, namespace, "another", 2)
			Expect(claimsOf(readVM(ctx, namespace, "another"))).NotTo(ContainElements(claimsOf(readVM(ctx, namespace, name))))

			By("cloning the running guest to a VM that starts with its disks")
			expectAgent(ctx, namespace, name, shortTimeout)
			clone := makeClone(namespace, "clone", name, "twin")
			create(ctx, clone)
			expectClone(ctx, clone, HaveField("Phase", clonev1beta1.Succeeded))
			setRunStrategy(ctx, namespace, "twin", v1.RunStrategyAlways)
			expectReady(ctx, namespace, "twin")
			expectBoots(ctx, namespace, "twin", 3)
			expectClone(ctx, clone, HaveField("RestoreName", BeNil()))

			By("deleting the snapshot with what was stored for it")
			Expect(k8s.Delete(ctx, first)).To(Succeed())
			expectGone(ctx, first)
			Eventually(func(g Gomega) {
				remaining := &csi.VolumeSnapshotList{}
				g.Expect(k8s.List(ctx, remaining, client.InNamespace(namespace))).To(Succeed())
				g.Expect(remaining.Items).To(BeEmpty())
			}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
		}, specTimeout(20*time.Minute))
})

// needSnapshots skips the spec if the cluster's volumes have no snapshots.
func needSnapshots(ctx context.Context) {
	GinkgoHelper()
	list := &csi.VolumeSnapshotClassList{}
	err := k8s.List(ctx, list)
	if meta.IsNoMatchError(err) || err == nil && len(list.Items) == 0 {
		Skip("the cluster has no VolumeSnapshotClass: start the local one with STORAGE=1")
	}
	Expect(err).NotTo(HaveOccurred())
}

func expectBoots(ctx context.Context, namespace, name string, n int) {
	GinkgoHelper()
	expectConsole(ctx, namespace, name, bootTimeout,
		And(MatchRegexp(bootsOn("files", n)), MatchRegexp(bootsOn("block", n))))
}

func makeSnapshot(namespace, name, vm string) *snapshotv1beta1.VirtualMachineSnapshot {
	made := &snapshotv1beta1.VirtualMachineSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	made.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To(v1.GroupVersion.Group), Kind: "VirtualMachine",
		Name: vm}
	return made
}

// expectSnapshot waits until a snapshot can be restored, and returns it.
func expectSnapshot(ctx context.Context, namespace, name string) *snapshotv1beta1.VirtualMachineSnapshot {
	GinkgoHelper()
	found := &snapshotv1beta1.VirtualMachineSnapshot{}
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, found)).To(Succeed())
		g.Expect(found.Status).To(
			And(HaveField("ReadyToUse", HaveValue(BeTrue())), HaveField("Phase", snapshotv1beta1.Succeeded)), "%+v",
			found.Status)
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
	return found
}

func makeRestore(namespace, name, vm, snapshot string) *snapshotv1beta1.VirtualMachineRestore {
	made := &snapshotv1beta1.VirtualMachineRestore{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	made.Spec.Target = corev1.TypedLocalObjectReference{APIGroup: ptr.To(v1.GroupVersion.Group), Kind: "VirtualMachine",
		Name: vm}
	made.Spec.VirtualMachineSnapshotName = snapshot
	return made
}

func expectRestored(ctx context.Context, restore *snapshotv1beta1.VirtualMachineRestore) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(restore), restore)).To(Succeed())
		g.Expect(restore.Status).To(HaveField("Complete", HaveValue(BeTrue())), "%+v", restore.Status)
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
}

func makeClone(namespace, name, source, target string) *clonev1beta1.VirtualMachineClone {
	made := &clonev1beta1.VirtualMachineClone{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	made.Spec.Source = &corev1.TypedLocalObjectReference{APIGroup: ptr.To(v1.GroupVersion.Group), Kind: "VirtualMachine",
		Name: source}
	made.Spec.Target = &corev1.TypedLocalObjectReference{APIGroup: ptr.To(v1.GroupVersion.Group), Kind: "VirtualMachine",
		Name: target}
	return made
}

func expectClone(ctx context.Context, clone *clonev1beta1.VirtualMachineClone, status types.GomegaMatcher) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(clone), clone)).To(Succeed())
		g.Expect(clone.Status).To(status, "%+v", clone.Status)
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
}

// claimsOf returns the claims of a VM's volumes.
func claimsOf(vm *v1.VirtualMachine) []string {
	var names []string
	for i := range spec(vm).Volumes {
		if claim := spec(vm).Volumes[i].WrittenClaim(); claim != "" {
			names = append(names, claim)
		}
	}
	return names
}
