// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clientcompat

import (
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

// Messages for objects that do not exist.
const (
	noVM  = `virtualmachine.kubevirt.io "none" not found`
	noVMI = `virtualmachineinstance.kubevirt.io "none" not found`
)

func TestMemoryDumps(t *testing.T) {
	ctx := t.Context()
	vms := kubevirt.VirtualMachine(namespace)
	dump := func(vm, claim string) error {
		return vms.MemoryDump(ctx, vm, &v1.VirtualMachineMemoryDumpRequest{ClaimName: claim})
	}
	read := func() (*v1.VirtualMachine, v1.VirtualMachineMemoryDumpRequest) {
		t.Helper()
		vm, err := vms.Get(ctx, "dumped", metav1.GetOptions{})
		if err != nil || vm.Status.MemoryDumpRequest == nil {
			t.Fatalf("got %+v, %v", vm.Status, err)
		}
		return vm, *vm.Status.MemoryDumpRequest
	}
	runVM(t, "dumped", v1.RunStrategyAlways)
	if _, err := vms.Create(ctx, newVM("undumped", v1.RunStrategyHalted), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	expectCode(t, "dump nothing", dump("none", "memory"), http.StatusNotFound, noVM)
	expectCode(t, "dump to a bad name", dump("dumped", "Memory"), http.StatusBadRequest, "has to be a DNS label")
	expectCode(t, "dump a halted VM", dump("undumped", "memory"), http.StatusConflict, "VM is not running")

	expectNone(t, "dump", dump("dumped", "memory"))
	vm, request := read()
	if request.ClaimName != "memory" || request.Phase != v1.MemoryDumpAssociating || request.Remove {
		t.Errorf("the request is %+v", request)
	}
	expectCode(t, "dump again", dump("dumped", "memory"), http.StatusConflict,
		"memory dump request for pvc [memory] already in progress")
	expectCode(t, "dump elsewhere", dump("dumped", "other"), http.StatusConflict,
		"can't request memory dump for pvc [other] while pvc [memory] is still associated as the memory dump pvc")

	// virt-controller reports the dump.
	start, end := metav1.Unix(1_700_000_000, 0), metav1.Unix(1_700_000_060, 0)
	done := &v1.VirtualMachineMemoryDumpRequest{
		ClaimName: "memory", Phase: v1.MemoryDumpCompleted, StartTimestamp: &start, EndTimestamp: &end,
		FileName: pointer("file"), Message: "done",
	}
	vm.Status.MemoryDumpRequest = done
	if _, err := vms.UpdateStatus(ctx, vm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, request = read()
	expectSameJSON(t, "the request that is done", request, done)
	expectNone(t, "dump to the same claim, without its name", dump("dumped", ""))
	if _, request = read(); request.ClaimName != "memory" || request.Phase != v1.MemoryDumpAssociating ||
		request.FileName != nil {
		t.Errorf("the next request is %+v", request)
	}

	expectNone(t, "remove", vms.RemoveMemoryDump(ctx, "dumped"))
	if _, request = read(); request.Phase != v1.MemoryDumpDissociating || !request.Remove {
		t.Errorf("the request to remove it is %+v", request)
	}
	expectCode(t, "remove again", vms.RemoveMemoryDump(ctx, "dumped"), http.StatusConflict,
		"memory dump remove request for pvc [memory] already exists")
	expectCode(t, "remove from nothing", vms.RemoveMemoryDump(ctx, "none"), http.StatusNotFound, noVM)
}

func TestErrorsOfFreezes(t *testing.T) {
	ctx := t.Context()
	vmis := kubevirt.VirtualMachineInstance(namespace)
	if _, err := vmis.Create(ctx, newVMI("unborn"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	expectCode(t, "freeze nothing", vmis.Freeze(ctx, "none", time.Minute), http.StatusNotFound, noVMI)
	expectCode(t, "thaw nothing", vmis.Unfreeze(ctx, "none"), http.StatusNotFound, noVMI)
	expectCode(t, "freeze what does not run", vmis.Freeze(ctx, "unborn", time.Minute), http.StatusConflict,
		"VM is not running")
	expectCode(t, "thaw what does not run", vmis.Unfreeze(ctx, "unborn"), http.StatusConflict, "VMI is not running")
}

// TestObjectGraphs requests what a tool has to back up with a VM.
func TestObjectGraphs(t *testing.T) {
	ctx := t.Context()
	vms := kubevirt.VirtualMachine(namespace)
	vm := newVM("graphed", v1.RunStrategyHalted)
	vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "large"}
	claim := &v1.PersistentVolumeClaimVolumeSource{
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}
	vm.Spec.Template.Spec.Volumes = []v1.Volume{
		{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: claim}},
		{Name: "files", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "files"}}},
	}
	if _, err := vms.Create(ctx, vm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	storage := &metav1.LabelSelector{MatchLabels: map[string]string{"kubevirt.io/dependency-type": "storage"}}
	wrong := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}
	for what, tc := range map[string]struct {
		options v1.ObjectGraphOptions
		want    []string
	}{
		"all":                {v1.ObjectGraphOptions{}, []string{"VirtualMachineClusterInstancetype large", "PersistentVolumeClaim data", "Secret files"}},
		"without optional":   {v1.ObjectGraphOptions{IncludeOptionalNodes: pointer(false)}, []string{"PersistentVolumeClaim data", "Secret files"}},
		"selected by labels": {v1.ObjectGraphOptions{LabelSelector: storage}, []string{"PersistentVolumeClaim data"}},
	} {
		graph, err := vms.ObjectGraph(ctx, "graphed", &tc.options)
		expectNone(t, what, err)
		got := []string{}
		for _, node := range graph.Children {
			got = append(got, node.ObjectReference.Kind+" "+node.ObjectReference.Name)
		}
		expectSameJSON(t, what, got, tc.want)
	}
	_, err := vms.ObjectGraph(ctx, "graphed", &v1.ObjectGraphOptions{LabelSelector: wrong})
	expectCode(t, "a wrong selector", err, http.StatusBadRequest, "labelSelector: ")
	_, err = vms.ObjectGraph(ctx, "none", &v1.ObjectGraphOptions{})
	expectCode(t, "the graph of nothing", err, http.StatusNotFound, noVM)
	_, err = kubevirt.VirtualMachineInstance(namespace).ObjectGraph(ctx, "none", &v1.ObjectGraphOptions{})
	expectCode(t, "the graph of nothing", err, http.StatusNotFound, noVMI)
}
