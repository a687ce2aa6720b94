// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"encoding/base64"
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/memorylimit"
)

func apiOf(t *testing.T, s Settings) *appsv1.Deployment {
	t.Helper()
	for _, o := range render(t, s) {
		if o.GetKind() == "Deployment" {
			d := &appsv1.Deployment{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, d); err != nil {
				t.Fatal(err)
			}
			return d
		}
	}
	t.Fatal("no Deployment was rendered")
	return nil
}

// kindsOf returns the kinds of the rendered objects, in order.
func kindsOf(t *testing.T, s Settings) []string {
	t.Helper()
	var kinds []string
	for _, o := range render(t, s) {
		kinds = append(kinds, o.GetKind())
	}
	return kinds
}

func TestConfigMapsPrecedeTheirUsers(t *testing.T) {
	kinds := kindsOf(t, settings(nil))
	for _, mounts := range []string{"DaemonSet", "Deployment"} {
		if slices.Index(kinds, "ConfigMap") > slices.Index(kinds, mounts) {
			t.Errorf("%v: the ConfigMap comes after the %s", kinds, mounts)
		}
	}
}

func TestAPIServicesTrustServingAuthorityOnly(t *testing.T) {
	var names []string
	for _, o := range render(t, settings(nil)) {
		if o.GetKind() != "APIService" {
			continue
		}
		names = append(names, o.GetName())
		ca, _, err := unstructured.NestedString(o.Object, "spec", "caBundle")
		if want := base64.StdEncoding.EncodeToString([]byte("serving")); err != nil || ca != want {
			t.Errorf("%s: caBundle %q, %v", o.GetName(), ca, err)
		}
	}
	if !slices.Equal(names, []string{"v1.subresources.kubevirt.io", "v1alpha3.subresources.kubevirt.io"}) {
		t.Errorf("APIServices %v", names)
	}
}

func TestAPIPassesTheRestrictedLevel(t *testing.T) {
	pod := apiOf(t, settings(nil)).Spec.Template.Spec
	c := pod.Containers[0].SecurityContext
	if !*pod.SecurityContext.RunAsNonRoot ||
		pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
		*c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem ||
		!slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("security contexts %+v, %+v", pod.SecurityContext, c)
	}
	for _, v := range pod.Volumes {
		if v.ConfigMap == nil {
			t.Errorf("volume %s is no ConfigMap: virt-api reads no Secret and nothing of a node", v.Name)
		}
	}
}

func TestAPIFollowsInfra(t *testing.T) {
	d := apiOf(t, settings(func(s *Settings) {
		s.Replicas = ptr.To[uint8](3)
		s.Infra = &v1.NodePlacement{
			NodeSelector: map[string]string{"infra": "yes"},
			Tolerations:  []corev1.Toleration{{Key: "infra", Operator: corev1.TolerationOpExists}},
		}
		s.Customize.Flags = &v1.Flags{API: map[string]string{"V": "4", "Quiet": ""}}
	}))
	pod := d.Spec.Template.Spec
	if pod.Affinity == nil || pod.Affinity.NodeAffinity != nil {
		t.Errorf("a placement does not replace the preference for the control plane: %v", pod.Affinity)
	}
	if *d.Spec.Replicas != 3 || pod.NodeSelector["infra"] != "yes" || pod.NodeSelector["kubernetes.io/os"] != "linux" {
		t.Errorf("%d replicas, node selector %v", *d.Spec.Replicas, pod.NodeSelector)
	}
	for _, key := range []string{"infra", "CriticalAddonsOnly", corev1.TaintNodeUnreachable} {
		if !slices.ContainsFunc(pod.Tolerations, func(t corev1.Toleration) bool { return t.Key == key }) {
			t.Errorf("%s is not tolerated: %v", key, pod.Tolerations)
		}
	}
	if pod.Affinity == nil || pod.Affinity.PodAntiAffinity == nil {
		t.Error("a placement without an affinity removes the manifest's")
	}
	if args := strings.Join(pod.Containers[0].Args, " "); !strings.HasSuffix(args, " --quiet --v=4") &&
		!strings.HasSuffix(args, " --v=4 --quiet") {
		t.Errorf("arguments %s", args)
	}
	one := kindsOf(t, settings(func(s *Settings) { s.Replicas = ptr.To[uint8](1) }))
	if slices.Contains(one, "PodDisruptionBudget") || !slices.Contains(kindsOf(t, settings(nil)), "PodDisruptionBudget") {
		t.Errorf("a budget for a single Pod would block every drain: %v", one)
	}
	if zero := apiOf(t, settings(func(s *Settings) { s.Replicas = ptr.To[uint8](0) })); *zero.Spec.Replicas != 1 {
		t.Errorf("%d replicas", *zero.Spec.Replicas)
	}
}

