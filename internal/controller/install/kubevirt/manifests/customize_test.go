// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

func patches(list ...v1.CustomizeComponentsPatch) func(*Settings) {
	return func(s *Settings) { s.Customize.Patches = list }
}

func TestPatches(t *testing.T) {
	limit := `{"spec":{"template":{"spec":{"containers":[{"name":"virt-api","resources":{"limits":{"cpu":"7"}}}]}}}}`
	for _, c := range []struct {
		name  string
		patch v1.CustomizeComponentsPatch
		// changed are the objects that have the annotation.
		changed []string
	}{
		{"strategic", v1.CustomizeComponentsPatch{ResourceType: "Deployment", ResourceName: "virt-api", Type: v1.StrategicMergePatchType, Patch: limit}, []string{"Deployment virt-api"}},
		{"without case", v1.CustomizeComponentsPatch{ResourceType: "deployment", ResourceName: "Virt-API", Type: v1.StrategicMergePatchType, Patch: limit}, []string{"Deployment virt-api"}},
		{"json", v1.CustomizeComponentsPatch{ResourceType: "DaemonSet", ResourceName: "virt-handler", Type: v1.JSONPatchType,
			Patch: `[{"op":"add","path":"/spec/template/metadata/annotations/a","value":"b"}]`}, []string{"DaemonSet virt-handler"}},
		{"merge", v1.CustomizeComponentsPatch{ResourceType: "Service", ResourceName: "*", Type: v1.MergePatchType,
			Patch: `{"spec":{"sessionAffinity":"ClientIP"}}`}, []string{"Service kubevirt-prometheus-metrics", "Service virt-api"}},
		{"of any kind", v1.CustomizeComponentsPatch{ResourceType: "*", ResourceName: "virt-api", Type: v1.MergePatchType,
			Patch: `{"metadata":{"annotations":{"a":"b"}}}`}, []string{"Deployment virt-api", "Service virt-api"}},
		{"of an APIService", v1.CustomizeComponentsPatch{ResourceType: "APIService", ResourceName: "v1.subresources.kubevirt.io", Type: v1.StrategicMergePatchType,
			Patch: `{"spec":{"versionPriority":20}}`}, []string{"APIService v1.subresources.kubevirt.io"}},
		{"of a kind that cannot be patched", v1.CustomizeComponentsPatch{ResourceType: "PodDisruptionBudget", ResourceName: "*", Type: v1.MergePatchType,
			Patch: `{"spec":{"minAvailable":0}}`}, nil},
		{"of what does not exist", v1.CustomizeComponentsPatch{ResourceType: "Deployment", ResourceName: "virt-operator", Type: v1.MergePatchType, Patch: `{}`}, nil},
		{"that renames", v1.CustomizeComponentsPatch{ResourceType: "Deployment", ResourceName: "virt-api", Type: v1.MergePatchType,
			Patch: `{"metadata":{"name":"other","namespace":"else","labels":{"app.kubernetes.io/managed-by":"me","kubevirt.io":"you"}}}`}, []string{"Deployment virt-api"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var changed []string
			before := map[string]string{}
			for _, o := range render(t, settings(nil)) {
				before[o.GetKind()+" "+o.GetName()] = o.GetAnnotations()[HashAnnotation]
			}
			for _, o := range render(t, settings(patches(c.patch))) {
				key := o.GetKind() + " " + o.GetName()
				if o.GetAnnotations()[CustomizerAnnotation] != "" {
					changed = append(changed, key)
				}
				if (o.GetAnnotations()[HashAnnotation] != before[key]) != slices.Contains(c.changed, key) {
					t.Errorf("the digest of %s does not follow the patch", key)
				}
				if o.GetLabels()[ManagedByLabel] != ManagedBy || o.GetLabels()[v1.AppLabel] != o.GetName() ||
					o.GetKind() != "APIService" && o.GetNamespace() != "kubevirt" {
					t.Errorf("%s: namespace %q, labels %v", key, o.GetNamespace(), o.GetLabels())
				}
			}
			slices.Sort(changed)
			if !slices.Equal(changed, c.changed) {
				t.Errorf("changed are %q, want %q", changed, c.changed)
			}
		})
	}
	api := apiOf(t, settings(
		patches(v1.CustomizeComponentsPatch{ResourceType: "Deployment", ResourceName: "virt-api",
			Type: v1.StrategicMergePatchType, Patch: limit})))
	if c := api.Spec.Template.Spec.Containers; len(c) != 1 || c[0].Image != "a:1" ||
		c[0].Resources.Limits.Cpu().String() != "7" || c[0].Resources.Limits.Memory().IsZero() {
		t.Errorf("a strategic patch replaces more than its fields: %+v", c)
	}
}

