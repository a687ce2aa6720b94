// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package access

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Accounts of those who have to do with Pods.
const (
	controllerAccount = "system:serviceaccount:kubevirt:kubevirt-controller"
	tenant            = "editor"
	collector         = "system:serviceaccount:kube-system:generic-garbage-collector"
)

const userfaultfd corev1.ResourceName = "devices.kubevirt.io/userfaultfd"

// ownedBy is a reference to a VirtualMachineInstance.
func ownedBy(name string, controller bool) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: name, UID: types.UID(name + "-uid"), Controller: &controller,
	}
}

// renameOwner keeps the UID of the owner, so that a controller that compares names no longer finds the Pod.
func renameOwner(pod *corev1.Pod) { pod.OwnerReferences[0].Name = "other" }

// somePod is a Pod that carries no mark.
func somePod(changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-", Namespace: namespace, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "compute", Image: "none"}}},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func podLabel(key, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Labels[key] = value }
}

func podOwner(refs ...metav1.OwnerReference) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.OwnerReferences = refs }
}

// asksFor requests a device in a container, or in one that runs before the others.
func asksFor(name corev1.ResourceName, first bool) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		wants := corev1.ResourceRequirements{Limits: corev1.ResourceList{name: resource.MustParse("1")}}
		if first {
			pod.Spec.InitContainers = []corev1.Container{{Name: "first", Image: "none", Resources: wants}}
			return
		}
		pod.Spec.Containers[0].Resources = wants
	}
}

func launcher(pod *corev1.Pod) {
	pod.Labels = map[string]string{"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "vm-uid", "kubevirt.io/migrationJobUID": "m"}
	pod.OwnerReferences = []metav1.OwnerReference{ownedBy("vm", true)}
}

// withoutRBAC is a client of a user who has every right: only the policies decide.
func withoutRBAC(t *testing.T, user string, groups ...string) client.Client {
	t.Helper()
	return as(t, user, append(groups, "system:masters")...)
}

// installPolicies makes the policies of a file, and waits until they refuse something.
func installPolicies(t *testing.T, file string, refused func() error) {
	t.Helper()
	if err := create(t.Context(), filepath.Join("admission", file)); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); !apierrors.IsForbidden(refused()); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the policies of %s do not hold", file)
		}
	}
}

func installLauncherPolicies(t *testing.T) {
	t.Helper()
	for _, pod := range []*corev1.Pod{somePod(launcher), somePod(asksFor(userfaultfd, false))} {
		installPolicies(t, "launcher-pods.yaml", func() error {
			return as(t, tenant).Create(t.Context(), pod.DeepCopy(), client.DryRunAll)
		})
	}
	installPolicies(t, "launcher-pods.yaml", func() error {
		return withoutRBAC(t, controllerAccount).Create(t.Context(), somePod(asksFor(userfaultfd, false)), client.DryRunAll)
	})
}

