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

func TestMemoryDump(t *testing.T) {
	vm := builder.MakeVM("vm").Namespace("ns").Template(builder.MakeVMI("vm")).Obj()
	vm.UID = "vm-uid"
	vmi := builder.MakeVMI("vm").Namespace("ns").OwnedBy(vm).Obj()
	vmi.Status.Phase = v1.Running
	w := newHotplugWorld(t, vm, vmi, builder.MakeVM("stopped").Namespace("ns").Template(builder.MakeVMI("stopped")).Obj())
	read := func() *v1.VirtualMachine {
		t.Helper()
		vm := &v1.VirtualMachine{}
		if err := w.client.Get(context.Background(), client.ObjectKey{Namespace: "ns", Name: "vm"}, vm); err != nil {
			t.Fatal(err)
		}
		return vm
	}
	is := func(phase v1.MemoryDumpPhase) {
		t.Helper()
		vm := read()
		vm.Status.MemoryDumpRequest.Phase = phase
		if err := w.client.Status().Update(context.Background(), vm); err != nil {
			t.Fatal(err)
		}
	}
	const dump = `{"claimName":"dump","phase":""}`
	w.expect(http.MethodPut, vmPath+"none/memorydump", dump, 404, "not found")
	w.expect(http.MethodPut, vmPath+"vm/memorydump", "", 400, "Memory dump requires claim name to be set")
	w.expect(http.MethodPut, vmPath+"vm/memorydump", `{"claimName":"a.b"}`, 400, "DNS label")
	w.expect(http.MethodPut, vmPath+"stopped/memorydump", dump, 409, "VM is not running")
	w.expect(http.MethodPut, vmPath+"vm/removememorydump", "", 409,
		"can't remove memory dump association for vm vm, no association found")
	w.expect(http.MethodPut, vmPath+"vm/memorydump", dump, 202, "")
	if got := read().Status.MemoryDumpRequest; got == nil || got.ClaimName != "dump" ||
		got.Phase != v1.MemoryDumpAssociating {
		t.Errorf("got %+v", got)
	}
	w.expect(http.MethodPut, vmPath+"vm/memorydump", dump, 409, "memory dump request for pvc [dump] already in progress")
	w.expect(http.MethodPut, vmPath+"vm/memorydump", `{"claimName":"other"}`, 409,
		"can't request memory dump for pvc [other] while pvc [dump] is still associated as the memory dump pvc")
	is(v1.MemoryDumpCompleted)
	w.expect(http.MethodPut, vmPath+"vm/memorydump", "", 202, "")
	w.expect(http.MethodPut, vmPath+"vm/removememorydump", "", 202, "")
	if got := read().Status.MemoryDumpRequest; !got.Remove || got.Phase != v1.MemoryDumpDissociating {
		t.Errorf("got %+v", got)
	}
	w.expect(http.MethodPut, vmPath+"vm/removememorydump", "", 409,
		"memory dump remove request for pvc [dump] already exists")
	w.config.HotplugVolumes = false
	w.expect(http.MethodPut, vmPath+"vm/memorydump", dump, 400, "feature gate")
}