func TestAPatchThatFailsIsNamedAndStopsNothingElse(t *testing.T) {
	bad := []v1.CustomizeComponentsPatch{
		{ResourceType: "Deployment", ResourceName: "virt-api", Type: v1.JSONPatchType, Patch: `[{"op":"replace","path":"/spec/nowhere/x","value":1}]`},
		{ResourceType: "DaemonSet", ResourceName: "virt-handler", Type: v1.MergePatchType, Patch: `{"spec":{"template":"x"}}`},
		{ResourceType: "Service", ResourceName: "virt-api", Type: "odd", Patch: `{}`},
	}
	objects, err := Render(settings(patches(bad...)))
	found := PatchErrors(err)
	if len(found) != len(bad) {
		t.Fatalf("%d errors: %v", len(found), err)
	}
	for _, p := range found {
		if want := "spec.customizeComponents.patches[" + string(rune('0'+p.Index)) +
			"]"; !strings.Contains(err.Error(), want) || bad[p.Index].ResourceType != p.Kind {
			t.Errorf("%v does not name the patch", p)
		}
		if slices.ContainsFunc(objects,
			func(o *unstructured.Unstructured) bool { return o.GetKind() == p.Kind && o.GetName() == p.Name }) {
			t.Errorf("%s %s is installed without its patch", p.Kind, p.Name)
		}
	}
	if !slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "ConfigMap" }) {
		t.Error("the certificates are not installed")
	}
}

func TestAPatchedStrategyReplacesTheCanary(t *testing.T) {
	for _, c := range []struct {
		name, patch string
		want        string
	}{
		{"none", `{}`, "5"},
		{"of the strategy", `{"spec":{"updateStrategy":{"rollingUpdate":{"maxUnavailable":"50%"}}}}`, "50%"},
	} {
		for _, o := range render(t,
			settings(patches(v1.CustomizeComponentsPatch{ResourceType: "DaemonSet", ResourceName: "*", Type: v1.MergePatchType,
				Patch: c.patch}))) {
			if o.GetKind() != "DaemonSet" {
				continue
			}
			if err := SetMaxUnavailable(o, 5); err != nil {
				t.Fatal(err)
			}
			ds := &appsv1.DaemonSet{}
			convert(t, o, ds)
			if got := ds.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.String(); got != c.want {
				t.Errorf("%s: %s, want %s", c.name, got, c.want)
			}
		}
	}
}

func TestProductLabels(t *testing.T) {
	labels, errs := ProductLabels(
		&v1.KubeVirtSpec{ProductName: "acme", ProductVersion: "1.2", ProductComponent: "not a label"})
	if len(errs) != 1 || errs[0].Field != "spec.productComponent" || len(labels) != 2 {
		t.Errorf("labels %v, errors %v", labels, errs)
	}
	s := settings(func(s *Settings) { s.Labels = labels })
	for _, set := range []map[string]string{handlerOf(t, s).Labels, handlerOf(t, s).Spec.Template.Labels,
		apiOf(t, s).Spec.Template.Labels} {
		if set[v1.AppPartOfLabel] != "acme" || set[v1.AppVersionLabel] != "1.2" || set[v1.AppComponentLabel] != "kubevirt" ||
			set[ManagedByLabel] != ManagedBy {
			t.Errorf("labels %v", set)
		}
	}
}