func TestOnlyVirtControllerMakesLauncherPods(t *testing.T) {
	installLauncherPolicies(t)
	elsewhere := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "set", UID: "set-uid", Controller: ptr.To(true)}
	for what, c := range map[string]struct {
		change func(*corev1.Pod)
		says   string
	}{
		"a launcher":             {launcher, "only virt-controller"},
		"the launcher's label":   {podLabel("kubevirt.io", "virt-launcher"), "kubevirt.io=virt-launcher"},
		"the label of a hotplug": {podLabel("kubevirt.io", "hotplug-disk"), "kubevirt.io=hotplug-disk"},
		"a migration's label":    {podLabel("kubevirt.io/migrationJobUID", "m"), "which Pod a migration goes to"},
		"an empty one":           {podLabel("kubevirt.io/migrationJobUID", ""), "which Pod a migration goes to"},
		"a VMI as controller":    {podOwner(ownedBy("vm", true)), "makes Pods of a VirtualMachineInstance"},
		"in an older version": {podOwner(metav1.OwnerReference{
			APIVersion: "kubevirt.io/v1alpha3", Kind: "VirtualMachineInstance", Name: "vm", UID: "u", Controller: ptr.To(true),
		}), "makes Pods of a VirtualMachineInstance"},
		"a name that is a launcher's": {func(pod *corev1.Pod) { pod.GenerateName, pod.Name = "", "virt-launcher-vm-abc"; launcher(pod) }, "only virt-controller"},
	} {
		for _, user := range []string{
			tenant, "root", "system:serviceaccount:team:kubevirt-controller", "system:serviceaccount:kubevirt:kubevirt-handler",
			"system:serviceaccount:kubevirt:kubevirt-apiserver", "system:serviceaccount:kube-system:replicaset-controller", collector,
		} {
			err := withoutRBAC(t, user).Create(t.Context(), somePod(c.change))
			if !apierrors.IsForbidden(err) || !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("%s by %s: got %v, want a refusal about %q", what, user, err, c.says)
			}
		}
		if err := withoutRBAC(t, controllerAccount).Create(t.Context(), somePod(c.change)); err != nil {
			t.Errorf("%s by virt-controller: %v", what, err)
		}
	}
	for what, change := range map[string]func(*corev1.Pod){
		"no mark":                       func(*corev1.Pod) {},
		"no label":                      func(pod *corev1.Pod) { pod.Labels = nil },
		"a ReplicaSet's":                podOwner(elsewhere),
		"the importer's of a VM's disk": podLabel("kubevirt.io/created-by", "vm-uid"),
		"another component's":           podLabel("kubevirt.io", "virt-handler"),
		"behind the Service of a VM":    podLabel("vm.kubevirt.io/name", "vm"),
		"one that goes with a VMI":      podOwner(ownedBy("vm", false)),
		"with KVM":                      asksFor("devices.kubevirt.io/kvm", false),
	} {
		if err := as(t, tenant).Create(t.Context(), somePod(change)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestOnlyATargetTakesInAPostCopy: a LimitRange's default is added to every container of every Pod of its namespace, whoever makes the Pod.
func TestOnlyATargetTakesInAPostCopy(t *testing.T) {
	installLauncherPolicies(t)
	both := func(pod *corev1.Pod) {
		asksFor(userfaultfd, false)(pod)
		beside := *pod.Spec.Containers[0].DeepCopy()
		beside.Name = "guest-console-log"
		pod.Spec.Containers = append(pod.Spec.Containers, beside)
	}
	noTarget := func(pod *corev1.Pod) {
		launcher(pod)
		delete(pod.Labels, v1.MigrationJobLabel)
	}
	for what, pod := range map[string]*corev1.Pod{
		"a Pod":                      somePod(asksFor(userfaultfd, false)),
		"a launcher":                 somePod(noTarget, asksFor(userfaultfd, false)),
		"before others":              somePod(launcher, asksFor(userfaultfd, true)),
		"beside the guest":           somePod(launcher, both),
		"a tenant's with the device": somePod(asksFor(userfaultfd, true)),
	} {
		for _, user := range []string{controllerAccount, tenant} {
			if err := withoutRBAC(t, user).Create(t.Context(), pod.DeepCopy()); !apierrors.IsForbidden(err) {
				t.Errorf("%s by %s: %v", what, user, err)
			}
		}
	}
	if err := withoutRBAC(t, controllerAccount).Create(t.Context(), somePod(launcher, asksFor(userfaultfd, false))); err != nil {
		t.Errorf("a target: %v", err)
	}
	limited := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "limited-"}}
	if err := cluster.Create(t.Context(), limited); err != nil {
		t.Fatal(err)
	}
	limits := &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Name: "device", Namespace: limited.Name},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, Default: corev1.ResourceList{userfaultfd: resource.MustParse("1")},
		}}},
	}
	if err := cluster.Create(t.Context(), limits); err != nil {
		t.Fatal(err)
	}
	installPolicies(t, "launcher-pods.yaml", func() error {
		pod := somePod(noTarget)
		pod.Namespace = limited.Name
		err := withoutRBAC(t, controllerAccount).Create(t.Context(), pod, client.DryRunAll)
		if apierrors.IsForbidden(err) && !strings.Contains(err.Error(), "LimitRange") {
			t.Errorf("a launcher with a default: %v", err)
		}
		return err
	})
}

// TestATemplateIsNoWayAround has a Pod made by the controller that a tenant asks for one, which has an account of its own.
func TestATemplateIsNoWayAround(t *testing.T) {
	installLauncherPolicies(t)
	pod := somePod(launcher)
	pod.OwnerReferences = nil
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "set-", Namespace: namespace},
		Spec: appsv1.ReplicaSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: pod.Labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec},
		},
	}
	if err := as(t, tenant).Create(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	expectForbidden(t, withoutRBAC(t, "system:serviceaccount:kube-system:replicaset-controller").Create(t.Context(), pod))
}

