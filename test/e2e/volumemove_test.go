// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// The guest's only disk is on a volume of its node, and contains its log.
var _ = Describe("A replaced claim of a running guest", extended(1), kvmLinuxLong(), func() {
	n := &migratingGuest{name: "mover", consoles: &consoleLogs{seen: map[types.UID]func() string{}}}

	It("requires a restart if it is too small, and is otherwise filled by a migration to another node",
		func(ctx context.Context) {
			needLocalNodes()
			if len(nodes(ctx)) < 2 {
				Skip("migrations need two nodes")
			}
			enableLiveMigrate(ctx)
			n.namespace = newNamespace(ctx)
			small, large := makeClaim(n.namespace, "small", corev1.PersistentVolumeBlock),
				makeClaim(n.namespace, "large", corev1.PersistentVolumeBlock)
			small.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("32Mi")
			large.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("192Mi")
			create(ctx, makeClaim(n.namespace, "old", corev1.PersistentVolumeBlock), small, large,
				makeVM(n.namespace, n.name, withClaim("log", "old"), withoutSerial, withVolumesMigration,
					withUserData("#!/bin/sh\n"+counter+logger)))
			n.instance = expectReady(ctx, n.namespace, n.name)
			var stop context.CancelFunc
			n.background, stop = context.WithCancel(context.Background())
			DeferCleanup(stop)
			go n.consoles.follow(n.background, n.instance)
			Eventually(n.consoles.counted).WithContext(ctx).WithTimeout(bootTimeout).ShouldNot(BeEmpty())
			n.log = deviceOf(ctx, n.namespace, "old")
			Eventually(readLog).WithArguments(ctx, n.log).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).
				ShouldNot(BeEmpty())
			Expect(condition(n.instance, v1.VirtualMachineInstanceIsMigratable)).To(And(
				HaveField("Status", corev1.ConditionFalse), HaveField("Reason", v1.VirtualMachineInstanceReasonDisksNotMigratable)))

			By("refusing a claim that is too small")
			n.useClaim(ctx, "small")
			Eventually(n.vm).WithArguments(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).
				Should(HaveField("Status.Conditions", ContainElement(And(
					HaveField("Type", v1.VirtualMachineRestartRequired), HaveField("Status", corev1.ConditionTrue),
					HaveField("Message", HavePrefix("cannot migrate volume log: "))))))
			Expect(claimOfLog(&n.vm(ctx).Spec.Template.Spec)).To(Equal("small"))
			Expect(claimOfLog(&vmi(ctx, n.namespace, n.name).Spec)).To(Equal("old"))

			By("migrating to a claim that is large enough")
			n.useClaim(ctx, "large")
			n.expectVolumesChange(ctx)
			n.expectVolumesMigrated(ctx)

			before := n.log
			n.log = deviceOf(ctx, n.namespace, "large")
			n.expectCounts(ctx)
			records := n.expectLog(ctx)
			copied, err := readLog(ctx, before)
			Expect(err).NotTo(HaveOccurred())
			Expect(len(copied)).To(And(BeNumerically(">", 0), BeNumerically("<", records)), "records on the source claim")
			AddReportEntry("a disk that was migrated",
				fmt.Sprintf("%d records, %d of them from before the migration; %d numbers without a gap", records, len(copied),
					n.expectAllCounted()))
		}, specTimeout(8*time.Minute))
	AfterEach(func(ctx context.Context) { dumpFailed(ctx, n.namespace) }, nodeTimeout(time.Minute))
})

// enableLiveMigrate enables automatic migrations of guests that need one, until the spec ends.
func enableLiveMigrate(ctx context.Context) {
	GinkgoHelper()
	set := func(ctx context.Context, methods string) {
		GinkgoHelper()
		kubectl(ctx, "", "patch", "-n", "kubevirt", "kubevirt/kubevirt", "--type=merge",
			"--patch", fmt.Sprintf(`{"spec":{"workloadUpdateStrategy":{"workloadUpdateMethods":%s}}}`, methods))
	}
	set(ctx, `["LiveMigrate"]`)
	DeferCleanup(func(ctx context.Context) { set(ctx, "null") }, nodeTimeout(time.Minute))
}

