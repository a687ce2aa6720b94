// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

var _ = Describe("a migration", func() {
	ctx := context.Background()

	guest := func(name string, change func(*v1.VirtualMachineInstanceStatus)) {
		GinkgoHelper()
		vmi := newVMI(name)
		Expect(k8s.Create(ctx, vmi)).To(Succeed())
		DeferCleanup(expectGone, ctx, vmi)
		vmi.Status.Phase = v1.Running
		if change != nil {
			change(&vmi.Status)
		}
		Expect(k8s.Status().Update(ctx, vmi)).To(Succeed())
	}
	request := func(vmi string,
		change ...func(*v1.VirtualMachineInstanceMigrationSpec)) *v1.VirtualMachineInstanceMigration {
		m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "go-"}}
		m.Spec.VMIName = vmi
		for _, c := range change {
			c(&m.Spec)
		}
		return m
	}
	create := func(c client.Client, m *v1.VirtualMachineInstanceMigration) error {
		err := c.Create(ctx, m)
		if err == nil {
			DeferCleanup(expectGone, ctx, m)
		}
		return err
	}

	It("gets its finalizer and label, and its spec cannot be changed", func() {
		guest("migrates", nil)
		m := request("migrates")
		Expect(create(k8s, m)).To(Succeed())
		Expect(m.Finalizers).To(ConsistOf(v1.VirtualMachineInstanceMigrationFinalizer))
		Expect(m.Labels).To(HaveKeyWithValue(v1.MigrationSelectorLabel, "migrates"))
		changed := m.DeepCopy()
		changed.Spec.AddedNodeSelector = map[string]string{"a": "b"}
		Expect(k8s.Update(ctx, changed)).To(MatchError(ContainSubstring("update of Migration object's spec is restricted")))
		changed = m.DeepCopy()
		changed.Labels[v1.MigrationSelectorLabel] = "other"
		Expect(k8s.Update(ctx, changed)).To(
			MatchError(ContainSubstring("selector label can't be modified on an in-flight migration")))
		changed = m.DeepCopy()
		changed.Labels = nil
		Expect(k8s.Update(ctx, changed)).To(
			MatchError(ContainSubstring("selector label can't be removed from an in-flight migration")))
	})

	It("is the only unfinished migration of its VMI", func() {
		guest("busy", nil)
		first := request("busy")
		Expect(create(k8s, first)).To(Succeed())
		message := fmt.Sprintf(
			"in-flight migration detected. Active migration job (%s) is currently already in progress for VMI busy.", first.UID)
		Expect(create(k8s, request("busy"))).To(MatchError(ContainSubstring(message)))
		guest("idle", nil)
		Expect(create(k8s, request("idle"))).To(Succeed())
		first.Status.Phase = v1.MigrationFailed
		Expect(k8s.Status().Update(ctx, first)).To(Succeed())
		Expect(create(k8s, request("busy"))).To(Succeed())
	})

	It("is refused for a guest that cannot migrate, with KubeVirt's message", func() {
		Expect(create(k8s, request("nobody"))).To(MatchError(ContainSubstring(`the VMI "default/nobody" does not exist`)))
		guest("over", func(s *v1.VirtualMachineInstanceStatus) { s.Phase = v1.Failed })
		Expect(create(k8s, request("over"))).To(MatchError(ContainSubstring("Cannot migrate VMI in finalized state.")))
		guest("bound", func(s *v1.VirtualMachineInstanceStatus) {
			s.Conditions = []v1.VirtualMachineInstanceCondition{{
				Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionFalse, Reason: "DisksNotLiveMigratable",
				Message: "disk root",
			}}
		})
		Expect(create(k8s, request("bound"))).To(
			MatchError(ContainSubstring("Cannot migrate VMI, Reason: DisksNotLiveMigratable, Message: disk root")))
	})

	It("must name its VMI and must not set a priority", func() {
		guest("plain", nil)
		expectInvalid(create(k8s, request("")), "spec.vmiName")
		urgent := func(s *v1.VirtualMachineInstanceMigrationSpec) { s.Priority = ptr.To(v1.PrioritySystemCritical) }
		expectInvalid(create(k8s, request("plain", urgent)), "spec.priority")
		Expect(create(controller, request("plain", urgent))).To(Succeed())
	})
})
