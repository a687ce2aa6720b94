// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package access

import (
	"encoding/json"
	"fmt"
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

// generator makes objects at random, the same ones in every run.
type generator struct{ *rand.Rand }

func newGenerator() generator { return generator{rand.New(rand.NewPCG(1, 2))} }

func oneOf[T any](g generator, values ...T) T { return values[g.IntN(len(values))] }

// mark gives a Pod labels and owners of which some are those of launchers.
func (g generator) mark(pod *corev1.Pod) {
	pod.Labels = nil
	for _, label := range []struct {
		key    string
		values []string
	}{
		{"kubevirt.io", []string{"virt-launcher", "hotplug-disk", "virt-handler", ""}},
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
			APIVersion: oneOf(g, "kubevirt.io/v1", "kubevirt.io/v1", "kubevirt.io/v1alpha3", "kubevirt.io.example/v1", "apps/v1"),
			Kind:       oneOf(g, "VirtualMachineInstance", "VirtualMachineInstance", "VirtualMachine", "ReplicaSet"),
			Name:       oneOf(g, "vm", "vm2"), UID: types.UID(fmt.Sprintf("uid-%d", i+g.IntN(2))),
			Controller: oneOf(g, nil, ptr.To(false), ptr.To(true), ptr.To(true)),
		}
		if controlled && ptr.Deref(owner.Controller, false) {
			owner.Controller = nil // The API server takes one.
		}
		controlled = controlled || ptr.Deref(owner.Controller, false)
		pod.OwnerReferences = append(pod.OwnerReferences, owner)
	}
}

// machinesOf are the references by which a Pod is a launcher's.
func machinesOf(pod *corev1.Pod) []string {
	var out []string
	for _, owner := range pod.OwnerReferences {
		if owner.Kind == "VirtualMachineInstance" && strings.HasPrefix(owner.APIVersion, "kubevirt.io/") && ptr.Deref(owner.Controller, false) {
			out = append(out, owner.APIVersion+" "+owner.Name+" "+string(owner.UID))
		}
	}
	return out
}

// mayChange says whether somebody who is not virt-controller may make one Pod of another. A Pod that is new was one without marks.
func mayChange(before, after *corev1.Pod, collector bool) bool {
	differs := func(key string) bool {
		old, was := before.Labels[key]
		now, is := after.Labels[key]
		return old != now || was != is
	}
	isLauncher := func(pod *corev1.Pod) bool {
		return slices.Contains([]string{"virt-launcher", "hotplug-disk"}, pod.Labels["kubevirt.io"])
	}
	switch {
	case differs("kubevirt.io") && (isLauncher(before) || isLauncher(after)), differs("kubevirt.io/migrationJobUID"),
		isLauncher(before) && differs("kubevirt.io/created-by"):
		return false
	}
	old, now := machinesOf(before), machinesOf(after)
	lacks := func(owners []string) func(string) bool {
		return func(owner string) bool { return !slices.Contains(owners, owner) }
	}
	return !slices.ContainsFunc(now, lacks(old)) && (collector || !slices.ContainsFunc(old, lacks(now)))
}

// expectAnswer says that a policy decided as it should, and that none of its expressions failed.
func expectAnswer(t *testing.T, may bool, err error, what any) {
	t.Helper()
	if may && err == nil || !may && apierrors.IsForbidden(err) && !strings.Contains(err.Error(), "resulted in error") {
		return
	}
	described, _ := json.Marshal(what)
	t.Errorf("got %v, and it is allowed: %t: %s", err, may, described)
}

// TestGeneratedPodsAreLaunchersByVirtControllerOnly makes Pods of all marks at random.
func TestGeneratedPodsAreLaunchersByVirtControllerOnly(t *testing.T) {
	installLauncherPolicies(t)
	g, controller, tenant := newGenerator(), withoutRBAC(t, controllerAccount), withoutRBAC(t, tenant)
	for range 300 {
		pod := somePod(g.mark)
		device, first := g.IntN(4) == 0, g.IntN(2) == 0
		if device {
			asksFor(userfaultfd, first)(pod)
		}
		_, target := pod.Labels["kubevirt.io/migrationJobUID"]
		expectAnswer(t, !device && mayChange(somePod(podOwner()), pod, false), tenant.Create(t.Context(), pod.DeepCopy(), client.DryRunAll), pod.ObjectMeta)
		expectAnswer(t, !device || target && !first, controller.Create(t.Context(), pod.DeepCopy(), client.DryRunAll), pod.ObjectMeta)
	}
}

// TestGeneratedPodsStayWhatTheyAre changes Pods of all marks at random into others.
func TestGeneratedPodsStayWhatTheyAre(t *testing.T) {
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
			expectAnswer(t, mayChange(before, after, false), tenant.Update(t.Context(), after.DeepCopy(), client.DryRunAll), both)
			expectAnswer(t, mayChange(before, after, true), collecting.Update(t.Context(), after.DeepCopy(), client.DryRunAll), both)
			expectAnswer(t, true, controller.Update(t.Context(), after.DeepCopy(), client.DryRunAll), both)
		}
	}
}

// part is a part of a write of virt-api's.
type part struct {
	patch string
	may   bool
}

// TestGeneratedWritesOfVirtAPI puts writes together at random of what its verbs write and of what they do not.
func TestGeneratedWritesOfVirtAPI(t *testing.T) {
	installVirtAPIPolicy(t)
	g, api, ctx := newGenerator(), withoutRBAC(t, apiAccount), t.Context()
	vm := createVM(t, "api-generated", v1.RunStrategyHalted)
	vmi := runningInstance(t, vm)
	anywhere := []part{
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
		}, anywhere...)},
		"a VM's status": {vm, true, []part{
			{`{"status":{"stateChangeRequests":[{"action":"Start"}]}}`, true}, {`{"status":{"startFailure":null}}`, true},
			{`{"status":{"ready":true}}`, false}, {`{"status":{"created":true}}`, false}, {`{"status":{"snapshotInProgress":"a"}}`, false},
		}},
		"an instance": {vmi, false, append([]part{
			{`{"spec":{"terminationGracePeriodSeconds":7}}`, true}, {`{"spec":{"terminationGracePeriodSeconds":null}}`, true},
			{`{"spec":{"nodeSelector":{"a":"b"}}}`, false}, {`{"spec":{"hostname":"a"}}`, false}, {`{"spec":{"evictionStrategy":"None"}}`, false},
		}, anywhere[:3]...)},
		"an instance's status": {vmi, true, []part{
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
			expectAnswer(t, may, err, []string{what, string(text)})
		}
	}
}

// mergeNew adds a patch to another one, unless they are about the same field.
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
		for field, value := range adds {
			have[field] = value
		}
	}
	return true
}