func withVolumesMigration(vm *v1.VirtualMachine) {
	vm.Spec.UpdateVolumesStrategy = ptr.To(v1.UpdateVolumesStrategyMigration)
}

func (n *migratingGuest) vm(ctx context.Context) *v1.VirtualMachine {
	GinkgoHelper()
	vm := &v1.VirtualMachine{}
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: n.namespace, Name: n.name}, vm)).To(Succeed())
	return vm
}

// useClaim changes the claim of the log's volume, as a user does.
func (n *migratingGuest) useClaim(ctx context.Context, name string) {
	GinkgoHelper()
	for i, volume := range n.vm(ctx).Spec.Template.Spec.Volumes {
		if volume.Name == "log" {
			kubectl(ctx, "", "patch", "-n", n.namespace, "vm", n.name, "--type=json", "--patch",
				fmt.Sprintf(`[{"op":"replace","path":"/spec/template/spec/volumes/%d/persistentVolumeClaim/claimName","value":%q}]`, i, name))
		}
	}
}

func claimOfLog(spec *v1.VirtualMachineInstanceSpec) string {
	for i := range spec.Volumes {
		if spec.Volumes[i].Name == "log" {
			return spec.Volumes[i].WrittenClaim()
		}
	}
	return ""
}

// expectVolumesChange waits until VM and VMI report the migration of the volume.
func (n *migratingGuest) expectVolumesChange(ctx context.Context) {
	GinkgoHelper()
	volumes := ConsistOf(And(HaveField("VolumeName", "log"), HaveField("SourcePVCInfo.ClaimName", "old"),
		HaveField("DestinationPVCInfo.ClaimName", "large")))
	Eventually(func(g Gomega) {
		instance, vm := vmi(ctx, n.namespace, n.name), n.vm(ctx)
		g.Expect(vm.Status.VolumeUpdateState).To(HaveField("VolumeMigrationState.MigratedVolumes", volumes))
		g.Expect(instance.Status.MigratedVolumes).To(volumes)
		g.Expect(condition(instance, v1.VirtualMachineInstanceVolumesChange)).To(HaveField("Status", corev1.ConditionTrue))
		g.Expect(claimOfLog(&instance.Spec)).To(Equal("large"))
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(100 * time.Millisecond).Should(Succeed())
}

// expectVolumesMigrated waits until the volume has migrated and VM and VMI no longer report the migration.
func (n *migratingGuest) expectVolumesMigrated(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		instance, vm := vmi(ctx, n.namespace, n.name), n.vm(ctx)
		g.Expect(instance.UID).To(Equal(n.instance.UID))
		g.Expect(instance.Status.NodeName).NotTo(Equal(n.instance.Status.NodeName), "%+v", instance.Status.MigrationState)
		g.Expect(n.migration(ctx).Status.Phase).To(Equal(v1.MigrationSucceeded))
		g.Expect(instance.Status.MigratedVolumes).To(BeEmpty())
		g.Expect(condition(instance, v1.VirtualMachineInstanceVolumesChange)).To(BeNil())
		g.Expect(condition(instance, v1.VirtualMachineInstanceReady)).To(HaveField("Status", corev1.ConditionTrue))
		g.Expect(claimOfLog(&instance.Spec)).To(Equal(claimOfLog(&vm.Spec.Template.Spec)))
		g.Expect(instance.Status.VolumeStatus).To(ContainElement(And(
			HaveField("Name", "log"), HaveField("PersistentVolumeClaimInfo.ClaimName", "large"),
			HaveField("Size", int64(128<<20)))))
		g.Expect(vm.Status.VolumeUpdateState).To(BeNil())
		g.Expect(vm.Status.ObservedGeneration).To(Equal(vm.Generation))
		g.Expect(vm.Status.Conditions).NotTo(ContainElement(HaveField("Type", v1.VirtualMachineRestartRequired)))
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
	n.migrated++
	migration := n.migration(ctx)
	Expect(migration.Labels).To(HaveKeyWithValue(v1.VolumesUpdateMigration, n.name))
	state := vmi(ctx, n.namespace, n.name).Status.MigrationState
	Expect(state).To(And(HaveField("MigrationUID", migration.UID), HaveField("Completed", true),
		HaveField("Failed", false)))
	Expect(expectOneLauncher(ctx, n.instance).Name).To(Equal(state.TargetPod))
}
