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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/podproc"
)

// snapshotPatience is how long a snapshot may take whose components are killed; its guest may be frozen for half of
// that.
const snapshotPatience = 2 * time.Minute

// thawAllowance is what the thaw itself, which is requested at the deadline, and the guest's next write may take on a
// busy machine.
const thawAllowance = 10 * time.Second

// `make chaos-freeze` kills the agent at any moment of a freeze, without a cluster. Here, everything of Vireo ends at
// once.
var _ = Describe("A guest of which a snapshot is taken", Serial, extended(1), func() {
	It("is thawed by its deadline when all components are killed, and the snapshot ends", func(ctx context.Context) {
		needLocalNodes()
		needSnapshots(ctx)
		g := startSnapshotGuest(ctx, 1)
		g.killDuringFreeze(ctx, "requested", func(*v1.SnapshotFreezeRecord) bool { return true })
		g.killDuringFreeze(ctx, "frozen", func(record *v1.SnapshotFreezeRecord) bool {
			return record != nil && record.Stage != v1.SnapshotFreezeRequested
		})
	}, specTimeout(15*time.Minute))
})

// killDuringFreeze takes a snapshot, and kills all components when its freeze has reached a point, of which the record
// is nil until the agent has written it.
func (g *snapshotGuest) killDuringFreeze(
	ctx context.Context, name string, reached func(*v1.SnapshotFreezeRecord) bool,
) {
	GinkgoHelper()
	By("killing all components when the freeze is " + name)
	var pods []corev1.Pod
	var processes []podproc.Process
	for _, component := range []string{"virt-controller", "virt-api", "virt-handler", "virt-broker"} {
		found := componentPods(ctx, component, "")
		for i := range found {
			for _, container := range found[i].Spec.Containers {
				processes = append(processes, mainProcess(&found[i], container.Name))
			}
		}
		pods = append(pods, found...)
	}
	start := time.Now()
	taken := makeSnapshot(g.namespace, name, g.name)
	taken.Spec.FailureDeadline = &metav1.Duration{Duration: snapshotPatience}
	create(ctx, taken)
	var deadline metav1.Time
	Eventually(func(gomega Gomega) {
		status := &vmi(ctx, g.namespace, g.name).Status
		intent, record := status.SnapshotFreeze, status.SnapshotFreezeRecord
		if record != nil && record.ID != string(taken.UID) {
			record = nil
		}
		switch {
		case intent != nil && intent.ID == string(taken.UID):
			deadline = intent.Deadline
		case record != nil: // It may be over before it is seen.
			deadline = record.Deadline
		}
		gomega.Expect(deadline.IsZero()).To(BeFalse(), "no freeze is requested")
		gomega.Expect(reached(record)).To(BeTrue(), "%+v", record)
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(snapshotPoll).Should(Succeed())
	for _, process := range processes {
		killProcess(process)
	}

	Eventually(func() *v1.SnapshotFreezeRecord {
		return vmi(ctx, g.namespace,
			g.name).Status.SnapshotFreezeRecord
	}).WithContext(ctx).
		WithTimeout(bootTimeout).WithPolling(pollInterval).Should(And(HaveField("ID", string(taken.UID)),
		HaveField("Stage", BeElementOf(v1.SnapshotFreezeThawed, v1.SnapshotFreezeFailed))))
	Eventually(func(gomega Gomega) {
		gomega.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(taken), taken)).To(Succeed())
		gomega.Expect(taken.Status).To(HaveField("Phase", BeElementOf(snapshotv1beta1.Succeeded, snapshotv1beta1.Failed)),
			"%+v", taken.Status)
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
	expectRestarted(ctx, pods)
	g.expectBeats(ctx, time.Now(), time.Second)

	// The guest itself tells for how long it could not write.
	stall := time.Duration(g.stall(ctx, start) * float64(time.Millisecond))
	AddReportEntry("a freeze in which all components were killed",
		fmt.Sprintf("%s: the guest stood for %s of at most %s; %v",
			name, stall, deadline.Sub(start), taken.Status.Indications))
	Expect(stall).To(BeNumerically("<", deadline.Sub(start)+thawAllowance))
	Expect(vmi(ctx, g.namespace, g.name)).To(
		And(HaveField("UID", g.instance.UID), HaveField("Status.FSFreezeStatus", BeEmpty())))
	Eventually(func() *string { return readVM(ctx, g.namespace, g.name).Status.SnapshotInProgress }).WithContext(ctx).
		WithTimeout(shortTimeout).WithPolling(pollInterval).Should(BeNil(), "the VM stays locked")
	Expect(k8s.Delete(ctx, taken)).To(Succeed())
	g.expectNoSnapshots(ctx)
}