func TestPodsAreReplacedOnlyIfTheirTemplateChanges(t *testing.T) {
	type ids struct{ brokers, agents, api string }
	of := func(change func(*Settings)) ids {
		s := settings(change)
		return ids{
			daemonsOf(t, s, BrokerName).Spec.Template.Annotations[IdentifierAnnotation],
			handlerOf(t, s).Spec.Template.Annotations[IdentifierAnnotation],
			apiOf(t, s).Spec.Template.Annotations[IdentifierAnnotation],
		}
	}
	before := of(nil)
	if now := of(func(s *Settings) { s.Config.VirtualMachineInstancesPerNode = 7 }); now.brokers == before.brokers ||
		now.agents != before.agents || now.api != before.api {
		t.Error("a flag of the brokers replaces agents or virt-api, or not the brokers")
	}
	if now := of(func(s *Settings) {
		s.Customize.Flags = &v1.Flags{Handler: map[string]string{"v": "7"}}
	}); now.brokers != before.brokers || now.agents == before.agents || now.api != before.api {
		t.Error("a flag of the agents replaces brokers or virt-api, or not the agents")
	}
	if now := of(func(s *Settings) { s.Nodes = 200 }); now != before {
		t.Error("a number of replicas replaces Pods")
	}
}

func TestPlacementsAreMerged(t *testing.T) {
	term := func(key string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key,
			Operator: corev1.NodeSelectorOpExists}}}
	}
	weighted := []corev1.PreferredSchedulingTerm{{Weight: 1, Preference: term("b")}}
	pod := handlerOf(t, settings(func(s *Settings) {
		s.Workloads = &v1.NodePlacement{
			NodeSelector: map[string]string{"kubernetes.io/os": "plan9", "guests": "yes"},
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{term("a")}},
				PreferredDuringSchedulingIgnoredDuringExecution: weighted,
			}},
		}
	})).Spec.Template.Spec
	if pod.NodeSelector["kubernetes.io/os"] != "linux" || pod.NodeSelector["guests"] != "yes" {
		t.Errorf("node selector %v", pod.NodeSelector)
	}
	to := &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{term("c")}}}}
	merged := mergeAffinity(to, pod.Affinity).NodeAffinity
	if len(merged.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms) != 2 ||
		len(merged.PreferredDuringSchedulingIgnoredDuringExecution) != 1 {
		t.Errorf("%+v", merged)
	}
}

func TestConfigureController(t *testing.T) {
	shipped := func() *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: ControllerName,
			Labels: map[string]string{v1.AppLabel: ControllerName}}}
		d.Spec.Replicas = ptr.To[int32](2)
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: ControllerName, Image: "e.org/v/virt-controller:v1",
			ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"--port", "8443"}}}
		return d
	}
	untouched := shipped()
	if err := ConfigureController(untouched, &v1.KubeVirtSpec{},
		SettingsOf(&v1.KubeVirtSpec{}, clusterconfig.Default())); err != nil {
		t.Fatal(err)
	}
	if c := untouched.Spec.Template.Spec.Containers[0]; c.Image != "e.org/v/virt-controller:v1" ||
		c.ImagePullPolicy != corev1.PullIfNotPresent || *untouched.Spec.Replicas != 2 {
		t.Errorf("a KubeVirt object without settings changes the Deployment: %+v", c)
	}
	spec := &v1.KubeVirtSpec{
		ImageTag: "v2", ImagePullPolicy: corev1.PullAlways, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}},
		ProductName: "acme",
		Infra: &v1.ComponentConfig{Replicas: ptr.To[uint8](3),
			NodePlacement: &v1.NodePlacement{NodeSelector: map[string]string{"infra": "yes"}}},
		CustomizeComponents: v1.CustomizeComponents{Flags: &v1.Flags{Controller: map[string]string{"v": "5"}},
			Patches: []v1.CustomizeComponentsPatch{{
				ResourceType: "Deployment", ResourceName: "virt-controller", Type: v1.MergePatchType, Patch: `{"metadata":{"labels":{"kubevirt.io":"other"}},"spec":{"paused":true}}`,
			}}},
	}
	config, err := clusterconfig.FromKubeVirt(&v1.KubeVirt{Spec: *spec})
	if err != nil {
		t.Fatal(err)
	}
	d := shipped()
	if err := ConfigureController(d, spec, SettingsOf(spec, config)); err != nil {
		t.Fatal(err)
	}
	pod := d.Spec.Template.Spec
	if c := pod.Containers[0]; c.Image != "e.org/v/virt-controller:v2" || c.ImagePullPolicy != corev1.PullAlways ||
		strings.Join(c.Args, " ") != "--port 8443 --v=5" {
		t.Errorf("container %+v", c)
	}
	if *d.Spec.Replicas != 3 || pod.NodeSelector["infra"] != "yes" || pod.ImagePullSecrets[0].Name != "pull" ||
		!d.Spec.Paused ||
		d.Labels[v1.AppPartOfLabel] != "acme" || d.Spec.Template.Labels[v1.AppPartOfLabel] != "acme" ||
		d.Labels[v1.AppLabel] != ControllerName {
		t.Errorf("%+v", d)
	}
}

