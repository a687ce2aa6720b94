// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

var _ = Describe("A migration's status", func() {
	// history records all states of a VMI until the spec ends.
	history := func(vmi *v1.VirtualMachineInstance) <-chan v1.VirtualMachineInstanceStatus {
		GinkgoHelper()
		watching, err := client.NewWithWatch(apiServer, client.Options{Scheme: scheme})
		Expect(err).NotTo(HaveOccurred())
		w, err := watching.Watch(ctx, &v1.VirtualMachineInstanceList{}, client.InNamespace(vmi.Namespace),
			client.MatchingFields{"metadata.name": vmi.Name})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(w.Stop)
		seen := make(chan v1.VirtualMachineInstanceStatus, 1000)
		go func() {
			defer close(seen)
			for event := range w.ResultChan() {
				if now, ok := event.Object.(*v1.VirtualMachineInstance); ok {
					seen <- now.Status
				}
			}
		}()
		return seen
	}

	It("gets completed and the time at which the guest runs on the target in one write", func() {
		c := newMigratingGuest().prepare()
		seen := history(c.vmi)
		c.assignMigration()
		c.expectMigrated()
		for s := range seen {
			m := s.MigrationState
			if m == nil || !m.Completed {
				continue
			}
			Expect(s.NodeName).To(Equal(c.target.node))
			Expect(m.TargetNodeDomainDetected).To(BeTrue())
			Expect(m.TargetNodeDomainReadyTimestamp).NotTo(BeNil())
			Expect(m.EndTimestamp).NotTo(BeNil())
			Expect(m.StartTimestamp).NotTo(BeNil())
			return
		}
		Fail("the migration was never completed")
	})

	It("is completed by the target's agent if an earlier version of it left that to the source's agent", func() {
		c := newMigratingGuest().migrate()
		c.expectMigrated()
		c.targetA.stop()
		before := c.read()
		after := before.DeepCopy()
		after.Status.MigrationState.Completed, after.Status.MigrationState.EndTimestamp = false, nil
		Expect(api.Status().Patch(ctx, after, client.MergeFrom(before))).To(Succeed())
		c.restartTarget()
		c.expectMigrated()
	})

	It("can be completed by the owner only", func() {
		c := newMigratingGuest().prepare()
		_, release := c.launcher.Slow("perform")
		DeferCleanup(release)
		c.assignMigration()
		before := c.read()
		after := before.DeepCopy()
		vmistatus.Complete(after.Status.MigrationState, metav1.Now())
		_, err := vmistatus.Patch(ctx, api, vmistatus.MigrationTarget, before, after)
		Expect(err).To(MatchError(vmistatus.ErrNotOwner))
	})
})
