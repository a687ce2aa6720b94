// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration_test

import (
	"fmt"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/migration/virtualmachineinstancemigration"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// Outcomes that launchers write as termination messages.
const (
	outcomeMigrated = `{"reason":"GuestMigrated","message":"the guest moved to another Pod"}`
	outcomeShutdown = `{"reason":"GuestShutdown","message":"the guest powered off"}`
)

// migrations are the reconcilers of migrations and of VMIs on the suite's API server, with a fake clock. A migration
// goes on when both have written in turn, so these specs cannot do without the reconciler of VMIs.
type migrations struct {
	// Steps are those of migrations.
	Steps
	reconciler *virtualmachineinstancemigration.Reconciler
	recorded   *RecordedEvents
	// vmis is the reconciler of VMIs.
	vmis struct {
		Steps
		*virtualmachineinstance.Reconciler
	}
	clock *clocktesting.FakePassiveClock
	ns    string
}

func newMigrations(configure ...func(*clusterconfig.Config)) *migrations {
	config := VMIConfig()
	for _, change := range configure {
		change(&config)
	}
	m := &migrations{
		Steps: Steps{Writes: NewWrites()}, recorded: &RecordedEvents{},
		clock: clocktesting.NewFakePassiveClock(time.Now()), ns: NewNamespace(),
	}
	m.vmis.Writes = NewWrites()
	m.vmis.Reconciler = &virtualmachineinstance.Reconciler{
		Client: m.vmis.Writes, APIReader: AsController, Recorder: &RecordedEvents{}, AgentRecorder: (&RecordedEvents{}).Agent,
		Config: FixedConfig{Config: config}, Clock: m.clock, Namespace: "kubevirt", DataVolumes: DataVolumes{},
	}
	m.reconciler = &virtualmachineinstancemigration.Reconciler{
		Client: m.Writes, APIReader: AsController, Recorder: m.recorded, Config: FixedConfig{Config: config}, Clock: m.clock,
	}
	m.Of, m.vmis.Of = m.reconciler, m.vmis.Reconciler
	return m
}

// node returns a node name that is unique to this spec: nodes have no namespace.
func (m *migrations) node(name string) string { return m.ns + "-" + name }

// running returns a VMI that runs on a node with a host CPU model.
func (m *migrations) running(node, name string) *v1.VirtualMachineInstance {
	GinkgoHelper()
	m.host(node)
	vmi := m.assignedTo(m.node(node), builder.MakeVMI(name))
	ReportAsAgent(vmi, Running)
	return ExpectExists(vmi)
}

// assignedTo creates a VMI and reconciles it until it is Scheduled on a node.
func (m *migrations) assignedTo(node string, b *builder.VMI) *v1.VirtualMachineInstance {
	GinkgoHelper()
	vmi := CreateVMI(m.ns, b)
	m.vmis.Step(vmi)
	m.runLauncher(vmi, node)
	return ExpectExists(vmi)
}

// runLauncher runs the launcher Pod of a VMI on a node, and reconciles the VMI until it is Scheduled.
func (m *migrations) runLauncher(vmi *v1.VirtualMachineInstance, node string) {
	GinkgoHelper()
	SetLauncherStatus(vmi, node, builder.MakePodStatus().Running())
	m.vmis.Step(vmi)
	Expect(ExpectExists(vmi).Status.Phase).To(Equal(v1.Scheduled))
}

// host creates a node with a host CPU model.
func (m *migrations) host(node string) {
	GinkgoHelper()
	host := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.node(node),
		Labels: map[string]string{v1.HostModelCPULabel + "Skylake": "true"}}}
	Expect(client.IgnoreAlreadyExists(K8sClient.Create(ctx, host))).To(Succeed())
}

// request creates a migration.
func (m *migrations) request(b *builder.Migration) *v1.VirtualMachineInstanceMigration {
	GinkgoHelper()
	vmim := b.Namespace(m.ns).Obj()
	ExpectCreated(vmim)
	return ExpectExists(vmim)
}

// requestMany starts guests on some nodes and creates a migration of each.
func (m *migrations) requestMany(
	guests, nodes int, changes ...func(*builder.Migration),
) []*v1.VirtualMachineInstanceMigration {
	GinkgoHelper()
	vmims := make([]*v1.VirtualMachineInstanceMigration, 0, guests)
	for i := range guests {
		name := fmt.Sprintf("vm-%02d", i)
		m.running(string(rune('a'+i%nodes)), name)
		migration := builder.MakeMigration(name, name)
		for _, change := range changes {
			change(migration)
		}
		vmims = append(vmims, m.request(migration))
	}
	return vmims
}

