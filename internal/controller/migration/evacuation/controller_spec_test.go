// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package evacuation_test

import (
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/migration/evacuation"
	"github.com/vireo-project/vireo/internal/decide/migration/eviction"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// drain is a node with guests, and the evacuation reconciler.
type drain struct {
	Steps
	ns     string
	node   *corev1.Node
	events *RecordedEvents
	r      *evacuation.Reconciler
}

func newDrain(cordoned bool) *drain {
	GinkgoHelper()
	d := &drain{Steps: Steps{Writes: NewWrites()}, ns: NewNamespace(), events: &RecordedEvents{}}
	d.node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "drain-"},
		Spec: corev1.NodeSpec{Unschedulable: cordoned}}
	ExpectCreated(d.node)
	DeferCleanup(func() {
		Expect(K8sClient.DeleteAllOf(ctx, &v1.VirtualMachineInstanceMigration{}, client.InNamespace(d.ns))).To(Succeed())
		Expect(K8sClient.Delete(ctx, d.node)).To(Succeed())
	})
	d.r = &evacuation.Reconciler{
		Client: d.Writes, APIReader: AsController, Recorder: d.events, Config: clusterconfig.NewStore(),
	}
	d.Of = d.r
	return d
}

// guest creates a VMI that runs on the node, and marks it for evacuation on request.
func (d *drain) guest(
	name string, marked bool, changes ...func(*v1.VirtualMachineInstance),
) *v1.VirtualMachineInstance {
	GinkgoHelper()
	b := builder.MakeVMI(name).Namespace(d.ns)
	b.With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.EvictionStrategy = ptr.To(v1.EvictionStrategyLiveMigrate)
	})
	for _, change := range changes {
		b.With(change)
	}
	vmi := b.Obj()
	ExpectCreated(vmi)
	vmi.Status.Phase, vmi.Status.NodeName = v1.Running, d.node.Name
	vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: v1.VirtualMachineInstanceIsMigratable,
		Status: corev1.ConditionTrue}}
	if marked {
		eviction.Mark(&vmi.Status, vmi.CreationTimestamp)
	}
	ExpectStatus(vmi)
	return vmi
}

// migrations returns the migrations that are not final, by the name of their VMI.
func (d *drain) migrations() map[string]*v1.VirtualMachineInstanceMigration {
	GinkgoHelper()
	list := &v1.VirtualMachineInstanceMigrationList{}
	Expect(K8sClient.List(ctx, list, client.InNamespace(d.ns))).To(Succeed())
	found := map[string]*v1.VirtualMachineInstanceMigration{}
	for i := range list.Items {
		m := &list.Items[i]
		if !m.IsFinal() {
			Expect(found).NotTo(HaveKey(m.Spec.VMIName), "two at the same time")
			found[m.Spec.VMIName] = m
		}
	}
	return found
}

// migrationOf returns the migration of a VMI, or nil.
func (d *drain) migrationOf(vmi string) *v1.VirtualMachineInstanceMigration {
	GinkgoHelper()
	list := &v1.VirtualMachineInstanceMigrationList{}
	Expect(K8sClient.List(ctx, list, client.InNamespace(d.ns), client.MatchingFields{"spec.vmiName": vmi})).To(Succeed())
	if len(list.Items) == 0 {
		return nil
	}
	return &list.Items[0]
}

func (d *drain) move(m *v1.VirtualMachineInstanceMigration, phase v1.VirtualMachineInstanceMigrationPhase) {
	GinkgoHelper()
	m.Status.Phase = phase
	ExpectStatus(m)
}

// succeed finishes a migration, as the migration's reconcilers do.
func (d *drain) succeed(m *v1.VirtualMachineInstanceMigration) {
	GinkgoHelper()
	vmi := ExpectExists(&v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: d.ns, Name: m.Spec.VMIName}})
	vmi.Status.NodeName = "elsewhere"
	eviction.Unmark(&vmi.Status)
	ExpectStatus(vmi)
	d.move(m, v1.MigrationSucceeded)
}

