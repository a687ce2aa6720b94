// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinepool_test

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	poolapi "github.com/vireo-project/vireo/api/pool"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/fleet/virtualmachinepool"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

const deleteVMI = "delete VirtualMachineInstance"

// Writes of a pool's reconciliation.
const (
	createRevision  = "create ControllerRevision"
	deleteRevision  = "delete ControllerRevision"
	createVM        = "create VirtualMachine"
	deleteVM        = "delete VirtualMachine"
	patchVM         = "patch VirtualMachine"
	patchPoolStatus = "patch VirtualMachinePool/status"
	poolFinalizer   = poolapi.VirtualMachinePoolControllerFinalizer
)

type poolSpec = poolv1.VirtualMachinePoolSpec

// pools is a reconciler of pools on the suite's API server, with a clock that stands still.
type pools struct {
	*virtualmachinepool.Reconciler
	Steps
	events *RecordedEvents
	clock  *clocktesting.FakePassiveClock
	ns     string
}

func newPools() *pools {
	r := &pools{
		Steps:  Steps{Writes: NewWrites()},
		events: &RecordedEvents{}, clock: clocktesting.NewFakePassiveClock(time.Now()), ns: NewNamespace(),
	}
	r.Reconciler = &virtualmachinepool.Reconciler{Client: r.Writes, APIReader: AsController, Recorder: r.events,
		Clock: r.clock}
	r.Of = r.Reconciler
	return r
}

func (r *pools) create(b *builder.Pool) *poolv1.VirtualMachinePool {
	GinkgoHelper()
	pool := b.Namespace(r.ns).Obj()
	ExpectCreated(pool)
	return ExpectExists(pool)
}

// list returns the VMs of the namespace, by name.
func (r *pools) list() []v1.VirtualMachine {
	GinkgoHelper()
	list := &v1.VirtualMachineList{}
	Expect(K8sClient.List(ctx, list, client.InNamespace(r.ns))).To(Succeed())
	return list.Items
}

func (r *pools) names() []string {
	GinkgoHelper()
	var names []string
	for _, vm := range r.list() {
		names = append(names, vm.Name)
	}
	return names
}

// vm reads the VM with this name.
func (r *pools) vm(name string) *v1.VirtualMachine {
	GinkgoHelper()
	return ExpectExists(builder.MakeVM(name).Namespace(r.ns).Obj())
}

// vmi reads the VMI with this name.
func (r *pools) vmi(name string) *v1.VirtualMachineInstance {
	GinkgoHelper()
	return ExpectExists(builder.MakeVMI(name).Namespace(r.ns).Obj())
}

