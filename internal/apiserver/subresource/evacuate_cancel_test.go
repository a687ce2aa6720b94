// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"context"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
)

func TestCancelEvacuation(t *testing.T) {
	evacuating := func(vmi *v1.VirtualMachineInstance) { vmi.Status.EvacuationNodeName = node }
	vm := builder.MakeVM("vm").Namespace("ns").UID("1").With(
		func(vm *v1.VirtualMachine) { vm.Status.Created = true }).Obj()
	w := newWorld(t, vm, running("vm").OwnedBy(vm).With(evacuating).Obj(), running("staying").Obj(),
		builder.MakeVM("stopped").Namespace("ns").Obj())
	const verb = "/evacuate/cancel"
	w.expect(http.MethodPut, vmiPath+"none"+verb, "", 404, "not found")
	w.expect(http.MethodPut, vmPath+"stopped"+verb, "", 409, "VMI is not started")
	w.expect(http.MethodPut, vmiPath+"staying"+verb, "", 200, "")
	w.expect(http.MethodPut, vmiPath+"vm"+verb, `{"evacuationNodeName":"other"}`, 409, `the VMI is to leave node "node1" and not "other"`)
	w.expect(http.MethodPut, vmPath+"vm"+verb, `{"evacuationNodeName":"node1","dryRun":["All"]}`, 200, "")
	evacuated := func() string {
		vmi := &v1.VirtualMachineInstance{}
		if err := w.client.Get(context.Background(), client.ObjectKey{Namespace: "ns", Name: "vm"}, vmi); err != nil {
			t.Fatal(err)
		}
		return vmi.Status.EvacuationNodeName
	}
	if evacuated() != node {
		t.Error("a dry run changed something")
	}
	w.expect(http.MethodPut, vmPath+"vm"+verb, `{"evacuationNodeName":"node1"}`, 200, "")
	if evacuated() != "" {
		t.Error("evacuationNodeName is still set")
	}
}

// TestCancelEvacuationOfATaintedNode is about KubeVirt's deprecated taint, which evacuates VMIs without
// evacuationNodeName too.
func TestCancelEvacuationOfATaintedNode(t *testing.T) {
	tainted := func(name, key string) client.Object {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: key, Value: "now", Effect: corev1.TaintEffectNoSchedule},
		}}}
	}
	w := newWorld(t, tainted(node, "kubevirt.io/drain"), tainted("node2", "other"), running("here").Obj(),
		running("leaving").With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.NodeName, vmi.Status.EvacuationNodeName = "node2", node
		}).Obj(),
		running("there").With(func(vmi *v1.VirtualMachineInstance) { vmi.Status.NodeName = "node2" }).Obj(),
		running("gone").With(func(vmi *v1.VirtualMachineInstance) { vmi.Status.NodeName = "node3" }).Obj())
	const verb, refused = "/evacuate/cancel", `Node "node1" has NodeDrainTaintKey "&Taint{Key:kubevirt.io/drain,Value:,Effect:NoSchedule,TimeAdded:<nil>,}"`
	w.expect(http.MethodPut, vmiPath+"here"+verb, "", 400, refused)
	w.expect(http.MethodPut, vmiPath+"leaving"+verb, `{"evacuationNodeName":"node1"}`, 400, refused)
	w.expect(http.MethodPut, vmiPath+"there"+verb, "", 200, "")
	w.expect(http.MethodPut, vmiPath+"gone"+verb, "", 200, "")
	w.config.Migrations.NodeDrainTaintKey = ptr.To("other")
	w.expect(http.MethodPut, vmiPath+"here"+verb, "", 200, "")
	w.expect(http.MethodPut, vmiPath+"there"+verb, "", 400, `Node "node2" has NodeDrainTaintKey`)
}
