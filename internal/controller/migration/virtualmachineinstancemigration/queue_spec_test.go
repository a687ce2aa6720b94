// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration_test

import (
	"fmt"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/vireo-project/vireo/api/migrations/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/migration/virtualmachineinstancemigration"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// Migrations of other specs must not take slots: limits are for the cluster.
var _ = Describe("Pending migrations", Serial, func() {
	BeforeEach(func() {
		pods := &corev1.PodList{}
		Expect(K8sClient.List(ctx, pods, client.HasLabels{v1.MigrationJobLabel})).To(Succeed())
		for i := range pods.Items {
			Expect(client.IgnoreNotFound(K8sClient.Delete(ctx, &pods.Items[i], client.GracePeriodSeconds(0)))).To(Succeed())
		}
		list := &v1.VirtualMachineInstanceMigrationList{}
		Expect(K8sClient.List(ctx, list)).To(Succeed())
		for i := range list.Items {
			Expect(client.IgnoreNotFound(K8sClient.Delete(ctx, &list.Items[i]))).To(Succeed())
			none := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
			Expect(client.IgnoreNotFound(K8sClient.Patch(ctx, &list.Items[i], none))).To(Succeed())
		}
	})

	// started returns the names of the migrations that have a Pod.
	started := func(vmims []*v1.VirtualMachineInstanceMigration) []string {
		GinkgoHelper()
		pods := &corev1.PodList{}
		Expect(K8sClient.List(ctx, pods, client.HasLabels{v1.MigrationJobLabel})).To(Succeed())
		var out []string
		for _, vmim := range vmims {
			if slices.ContainsFunc(pods.Items,
				func(pod corev1.Pod) bool { return pod.Labels[v1.MigrationJobLabel] == string(vmim.UID) }) {
				out = append(out, vmim.Name)
			}
		}
		return out
	}

	It("do not exceed the limits with a cache that does not contain the running ones", func() {
		m := newMigrations()
		vmims := m.requestMany(12, 3)
		for _, vmim := range vmims {
			m.Step(vmim)
		}
		for range 2 {
			for _, vmim := range slices.Backward(vmims) {
				// The cache contains no other migration: according to it, each has a free slot.
				m.Writes.StaleList = &v1.VirtualMachineInstanceMigrationList{
					Items: []v1.VirtualMachineInstanceMigration{*ExpectExists(vmim)},
				}
				m.Step(vmim)
			}
		}
		m.Writes.StaleList = nil
		for _, vmim := range vmims {
			m.Step(vmim)
		}
		Expect(started(vmims)).To(HaveLen(5))
		Expect(started(vmims)).To(Equal([]string{"vm-00", "vm-01", "vm-02", "vm-03", "vm-04"}))

		// A finished one frees a slot for one from the same node.
		Expect(K8sClient.Delete(ctx, vmims[0])).To(Succeed())
		m.reconcileAll(vmims...)
		Expect(started(vmims)).To(HaveLen(5))
		Expect(started(vmims)).To(ContainElement("vm-05"))
	})

	It("are not delayed by Pods that have a migration's label without being its target", func() {
		m := newMigrations()
		for i, forge := range []func(*corev1.Pod, *metav1.OwnerReference){
			func(pod *corev1.Pod, _ *metav1.OwnerReference) { pod.OwnerReferences = nil },
			func(pod *corev1.Pod, _ *metav1.OwnerReference) { pod.Name = "virt-launcher-another" },
			func(_ *corev1.Pod, owner *metav1.OwnerReference) { owner.UID = "another" },
			func(_ *corev1.Pod, owner *metav1.OwnerReference) { owner.Kind, owner.APIVersion = "ConfigMap", "v1" },
			func(_ *corev1.Pod, owner *metav1.OwnerReference) { owner.Controller = nil },
		} {
			// The VMI does not run, so that its migration waits.
			vmi := builder.MakeVMI(fmt.Sprintf("halted-%d", i)).Namespace(m.ns).Obj()
			ExpectCreated(vmi)
			vmim := m.request(builder.MakeMigration(vmi.Name, vmi.Name))
			pod := m.target(vmi, vmim)
			pod.Labels = map[string]string{v1.MigrationJobLabel: string(vmim.UID)}
			pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(vmi,
				v1.VirtualMachineInstanceGroupVersionKind)}
			pod.Spec.Containers = []corev1.Container{{Name: "compute", Image: "none"}}
			forge(pod, &pod.OwnerReferences[0])
			ExpectCreated(pod)
		}
		m.running("a", "vm")
		vmim := m.request(builder.MakeMigration("vm", "vm"))
		m.reconcileAll(vmim)
		Expect(started([]*v1.VirtualMachineInstanceMigration{vmim})).To(ConsistOf("vm"))
	})

	It("are not delayed by migrations of guests whose node is lost", func() {
		m := newMigrations()
		vmims := m.requestMany(6, 6)
		m.reconcileAll(vmims...)
		Expect(started(vmims)).To(HaveLen(5))
		waiting := slices.IndexFunc(vmims, func(vmim *v1.VirtualMachineInstanceMigration) bool {
			return !slices.Contains(started(vmims), vmim.Name)
		})
		lost := ExpectExists(&v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: m.ns,
			Name: started(vmims)[0]}})
		LoseNode(lost)
		m.reconcileAll(vmims[waiting])
		Expect(started(vmims)).To(HaveLen(6))

		By("being enqueued when the VMI reports the loss")
		before := lost.DeepCopy()
		before.Status.Conditions = nil
		Expect(virtualmachineinstancemigration.AgentSilent.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: lost})).
			To(BeTrue())
		Expect(virtualmachineinstancemigration.AgentSilent.Update(event.UpdateEvent{ObjectOld: lost, ObjectNew: before})).
			To(BeFalse())
		Expect(virtualmachineinstancemigration.AgentSilent.Update(event.UpdateEvent{ObjectOld: lost, ObjectNew: lost})).
			To(BeFalse())
	})

	It("are not delayed by one whose VMI is gone and that has a foreign finalizer", func() {
		m := newMigrations()
		var vmims []*v1.VirtualMachineInstanceMigration
		for i := range 6 {
			name := fmt.Sprintf("vm-%d", i)
			m.running(string(rune('a'+i)), name)
			vmims = append(vmims, m.request(builder.MakeMigration(name, name)))
		}
		m.reconcileAll(vmims...)
		Expect(started(vmims)).To(HaveLen(5))
		waiting := slices.IndexFunc(vmims, func(vmim *v1.VirtualMachineInstanceMigration) bool {
			return !slices.Contains(started(vmims), vmim.Name)
		})
		kept := vmims[(waiting+1)%len(vmims)]
		Expect(K8sClient.Patch(ctx, ExpectExists(kept), client.RawPatch("application/json-patch+json",
			[]byte(`[{"op":"add","path":"/metadata/finalizers/-","value":"example.org/kept"}]`)))).To(Succeed())
		// By force, so that the migration's phase does not become final.
		vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: m.ns, Name: kept.Spec.VMIName}}
		Expect(K8sClient.Patch(ctx, vmi, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
		Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
		ExpectGone(vmi)
		before := ExpectExists(kept).DeepCopy()
		m.Step(kept)
		Expect(ExpectExists(kept).Status.Phase).To(Equal(v1.MigrationScheduling),
			"the migration must be in a phase that takes a slot")
		Expect(virtualmachineinstancemigration.FreesSlot.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: kept})).
			To(BeTrue(), "the others are not enqueued")
		m.reconcileAll(vmims[waiting])
		Expect(started(vmims)).To(ContainElement(vmims[waiting].Name))
	})

	It("are not delayed forever by one that never finishes", func() {
		m := newMigrations()
		// A user may set any timeout for a target's Pod that cannot be scheduled.
		vmims := m.requestMany(6, 6, func(b *builder.Migration) {
			b.Annotation(v1.MigrationPendingPodTimeoutSecondsAnnotation, "2000000000")
		})
		m.reconcileAll(vmims...)
		waiting := slices.IndexFunc(vmims, func(vmim *v1.VirtualMachineInstanceMigration) bool {
			return !slices.Contains(started(vmims), vmim.Name)
		})
		wait := m.Step(vmims[waiting]).RequeueAfter
		Expect(wait).To(BeNumerically(">", 0))
		Expect(started(vmims)).To(HaveLen(5))
		m.clock.SetTime(m.clock.Now().Add(wait))
		m.reconcileAll(vmims[waiting])
		Expect(started(vmims)).To(HaveLen(6))
	})

	It("start after those of a namespace with fewer running ones", func() {
		m, other := newMigrations(), newMigrations()
		many := m.requestMany(7, 7)
		m.reconcileAll(many...)
		Expect(started(many)).To(HaveLen(5))
		other.running("a", "vm")
		one := other.request(builder.MakeMigration("vm", "vm"))
		other.reconcileAll(one)
		Expect(started([]*v1.VirtualMachineInstanceMigration{one})).To(BeEmpty())
		first := slices.IndexFunc(many,
			func(vmim *v1.VirtualMachineInstanceMigration) bool { return slices.Contains(started(many), vmim.Name) })
		Expect(K8sClient.Delete(ctx, many[first])).To(Succeed())
		m.reconcileAll(many...)
		Expect(started(many)).To(HaveLen(4))
		other.reconcileAll(one)
		Expect(started([]*v1.VirtualMachineInstanceMigration{one})).To(ConsistOf("vm"))
	})

	It("start by priority, two for each node", func() {
		m := newMigrations()
		var vmims []*v1.VirtualMachineInstanceMigration
		for i, priority := range []v1.MigrationPriority{"", v1.PrioritySystemMaintenance, v1.PriorityUserTriggered,
			v1.PrioritySystemCritical} {
			name := fmt.Sprintf("vm-%d", i)
			m.running("a", name)
			b := builder.MakeMigration(name, name)
			if priority != "" {
				b.Priority(priority)
			}
			vmims = append(vmims, m.request(b))
		}
		for _, vmim := range vmims {
			m.Step(vmim) // to Pending
		}
		m.reconcileAll(vmims...)
		Expect(started(vmims)).To(Equal([]string{"vm-2", "vm-3"}))
	})

	It("fail when another one of the same VMI is running", func() {
		m := newMigrations()
		m.running("a", "vm")
		first := m.request(builder.MakeMigration("first", "vm"))
		m.reconcileAll(first)
		second := m.request(builder.MakeMigration("second", "vm"))
		m.reconcileAll(second)
		Expect(ExpectExists(second).Status.Phase).To(Equal(v1.MigrationFailed))
		Expect(m.recorded.Take()).To(
			ContainElement("Warning FailedMigration: VMI is not eligible for migration because another migration job is in progress."))
		Expect(ExpectExists(first).Status.Phase).To(Equal(v1.MigrationScheduling))
	})

	It("report that a quota is exceeded, and start when it is not", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim := m.request(builder.MakeMigration("go", "vm"))
		full := true
		m.Writes.Fail = func(request string) error {
			if full && request == "create Pod" {
				return apierrors.NewForbidden(corev1.Resource("pods"), "x",
					fmt.Errorf("exceeded quota: small, requested: memory=1Gi, used: memory=1Gi, limited: memory=1Gi"))
			}
			return nil
		}
		for range 3 {
			m.Step(vmim)
		}
		quota := v1.VirtualMachineInstanceMigrationRejectedByResourceQuota
		Expect(ExpectExists(vmim)).To(haveMigrationCondition(quota, "exceeded quota: small"))
		Expect(vmim.Status.Phase).To(Equal(v1.MigrationPending))
		full = false
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationScheduling))
		Expect(vmim).NotTo(haveMigrationCondition(quota, ""))
		ExpectExists(m.target(vmi, vmim))
	})

	It("of the system back off after failures", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		failed := m.request(builder.MakeMigration("first", "vm").Annotation(v1.EvacuationMigrationAnnotation, "a"))
		m.reconcileAll(failed)
		m.remove(m.target(vmi, failed))
		m.reconcileAll(failed)
		Expect(ExpectExists(failed).Status.Phase).To(Equal(v1.MigrationFailed))
		next := m.request(builder.MakeMigration("second", "vm").Annotation(v1.EvacuationMigrationAnnotation, "a"))
		m.Step(next)
		Expect(m.Step(next).RequeueAfter).To(BeNumerically("~", 20*time.Second, time.Second))
		ExpectGone(m.target(vmi, next))
		m.clock.SetTime(m.clock.Now().Add(21 * time.Second))
		m.reconcileAll(next)
		ExpectExists(m.target(vmi, next))
	})

	It("do not delay others while they back off", func() {
		m := newMigrations()
		var vmims []*v1.VirtualMachineInstanceMigration
		evacuation := func(name, vm string) *v1.VirtualMachineInstanceMigration {
			return m.request(builder.MakeMigration(name, vm).Annotation(v1.EvacuationMigrationAnnotation,
				"a").Priority(v1.PrioritySystemCritical))
		}
		for _, vm := range []string{"vm-0", "vm-1"} {
			vmi := m.running("a", vm)
			failed := evacuation("failed-"+vm, vm)
			m.reconcileAll(failed)
			m.remove(m.target(vmi, failed))
			m.reconcileAll(failed)
			vmims = append(vmims, evacuation("again-"+vm, vm))
		}
		m.running("a", "vm-2")
		vmims = append(vmims, m.request(builder.MakeMigration("patient", "vm-2")))
		m.reconcileAll(vmims...)
		Expect(started(vmims)).To(Equal([]string{"patient"}))
		m.clock.SetTime(m.clock.Now().Add(21 * time.Second))
		m.reconcileAll(vmims...)
		Expect(started(vmims)).To(Equal([]string{"again-vm-0", "patient"}))
	})

	It("are deleted after they finished, except for the last five of a VMI", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		for i := range 7 {
			vmim := m.request(builder.MakeMigration(fmt.Sprintf("go-%d", i), "vm"))
			m.reconcileAll(vmim)
			m.remove(m.target(vmi, vmim))
			m.reconcileAll(vmim)
			Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
		}
		list := &v1.VirtualMachineInstanceMigrationList{}
		Expect(K8sClient.List(ctx, list, client.InNamespace(m.ns))).To(Succeed())
		Expect(list.Items).To(HaveLen(5))
	})

	DescribeTable("fail when the target's Pod does not run in time",
		func(status *builder.PodStatus, annotation, seconds string, timeout time.Duration, message string) {
			m := newMigrations()
			vmi := m.running("a", "vm")
			b := builder.MakeMigration("go", "vm")
			if annotation != "" {
				b.Annotation(annotation, seconds)
			}
			vmim := m.request(b)
			m.reconcileAll(vmim)
			target := m.target(vmi, vmim)
			m.setPodStatus(target, "", status)
			created := ExpectExists(target).CreationTimestamp.Time
			m.clock.SetTime(created.Add(timeout - time.Second))
			Expect(m.Step(vmim).RequeueAfter).To(BeNumerically("~", time.Second, 10*time.Millisecond))
			Expect(IsDeleted(target)).To(BeFalse())
			m.clock.SetTime(created.Add(timeout))
			m.reconcileAll(vmim)
			Expect(IsDeleted(target)).To(BeTrue())
			Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
			Expect(m.recorded.Take()).To(ContainElement(ContainSubstring(message)))
			Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
		},
		Entry("because it is unschedulable", builder.MakePodStatus().Unschedulable("0/3 nodes are available"), "", "", 5*time.Minute, "0/3 nodes are available"),
		Entry("because it is pending for another reason", builder.MakePodStatus().Waiting("ImagePullBackOff", "no such image"), "", "", 15*time.Minute, "timeout period exceeded"),
		Entry("because it is unschedulable, with the timeout of its annotation", builder.MakePodStatus().Unschedulable("none"),
			v1.MigrationUnschedulablePodTimeoutSecondsAnnotation, "42", 42*time.Second, "none"),
		Entry("because it is pending, with the timeout of its annotation", builder.MakePodStatus(),
			v1.MigrationPendingPodTimeoutSecondsAnnotation, "43", 43*time.Second, "timeout period exceeded"),
	)

	DescribeTable("and running ones are aborted when they are deleted",
		func(reach func(m *migrations, vmi *v1.VirtualMachineInstance) (*v1.VirtualMachineInstanceMigration, *agents)) {
			m := newMigrations()
			vmi := m.running("a", "vm")
			vmim, a := reach(m, vmi)
			Expect(K8sClient.Delete(ctx, vmim)).To(Succeed())
			m.reconcileAll(vmim)
			if a != nil {
				Expect(ExpectExists(vmi).Status.MigrationState.AbortRequested).To(BeTrue())
				Expect(ExpectExists(vmim)).To(haveMigrationCondition(v1.VirtualMachineInstanceMigrationAbortRequested, ""))
				Expect(m.recorded.Take()).To(
					ContainElement("Normal SuccessfulAbortMigration: Migration is ready to be canceled by virt-handler."))
				a.act()
				m.reconcileAll(vmim)
			}
			ExpectGone(vmim)
			Expect(m.recorded.Take()).To(ContainElement(HavePrefix("Warning FailedMigration: ")))
			Expect(IsDeleted(m.target(vmi, vmim))).To(BeTrue())
			Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Running))
			Expect(IsDeleted(PodOf(vmi))).To(BeFalse())
		},
		Entry("in phase Pending",
			func(m *migrations, vmi *v1.VirtualMachineInstance) (*v1.VirtualMachineInstanceMigration, *agents) {
				ReportAsAgent(vmi, func(s *v1.VirtualMachineInstanceStatus) { s.Phase = v1.Scheduled })
				vmim := m.request(builder.MakeMigration("go", "vm"))
				m.reconcileAll(vmim)
				Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationPending))
				ReportAsAgent(vmi, Running)
				return vmim, nil
			}),
		Entry("in phase Scheduling",
			func(m *migrations, _ *v1.VirtualMachineInstance) (*v1.VirtualMachineInstanceMigration, *agents) {
				vmim := m.request(builder.MakeMigration("go", "vm"))
				m.reconcileAll(vmim)
				Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationScheduling))
				return vmim, nil
			}),
		Entry("when the target's Pod just runs",
			func(m *migrations, vmi *v1.VirtualMachineInstance) (*v1.VirtualMachineInstanceMigration, *agents) {
				vmim := m.request(builder.MakeMigration("go", "vm"))
				m.reconcileAll(vmim)
				m.setPodStatus(m.target(vmi, vmim), "b", builder.MakePodStatus().Running())
				return vmim, nil
			}),
		Entry("while the target's agent prepares",
			func(m *migrations, vmi *v1.VirtualMachineInstance) (*v1.VirtualMachineInstanceMigration, *agents) {
				return m.assignedToAgents(vmi, builder.MakeMigration("go", "vm"), "b")
			}),
		Entry("in phase TargetReady",
			func(m *migrations, vmi *v1.VirtualMachineInstance) (*v1.VirtualMachineInstanceMigration, *agents) {
				vmim, a := m.assignedToAgents(vmi, builder.MakeMigration("go", "vm"), "b")
				a.prepare()
				m.reconcileAll(vmim)
				return vmim, a
			}),
		Entry("during the transfer",
			func(m *migrations, vmi *v1.VirtualMachineInstance) (*v1.VirtualMachineInstanceMigration, *agents) {
				return m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
			}),
	)

	It("succeed when they are deleted after the transfer", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		a.complete()
		Expect(K8sClient.Delete(ctx, vmim)).To(Succeed())
		m.reconcileAll(vmim)
		a.act()
		m.reconcileAll(vmim)
		ExpectGone(vmim)
		Expect(ExpectExists(vmi).Status.NodeName).To(Equal(m.node("b")))
		Expect(m.recorded.Take()).To(ContainElement("Normal SuccessfulMigration: Source node reported migration succeeded"))
	})

	It("are aborted, and not deleted, with a cache from before they were assigned to the agents", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		before := ExpectExists(vmi).DeepCopy()
		vmim, _ := m.assignedToAgents(vmi, builder.MakeMigration("go", "vm"), "b")
		Expect(K8sClient.Delete(ctx, vmim)).To(Succeed())
		m.Writes.Stale = before
		m.Step(vmim)
		Expect(IsDeleted(m.target(vmi, vmim))).To(BeFalse())
		Expect(ExpectExists(vmi).Status.MigrationState.AbortRequested).To(BeTrue())
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationPreparingTarget))
	})

	It("do not fail for an unschedulable Pod with a cache from before they were assigned to the agents", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		before := ExpectExists(vmi).DeepCopy()
		vmim, _ := m.assignedToAgents(vmi, builder.MakeMigration("go", "vm"), "b")
		target := m.target(vmi, vmim)
		m.setPodStatus(target, "", builder.MakePodStatus().Unschedulable("as it was"))
		m.Writes.Stale = before
		m.clock.SetTime(m.clock.Now().Add(time.Hour))
		m.Step(vmim)
		Expect(IsDeleted(target)).To(BeFalse())
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationPreparingTarget))
	})

	It("succeed when the guest ended before the change was made for which it migrated", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		vmim, a := m.copying(vmi, builder.MakeMigration("go", "vm"), "b")
		before := ExpectExists(vmi).DeepCopy()
		vmistatus.SetCondition(&vmi.Status, v1.VirtualMachineInstanceCondition{
			Type: v1.VirtualMachineInstanceMigrationRequired, Status: corev1.ConditionTrue,
		}, metav1.Now())
		_, err := vmistatus.Patch(ctx, K8sClient, vmistatus.Controller, before, vmi)
		Expect(err).NotTo(HaveOccurred())
		a.complete()
		a.act()
		// The VMI's reconciler would remove the condition, because nothing of the VMI has changed.
		m.Step(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationRunning))
		m.setPodStatus(m.target(vmi, vmim), "", builder.MakePodStatus().Terminated(0, "Completed", outcomeShutdown))
		m.remove(PodOf(vmi))
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationSucceeded))
	})

	It("apply the policy that selects the VMI", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		policy := &v1alpha1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{Name: m.ns}, Spec: v1alpha1.MigrationPolicySpec{
			Selectors:     &v1alpha1.Selectors{NamespaceSelector: v1alpha1.LabelSelector{"kubernetes.io/metadata.name": m.ns}},
			AllowPostCopy: ptr.To(true),
		}}
		ExpectCreated(policy)
		vmim, _ := m.assignedToAgents(vmi, builder.MakeMigration("go", "vm"), "b")
		state := ExpectExists(vmi).Status.MigrationState
		Expect(ExpectExists(m.target(vmi, vmim)).Spec.Containers[0].Resources.Limits).
			To(HaveKey(corev1.ResourceName("devices.kubevirt.io/userfaultfd")))
		Expect(state.MigrationPolicyName).To(HaveValue(Equal(m.ns)))
		Expect(state.VMIMConfigurationOptions.AllowPostCopy).To(HaveValue(BeTrue()))
		Expect(state.MigrationNetworkType).To(Equal(v1.Pod))
	})

	It("fail with the reason why a guest cannot migrate", func() {
		m := newMigrations()
		vmi := m.running("a", "vm")
		ReportAsAgent(vmi, func(s *v1.VirtualMachineInstanceStatus) {
			vmistatus.SetCondition(s, v1.VirtualMachineInstanceCondition{
				Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionFalse, Reason: "DisksNotLiveMigratable",
				Message: "disk root is not shared",
			}, metav1.Now())
		})
		vmim := m.request(builder.MakeMigration("go", "vm"))
		m.reconcileAll(vmim)
		Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationFailed))
		Expect(m.recorded.Take()).To(
			ContainElement("Warning FailedMigration: Cannot migrate VMI, Reason: DisksNotLiveMigratable, Message: disk root is not shared"))
	})
})