func TestAPIGrowsWithTheCluster(t *testing.T) {
	for _, c := range []struct {
		nodes    int
		replicas *uint8
		want     int32
		budget   int
	}{{0, nil, 2, 1}, {1, nil, 1, 0}, {2, nil, 2, 1}, {29, nil, 2, 1}, {30, nil, 3, 2}, {200, nil, 20, 19},
		{200, ptr.To[uint8](4), 4, 3}, {1, ptr.To[uint8](2), 2, 1}} {
		s := settings(func(s *Settings) { s.Nodes, s.Replicas = c.nodes, c.replicas })
		if got := *apiOf(t, s).Spec.Replicas; got != c.want {
			t.Errorf("%d nodes, %v: %d replicas, want %d", c.nodes, c.replicas, got, c.want)
		}
		for _, o := range render(t, s) {
			if o.GetKind() != "PodDisruptionBudget" {
				continue
			}
			if least, _, _ := unstructured.NestedInt64(o.Object, "spec", "minAvailable"); int(least) != c.budget ||
				o.GetName() != "virt-api-pdb" {
				t.Errorf("%d nodes: %s keeps %d Pods, want %d", c.nodes, o.GetName(), least, c.budget)
			}
		}
	}
}

func TestRolloutOfDeployment(t *testing.T) {
	status := func(replicas, updated, ready int32) appsv1.DeploymentStatus {
		return appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: replicas, UpdatedReplicas: updated,
			ReadyReplicas: ready}
	}
	for _, c := range []struct {
		name    string
		status  appsv1.DeploymentStatus
		done    bool
		message string
	}{
		{"not observed", appsv1.DeploymentStatus{ObservedGeneration: 1}, false, "not yet observed"},
		{"not updated", status(2, 1, 2), false, "1 of 2 Pods of virt-api are updated"},
		{"not ready", status(2, 2, 1), false, "1 of 2 Pods of virt-api are ready"},
		{"old ones left", status(3, 2, 2), false, "1 old Pods"},
		{"done", status(2, 2, 2), true, "all 2"},
	} {
		got := RolloutOfDeployment(&appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: APIName, Generation: 2},
			Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)}, Status: c.status,
		})
		if got.Done != c.done || !strings.Contains(got.Message, c.message) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

func TestFailureOfDeployment(t *testing.T) {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: APIName}}
	condition := func(status corev1.ConditionStatus) []appsv1.DeploymentCondition {
		return []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: status, Reason: "FailedCreate",
			Message: "exceeded quota"}}
	}
	for _, c := range []struct {
		conditions []appsv1.DeploymentCondition
		want       string
	}{
		{nil, ""}, {condition(corev1.ConditionFalse), ""},
		{condition(corev1.ConditionTrue), "Deployment virt-api: no Pod can be created: FailedCreate: exceeded quota"},
	} {
		d.Status.Conditions = c.conditions
		if got := FailureOfDeployment(d); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestComponentsHaveLimits(t *testing.T) {
	api, err := decode[appsv1.Deployment]("virt-api.yaml")
	if err != nil {
		t.Fatal(err)
	}
	agent, err := decode[appsv1.DaemonSet]("virt-handler.yaml")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile("../../../../../config/manager/virt-controller.yaml")
	if err != nil {
		t.Fatal(err)
	}
	controller := &appsv1.Deployment{}
	if err := yaml.UnmarshalStrict(raw, controller); err != nil {
		t.Fatal(err)
	}
	for name, pod := range map[string]*corev1.PodSpec{
		"virt-api": &api.Spec.Template.Spec, "virt-handler": &agent.Spec.Template.Spec, "virt-controller": &controller.Spec.Template.Spec,
	} {
		c := pod.Containers[0]
		for _, kind := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			request, limit := c.Resources.Requests[kind], c.Resources.Limits[kind]
			if request.IsZero() || limit.Cmp(request) <= 0 {
				t.Errorf("%s: %s: request %s, limit %s", name, kind, request.String(), limit.String())
			}
		}
		at := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == memorylimit.Env })
		if at < 0 || c.Env[at].ValueFrom.ResourceFieldRef.Resource != "limits.memory" {
			t.Errorf("%s has no variable with its memory limit", name)
		}
	}
}