var _ = Describe("Evacuation", func() {
	It("creates a migration of an evicted guest with the source node and the priority of the eviction", func() {
		d := newDrain(true)
		vmi := d.guest("vm", true)
		later := d.guest("later", true, func(vmi *v1.VirtualMachineInstance) {
			metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, v1.EvictionSourceAnnotation, "descheduler")
		})
		d.guest("bystander", false)
		Expect(d.Step(d.node)).To(BeZero())
		found := d.migrations()
		Expect(found).To(HaveLen(2))
		m := found[vmi.Name]
		Expect(m.Name).To(MatchRegexp("^kubevirt-evacuation-[a-z0-9]{5}$"))
		Expect(m.Annotations).To(HaveKeyWithValue(v1.EvacuationMigrationAnnotation, d.node.Name))
		Expect(m.Labels).To(HaveKeyWithValue(v1.MigrationSelectorLabel, "vm"))
		Expect(m.Spec.Priority).To(HaveValue(Equal(v1.PrioritySystemCritical)))
		Expect(found[later.Name].Spec.Priority).To(HaveValue(Equal(v1.PrioritySystemMaintenance)))
		Expect(d.events.Take()).To(ContainElement("Normal SuccessfulCreate: Created Migration " + m.Name))

		Expect(d.ExpectSteady(d.node)).To(BeZero())
	})

	It("evacuates all guests of a node within the limits", func() {
		d := newDrain(true)
		for i := range 7 {
			d.guest(fmt.Sprintf("vm-%d", i), true)
		}
		left := 7
		for round := 0; left > 0; round++ {
			Expect(round).To(BeNumerically("<", 10))
			d.Step(d.node)
			found := d.migrations()
			Expect(found).To(HaveLen(min(2, left)), "two at the same time from one node")
			for _, m := range found {
				d.move(m, v1.MigrationRunning)
			}
			result := d.Step(d.node)
			Expect(d.migrations()).To(HaveLen(min(2, left)))
			Expect(result.RequeueAfter).To(BeNumerically(">=", time.Second*time.Duration(min(1, left-2))),
				"it requeues while guests wait")
			for _, m := range found {
				d.succeed(m)
				left--
			}
		}
		Expect(d.ExpectSteady(d.node)).To(BeZero())
	})

	It("counts the migrations of other nodes against the cluster's limit", func() {
		d := newDrain(true)
		d.guest("vm", true)
		var running []*v1.VirtualMachineInstanceMigration
		var others []*v1.VirtualMachineInstance
		for i := range 5 {
			vmi := builder.MakeVMI(fmt.Sprintf("other-%d", i)).Namespace(d.ns).Obj()
			ExpectCreated(vmi)
			others = append(others, vmi)
			m := builder.MakeMigration(vmi.Name, vmi.Name).Namespace(d.ns).Obj()
			ExpectCreated(m)
			d.move(m, v1.MigrationRunning)
			running = append(running, m)
		}
		Expect(d.Step(d.node).RequeueAfter).NotTo(BeZero())
		Expect(d.migrations()).NotTo(HaveKey("vm"))
		d.move(running[0], v1.MigrationSucceeded)
		d.Step(d.node)
		Expect(d.migrations()).To(HaveKey("vm"))

		By("but not those of guests whose node is lost")
		d.guest("another", true)
		d.Step(d.node)
		Expect(d.migrations()).NotTo(HaveKey("another"))
		LoseNode(others[1])
		d.Step(d.node)
		Expect(d.migrations()).To(HaveKey("another"))
	})

	It("does not count migrations whose VMI is gone", func() {
		d := newDrain(true)
		d.guest("vm", true)
		vmi := builder.MakeVMI("other").Namespace(d.ns).Obj()
		ExpectCreated(vmi)
		for i := range 5 {
			m := builder.MakeMigration(fmt.Sprintf("other-%d", i), vmi.Name).Namespace(d.ns).Obj()
			ExpectCreated(m)
			d.move(m, v1.MigrationRunning)
		}
		d.Step(d.node)
		Expect(d.migrationOf("vm")).To(BeNil())
		Expect(K8sClient.Delete(ctx, vmi)).To(Succeed())
		ExpectGone(vmi)
		d.Step(d.node)
		Expect(d.migrationOf("vm")).NotTo(BeNil())
	})

	It("creates a migration in each namespace though another one has all slots", func() {
		d := newDrain(true)
		greedy := newDrain(true)
		for i := range 5 {
			vmi := builder.MakeVMI(fmt.Sprintf("other-%d", i)).Namespace(greedy.ns).Obj()
			ExpectCreated(vmi)
			m := builder.MakeMigration(vmi.Name, vmi.Name).Namespace(greedy.ns).Obj()
			ExpectCreated(m)
			greedy.move(m, v1.MigrationRunning)
		}
		d.guest("vm-0", true)
		d.guest("vm-1", true)
		Expect(d.Step(d.node).RequeueAfter).NotTo(BeZero(), "it requeues while guests wait")
		Expect(d.migrations()).To(HaveLen(1))
		Expect(d.Step(d.node).RequeueAfter).NotTo(BeZero())
		Expect(d.migrations()).To(HaveLen(1), "the others wait for slots")
	})

	It("creates no second migration with a stale cache", func() {
		d := newDrain(true)
		for i := range 4 {
			d.guest(fmt.Sprintf("vm-%d", i), true)
		}
		d.Writes.StaleList = &v1.VirtualMachineInstanceMigrationList{}
		for range 3 {
			d.Step(d.node)
		}
		Expect(d.migrations()).To(HaveLen(2))
	})

	It("reads the VMI from the API server before it creates a migration: the evacuation may have been canceled", func() {
		d := newDrain(true)
		vmi := d.guest("vm", true)
		list := &v1.VirtualMachineInstanceList{}
		Expect(K8sClient.List(ctx, list, client.InNamespace(d.ns))).To(Succeed())
		d.Writes.StaleList = list
		eviction.Unmark(&vmi.Status)
		ExpectStatus(vmi)
		d.Step(d.node)
		Expect(d.migrations()).To(BeEmpty())
	})

	It("deletes pending migrations when the node is uncordoned, and lets running ones finish", func() {
		d := newDrain(true)
		waits, runs, idle := d.guest("waits", true), d.guest("runs", true), d.guest("idle", true)
		for _, vmi := range []*v1.VirtualMachineInstance{waits, runs, idle} {
			pod := builderPod(vmi)
			eviction.Annotate(&pod.ObjectMeta, true)
			ExpectCreated(pod)
		}
		d.r.Config = limits(9)
		d.Step(d.node)
		d.move(d.migrations()["runs"], v1.MigrationRunning)
		d.move(d.migrations()["waits"], v1.MigrationPending)

		d.node.Spec.Unschedulable = false
		Expect(K8sClient.Update(ctx, d.node)).To(Succeed())
		d.events.Take()
		d.Step(d.node)
		Expect(d.migrations()).To(And(HaveLen(1), HaveKey("runs")))
		Expect(ExpectExists(waits).Status.EvacuationNodeName).To(BeEmpty())
		Expect(ExpectExists(idle).Status.EvacuationNodeName).To(BeEmpty())
		Expect(ExpectExists(runs).Status.EvacuationNodeName).To(Equal(d.node.Name))
		recorded := strings.Join(d.events.Take(), "\n")
		Expect(strings.Count(recorded, "EvacuationCanceled: ")).To(Equal(2), recorded)

		d.move(d.migrations()["runs"], v1.MigrationFailed)
		for range 3 {
			d.Step(d.node)
		}
		Expect(d.migrations()).To(BeEmpty(), "a failed migration is not retried")
		Expect(ExpectExists(runs).Status.EvacuationNodeName).To(BeEmpty())
	})

	It("reads from the API server that the node is schedulable before it cancels an evacuation", func() {
		d := newDrain(true)
		vmi := d.guest("vm", true)
		pod := builderPod(vmi)
		eviction.Annotate(&pod.ObjectMeta, true)
		ExpectCreated(pod)
		behind := d.node.DeepCopy()
		behind.Spec.Unschedulable = false
		d.Writes.Stale = behind
		d.Step(d.node)
		Expect(d.migrations()).To(HaveKey("vm"))
	})

	It("retries failed migrations while the node is cordoned, and not afterwards", func() {
		d := newDrain(true)
		vmi := d.guest("vm", true)
		names := map[string]bool{}
		for range 3 {
			d.Step(d.node)
			m := d.migrations()["vm"]
			Expect(names).NotTo(HaveKey(m.Name))
			names[m.Name] = true
			d.move(m, v1.MigrationFailed)
		}
		d.node.Spec.Unschedulable = false
		Expect(K8sClient.Update(ctx, d.node)).To(Succeed())
		d.Step(d.node)
		Expect(d.migrations()).To(BeEmpty())
		Expect(ExpectExists(vmi).Status.EvacuationNodeName).To(BeEmpty())
	})

	It("evacuates a node with KubeVirt's drain taint, and records an event for guests that cannot migrate", func() {
		d := newDrain(false)
		d.guest("vm", false)
		stuck := d.guest("stuck", false)
		stuck.Status.Conditions[0].Status, stuck.Status.Conditions[0].Message = corev1.ConditionFalse,
			"cannot migrate VMI: why"
		ExpectStatus(stuck)
		d.Step(d.node)
		Expect(d.migrations()).To(BeEmpty())
		d.node.Spec.Taints = []corev1.Taint{{Key: "kubevirt.io/drain", Effect: corev1.TaintEffectNoSchedule}}
		Expect(K8sClient.Update(ctx, d.node)).To(Succeed())
		Expect(d.Step(d.node).RequeueAfter).NotTo(BeZero())
		Expect(d.migrations()).To(And(HaveLen(1), HaveKey("vm")))
		Expect(d.events.Take()).To(
			ContainElement("Warning FailedCreate: VirtualMachineInstance is not migrateable: cannot migrate VMI: why"))
	})

	It("records an event when a migration cannot be created", func() {
		d := newDrain(true)
		d.guest("vm", true)
		d.Writes.Fail = func(string) error { return ErrInjected }
		_, err := d.Try(d.node)
		Expect(err).To(MatchError(ErrInjected))
		Expect(d.events.Take()).To(ContainElement(HavePrefix("Warning FailedCreate: Error creating a Migration: ")))
	})
})

// builderPod returns the launcher Pod of a VMI with the fields that the reconciler reads.
func builderPod(vmi *v1.VirtualMachineInstance) *corev1.Pod {
	pod := PodOf(vmi)
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)}
	pod.Spec.Containers = []corev1.Container{{Name: "compute", Image: "example.org/launcher:1"}}
	return pod
}

// limits returns a configuration with a limit of migrations from one node.
func limits(perNode uint32) kit.ConfigFeed {
	GinkgoHelper()
	store := clusterconfig.NewStore()
	Expect(store.Set(&v1.KubeVirt{Spec: v1.KubeVirtSpec{Configuration: v1.KubeVirtConfiguration{
		MigrationConfiguration: &v1.MigrationConfiguration{ParallelOutboundMigrationsPerNode: &perNode},
	}}})).To(Succeed())
	return store
}
