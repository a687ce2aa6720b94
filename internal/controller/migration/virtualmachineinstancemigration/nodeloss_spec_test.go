// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("A node that is lost during a migration", func() {
	var (
		m    *migrations
		vmi  *v1.VirtualMachineInstance
		vmim *v1.VirtualMachineInstanceMigration
		own  *corev1.Pod
	)
	BeforeEach(func() {
		m = newMigrations()
		vmi = m.running("a", "vm")
		ExpectCreated(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.node("b")}})
		own = ExpectExists(PodOf(vmi))
		vmim, _ = m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
	})

	It("does not end the VMI or the target's Pod while the source's guest may run", func() {
		MakeUnresponsive(m.node("a"), corev1.ConditionUnknown)
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi)).To(
			HaveCondition(v1.VirtualMachineInstanceNodeUnresponsive, corev1.ConditionTrue,
				v1.VirtualMachineInstanceReasonNodeLost, "may still run"))
		Expect(vmi.Status.Phase).To(Equal(v1.Running))
		Expect(ExpectExists(m.target(vmi, vmim)).DeletionTimestamp).To(BeNil())
	})

	It("deletes the target's Pod before the VMI fails, when the source is out of service", func() {
		DeclareOutOfService(MakeUnresponsive(m.node("a"), corev1.ConditionUnknown))
		target := ExpectExists(m.target(vmi, vmim))
		m.reconcileAll(vmim)
		ExpectGone(own)
		Expect(IsDeleted(target)).To(BeTrue(), "the memory on the target may be older than the disks")
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running), "the target's Pod may still run")
		m.remove(target)
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Failed))
	})

	It("keeps the guest on the source when the target is out of service", func() {
		target := ExpectExists(m.target(vmi, vmim))
		DeclareOutOfService(MakeUnresponsive(m.node("b"), corev1.ConditionUnknown))
		m.reconcileAll(vmim)
		ExpectGone(target)
		Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
		Expect(vmi.Status.NodeName).To(Equal(m.node("a")))
		Expect(vmi.Status.MigrationState.AbortRequested).To(BeTrue())
		Expect(ExpectExists(own).DeletionTimestamp).To(BeNil())
	})
})
