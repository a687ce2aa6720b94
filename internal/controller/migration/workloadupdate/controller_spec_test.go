// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package workloadupdate_test

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/migration/workloadupdate"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

const (
	oldLauncher = "registry.example/virt-launcher:v1"
	newLauncher = "registry.example/virt-launcher:v2"
)

// upgrade is an installation whose launcher image has just changed. Its reconciler sees the objects of its own
// namespace only, as the specs of this suite share an API server.
type upgrade struct {
	Steps
	ns     string
	node   string
	kv     *v1.KubeVirt
	events *RecordedEvents
	clock  *adjustable
	r      *workloadupdate.Reconciler
	// deployment identifies what this build installs.
	deployment string
}

// adjustable is a clock that the spec sets.
type adjustable struct{ time.Time }

func (a *adjustable) Now() time.Time { return a.Time }

func (a *adjustable) Since(t time.Time) time.Duration { return a.Sub(t) }

// namespaced restricts lists of namespaced kinds to one namespace.
type namespaced struct {
	client.Client
	ns string
}

func (n namespaced) List(c context.Context, list client.ObjectList, options ...client.ListOption) error {
	if _, nodes := list.(*corev1.NodeList); !nodes {
		options = append(options, client.InNamespace(n.ns))
	}
	return n.Client.List(c, list, options...)
}

func newUpgrade(methods ...v1.WorkloadUpdateMethod) *upgrade {
	GinkgoHelper()
	u := &upgrade{
		Steps: Steps{Writes: NewWrites()}, ns: NewInstallNamespace(), events: &RecordedEvents{},
		clock: &adjustable{time.Now().Truncate(time.Second)}, deployment: "deployment-2",
	}
	u.node = u.ns + "-node-1"
	for _, name := range []string{u.node, u.ns + "-node-2"} {
		host := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			v1.NodeSchedulable: "true", corev1.LabelArchStable: "amd64", v1.SupportedMachineTypeLabel + "q35": "true",
		}}}
		ExpectCreated(host)
		host.Spec.Taints = nil // The API server taints new nodes as not ready, and no kubelet makes them ready.
		Expect(K8sClient.Update(ctx, host)).To(Succeed())
		DeferCleanup(func() { Expect(K8sClient.Delete(ctx, host)).To(Succeed()) })
	}
	u.kv = &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: u.ns, Name: "kubevirt"}}
	u.kv.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods = methods
	u.kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{UseEmulation: true}
	ExpectCreated(u.kv)
	u.rolledOut("deployment-2")
	u.configure()
	return u
}

// configure creates a reconciler with the KubeVirt object's current configuration.
func (u *upgrade) configure() {
	GinkgoHelper()
	store := clusterconfig.NewStore(clusterconfig.WithImages(clusterconfig.Images{
		Launcher: newLauncher, Handler: "registry.example/virt-handler:v2", API: "registry.example/virt-api:v2",
	}))
	Expect(store.Set(ExpectExists(u.kv))).To(Succeed())
	u.r = &workloadupdate.Reconciler{
		Client: namespaced{u.Writes, u.ns}, APIReader: AsController, Recorder: u.events, Config: store,
		Namespace: u.ns, Clock: u.clock,
		DeploymentID: func(*v1.KubeVirt) (string, error) { return u.deployment, nil },
	}
	u.Of = u.r
}

// rolledOut writes the status of the KubeVirt reconciler for a completed rollout.
func (u *upgrade) rolledOut(observed string) {
	GinkgoHelper()
	status := &ExpectExists(u.kv).Status
	status.Phase, status.TargetDeploymentID, status.ObservedDeploymentID = v1.KubeVirtPhaseDeployed, "deployment-2",
		observed
	status.ObservedGeneration = ptr.To(u.kv.Generation)
	ExpectStatus(u.kv)
}

// guest creates a VMI that runs with the old launcher.
func (u *upgrade) guest(
	name string, migratable bool, changes ...func(*v1.VirtualMachineInstance),
) *v1.VirtualMachineInstance {
	GinkgoHelper()
	b := builder.MakeVMI(name).Namespace(u.ns)
	for _, change := range changes {
		b.With(change)
	}
	vmi := b.Obj()
	ExpectCreated(vmi)
	vmi.Status.Phase, vmi.Status.NodeName, vmi.Status.LauncherContainerImageVersion = v1.Running, u.node, oldLauncher
	can := v1.VirtualMachineInstanceCondition{Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue}
	if !migratable {
		can.Status, can.Reason, can.Message = corev1.ConditionFalse, v1.VirtualMachineInstanceReasonDisksNotMigratable,
			"claim data is not shared"
	}
	vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{can}
	ExpectStatus(vmi)
	return vmi
}

