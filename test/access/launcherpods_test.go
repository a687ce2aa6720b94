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

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/rights"
)

// Users that write Pods.
const (
	controllerAccount = "system:serviceaccount:kubevirt:kubevirt-controller"
	tenant            = "editor"
	collector         = "system:serviceaccount:kube-system:generic-garbage-collector"
)

const userfaultfd corev1.ResourceName = "devices.kubevirt.io/userfaultfd"

// ownedBy returns an owner reference to a VMI.
func ownedBy(name string, controller bool) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: name, UID: types.UID(name + "-uid"),
		Controller: &controller,
	}
}

// renameOwner changes only the name of the owner reference, so that a controller that looks for the name does not find
// the Pod.
func renameOwner(pod *corev1.Pod) { pod.OwnerReferences[0].Name = "other" }

// somePod returns a Pod that is no launcher Pod, after changes.
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

// requestDevice requests a device in a container or, with first, in an init container.
func requestDevice(name corev1.ResourceName, first bool) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		resources := corev1.ResourceRequirements{Limits: corev1.ResourceList{name: resource.MustParse("1")}}
		if first {
			pod.Spec.InitContainers = []corev1.Container{{Name: "first", Image: "none", Resources: resources}}
			return
		}
		pod.Spec.Containers[0].Resources = resources
	}
}

func launcher(pod *corev1.Pod) {
	pod.Labels = map[string]string{"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "vm-uid",
		"kubevirt.io/migrationJobUID": "m"}
	pod.OwnerReferences = []metav1.OwnerReference{ownedBy("vm", true)}
}

// resized is a launcher Pod with the size of its guest.
func resized(pod *corev1.Pod) {
	launcher(pod)
	podAnnotation(resize.MemoryAnnotation, "1073741824")(pod)
}

// exporter is the Pod of an export.
func exporter(pod *corev1.Pod) { podLabel("kubevirt.io", "virt-exporter")(pod) }

// attachment is the attachment Pod of a hotplugged volume.
func attachment(pod *corev1.Pod) {
	podLabel("kubevirt.io", "hotplug-disk")(pod)
	podAnnotation(launcherpod.AttachmentUserAnnotation, "vm-uid")(pod)
}

func podAnnotation(key, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { metav1.SetMetaDataAnnotation(&pod.ObjectMeta, key, value) }
}

// withoutRBAC returns a client that impersonates a user with all rights, so that only the policies decide.
func withoutRBAC(t *testing.T, user string, groups ...string) client.Client {
	t.Helper()
	return as(t, user, append(groups, "system:masters")...)
}

// installPolicies creates the policies of a file, and waits until they deny a request.
func installPolicies(t *testing.T, file string, denied func() error) {
	t.Helper()
	if err := create(t.Context(), filepath.Join("admission", file)); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(timeout); !apierrors.IsForbidden(denied()); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the policies of %s are not effective", file)
		}
	}
}

func installLauncherPolicies(t *testing.T) {
	t.Helper()
	for _, pod := range []*corev1.Pod{somePod(launcher), somePod(requestDevice(userfaultfd, false))} {
		installPolicies(t, "launcher-pods.yaml", func() error {
			return as(t, tenant).Create(t.Context(), pod.DeepCopy(), client.DryRunAll)
		})
	}
	installPolicies(t, "launcher-pods.yaml", func() error {
		return withoutRBAC(t, controllerAccount).Create(t.Context(), somePod(requestDevice(userfaultfd, false)),
			client.DryRunAll)
	})
}