// TestPodsStayWhatTheyAre tries to mark Pods that exist, and to take the marks away, by every way that a Pod can be changed.
func TestPodsStayWhatTheyAre(t *testing.T) {
	installLauncherPolicies(t)
	made := func(change func(*corev1.Pod)) *corev1.Pod {
		t.Helper()
		pod := somePod(change)
		if err := withoutRBAC(t, controllerAccount).Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		return pod
	}
	none := func(*corev1.Pod) {}
	unlabel := func(key string) func(*corev1.Pod) { return func(pod *corev1.Pod) { delete(pod.Labels, key) } }
	for what, c := range map[string]struct{ had, change func(*corev1.Pod) }{
		"the label is set":              {none, podLabel("kubevirt.io", "virt-launcher")},
		"the label is changed to it":    {podLabel("kubevirt.io", "else"), podLabel("kubevirt.io", "virt-launcher")},
		"the label is taken away":       {launcher, unlabel("kubevirt.io")},
		"the label is changed":          {launcher, podLabel("kubevirt.io", "else")},
		"it becomes another kind":       {launcher, podLabel("kubevirt.io", "hotplug-disk")},
		"a migration is set":            {none, podLabel("kubevirt.io/migrationJobUID", "m")},
		"a migration is changed":        {launcher, podLabel("kubevirt.io/migrationJobUID", "n")},
		"a migration is taken away":     {launcher, unlabel("kubevirt.io/migrationJobUID")},
		"it is said to be of another":   {launcher, podLabel("kubevirt.io/created-by", "other")},
		"it is said to be of nobody":    {launcher, unlabel("kubevirt.io/created-by")},
		"an owner is set":               {none, podOwner(ownedBy("vm", true))},
		"a reference becomes the owner": {podOwner(ownedBy("vm", false)), podOwner(ownedBy("vm", true))},
		"it gets another owner":         {launcher, podOwner(ownedBy("vm2", true))},
		"its owner gets another name":   {launcher, renameOwner},
		"its owner is taken away":       {launcher, podOwner()},
		"its owner is one no longer":    {launcher, podOwner(ownedBy("vm", false))},
	} {
		pod := made(c.had)
		changed := pod.DeepCopy()
		c.change(changed)
		expectForbidden(t, withoutRBAC(t, tenant).Patch(t.Context(), changed.DeepCopy(), client.MergeFrom(pod)))
		expectForbidden(t, withoutRBAC(t, tenant).Update(t.Context(), changed.DeepCopy()))
		for _, sub := range []string{"status", "ephemeralcontainers"} {
			err := withoutRBAC(t, tenant).SubResource(sub).Patch(t.Context(), changed.DeepCopy(), client.MergeFrom(pod))
			if after := livePod(t, pod); err == nil && !sameMarks(after, pod) {
				t.Errorf("%s by pods/%s: it was taken", what, sub)
			}
		}
		if t.Failed() {
			t.Fatal(what)
		}
		if err := withoutRBAC(t, controllerAccount).Patch(t.Context(), changed.DeepCopy(), client.MergeFrom(pod)); err != nil {
			t.Errorf("%s by virt-controller: %v", what, err)
		}
	}
}

func livePod(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	now := &corev1.Pod{}
	if err := cluster.Get(t.Context(), client.ObjectKeyFromObject(pod), now); err != nil {
		t.Fatal(err)
	}
	return now
}

func sameMarks(a, b *corev1.Pod) bool {
	return fmt.Sprint(a.Labels) == fmt.Sprint(b.Labels) && fmt.Sprint(metav1.GetControllerOf(a)) == fmt.Sprint(metav1.GetControllerOf(b))
}

// TestABindingLabelsNoPod: the labels of a Binding are copied to its Pod.
func TestABindingLabelsNoPod(t *testing.T) {
	installLauncherPolicies(t)
	for _, labels := range []map[string]string{{"kubevirt.io": "virt-launcher"}, {"kubevirt.io/migrationJobUID": "m"}} {
		pod := somePod()
		if err := cluster.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		binding := &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: namespace, Labels: labels},
			Target:     corev1.ObjectReference{Kind: "Node", Name: "node"},
		}
		expectForbidden(t, withoutRBAC(t, tenant).SubResource("binding").Create(t.Context(), pod, binding.DeepCopy()))
		expectForbidden(t, withoutRBAC(t, tenant).Create(t.Context(), binding.DeepCopy()))
		binding.Labels = nil
		if err := withoutRBAC(t, "system:kube-scheduler").SubResource("binding").Create(t.Context(), pod, binding); err != nil {
			t.Error(err)
		}
	}
}