// pod creates the launcher Pod of a VMI.
func (u *upgrade) pod(vmi *v1.VirtualMachineInstance) *corev1.Pod {
	GinkgoHelper()
	pod := PodOf(vmi)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, v1.AppLabel, launcherpod.AppLabelValue)
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)}
	pod.Spec.NodeName = u.node
	pod.Spec.Containers = []corev1.Container{{Name: "compute", Image: oldLauncher}}
	ExpectCreated(pod)
	return pod
}

// moved finishes the migration of a guest, as the other components do.
func (u *upgrade) moved(m *v1.VirtualMachineInstanceMigration) {
	GinkgoHelper()
	vmi := ExpectExists(&v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: u.ns, Name: m.Spec.VMIName}})
	vmi.Status.NodeName, vmi.Status.LauncherContainerImageVersion = u.ns+"-node-2", newLauncher
	ExpectStatus(vmi)
	u.phase(m, v1.MigrationSucceeded)
}

func (u *upgrade) phase(m *v1.VirtualMachineInstanceMigration, phase v1.VirtualMachineInstanceMigrationPhase) {
	GinkgoHelper()
	m.Status.Phase = phase
	m.Status.PhaseTransitionTimestamps = append(m.Status.PhaseTransitionTimestamps,
		v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp{
			Phase: phase, PhaseTransitionTimestamp: metav1.NewTime(u.clock.Time),
		})
	ExpectStatus(m)
}

func (u *upgrade) migrations() []v1.VirtualMachineInstanceMigration {
	GinkgoHelper()
	list := &v1.VirtualMachineInstanceMigrationList{}
	Expect(K8sClient.List(ctx, list, client.InNamespace(u.ns))).To(Succeed())
	return list.Items
}

func (u *upgrade) active() []v1.VirtualMachineInstanceMigration {
	GinkgoHelper()
	var active []v1.VirtualMachineInstanceMigration
	for _, m := range u.migrations() {
		if m.Status.Phase != v1.MigrationSucceeded && m.Status.Phase != v1.MigrationFailed {
			active = append(active, m)
		}
	}
	return active
}

func (u *upgrade) count() *int {
	GinkgoHelper()
	return ExpectExists(u.kv).Status.OutdatedVirtualMachineInstanceWorkloads
}

func (u *upgrade) condition() string {
	GinkgoHelper()
	for _, c := range ExpectExists(u.kv).Status.Conditions {
		if c.Type == v1.KubeVirtConditionWorkloadsMigratable {
			return string(c.Status) + " " + c.Reason + ": " + c.Message
		}
	}
	return "none"
}

// sevenGuests creates guests with an older launcher, five of which migrate.
func (u *upgrade) sevenGuests() {
	GinkgoHelper()
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		u.guest(name, true)
	}
	u.Settle(u.kv)
	Expect(u.active()).To(HaveLen(5))
}

