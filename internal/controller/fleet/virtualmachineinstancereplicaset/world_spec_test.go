// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancereplicaset_test

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
	"github.com/vireo-project/vireo/internal/controller/fleet/virtualmachineinstancereplicaset"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// Writes of a replica set's reconciliation.
const (
	createVMI      = "create VirtualMachineInstance"
	deleteVMI      = "delete VirtualMachineInstance"
	patchVMI       = "patch VirtualMachineInstance"
	patchSetStatus = "patch VirtualMachineInstanceReplicaSet/status"
)

// replicaSets is a replica set reconciler on the suite's API server, with a fake clock.
type replicaSets struct {
	*virtualmachineinstancereplicaset.Reconciler
	Steps
	events *RecordedEvents
	ns     string
}

func newReplicaSets() *replicaSets {
	r := &replicaSets{Steps: Steps{Writes: NewWrites()}, events: &RecordedEvents{}, ns: NewNamespace()}
	r.Reconciler = &virtualmachineinstancereplicaset.Reconciler{
		Client: r.Writes, APIReader: AsController, Recorder: r.events, Clock: clocktesting.NewFakePassiveClock(time.Now()),
	}
	r.Of = r.Reconciler
	return r
}

func (r *replicaSets) create(b *builder.ReplicaSet) *v1.VirtualMachineInstanceReplicaSet {
	GinkgoHelper()
	set := b.Namespace(r.ns).Obj()
	ExpectCreated(set)
	return ExpectExists(set)
}

// expectQuiet expects that a reconciliation writes nothing and records no event.
func (r *replicaSets) expectQuiet(set *v1.VirtualMachineInstanceReplicaSet) {
	GinkgoHelper()
	r.ExpectSteady(set)
	Expect(r.events.Take()).To(BeEmpty())
}

// list returns the VMIs of the namespace, by age and name.
func (r *replicaSets) list() []v1.VirtualMachineInstance {
	GinkgoHelper()
	list := &v1.VirtualMachineInstanceList{}
	Expect(K8sClient.List(ctx, list, client.InNamespace(r.ns))).To(Succeed())
	return list.Items
}

// notDeleted returns the VMIs that are not being deleted.
func (r *replicaSets) notDeleted() []v1.VirtualMachineInstance {
	GinkgoHelper()
	return slices.DeleteFunc(r.list(), func(vmi v1.VirtualMachineInstance) bool { return vmi.DeletionTimestamp != nil })
}

// running creates a set all of whose VMIs run.
func (r *replicaSets) running(
	b *builder.ReplicaSet,
) (*v1.VirtualMachineInstanceReplicaSet, []v1.VirtualMachineInstance) {
	GinkgoHelper()
	set := r.create(b)
	r.Step(set)
	for _, vmi := range r.list() {
		SetVMIStatus(&vmi, v1.Running, Running)
	}
	r.Step(set)
	r.events.Take()
	return ExpectExists(set), r.list()
}

// addFinalizers adds virt-controller's finalizer to all VMIs: they exist until their Pods have finished.
func (r *replicaSets) addFinalizers() {
	GinkgoHelper()
	for _, vmi := range r.list() {
		vmi.Finalizers = []string{v1.VirtualMachineInstanceFinalizer}
		Expect(K8sClient.Update(ctx, &vmi)).To(Succeed())
	}
}

// scale changes a set's replicas as an autoscaler or kubectl scale does.
func (r *replicaSets) scale(set *v1.VirtualMachineInstanceReplicaSet, n int32) {
	GinkgoHelper()
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n))
	Expect(K8sClient.SubResource("scale").Patch(ctx, set.DeepCopy(), patch)).To(Succeed())
}

// change updates a set.
func (r *replicaSets) change(
	set *v1.VirtualMachineInstanceReplicaSet, change func(*v1.VirtualMachineInstanceReplicaSet),
) {
	GinkgoHelper()
	change(ExpectExists(set))
	Expect(K8sClient.Update(ctx, set)).To(Succeed())
}

// label changes the label by which a VMI belongs to a set; "" removes it.
func label(vmi *v1.VirtualMachineInstance, set string) {
	GinkgoHelper()
	ExpectExists(vmi)
	metav1.SetMetaDataLabel(&vmi.ObjectMeta, builder.SetLabel, set)
	if set == "" {
		delete(vmi.Labels, builder.SetLabel)
	}
	Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
}

func namesOf(vmis []v1.VirtualMachineInstance) []string {
	names := make([]string, 0, len(vmis))
	for i := range vmis {
		names = append(names, vmis[i].Name)
	}
	slices.Sort(names)
	return names
}

func haveReplicas(replicas, ready int32) gomegatypes.GomegaMatcher {
	return WithTransform(func(set *v1.VirtualMachineInstanceReplicaSet) []int32 {
		return []int32{set.Status.Replicas, set.Status.ReadyReplicas}
	}, Equal([]int32{replicas, ready}))
}

func haveSetCondition(
	kind v1.VirtualMachineInstanceReplicaSetConditionType, reason, message string,
) gomegatypes.GomegaMatcher {
	return WithTransform(func(set *v1.VirtualMachineInstanceReplicaSet) string {
		for _, c := range set.Status.Conditions {
			if c.Type == kind && c.Status == corev1.ConditionTrue {
				return c.Reason + ": " + c.Message
			}
		}
		return "none"
	}, And(HavePrefix("%s: ", reason), ContainSubstring(message)))
}

// haveNoSetConditions matches a set without conditions other than that it is not finished.
func haveNoSetConditions() gomegatypes.GomegaMatcher {
	return WithTransform(func(set *v1.VirtualMachineInstanceReplicaSet) any { return set.Status.Conditions },
		Not(ContainElement(HaveField("Type", Not(Equal(v1.VirtualMachineInstanceReplicaSetReconciling))))))
}