// reconcileAll runs the VMI and the migration reconciler until neither writes anything.
func (m *migrations) reconcileAll(vmims ...*v1.VirtualMachineInstanceMigration) {
	GinkgoHelper()
	for range 20 {
		m.vmis.Writes.Take()
		m.Writes.Take()
		for _, vmim := range vmims {
			vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: m.ns, Name: vmim.Spec.VMIName}}
			_, err := m.vmis.Try(vmi)
			Expect(err).NotTo(HaveOccurred())
			_, err = m.Try(vmim)
			Expect(err).NotTo(HaveOccurred())
		}
		if len(m.vmis.Writes.Take())+len(m.Writes.Take()) == 0 {
			return
		}
	}
	Fail("the reconcilers write without end")
}

// target returns the target's Pod of a migration.
func (m *migrations) target(vmi *v1.VirtualMachineInstance, vmim *v1.VirtualMachineInstanceMigration) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: m.ns, Name: podspec.TargetPodName(vmi, vmim.UID)}}
}

// setPodStatus sets the node and the status of a Pod, as scheduler and kubelet do.
func (m *migrations) setPodStatus(pod *corev1.Pod, node string, status *builder.PodStatus) {
	GinkgoHelper()
	ExpectExists(pod)
	if node != "" && pod.Spec.NodeName == "" {
		Expect(K8sClient.SubResource("binding").Create(ctx, pod, &corev1.Binding{
			ObjectMeta: pod.ObjectMeta, Target: corev1.ObjectReference{Kind: "Node", Name: m.node(node)},
		})).To(Succeed())
		ExpectExists(pod)
	}
	class := pod.Status.QOSClass
	pod.Status = status.Obj()
	pod.Status.QOSClass = class
	Expect(K8sClient.Status().Update(ctx, pod)).To(Succeed())
}

// remove deletes a Pod without grace period, as the kubelet does in the end, or a user by force.
func (m *migrations) remove(pod *corev1.Pod) {
	GinkgoHelper()
	Expect(client.IgnoreNotFound(K8sClient.Delete(ctx, pod, client.GracePeriodSeconds(0)))).To(Succeed())
}

// assignedToAgents creates a migration whose target's Pod runs on a node and is assigned to its agent.
func (m *migrations) assignedToAgents(
	vmi *v1.VirtualMachineInstance, b *builder.Migration, node string,
) (*v1.VirtualMachineInstanceMigration, *agents) {
	GinkgoHelper()
	vmim := m.request(b)
	m.reconcileAll(vmim)
	m.setPodStatus(m.target(vmi, vmim), node, builder.MakePodStatus().Running())
	m.reconcileAll(vmim)
	Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationPreparingTarget))
	return vmim, &agents{vmi: vmi}
}

// copying creates a migration whose transfer runs.
func (m *migrations) copying(
	vmi *v1.VirtualMachineInstance, b *builder.Migration, node string,
) (*v1.VirtualMachineInstanceMigration, *agents) {
	GinkgoHelper()
	vmim, a := m.assignedToAgents(vmi, b, node)
	a.prepare()
	a.act()
	Expect(a.copying).To(BeTrue())
	m.reconcileAll(vmim)
	Expect(ExpectExists(vmim).Status.Phase).To(Equal(v1.MigrationRunning))
	return vmim, a
}

// agents simulate the agents of both nodes: they decide by the same protocol on the VMI in the API server, and write
// the same.
type agents struct {
	vmi *v1.VirtualMachineInstance
	// dead agents do nothing.
	sourceDead, targetDead bool

	source            protocol.SourceDomain
	target            protocol.TargetDomain
	copying, released bool
}

func (a *agents) record() protocol.Record {
	GinkgoHelper()
	record, ok := vmistatus.MigrationRecord(&ExpectExists(a.vmi).Status)
	Expect(ok).To(BeTrue())
	return record
}

func (a *agents) write(w vmistatus.Writer, change func(*v1.VirtualMachineInstanceMigrationState)) {
	GinkgoHelper()
	before := ExpectExists(a.vmi).DeepCopy()
	change(a.vmi.Status.MigrationState)
	_, err := vmistatus.Patch(ctx, K8sClient, w, before, a.vmi)
	Expect(err).NotTo(HaveOccurred())
}