func TestCrashOf(t *testing.T) {
	waiting := func(reason string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: "c",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "back-off"}}}
	}
	exited := corev1.ContainerStatus{Name: "c", RestartCount: 1,
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error",
			ExitCode: 2}}}
	recovered, backOff := exited, exited
	recovered.Ready = true
	backOff.State = waiting("CrashLoopBackOff").State
	now := time.Unix(1000, 0)
	pending := func(since time.Duration) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				LastTransitionTime: metav1.NewTime(now.Add(-since)), Reason: "Unschedulable", Message: "0/3 nodes are available"}}}
	}
	for _, c := range []struct {
		name   string
		status corev1.PodStatus
		want   string
	}{
		{"new", corev1.PodStatus{Phase: corev1.PodPending}, ""},
		{"starts", corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{waiting("ContainerCreating")}}, ""},
		{"initializes", corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{waiting("PodInitializing")}}, ""},
		{"no image", corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{waiting("ImagePullBackOff")}}, "container c: ImagePullBackOff: back-off"},
		{"no image of the first container", corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{waiting("ErrImagePull")}}, "ErrImagePull"},
		{"crashes", corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{exited}}, `on node "n1": container c: Error: it has exited with code 2`},
		{"waits after a crash", corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{backOff}}, "container c: Error: it has exited with code 2"},
		{"has recovered", corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{recovered}}, ""},
		{"waits for a node", pending(time.Second), ""},
		{"finds no node", pending(time.Minute), "no node accepts it: Unschedulable: 0/3 nodes are available"},
		{"failed", corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "low on memory"}, "Evicted: low on memory"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "virt-handler-x"}, Spec: corev1.PodSpec{NodeName: "n1"},
			Status: c.status}
		if got := CrashOf(pod, now); (got == "") != (c.want == "") || !strings.Contains(got, c.want) || got != "" && !strings.HasPrefix(got, `Pod "virt-handler-x"`) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	// Events are refused with half a character.
	for _, shift := range []string{"", "x"} {
		long := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, Message: shift + strings.Repeat("ä", 9999)}}
		if got := CrashOf(long, now); len(got) > maxReason || !utf8.ValidString(got) {
			t.Errorf("%d bytes: %q", len(got), got)
		}
	}
}

func TestUnreadyOf(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		phase corev1.PodPhase
		ready corev1.ConditionStatus
		since time.Duration
		gone  bool
		want  string
	}{
		"ready":         {corev1.PodRunning, corev1.ConditionTrue, time.Hour, false, ""},
		"starting":      {corev1.PodRunning, corev1.ConditionFalse, 10 * time.Second, false, ""},
		"not running":   {corev1.PodPending, corev1.ConditionFalse, time.Hour, false, ""},
		"being deleted": {corev1.PodRunning, corev1.ConditionFalse, time.Hour, true, ""},
		"silent": {corev1.PodRunning, corev1.ConditionFalse, 2 * time.Minute, false,
			`Pod "virt-handler-x" on node "n": it runs, but has not been ready since 2026-11-22T11:58:00Z: unready: [virt-handler]`},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "virt-handler-x"}, Spec: corev1.PodSpec{NodeName: "n"}}
		if c.gone {
			pod.DeletionTimestamp = &metav1.Time{Time: now}
		}
		pod.Status = corev1.PodStatus{Phase: c.phase, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
			{Type: corev1.PodReady, Status: c.ready, LastTransitionTime: metav1.NewTime(now.Add(-c.since)), Message: "unready: [virt-handler]"},
		}}
		if got := UnreadyOf(pod, now); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
