// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package access

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/apiserver/subresource"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// runningVMI creates the VMI of a VM, running and with a requested evacuation.
func runningVMI(t *testing.T, vm *v1.VirtualMachine) *v1.VirtualMachineInstance {
	t.Helper()
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
		Name: vm.Name, Namespace: vm.Namespace,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)},
	}}
	vmi.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30)
	if err := cluster.Create(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	before := vmi.DeepCopy()
	vmi.Status.Phase, vmi.Status.NodeName, vmi.Status.EvacuationNodeName = v1.Running, "node", "node"
	if err := withoutRBAC(t, controllerAccount).Status().Patch(t.Context(), vmi, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	return vmi
}

func installVirtAPIPolicy(t *testing.T) {
	t.Helper()
	installPolicies(t, "virt-api.yaml",
		func() error { return withoutRBAC(t, apiAccount).Create(t.Context(), newVM("none"), client.DryRunAll) })
}

func createVM(t *testing.T, name string, strategy v1.VirtualMachineRunStrategy) *v1.VirtualMachine {
	t.Helper()
	vm := newVM(name)
	vm.Spec.RunStrategy = &strategy
	if err := cluster.Create(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	return vm
}

// TestVerbsAreAllowed runs virt-api's verbs against the policy, so that one cannot change without the other.
func TestVerbsAreAllowed(t *testing.T) {
	installVirtAPIPolicy(t)
	config := clusterconfig.Default()
	config.HotplugVolumes = true
	api := &subresource.API{Client: withoutRBAC(t, apiAccount), Config: func() clusterconfig.Config { return config }}
	verbs := map[string]func(http.ResponseWriter, *http.Request) error{}
	for _, v := range api.Verbs(nil) {
		verbs[v.RBACName()] = v.Serve
	}
	createVM(t, "api-halted", v1.RunStrategyHalted)
	createVM(t, "api-manual", v1.RunStrategyManual)
	runningVMI(t, createVM(t, "api-always", v1.RunStrategyAlways))
	runningVMI(t, createVM(t, "api-restarts", v1.RunStrategyAlways))
	alone := runningVMI(t, createVM(t, "api-alone", v1.RunStrategyHalted))
	const volume = `{"name":"data","disk":{"disk":{"bus":"scsi"}},"volumeSource":{"dataVolume":{"name":"dv"}}}`
	if alone.OwnerReferences = nil; cluster.Update(t.Context(), alone) != nil {
		t.Fatal("the VMI still has an owner")
	}
	for _, c := range []struct{ verb, name, body string }{
		{"virtualmachines/start", "api-halted", ""},
		{"virtualmachines/start", "api-manual", `{"paused":true}`},
		{"virtualmachineinstances/evacuate/cancel", "api-always", `{"evacuationNodeName":"node"}`},
		{"virtualmachines/migrate", "api-always", `{"addedNodeSelector":{"zone":"a"}}`},
		{"virtualmachines/restart", "api-restarts", ""},
		{"virtualmachines/addvolume", "api-halted", volume},
		{"virtualmachines/removevolume", "api-halted", `{"name":"data"}`},
		{"virtualmachineinstances/addvolume", "api-alone", volume},
		{"virtualmachineinstances/removevolume", "api-alone", `{"name":"data"}`},
		{"virtualmachines/stop", "api-always", `{"gracePeriod":5}`},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/", strings.NewReader(c.body))
		r.SetPathValue("namespace", namespace)
		r.SetPathValue("name", c.name)
		if err := verbs[c.verb](httptest.NewRecorder(), r); err != nil {
			t.Errorf("%s of %s: %v", c.verb, c.name, err)
		}
	}
}

// TestOtherWritesOfVirtAPIAreDenied checks writes that an attacker with virt-api's token would try, with all rights by
// RBAC.
func TestOtherWritesOfVirtAPIAreDenied(t *testing.T) {
	installVirtAPIPolicy(t)
	api, ctx := withoutRBAC(t, apiAccount), t.Context()
	vm := createVM(t, "api-else", v1.RunStrategyHalted)
	vmi := runningVMI(t, vm)
	merge := func(patch string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(patch)) }
	for _, patch := range []string{
		`{"spec":{"template":{"spec":{"domain":{"firmware":{"serial":"x"}}}}}}`, `{"spec":{"updateVolumesStrategy":"Replacement"}}`,
		`{"spec":{"template":{"metadata":{"annotations":{"a":"b"}}}}}`, `{"metadata":{"finalizers":["a/b"]}}`,
		`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"b"}]}}`,
	} {
		expectForbidden(t, api.Patch(ctx, vm.DeepCopy(), merge(patch)))
	}
	spec := func(changes string) string { return `{"spec":{"template":{"spec":{` + changes + `}}}}` }
	for _, patch := range []string{
		spec(`"hostname":"a"`), spec(`"volumes":[{"name":"a","emptyDisk":{"capacity":"1Gi"}}]`), spec(`"domain":{"devices":{"rng":{}}}`),
		spec(`"volumes":[{"name":"a","persistentVolumeClaim":{"claimName":"a"}}]`),
		spec(`"domain":{"devices":{"disks":[{"name":"a","disk":{}}]}}`),
	} {
		expectForbidden(t, api.Patch(ctx, vm.DeepCopy(), merge(patch)))
	}
	for _, patch := range []string{`{"status":{"created":true}}`, `{"status":{"ready":true}}`, `{"status":{"printableStatus":"Running"}}`} {
		expectForbidden(t, api.Status().Patch(ctx, vm.DeepCopy(), merge(patch)))
	}
	for _, patch := range []string{
		`{"spec":{"domain":{"devices":{"rng":{}}}}}`, `{"spec":{"domain":{"cpu":{"cores":2}}}}`, `{"spec":{"volumes":[{"name":"a","emptyDisk":{"capacity":"1Gi"}}]}}`,
		`{"spec":{"nodeSelector":{"a":"b"}}}`, `{"spec":{"terminationGracePeriodSeconds":1,"hostname":"a"}}`, `{"metadata":{"ownerReferences":null}}`,
		`{"metadata":{"annotations":{"pre.hook.backup.velero.io/command":"[\"/bin/sh\"]"}}}`, `{"metadata":{"annotations":{"init.hook.restore.velero.io/command":"a"}}}`,
	} {
		expectForbidden(t, api.Patch(ctx, vmi.DeepCopy(), merge(patch)))
	}
	for _, patch := range []string{
		`{"status":{"phase":"Failed"}}`, `{"status":{"nodeName":"other"}}`, `{"status":{"nodeName":null}}`, `{"status":{"evacuationNodeName":"other"}}`,
		`{"status":{"migrationState":{"targetNode":"other"}}}`, `{"status":{"activePods":{"a":"b"}}}`, `{"status":null}`,
	} {
		expectForbidden(t, api.Status().Patch(ctx, vmi.DeepCopy(), merge(patch)))
	}
	for _, object := range []client.Object{newVM("api-created"),
		&v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "api-created", Namespace: namespace}}} {
		expectForbidden(t, api.Create(ctx, object))
	}
	for _, object := range []client.Object{vm, vmi} {
		expectForbidden(t, api.Delete(ctx, object))
	}
	// The policy concerns one service account.
	if err := withoutRBAC(t, "system:serviceaccount:team:kubevirt-apiserver").Patch(ctx, vmi.DeepCopy(), merge(`{"metadata":{"labels":{"a":"b"}}}`)); err != nil {
		t.Error(err)
	}
	if err := api.Patch(ctx, vm.DeepCopy(), merge(`{"metadata":{"annotations":{"a":"b"}}}`)); err != nil {
		t.Errorf("annotations, which webhooks add to its requests: %v", err)
	}
	if err := cluster.Get(ctx, client.ObjectKeyFromObject(vm), vm); err != nil || apierrors.IsNotFound(err) {
		t.Error(err)
	}
}