// prepare writes that the target is ready to receive.
func (a *agents) prepare() {
	GinkgoHelper()
	a.write(vmistatus.MigrationTarget, func(s *v1.VirtualMachineInstanceMigrationState) {
		s.TargetNodeAddress, s.TargetDirectMigrationNodePorts = "10.0.0.2", map[string]int{"49152": 0, "49153": 49153}
	})
}

// complete finishes libvirt's transfer, and fail aborts it.
func (a *agents) complete() {
	a.copying, a.source, a.target = false, protocol.SourceMigrated, protocol.TargetComplete
}

func (a *agents) fail() { a.copying, a.target = false, protocol.TargetAbsent }

// act executes the decisions of both agents until there are none.
func (a *agents) act() {
	GinkgoHelper()
	for range 20 {
		before := *a
		before.vmi = ExpectExists(a.vmi).DeepCopy()
		if !a.sourceDead {
			a.actSource()
		}
		if !a.targetDead {
			for _, action := range protocol.DecideTarget(
				protocol.TargetView{Record: a.record(), Domain: a.target, Released: a.released}) {
				a.do(action, true)
			}
			a.reportRunning()
		}
		if before.vmi.ResourceVersion == ExpectExists(a.vmi).ResourceVersion && before.source == a.source &&
			before.target == a.target &&
			before.copying == a.copying && before.released == a.released {
			return
		}
	}
	Fail("the agents write without end")
}

// reportRunning writes that the guest runs on the target, as the target's agent does.
func (a *agents) reportRunning() {
	GinkgoHelper()
	if m := ExpectExists(a.vmi).Status.MigrationState; a.target == protocol.TargetRunning &&
		a.record().Owner == protocol.Target && !m.Completed {
		a.write(vmistatus.MigrationTarget,
			func(s *v1.VirtualMachineInstanceMigrationState) { vmistatus.Complete(s, metav1.Now()) })
	}
}

func (a *agents) actSource() {
	GinkgoHelper()
	for _, action := range protocol.DecideSource(protocol.SourceView{
		Record: a.record(), Domain: a.source, Transferring: a.copying,
		TargetPrepared: a.vmi.Status.MigrationState.TargetNodeAddress != "",
	}) {
		a.do(action, false)
	}
}

func (a *agents) do(action protocol.Action, target bool) {
	GinkgoHelper()
	now := metav1.Now()
	switch action {
	case protocol.Start:
		a.write(vmistatus.MigrationSource, func(s *v1.VirtualMachineInstanceMigrationState) { s.StartTimestamp = &now })
	case protocol.Transfer:
		a.copying, a.target = true, protocol.TargetReceiving
	case protocol.Cancel:
		a.fail()
	case protocol.RecordFailure:
		a.write(vmistatus.MigrationSource, func(s *v1.VirtualMachineInstanceMigrationState) {
			s.Failed, s.Completed, s.EndTimestamp, s.FailureReason = true, true, &now, "the copy ended early"
		})
	case protocol.Release:
		a.released = true
	case protocol.TransferOwnership:
		Expect(vmistatus.TransferOwnership(ctx, K8sClient, ExpectExists(a.vmi))).To(Succeed())
	case protocol.TakeOwnership:
		Expect(vmistatus.TakeOwnership(ctx, K8sClient, ExpectExists(a.vmi), now)).To(Succeed())
	case protocol.Run:
		a.target = protocol.TargetRunning
	case protocol.Destroy:
		if target {
			a.target = protocol.TargetAbsent
		} else {
			a.source = protocol.SourceEnded
		}
	default:
		Fail(fmt.Sprintf("agents do not do action %d", action))
	}
}

func phasesOf(vmim *v1.VirtualMachineInstanceMigration) []v1.VirtualMachineInstanceMigrationPhase {
	var out []v1.VirtualMachineInstanceMigrationPhase
	for _, stamp := range vmim.Status.PhaseTransitionTimestamps {
		out = append(out, stamp.Phase)
	}
	return out
}

func haveMigrationCondition(
	kind v1.VirtualMachineInstanceMigrationConditionType, message string,
) gomegatypes.GomegaMatcher {
	return WithTransform(func(vmim *v1.VirtualMachineInstanceMigration) string {
		i := slices.IndexFunc(vmim.Status.Conditions, func(c v1.VirtualMachineInstanceMigrationCondition) bool {
			return c.Type == kind && c.Status == corev1.ConditionTrue
		})
		if i < 0 {
			return "none"
		}
		return "True: " + vmim.Status.Conditions[i].Message
	}, And(HavePrefix("True: "), ContainSubstring(message)))
}