var _ = Describe("Workload updates", func() {
	It("label and count guests with an older launcher, and migrate none without an update method", func() {
		u := newUpgrade()
		vmi := u.guest("vm", true)
		Expect(u.Settle(u.kv)).To(BeZero())
		Expect(ExpectExists(vmi).Labels).To(HaveKeyWithValue(v1.OutdatedLauncherImageLabel, ""))
		Expect(u.count()).To(HaveValue(Equal(1)))
		Expect(u.migrations()).To(BeEmpty())
		Expect(u.events.Take()).To(BeEmpty())

		vmi.Status.LauncherContainerImageVersion = newLauncher
		ExpectStatus(vmi)
		Expect(u.Settle(u.kv)).To(BeZero())
		Expect(ExpectExists(vmi).Labels).NotTo(HaveKey(v1.OutdatedLauncherImageLabel))
		Expect(u.count()).To(HaveValue(Equal(0)))
	})

	It("migrate all guests within the cluster's limit, with KubeVirt's names, annotations and events", func() {
		u := newUpgrade(v1.WorkloadUpdateMethodLiveMigrate)
		u.sevenGuests()
		m := u.active()[0]
		Expect(m.Name).To(MatchRegexp("^kubevirt-workload-update-[a-z0-9]{5}$"))
		Expect(m.Annotations).To(HaveKeyWithValue(v1.WorkloadUpdateMigrationAnnotation, ""))
		Expect(m.Labels).To(HaveKeyWithValue(v1.MigrationSelectorLabel, m.Spec.VMIName))
		Expect(m.Spec.Priority).To(HaveValue(Equal(v1.PrioritySystemCritical)))
		Expect(u.events.Take()).To(
			ContainElement("Normal SuccessfulCreate: Created Migration " + m.Name + " for automated workload update"))
		for left := 7; left > 0; {
			active := u.active()
			Expect(active).To(HaveLen(min(5, left)))
			Expect(u.count()).To(HaveValue(Equal(left)))
			u.moved(&active[0])
			left--
			Expect(u.Settle(u.kv)).To(BeZero(), "no polling")
		}
		Expect(u.count()).To(HaveValue(Equal(0)))
		Expect(u.migrations()).To(HaveLen(7), "one for each guest")
	})

	It("do not wait for guests whose node is lost", func() {
		u := newUpgrade(v1.WorkloadUpdateMethodLiveMigrate)
		u.sevenGuests()
		lost := ExpectExists(&v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: u.active()[0].Namespace,
			Name: u.active()[0].Spec.VMIName}})
		LoseNode(lost)
		u.Settle(u.kv)
		Expect(u.active()).To(HaveLen(6))
	})

	It("create no second migration with a stale cache, and none for a guest that has just migrated", func() {
		u := newUpgrade(v1.WorkloadUpdateMethodLiveMigrate)
		vmi := u.guest("vm", true)
		u.Writes.StaleList = &v1.VirtualMachineInstanceMigrationList{}
		for range 3 {
			u.Step(u.kv)
		}
		Expect(u.migrations()).To(HaveLen(1))

		behind := &v1.VirtualMachineInstanceList{}
		Expect(K8sClient.List(ctx, behind, client.InNamespace(u.ns))).To(Succeed())
		u.Writes.StaleList = nil
		u.moved(&u.active()[0])
		u.Writes.StaleList = behind
		u.Step(u.kv)
		Expect(u.migrations()).To(HaveLen(1))
		Expect(ExpectExists(vmi).Status.LauncherContainerImageVersion).To(Equal(newLauncher))
	})

	It("wait until the configured version is installed", func() {
		u := newUpgrade(v1.WorkloadUpdateMethodLiveMigrate)
		u.rolledOut("deployment-1")
		u.guest("vm", true)
		u.Settle(u.kv)
		Expect(u.count()).To(HaveValue(Equal(1)))
		Expect(u.migrations()).To(BeEmpty())
		u.deployment = "deployment-3"
		u.rolledOut("deployment-2")
		u.Settle(u.kv)
		Expect(u.migrations()).To(BeEmpty(), "the status is that of the previous virt-controller")
		u.deployment = "deployment-2"
		u.Settle(u.kv)
		Expect(u.migrations()).To(HaveLen(1))
	})

	It("back off for a guest whose migration failed, and do not delay the others", func() {
		u := newUpgrade(v1.WorkloadUpdateMethodLiveMigrate)
		u.guest("bad", true)
		u.Settle(u.kv)
		u.phase(&u.active()[0], v1.MigrationFailed)
		u.guest("good", true)
		Expect(u.Settle(u.kv).RequeueAfter).To(BeNumerically("~", 20*time.Second, 2*time.Second))
		Expect(u.active()).To(HaveLen(1))
		Expect(u.active()[0].Spec.VMIName).To(Equal("good"))
		u.clock.Time = u.clock.Add(21 * time.Second)
		u.Settle(u.kv)
		Expect(u.active()).To(HaveLen(2))
	})

	It("delete migrations when the image is reverted", func() {
		u := newUpgrade(v1.WorkloadUpdateMethodLiveMigrate)
		vmi := u.guest("vm", true)
		u.Settle(u.kv)
		Expect(u.active()).To(HaveLen(1))
		ExpectExists(vmi)
		vmi.Status.LauncherContainerImageVersion = newLauncher
		ExpectStatus(vmi)
		u.Settle(u.kv)
		Expect(u.active()).To(BeEmpty())
		Expect(u.events.Take()).To(ContainElement("Normal SuccessfulChangeAbortion: Aborted change for vmi: vm"))
	})

	It("evict guests that cannot migrate in batches, and keep the interval across a restart", func() {
		u := newUpgrade(v1.WorkloadUpdateMethodLiveMigrate, v1.WorkloadUpdateMethodEvict)
		u.kv.Spec.WorkloadUpdateStrategy.BatchEvictionSize = ptr.To(2)
		u.kv.Spec.WorkloadUpdateStrategy.BatchEvictionInterval = &metav1.Duration{Duration: 30 * time.Second}
		Expect(K8sClient.Update(ctx, u.kv)).To(Succeed())
		u.rolledOut("deployment-2")
		u.configure()
		pods := map[string]*corev1.Pod{}
		for _, name := range []string{"a", "b", "c"} {
			pods[name] = u.pod(u.guest(name, false))
		}
		left := func() int {
			n := 0
			for _, pod := range pods {
				if !IsDeleted(pod.DeepCopy()) {
					n++
				}
			}
			return n
		}
		result := u.Step(u.kv)
		Expect(left()).To(Equal(1))
		Expect(result.RequeueAfter).To(Equal(30 * time.Second))
		Expect(strings.Join(u.events.Take(), "\n")).To(ContainSubstring(
			"Normal SuccessfulEvict: Initiated eviction of VMI as part of automated workload update"))
		u.configure() // Another virt-controller is elected.
		u.clock.Time = u.clock.Add(10 * time.Second)
		Expect(u.Settle(u.kv).RequeueAfter).To(Equal(20 * time.Second))
		Expect(left()).To(Equal(1))
		u.clock.Time = u.clock.Add(20 * time.Second)
		u.Settle(u.kv)
		Expect(left()).To(Equal(0))
		Expect(u.migrations()).To(BeEmpty())
	})

	It("report an eviction that a PodDisruptionBudget refuses, and retry with the next batch", func() {
		u := newUpgrade(v1.WorkloadUpdateMethodEvict)
		pod := u.pod(u.guest("vm", false))
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: u.ns, Name: "keep"},
			Spec: policyv1.PodDisruptionBudgetSpec{
				Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{v1.AppLabel: launcherpod.AppLabelValue}},
				MinAvailable: ptr.To(intstr.FromInt32(1)),
			}}
		ExpectCreated(budget)
		budget.Status.ObservedGeneration = 1
		ExpectStatus(budget)
		// An eviction of a Pod that is not ready needs no budget.
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		ExpectStatus(pod)
		Expect(u.Step(u.kv).RequeueAfter).To(Equal(time.Minute))
		Expect(IsDeleted(pod)).To(BeFalse())
		Expect(strings.Join(u.events.Take(), "\n")).To(
			ContainSubstring("Warning FailedEvict: Error deleting VMI during automated workload update: "))
		u.Settle(u.kv)
		Expect(u.events.Take()).To(BeEmpty(), "not again within the interval")
		Expect(K8sClient.Delete(ctx, budget)).To(Succeed())
		u.clock.Time = u.clock.Add(time.Minute)
		u.Step(u.kv)
		Expect(IsDeleted(pod)).To(BeTrue())
	})

	It("evict no guest if the batch cannot be recorded", func() {
		u := newUpgrade(v1.WorkloadUpdateMethodEvict)
		pod := u.pod(u.guest("vm", false))
		u.Writes.Fail = func(request string) error {
			if request == "patch KubeVirt" {
				return ErrInjected
			}
			return nil
		}
		u.clock.Time = u.clock.Add(time.Hour)
		_, err := u.Try(u.kv)
		Expect(err).To(MatchError(ErrInjected))
		Expect(IsDeleted(pod)).To(BeFalse())
	})

	It("report the guests that cannot migrate before an upgrade", func() {
		u := newUpgrade()
		Expect(u.condition()).To(Equal("none"))
		u.guest("good", true)
		u.Settle(u.kv)
		Expect(u.condition()).To(HavePrefix("True AllMigratable: "))
		u.guest("bad", false)
		u.guest("pinned", true,
			func(vmi *v1.VirtualMachineInstance) { vmi.Spec.NodeSelector = map[string]string{"disk": "fast"} })
		u.Settle(u.kv)
		Expect(u.condition()).To(And(HavePrefix("False SomeNotMigratable: "),
			ContainSubstring(u.ns+"/bad (DisksNotLiveMigratable: claim data is not shared)"),
			ContainSubstring(u.ns+"/pinned (NodeSelector: "),
			Not(ContainSubstring("/good"))))
		before := u.condition()
		u.guest("worse", false)
		Expect(u.Settle(u.kv).RequeueAfter).NotTo(BeZero(), "frequent changes of the message are delayed")
		Expect(u.condition()).To(Equal(before))
		u.clock.Time = u.clock.Add(15 * time.Second)
		u.Settle(u.kv)
		Expect(u.condition()).To(ContainSubstring(u.ns + "/worse"))
	})

	It("ignore a second KubeVirt object", func() {
		u := newUpgrade(v1.WorkloadUpdateMethodLiveMigrate)
		u.guest("vm", true)
		second := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: u.ns, Name: "second"}}
		ExpectCreated(second)
		u.ExpectSteady(second)
		Expect(u.migrations()).To(BeEmpty())
	})
})
