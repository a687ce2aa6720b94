// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinepool

import (
	"fmt"
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	poolapi "github.com/vireo-project/vireo/api/pool"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestClassify(t *testing.T) {
	pool := &poolv1.VirtualMachinePool{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "pool"}, Spec: *newSpec(1)}
	vm := func(name string, changes ...func(*v1.VirtualMachine)) v1.VirtualMachine {
		vm := newVM(pool, 0, "new")
		vm.Name, vm.UID = name, types.UID("uid-"+name)
		for _, change := range changes {
			change(vm)
		}
		return *vm
	}
	unlabeled := func(vm *v1.VirtualMachine) { delete(vm.Labels, "app") }
	dying := func(vm *v1.VirtualMachine) { vm.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }
	orphan := func(vm *v1.VirtualMachine) { vm.OwnerReferences = nil }
	others := func(uid types.UID) func(*v1.VirtualMachine) {
		return func(vm *v1.VirtualMachine) { vm.OwnerReferences[0].UID = uid }
	}
	foreign := func(vm *v1.VirtualMachine) {
		vm.OwnerReferences[0] = metav1.OwnerReference{APIVersion: "example.com/v1", Kind: poolapi.VirtualMachinePoolKind,
			Name: "web",
			UID:  "x", Controller: ptr.To(true)}
	}
	without := func(vm *v1.VirtualMachine) { vm.Finalizers = []string{"user/finalizer"} }
	vms := []v1.VirtualMachine{
		vm("web-0"), vm("web-1", unlabeled), vm("web-2", unlabeled, dying), vm("web-3", orphan),
		vm("web-4", others("earlier")),
		vm("stranger", orphan, without), vm("db-0", orphan), vm("web-5", foreign), vm("web-6", orphan, without),
		vm("web-x-0", orphan),
	}
	vmis := []v1.VirtualMachineInstance{{ObjectMeta: metav1.ObjectMeta{
		Name: "web-0", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(&vms[0],
			v1.VirtualMachineGroupVersionKind)},
	}}}
	found := classify("pool", labels.SelectorFromSet(labels.Set{"app": "web"}), vms, vmis)
	var owned []string
	for _, m := range found.members {
		owned = append(owned, fmt.Sprintf("%s %d %t", m.vm.Name, m.ordinal, m.vmi != nil))
	}
	if want := []string{"web-0 0 true", "web-2 2 false"}; !reflect.DeepEqual(owned, want) {
		t.Errorf("members: got %q, want %q", owned, want)
	}
	names := func(vms []*v1.VirtualMachine) (names []string) {
		for _, vm := range vms {
			names = append(names, vm.Name)
		}
		return names
	}
	if got, want := names(found.detached), []string{"web-1"}; !reflect.DeepEqual(got, want) {
		t.Errorf("detached: got %q, want %q", got, want)
	}
	if got, want := names(leftovers("web", "pool", vms)),
		[]string{"web-3", "web-4", "web-5"}; !reflect.DeepEqual(got, want) {
		t.Errorf("leftovers: got %q, want %q", got, want)
	}
	// The pool is gone: also a VM that was detached before, and whose finalizer it has not removed.
	gone := []string{"web-0", "web-1", "web-2", "web-3", "web-4", "web-5"}
	if got := names(leftovers("web", "", vms)); !reflect.DeepEqual(got, gone) {
		t.Errorf("leftovers of a pool that is gone: got %q, want %q", got, gone)
	}
}

func TestSplitName(t *testing.T) {
	for name, want := range map[string]struct {
		pool    string
		ordinal int
	}{
		"web-0": {"web", 0}, "web-a-12": {"web-a", 12}, "web": {"", noOrdinal}, "web-01": {"", noOrdinal}, "web--1": {"web-", 1},
		"web-": {"", noOrdinal}, "web-x": {"", noOrdinal}, "web-+1": {"", noOrdinal},
	} {
		if pool, ordinal := splitName(name); pool != want.pool || ordinal != want.ordinal {
			t.Errorf("%s: got %q %d, want %q %d", name, pool, ordinal, want.pool, want.ordinal)
		}
	}
}

func TestExpected(t *testing.T) {
	for name, tc := range map[string]struct {
		change memberChange
		want   bool
	}{
		"always":                     {func(m *member) { m.vmi = nil }, true},
		"halted":                     {halted, false},
		"manual, running":            {strategy(v1.RunStrategyManual, ""), true},
		"manual, stopped":            {all(strategy(v1.RunStrategyManual, v1.VirtualMachineStatusStopped), func(m *member) { m.vmi = nil }), false},
		"rerun, finished":            {all(strategy(v1.RunStrategyRerunOnFailure, ""), func(m *member) { m.vmi.Status.Phase = v1.Succeeded }), false},
		"rerun, not started yet":     {all(strategy(v1.RunStrategyRerunOnFailure, ""), func(m *member) { m.vmi = nil }), true},
		"both fields, which is none": {func(m *member) { m.vm.Spec.Running = ptr.To(true) }, false},
	} {
		if got := newMember(newSpec(1), 0, tc.change).shouldRun(); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

func strategy(s v1.VirtualMachineRunStrategy, status v1.VirtualMachinePrintableStatus) memberChange {
	return func(m *member) { m.vm.Spec.RunStrategy, m.vm.Status.PrintableStatus = &s, status }
}

func TestKeepsState(t *testing.T) {
	offline, online, disabled := poolv1.StatePreservationOffline, poolv1.StatePreservationOnline,
		poolv1.StatePreservationDisabled
	opportunistic := func(p *poolv1.StatePreservation) specChange {
		return scaleIn(poolv1.VirtualMachinePoolScaleInStrategy{
			Opportunistic: &poolv1.VirtualMachinePoolOpportunisticScaleInStrategy{StatePreservation: p},
		})
	}
	proactive := func(p *poolv1.StatePreservation) specChange {
		return scaleIn(poolv1.VirtualMachinePoolScaleInStrategy{
			Proactive: &poolv1.VirtualMachinePoolProactiveScaleInStrategy{StatePreservation: p}})
	}
	for name, tc := range map[string]struct {
		spec *poolv1.VirtualMachinePoolSpec
		want bool
	}{
		"default": {newSpec(1), false}, "proactive": {newSpec(1, proactive(nil)), false}, "disabled": {newSpec(1, proactive(&disabled)), false},
		"offline": {newSpec(1, proactive(&offline)), true}, "online": {newSpec(1, proactive(&online)), true},
		"opportunistic": {newSpec(1, opportunistic(&offline)), true},
		"unmanaged": {newSpec(1, scaleIn(poolv1.VirtualMachinePoolScaleInStrategy{
			Unmanaged: &poolv1.VirtualMachinePoolUnmanagedStrategy{},
		})), false},
	} {
		if got := keepsState(tc.spec); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