func (r *pools) revisions() []string {
	GinkgoHelper()
	list := &appsv1.ControllerRevisionList{}
	Expect(K8sClient.List(ctx, list, client.InNamespace(r.ns))).To(Succeed())
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// start creates the VMIs of VMs that have none and makes them run, in place of the other reconcilers and the agents.
func (r *pools) start() {
	GinkgoHelper()
	for _, vm := range r.list() {
		vmi := builder.MakeVMI(vm.Name).Namespace(r.ns).OwnedBy(&vm).Obj()
		if K8sClient.Get(ctx, client.ObjectKeyFromObject(vmi), vmi) == nil || vm.DeletionTimestamp != nil {
			continue
		}
		vmi.ResourceVersion, vmi.Labels = "", vm.Spec.Template.ObjectMeta.Labels
		ExpectCreated(vmi)
		SetVMIStatus(vmi, v1.Running, Running)
		r.status(vm.Name, func(s *v1.VirtualMachineStatus) {
			s.PrintableStatus = v1.VirtualMachineStatusRunning
			conditions.Set(&s.Conditions, v1.VirtualMachineCondition{Type: v1.VirtualMachineReady, Status: corev1.ConditionTrue})
		})
	}
}

// status changes the status of a VM.
func (r *pools) status(name string, change func(*v1.VirtualMachineStatus)) {
	GinkgoHelper()
	vm := r.vm(name)
	change(&vm.Status)
	Expect(K8sClient.Status().Update(ctx, vm)).To(Succeed())
}

// fails makes a VM fail to start for a time.
func (r *pools) fails(name string, status v1.VirtualMachinePrintableStatus, since time.Duration) {
	GinkgoHelper()
	r.status(name, func(s *v1.VirtualMachineStatus) {
		s.PrintableStatus = status
		s.Conditions = []v1.VirtualMachineCondition{{
			Type: v1.VirtualMachineReady, Status: corev1.ConditionFalse,
			LastTransitionTime: metav1.NewTime(r.clock.Now().Add(-since)),
		}}
	})
}

// running brings a pool to as many running VMs as it wants.
func (r *pools) running(b *builder.Pool) *poolv1.VirtualMachinePool {
	GinkgoHelper()
	pool := r.create(b)
	r.Settle(pool)
	r.start()
	r.Settle(pool)
	r.events.Take()
	return ExpectExists(pool)
}

// change updates the spec of a pool.
func (r *pools) change(pool *poolv1.VirtualMachinePool, change func(*poolSpec)) {
	GinkgoHelper()
	change(&ExpectExists(pool).Spec)
	Expect(K8sClient.Update(ctx, pool)).To(Succeed())
}

// scale changes the number of VMs as an autoscaler or kubectl scale does.
func (r *pools) scale(pool *poolv1.VirtualMachinePool, n int32) {
	GinkgoHelper()
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n))
	Expect(K8sClient.SubResource("scale").Patch(ctx, pool.DeepCopy(), patch)).To(Succeed())
}

// hasOwner reports whether an object has a controller.
func hasOwner(object client.Object) bool { return metav1.GetControllerOf(object) != nil }

func havePoolReplicas(replicas, ready int32) gomegatypes.GomegaMatcher {
	return WithTransform(func(pool *poolv1.VirtualMachinePool) []int32 {
		return []int32{pool.Status.Replicas, pool.Status.ReadyReplicas}
	}, Equal([]int32{replicas, ready}))
}

func havePoolCondition(kind poolv1.VirtualMachinePoolConditionType, reason, message string) gomegatypes.GomegaMatcher {
	return WithTransform(func(pool *poolv1.VirtualMachinePool) string {
		c := conditions.Find(pool.Status.Conditions, kind)
		if c == nil {
			return "none"
		}
		return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
	}, And(HavePrefix("True %s: ", reason), ContainSubstring(message)))
}

// haveNoPoolConditions matches a pool without conditions other than that it is not finished.
func haveNoPoolConditions() gomegatypes.GomegaMatcher {
	return WithTransform(func(pool *poolv1.VirtualMachinePool) any { return pool.Status.Conditions },
		Not(ContainElement(HaveField("Type", Not(Equal(poolv1.VirtualMachinePoolReconciling))))))
}

func hostname(name string) func(*poolSpec) {
	return func(s *poolSpec) { s.VirtualMachineTemplate.Spec.Template.Spec.Hostname = name }
}

func descending(s *poolSpec) {
	s.ScaleInStrategy = &poolv1.VirtualMachinePoolScaleInStrategy{
		Proactive: &poolv1.VirtualMachinePoolProactiveScaleInStrategy{
			SelectionPolicy: &poolv1.VirtualMachinePoolSelectionPolicy{SortPolicy: ptr.To(
				poolv1.VirtualMachinePoolSortPolicyDescendingOrder)},
		}}
}

func oneByOne(s *poolSpec) {
	s.MaxUnavailable = ptr.To(intstr.FromInt32(1))
	s.UpdateStrategy = &poolv1.VirtualMachinePoolUpdateStrategy{
		Proactive: &poolv1.VirtualMachinePoolProactiveUpdateStrategy{
			SelectionPolicy: &poolv1.VirtualMachinePoolSelectionPolicy{SortPolicy: ptr.To(
				poolv1.VirtualMachinePoolSortPolicyAscendingOrder)},
		}}
}

func healing(s *poolSpec) { s.Autohealing = &poolv1.VirtualMachinePoolAutohealingStrategy{} }