// TestOthersWorkWithLauncherPods: what users, backup tools and Kubernetes itself do with them goes on.
func TestOthersWorkWithLauncherPods(t *testing.T) {
	installLauncherPolicies(t)
	ctx := t.Context()
	change := func(what, user string, write func(client.Client, *corev1.Pod) error, had ...func(*corev1.Pod)) {
		t.Helper()
		pod := somePod(append([]func(*corev1.Pod){launcher}, had...)...)
		if err := withoutRBAC(t, controllerAccount).Create(ctx, pod); err != nil {
			t.Fatal(err)
		}
		if err := write(withoutRBAC(t, user), pod); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	patch := func(change func(*corev1.Pod), subresources ...string) func(client.Client, *corev1.Pod) error {
		return func(c client.Client, pod *corev1.Pod) error {
			changed := pod.DeepCopy()
			change(changed)
			for _, name := range subresources {
				return c.SubResource(name).Patch(ctx, changed, client.MergeFrom(pod))
			}
			return c.Patch(ctx, changed, client.MergeFrom(pod))
		}
	}
	change("kubectl label", tenant, patch(podLabel("team", "a")))
	change("kubectl annotate", tenant, patch(func(pod *corev1.Pod) { metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "backup", "yes") }))
	change("kubectl debug", tenant, patch(func(pod *corev1.Pod) {
		pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "debug", Image: "none", ImagePullPolicy: corev1.PullIfNotPresent, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		}}}
	}, "ephemeralcontainers"))
	change("kubectl delete", tenant, func(c client.Client, pod *corev1.Pod) error { return c.Delete(ctx, pod) })
	change("the scheduler", "system:kube-scheduler", func(c client.Client, pod *corev1.Pod) error {
		return c.SubResource("binding").Create(ctx, pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "node"}})
	})
	change("the kubelet", "system:node:node", patch(func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodRunning }, "status"))
	change("an eviction", "system:serviceaccount:kube-system:descheduler", func(c client.Client, pod *corev1.Pod) error {
		return c.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{})
	})
	for _, user := range []string{collector, "system:kube-controller-manager"} {
		groups := []string{}
		if user == collector {
			groups = []string{"system:serviceaccounts", "system:serviceaccounts:kube-system"}
		}
		collects := func(write func(client.Client, *corev1.Pod) error) func(client.Client, *corev1.Pod) error {
			return func(_ client.Client, pod *corev1.Pod) error { return write(withoutRBAC(t, user, groups...), pod) }
		}
		change("an orphan's owner, by "+user, user, collects(patch(podOwner())))
		change("an owner that goes in the foreground, by "+user, user, collects(patch(func(pod *corev1.Pod) {
			pod.OwnerReferences[0].BlockOwnerDeletion = ptr.To(false)
		})))
	}
	adopted := func(c client.Client, pod *corev1.Pod) error {
		if err := patch(podOwner())(withoutRBAC(t, "system:kube-controller-manager"), pod); err != nil {
			return err
		}
		return patch(podOwner(ownedBy("vm", true)))(c, livePod(t, pod))
	}
	change("an orphan that its VMI takes back", controllerAccount, adopted)
	change("an orphan that somebody else takes", controllerAccount, func(_ client.Client, pod *corev1.Pod) error {
		expectForbidden(t, adopted(withoutRBAC(t, tenant), pod))
		return nil
	})
}

// TestLauncherLabelsAreTheProducts keeps the policy's names those of the code.
func TestLauncherLabelsAreTheProducts(t *testing.T) {
	policy := readConfig(t, "admission", "launcher-pods.yaml")
	for _, name := range []string{v1.AppLabel, v1.MigrationJobLabel, v1.CreatedByLabel, v1.VirtualMachineInstanceGroupVersionKind.Kind} {
		if !strings.Contains(policy, "'"+name+"'") {
			t.Errorf("the policy does not know %s", name)
		}
	}
}
