// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package access

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// generator generates random objects, the same in every run.
type generator struct{ *rand.Rand }

func newGenerator() generator { return generator{rand.New(rand.NewPCG(1, 2))} }

func oneOf[T any](g generator, values ...T) T { return values[g.IntN(len(values))] }

// mark sets random labels and owner references, among which are those of launcher Pods.
func (g generator) mark(pod *corev1.Pod) {
	pod.Labels = nil
	for _, label := range []struct {
		key    string
		values []string
	}{
		{"kubevirt.io", []string{"virt-launcher", "hotplug-disk", "virt-exporter", "virt-handler", ""}},
		{"kubevirt.io/migrationJobUID", []string{"m", "n", ""}},
		{"kubevirt.io/created-by", []string{"vm-uid", "other", ""}},
		{"app", []string{"web"}},
	} {
		if g.IntN(3) == 0 {
			metav1.SetMetaDataLabel(&pod.ObjectMeta, label.key, oneOf(g, label.values...))
		}
	}
	pod.OwnerReferences = nil
	controlled := false
	for i := range g.IntN(3) {
		owner := metav1.OwnerReference{
			APIVersion: oneOf(g, "kubevirt.io/v1", "kubevirt.io/v1", "kubevirt.io/v1alpha3", "kubevirt.io.example/v1",
				"apps/v1"),
			Kind: oneOf(g, "VirtualMachineInstance", "VirtualMachineInstance", "VirtualMachine", "ReplicaSet"),
			Name: oneOf(g, "vm", "vm2"), UID: types.UID(fmt.Sprintf("uid-%d", i+g.IntN(2))),
			Controller: oneOf(g, nil, ptr.To(false), ptr.To(true), ptr.To(true)),
		}
		if controlled && ptr.Deref(owner.Controller, false) {
			owner.Controller = nil // The API server accepts only one.
		}
		controlled = controlled || ptr.Deref(owner.Controller, false)
		pod.OwnerReferences = append(pod.OwnerReferences, owner)
	}
}

// vmiOwners returns the controller references to VMIs.
func vmiOwners(pod *corev1.Pod) []string {
	var out []string
	for _, owner := range pod.OwnerReferences {
		if owner.Kind == "VirtualMachineInstance" && strings.HasPrefix(owner.APIVersion, "kubevirt.io/") &&
			ptr.Deref(owner.Controller, false) {
			out = append(out, owner.APIVersion+" "+owner.Name+" "+string(owner.UID))
		}
	}
	return out
}

// mayChange reports whether a user other than virt-controller may change a Pod's labels and owners so. Creating a Pod
// is like changing one without any.
func mayChange(before, after *corev1.Pod, collector bool) bool {
	differs := func(key string) bool {
		oldValue, hadLabel := before.Labels[key]
		newValue, hasLabel := after.Labels[key]
		return oldValue != newValue || hadLabel != hasLabel
	}
	isLauncher := func(pod *corev1.Pod) bool {
		return slices.Contains([]string{"virt-launcher", "hotplug-disk"}, pod.Labels["kubevirt.io"])
	}
	isReserved := func(pod *corev1.Pod) bool { return isLauncher(pod) || pod.Labels["kubevirt.io"] == "virt-exporter" }
	switch {
	case differs("kubevirt.io") && (isReserved(before) || isReserved(after)), differs("kubevirt.io/migrationJobUID"),
		isLauncher(before) && differs("kubevirt.io/created-by"):
		return false
	}
	oldOwners, newOwners := vmiOwners(before), vmiOwners(after)
	lacks := func(owners []string) func(string) bool {
		return func(owner string) bool { return !slices.Contains(owners, owner) }
	}
	return !slices.ContainsFunc(newOwners, lacks(oldOwners)) &&
		(collector || !slices.ContainsFunc(oldOwners, lacks(newOwners)))
}

// expectDecision checks the decision of a policy, and that none of its expressions failed.
func expectDecision(t *testing.T, may bool, err error, what any) {
	t.Helper()
	if may && err == nil || !may && apierrors.IsForbidden(err) && !strings.Contains(err.Error(), "resulted in error") {
		return
	}
	described, _ := json.Marshal(what)
	t.Errorf("got %v, want allowed %t: %s", err, may, described)
}

// TestCreateGeneratedPods creates Pods with random labels and owners: only virt-controller may create launcher Pods.
func TestCreateGeneratedPods(t *testing.T) {
	installLauncherPolicies(t)
	g, controller, tenant := newGenerator(), withoutRBAC(t, controllerAccount), withoutRBAC(t, tenant)
	for range 300 {
		pod := somePod(g.mark)
		device, first := g.IntN(4) == 0, g.IntN(2) == 0
		if device {
			requestDevice(userfaultfd, first)(pod)
		}
		_, target := pod.Labels["kubevirt.io/migrationJobUID"]
		expectDecision(t, !device && mayChange(somePod(podOwner()), pod, false),
			tenant.Create(t.Context(), pod.DeepCopy(), client.DryRunAll), pod.ObjectMeta)
		expectDecision(t, !device ||
			target && !first, controller.Create(t.Context(), pod.DeepCopy(), client.DryRunAll), pod.ObjectMeta)
	}
}