func TestAPIPrefersControlPlaneNodes(t *testing.T) {
	const key = "node-role.kubernetes.io/control-plane"
	pod := apiOf(t, settings(nil)).Spec.Template.Spec
	preferred := pod.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	if len(preferred) == 0 || preferred[0].Preference.MatchExpressions[0].Key != key ||
		pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		t.Errorf("affinity %v", pod.Affinity.NodeAffinity)
	}
	if !slices.ContainsFunc(pod.Tolerations, func(t corev1.Toleration) bool { return t.Key == key }) {
		t.Errorf("%s is not tolerated: %v", key, pod.Tolerations)
	}
	own := settings(func(s *Settings) { s.Infra = &v1.NodePlacement{Affinity: &corev1.Affinity{}} })
	if pod := apiOf(t, own).Spec.Template.Spec; pod.Affinity.NodeAffinity != nil {
		t.Errorf("infra.nodePlacement does not take precedence: %v", pod.Affinity)
	}
}

func TestExportProxyIsInstalledIfItHasAnImage(t *testing.T) {
	for image, want := range map[string]int{"": 0, "p:1": 4} {
		s := Settings{Namespace: "kubevirt", Config: clusterconfig.Default(), Nodes: 3}
		s.Config.Images = clusterconfig.Images{Launcher: "l:1", Handler: "h:1", Broker: "b:1", API: "a:1", ExportProxy: image}
		objects, err := Render(s)
		if err != nil {
			t.Fatal(err)
		}
		objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
			return !strings.HasPrefix(o.GetName(), ExportProxyName)
		})
		if len(objects) != want {
			t.Errorf("image %q: got %d objects", image, len(objects))
		}
		for _, o := range objects {
			if o.GetKind() != "Deployment" {
				continue
			}
			containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
			container, _ := containers[0].(map[string]any)
			if replicas, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); replicas != 2 ||
				container["image"] != image {
				t.Errorf("got %d replicas of %v", replicas, container["image"])
			}
		}
	}
}

// With an authorization of metrics, it serves none.
func TestMetricsOfExportProxy(t *testing.T) {
	for authorization, want := range map[bool]int{false: 2, true: 1} {
		s := Settings{Namespace: "kubevirt", Config: clusterconfig.Default(), Nodes: 3, MetricsAuthorization: authorization}
		s.Config.Images = clusterconfig.Images{Launcher: "l:1", Handler: "h:1", Broker: "b:1", API: "a:1", ExportProxy: "p:1"}
		objects, err := Render(s)
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool {
			return o.GetKind() == "Deployment" && o.GetName() == ExportProxyName
		})
		containers, _, _ := unstructured.NestedSlice(objects[at].Object, "spec", "template", "spec", "containers")
		container, _ := containers[0].(map[string]any)
		ports, _ := container["ports"].([]any)
		args, _ := container["args"].([]any)
		// The Service of all components' metrics must not select it: its port would split the Endpoints.
		if _, selected, _ := unstructured.NestedString(objects[at].Object, "spec", "template", "metadata", "labels",
			ScrapeLabel); selected {
			t.Error("the Service of the other components selects the Pods")
		}
		scraped := slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool {
			selector, _, _ := unstructured.NestedStringMap(o.Object, "spec", "selector")
			return o.GetKind() == "Service" && o.GetLabels()[ScrapeLabel] == "true" && selector["kubevirt.io"] == ExportProxyName
		})
		if len(ports) != want || len(args) != 2*want || scraped == authorization {
			t.Errorf("authorization %t: got ports %v, arguments %v, scraped: %t", authorization, ports, args, scraped)
		}
	}
}

// virt-exportproxy is updated after virt-controller and before virt-api.
func TestExportProxyHasItsTurn(t *testing.T) {
	done := Component{Exists: true, Current: true, Rollout: Rollout{Done: true}}
	old := Component{Exists: true, Rollout: Rollout{Done: true}}
	w := Observed{Brokers: Daemons{Component: done}, Agents: Daemons{Component: done}, Controller: done, API: old,
		Proxy: &old, Forward: true}
	if p := Next(w); !p.Proxy || p.API {
		t.Errorf("got %+v", p)
	}
	w.Proxy = &done
	if p := Next(w); p.Proxy || !p.API {
		t.Errorf("got %+v", p)
	}
	w.Controller = old
	w.Proxy = &old
	if p := Next(w); p.Proxy || p.API || !p.Controller {
		t.Errorf("got %+v", p)
	}
	w.Proxy = &Component{}
	if p := Next(w); !p.Proxy {
		t.Errorf("what is missing waits: %+v", p)
	}
}