func TestOnlyVirtControllerCreatesLauncherPods(t *testing.T) {
	installLauncherPolicies(t)
	replicaSet := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "set", UID: "set-uid",
		Controller: ptr.To(true)}
	for what, c := range map[string]struct {
		change  func(*corev1.Pod)
		message string
	}{
		"a launcher":             {launcher, "only virt-controller"},
		"the launcher's label":   {podLabel("kubevirt.io", "virt-launcher"), "kubevirt.io=virt-launcher"},
		"the label of a hotplug": {podLabel("kubevirt.io", "hotplug-disk"), "kubevirt.io=hotplug-disk"},
		"an exporter's label":    {podLabel("kubevirt.io", "virt-exporter"), "kubevirt.io=virt-exporter"},
		"a migration's label":    {podLabel("kubevirt.io/migrationJobUID", "m"), "the Pod to which a guest migrates"},
		"an empty one":           {podLabel("kubevirt.io/migrationJobUID", ""), "the Pod to which a guest migrates"},
		"a VMI as controller":    {podOwner(ownedBy("vm", true)), "makes Pods of a VirtualMachineInstance"},
		"in an older version": {podOwner(metav1.OwnerReference{
			APIVersion: "kubevirt.io/v1alpha3", Kind: "VirtualMachineInstance", Name: "vm", UID: "u", Controller: ptr.To(true),
		}), "makes Pods of a VirtualMachineInstance"},
		"a name that is a launcher's": {func(pod *corev1.Pod) { pod.GenerateName, pod.Name = "", "virt-launcher-vm-abc"; launcher(pod) }, "only virt-controller"},
	} {
		for _, user := range []string{
			tenant, "root", "system:serviceaccount:team:kubevirt-controller", "system:serviceaccount:kubevirt:kubevirt-handler",
			"system:serviceaccount:kubevirt:kubevirt-apiserver", "system:serviceaccount:kube-system:replicaset-controller",
			collector,
		} {
			err := withoutRBAC(t, user).Create(t.Context(), somePod(c.change))
			if !apierrors.IsForbidden(err) || !strings.Contains(fmt.Sprint(err), c.message) {
				t.Errorf("%s by %s: got %v, want %q", what, user, err, c.message)
			}
		}
		if err := withoutRBAC(t, controllerAccount).Create(t.Context(), somePod(c.change)); err != nil {
			t.Errorf("%s by virt-controller: %v", what, err)
		}
	}
	for what, change := range map[string]func(*corev1.Pod){
		"no launcher":                   func(*corev1.Pod) {},
		"no label":                      func(pod *corev1.Pod) { pod.Labels = nil },
		"a ReplicaSet's":                podOwner(replicaSet),
		"the importer's of a VM's disk": podLabel("kubevirt.io/created-by", "vm-uid"),
		"another component's":           podLabel("kubevirt.io", "virt-handler"),
		"behind the Service of a VM":    podLabel("vm.kubevirt.io/name", "vm"),
		"owned by a VMI":                podOwner(ownedBy("vm", false)),
		"with KVM":                      requestDevice("devices.kubevirt.io/kvm", false),
	} {
		if err := as(t, tenant).Create(t.Context(), somePod(change)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestProbeDeviceOnlyInTheInstallation: elsewhere nobody may request the device, and with it all that a node has.
func TestProbeDeviceOnlyInTheInstallation(t *testing.T) {
	const probe = "devices.kubevirt.io/kvm-probe"
	for _, first := range []bool{true, false} {
		for _, user := range []string{controllerAccount, tenant} {
			create := func() error {
				return withoutRBAC(t, user).Create(t.Context(), somePod(requestDevice(probe, first)), client.DryRunAll)
			}
			installPolicies(t, "agent-pods.yaml", create)
			if err := create(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "for the Pods of virt-handler") {
				t.Errorf("by %s: %v", user, err)
			}
		}
	}
	inside := somePod(requestDevice(probe, true))
	inside.Namespace = rights.Namespace
	if err := withoutRBAC(t, tenant).Create(t.Context(), inside, client.DryRunAll); err != nil {
		t.Errorf("in the namespace of the installation: %v", err)
	}
	if err := as(t, tenant).Create(t.Context(), somePod(requestDevice("devices.kubevirt.io/kvm", false))); err != nil {
		t.Errorf("another device: %v", err)
	}
}

// TestUserfaultfdOnlyInTargetPods also covers the default of a LimitRange, which adds the device to every container of
// its namespace.
func TestUserfaultfdOnlyInTargetPods(t *testing.T) {
	installLauncherPolicies(t)
	both := func(pod *corev1.Pod) {
		requestDevice(userfaultfd, false)(pod)
		beside := *pod.Spec.Containers[0].DeepCopy()
		beside.Name = "guest-console-log"
		pod.Spec.Containers = append(pod.Spec.Containers, beside)
	}
	noTarget := func(pod *corev1.Pod) {
		launcher(pod)
		delete(pod.Labels, v1.MigrationJobLabel)
	}
	for what, pod := range map[string]*corev1.Pod{
		"a Pod":                      somePod(requestDevice(userfaultfd, false)),
		"a launcher":                 somePod(noTarget, requestDevice(userfaultfd, false)),
		"before others":              somePod(launcher, requestDevice(userfaultfd, true)),
		"beside the guest":           somePod(launcher, both),
		"a tenant's with the device": somePod(requestDevice(userfaultfd, true)),
	} {
		for _, user := range []string{controllerAccount, tenant} {
			if err := withoutRBAC(t, user).Create(t.Context(), pod.DeepCopy()); !apierrors.IsForbidden(err) {
				t.Errorf("%s by %s: %v", what, user, err)
			}
		}
	}
	if err := withoutRBAC(t, controllerAccount).Create(t.Context(),
		somePod(launcher, requestDevice(userfaultfd, false))); err != nil {
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

// TestPodsOfControllersAreDenied: a tenant's ReplicaSet with a launcher's template does not lead to a launcher Pod.
func TestPodsOfControllersAreDenied(t *testing.T) {
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
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set,
		appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	expectForbidden(t, withoutRBAC(t, "system:serviceaccount:kube-system:replicaset-controller").Create(t.Context(), pod))
}

// TestLabelsAndOwnersOfPodsAreProtected tries to make Pods launcher Pods and vice versa, by every verb and subresource
// that changes Pods.
func TestLabelsAndOwnersOfPodsAreProtected(t *testing.T) {
	installLauncherPolicies(t)
	create := func(change func(*corev1.Pod)) *corev1.Pod {
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
		"label set":                     {none, podLabel("kubevirt.io", "virt-launcher")},
		"label changed to a launcher's": {podLabel("kubevirt.io", "else"), podLabel("kubevirt.io", "virt-launcher")},
		"label removed":                 {launcher, unlabel("kubevirt.io")},
		"label changed":                 {launcher, podLabel("kubevirt.io", "else")},
		"label changed to a hotplug":    {launcher, podLabel("kubevirt.io", "hotplug-disk")},
		"label set to an exporter's":    {none, podLabel("kubevirt.io", "virt-exporter")},
		"exporter's label removed":      {exporter, unlabel("kubevirt.io")},
		"exporter's label changed":      {exporter, podLabel("kubevirt.io", "else")},
		"exporter made a launcher":      {exporter, podLabel("kubevirt.io", "virt-launcher")},
		"migration set":                 {none, podLabel("kubevirt.io/migrationJobUID", "m")},
		"migration changed":             {launcher, podLabel("kubevirt.io/migrationJobUID", "n")},
		"migration removed":             {launcher, unlabel("kubevirt.io/migrationJobUID")},
		"created-by changed":            {launcher, podLabel("kubevirt.io/created-by", "other")},
		"created-by removed":            {launcher, unlabel("kubevirt.io/created-by")},
		"a larger guest":                {launcher, podAnnotation(resize.MemoryAnnotation, "8589934592")},
		"more sockets":                  {launcher, podAnnotation(resize.SocketsAnnotation, "64")},
		"a resized guest":               {resized, podAnnotation(resize.MemoryAnnotation, "8589934592")},
		"no size of the guest":          {resized, func(pod *corev1.Pod) { pod.Annotations = nil }},
		"an attachment for another":     {attachment, podAnnotation(launcherpod.AttachmentUserAnnotation, "other")},
		"an attachment for none":        {attachment, func(pod *corev1.Pod) { pod.Annotations = nil }},
		"controller added":              {none, podOwner(ownedBy("vm", true))},
		"owner becomes controller":      {podOwner(ownedBy("vm", false)), podOwner(ownedBy("vm", true))},
		"controller changed":            {launcher, podOwner(ownedBy("vm2", true))},
		"controller renamed":            {launcher, renameOwner},
		"controller removed":            {launcher, podOwner()},
		"controller becomes owner":      {launcher, podOwner(ownedBy("vm", false))},
	} {
		pod := create(c.had)
		changed := pod.DeepCopy()
		c.change(changed)
		expectForbidden(t, withoutRBAC(t, tenant).Patch(t.Context(), changed.DeepCopy(), client.MergeFrom(pod)))
		expectForbidden(t, withoutRBAC(t, tenant).Update(t.Context(), changed.DeepCopy()))
		for _, sub := range []string{"status", "ephemeralcontainers"} {
			err := withoutRBAC(t, tenant).SubResource(sub).Patch(t.Context(), changed.DeepCopy(), client.MergeFrom(pod))
			if after := livePod(t, pod); err == nil && !sameMarks(after, pod) {
				t.Errorf("%s by pods/%s: it was accepted", what, sub)
			}
		}
		if t.Failed() {
			t.Fatal(what)
		}
		if err := withoutRBAC(t, controllerAccount).Patch(t.Context(), changed.DeepCopy(),
			client.MergeFrom(pod)); err != nil {
			t.Errorf("%s by virt-controller: %v", what, err)
		}
	}
}

func livePod(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	live := &corev1.Pod{}
	if err := cluster.Get(t.Context(), client.ObjectKeyFromObject(pod), live); err != nil {
		t.Fatal(err)
	}
	return live
}

func sameMarks(a, b *corev1.Pod) bool {
	return fmt.Sprint(a.Labels, a.Annotations) == fmt.Sprint(b.Labels, b.Annotations) &&
		fmt.Sprint(metav1.GetControllerOf(a)) == fmt.Sprint(metav1.GetControllerOf(b))
}

// TestMarksOfBindings: the API server copies the labels and annotations of a Binding to its Pod.
func TestMarksOfBindings(t *testing.T) {
	installLauncherPolicies(t)
	for _, marks := range []metav1.ObjectMeta{
		{Labels: map[string]string{"kubevirt.io": "virt-launcher"}},
		{Labels: map[string]string{"kubevirt.io": "virt-exporter"}},
		{Labels: map[string]string{"kubevirt.io/migrationJobUID": "m"}},
		{Labels: map[string]string{"kubevirt.io/created-by": "u"}},
		{Annotations: map[string]string{"kubevirt.io/guest-memory-bytes": "1099511627776"}},
		{Annotations: map[string]string{"kubevirt.io/guest-sockets": "64"}},
		{Annotations: map[string]string{"kubevirt.io/hotplug-vmi-uid": "u"}},
	} {
		pod := somePod(launcher)
		if err := withoutRBAC(t, controllerAccount).Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		binding := &corev1.Binding{ObjectMeta: marks, Target: corev1.ObjectReference{Kind: "Node", Name: "node"}}
		binding.Name, binding.Namespace = pod.Name, namespace
		expectForbidden(t, withoutRBAC(t, tenant).SubResource("binding").Create(t.Context(), pod, binding.DeepCopy()))
		expectForbidden(t, withoutRBAC(t, tenant).Create(t.Context(), binding.DeepCopy()))
		if after := livePod(t, pod); !sameMarks(after, pod) {
			t.Errorf("the Pod has %v and %v", after.Labels, after.Annotations)
		}
		binding.Labels, binding.Annotations = map[string]string{"team": "a"},
			map[string]string{"scheduler.example.com/score": "1"}
		if err := withoutRBAC(t, "system:kube-scheduler").SubResource("binding").Create(t.Context(), pod,
			binding); err != nil {
			t.Error(err)
		}
	}
}

// TestOtherChangesOfLauncherPods: users, backup tools and Kubernetes itself may change launcher Pods otherwise.
func TestOtherChangesOfLauncherPods(t *testing.T) {
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
	change("kubectl annotate", tenant, patch(podAnnotation("backup", "yes")))
	change("kubectl debug", tenant, patch(func(pod *corev1.Pod) {
		pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "debug", Image: "none", ImagePullPolicy: corev1.PullIfNotPresent,
			TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		}}}
	}, "ephemeralcontainers"))
	change("kubectl delete", tenant, func(c client.Client, pod *corev1.Pod) error { return c.Delete(ctx, pod) })
	change("the scheduler", "system:kube-scheduler", func(c client.Client, pod *corev1.Pod) error {
		return c.SubResource("binding").Create(ctx, pod,
			&corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "node"}})
	})
	change("the kubelet", "system:node:node",
		patch(func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodRunning }, "status"))
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
	change("an orphan adopted by its VMI", controllerAccount, adopted)
	change("an orphan adopted by a tenant", controllerAccount, func(_ client.Client, pod *corev1.Pod) error {
		expectForbidden(t, adopted(withoutRBAC(t, tenant), pod))
		return nil
	})
}

// TestNamesInLauncherPolicies checks that the policy contains the names of the constants in the code.
func TestNamesInLauncherPolicies(t *testing.T) {
	policy := readConfig(t, "admission", "launcher-pods.yaml")
	for _, name := range []string{
		v1.AppLabel, launcherpod.AppLabelValue, launcherpod.AttachmentLabelValue, exportv1.App,
		v1.MigrationJobLabel, v1.CreatedByLabel, v1.VirtualMachineInstanceGroupVersionKind.Kind,
		resize.SocketsAnnotation, resize.MemoryAnnotation, launcherpod.AttachmentUserAnnotation,
	} {
		if !strings.Contains(policy, "'"+name+"'") {
			t.Errorf("the policy does not contain %s", name)
		}
	}
}