// TestChangeGeneratedPods changes labels and owners of Pods at random.
func TestChangeGeneratedPods(t *testing.T) {
	installLauncherPolicies(t)
	g, controller, tenant := newGenerator(), withoutRBAC(t, controllerAccount), withoutRBAC(t, tenant)
	collecting := withoutRBAC(t, collector, "system:serviceaccounts:kube-system")
	for range 25 {
		before := somePod(g.mark)
		if err := controller.Create(t.Context(), before); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			after := before.DeepCopy()
			g.mark(after)
			if g.IntN(2) == 0 {
				after.Labels = before.Labels
			}
			both := []metav1.ObjectMeta{before.ObjectMeta, after.ObjectMeta}
			expectDecision(t, mayChange(before, after, false), tenant.Update(t.Context(), after.DeepCopy(), client.DryRunAll),
				both)
			expectDecision(t, mayChange(before, after, true), collecting.Update(t.Context(), after.DeepCopy(), client.DryRunAll),
				both)
			expectDecision(t, true, controller.Update(t.Context(), after.DeepCopy(), client.DryRunAll), both)
		}
	}
}

// part is a part of a patch by virt-api.
type part struct {
	patch string
	may   bool
}

// TestGeneratedWritesOfVirtAPI combines at random patches that virt-api's verbs send and others.
func TestGeneratedWritesOfVirtAPI(t *testing.T) {
	installVirtAPIPolicy(t)
	g, api, ctx := newGenerator(), withoutRBAC(t, apiAccount), t.Context()
	vm := createVM(t, "api-generated", v1.RunStrategyHalted)
	vmi := runningVMI(t, vm)
	metadata := []part{
		{`{"metadata":{"labels":{"a":"b"}}}`, true}, {`{"metadata":{"annotations":{"a":"b"}}}`, true},
		{`{"metadata":{"finalizers":["a/b"]}}`, false}, {`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"b"}]}}`, false},
	}
	for what, w := range map[string]struct {
		object client.Object
		status bool
		parts  []part
	}{
		"a VM": {vm, false, append([]part{
			{`{"spec":{"runStrategy":"Always"}}`, true}, {`{"spec":{"runStrategy":null,"running":true}}`, true}, {`{"spec":{"runStrategy":"Halted"}}`, true},
			{`{"spec":{"updateVolumesStrategy":"Replacement"}}`, false}, {`{"spec":{"template":{"spec":{"hostname":"a"}}}}`, false},
			{`{"spec":{"instancetype":{"name":"a"}}}`, false},
		}, metadata...)},
		"a VM's status": {vm, true, []part{
			{`{"status":{"stateChangeRequests":[{"action":"Start"}]}}`, true}, {`{"status":{"startFailure":null}}`, true},
			{`{"status":{"ready":true}}`, false}, {`{"status":{"created":true}}`, false}, {`{"status":{"snapshotInProgress":"a"}}`, false},
		}},
		"a VMI": {vmi, false, append([]part{
			{`{"spec":{"terminationGracePeriodSeconds":7}}`, true}, {`{"spec":{"terminationGracePeriodSeconds":null}}`, true},
			{`{"spec":{"nodeSelector":{"a":"b"}}}`, false}, {`{"spec":{"hostname":"a"}}`, false}, {`{"spec":{"evictionStrategy":"None"}}`, false},
		}, metadata[:3]...)},
		"a VMI's status": {vmi, true, []part{
			{`{"status":{"evacuationNodeName":null}}`, true}, {`{"status":{"evacuationNodeName":"other"}}`, false}, {`{"status":{"phase":"Failed"}}`, false},
			{`{"status":{"nodeName":"other"}}`, false}, {`{"status":{"migrationState":{"targetNode":"other"}}}`, false},
		}},
	} {
		for range 40 {
			patch, may := map[string]any{}, true
			for _, i := range g.Perm(len(w.parts))[:1+g.IntN(3)] {
				fragment := map[string]any{}
				if err := json.Unmarshal([]byte(w.parts[i].patch), &fragment); err != nil {
					t.Fatal(err)
				}
				if merged := mergeNew(patch, fragment); merged {
					may = may && w.parts[i].may
				}
			}
			text, err := json.Marshal(patch)
			if err != nil {
				t.Fatal(err)
			}
			object := w.object.DeepCopyObject().(client.Object)
			if w.status {
				err = api.Status().Patch(ctx, object, client.RawPatch(types.MergePatchType, text), client.DryRunAll)
			} else {
				err = api.Patch(ctx, object, client.RawPatch(types.MergePatchType, text), client.DryRunAll)
			}
			expectDecision(t, may, err, []string{what, string(text)})
		}
	}
}

// mergeNew merges a patch into another one and reports true, unless both contain the same field.
func mergeNew(into, from map[string]any) bool {
	for section, fields := range from {
		have, _ := into[section].(map[string]any)
		if have == nil {
			have = map[string]any{}
			into[section] = have
		}
		adds, _ := fields.(map[string]any)
		for field := range adds {
			if _, taken := have[field]; taken {
				return false
			}
		}
		maps.Copy(have, adds)
	}
	return true
}
