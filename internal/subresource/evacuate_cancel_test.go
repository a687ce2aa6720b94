// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"context"
	"net/http"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
)

func TestCancelEvacuation(t *testing.T) {
	leaving := func(vmi *v1.VirtualMachineInstance) { vmi.Status.EvacuationNodeName = node }
	vm := builder.MakeVM("vm").Namespace("ns").UID("1").With(func(vm *v1.VirtualMachine) { vm.Status.Created = true }).Obj()
	w := newWorld(t, vm, running("vm").OwnedBy(vm).With(leaving).Obj(), running("staying").Obj(), builder.MakeVM("stopped").Namespace("ns").Obj())
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
		t.Error("it still has to leave")
	}
}
