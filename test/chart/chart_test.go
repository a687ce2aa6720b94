// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package chart tests the Helm chart with Helm's own packages.
package chart

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const (
	root = "../.."
	// namespace is the install namespace of config/.
	namespace = "kubevirt"
)

var directory = filepath.Join(root, "charts", "vireo")

// object is a decoded manifest.
type object = map[string]any

// asConfig are the values with which the chart installs what config/ does.
func asConfig() map[string]any {
	return map[string]any{
		"image":           map[string]any{"registry": "localhost/vireo", "tag": "dev"},
		"namespace":       map[string]any{"create": true},
		"networkPolicies": map[string]any{"enabled": true},
	}
}

// render returns the manifests of the chart by kind, namespace and name.
func render(t *testing.T, values map[string]any, in string) (map[string]object, error) {
	t.Helper()
	chart, err := loader.Load(directory)
	if err != nil {
		t.Fatal(err)
	}
	all, err := util.ToRenderValues(chart, values, common.ReleaseOptions{Name: "vireo", Namespace: in, IsInstall: true},
		common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, err
	}
	objects := map[string]object{}
	for name, content := range files {
		if filepath.Ext(name) == ".yaml" {
			add(t, objects, content)
		}
	}
	return objects, nil
}

func add(t *testing.T, objects map[string]object, content string) {
	t.Helper()
	for document := range strings.SplitSeq("\n"+content, "\n---") {
		var o object
		if err := yaml.UnmarshalStrict([]byte(document), &o); err != nil {
			t.Fatalf("%v in\n%.2000s", err, document)
		}
		if len(o) > 0 {
			objects[key(o)] = o
		}
	}
}

func key(o object) string {
	metadata, _ := o["metadata"].(object)
	part := func(value any) string {
		text, _ := value.(string)
		return text
	}
	return part(o["kind"]) + " " + part(metadata["namespace"]) + "/" + part(metadata["name"])
}

func mustRender(t *testing.T, values map[string]any, in string) map[string]object {
	t.Helper()
	objects, err := render(t, values, in)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// kustomize returns what config/ installs.
func kustomize(t *testing.T) map[string]object {
	t.Helper()
	objects := map[string]object{}
	for _, dir := range []string{"default", "network-policy"} {
		result, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(),
			filepath.Join(root, "config", dir))
		if err != nil {
			t.Fatal(err)
		}
		content, err := result.AsYaml()
		if err != nil {
			t.Fatal(err)
		}
		add(t, objects, string(content))
	}
	return objects
}

// own are the objects that only the chart has.
var own = []string{
	"ConfigMap kubevirt/vireo-kubevirt", "Job kubevirt/vireo-apply-kubevirt", "Job kubevirt/vireo-delete-kubevirt",
	"ServiceAccount kubevirt/vireo-installation", "Role kubevirt/vireo-installation",
	"RoleBinding kubevirt/vireo-installation",
}

func TestChartInstallsWhatConfigDoes(t *testing.T) {
	got, want := mustRender(t, asConfig(), namespace), kustomize(t)
	for _, name := range own {
		if got[name] == nil {
			t.Errorf("the chart has no %s", name)
		}
		delete(got, name)
	}
	const policy = "helm.sh/resource-policy"
	for name, o := range got {
		metadata, _ := o["metadata"].(object)
		annotations, _ := metadata["annotations"].(object)
		if kept := annotations[policy] == "keep"; kept != (strings.HasPrefix(name, "CustomResourceDefinition ") ||
			strings.HasPrefix(name, "Namespace ")) {
			t.Errorf("%s is kept when the release is removed: %t", name, kept)
		}
		delete(annotations, policy)
		if len(annotations) == 0 {
			delete(metadata, "annotations")
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("config/ and the chart differ (-config +chart):\n%.5000s", diff)
	}
}

// Nothing of another release namespace refers to that of config/.
func TestAnotherNamespace(t *testing.T) {
	for name, o := range mustRender(t, asConfig(), "elsewhere") {
		content, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		for _, wrong := range []string{"namespace: kubevirt\n", "serviceaccount:kubevirt:"} {
			if strings.Contains(string(content), wrong) {
				t.Errorf("%s has %q", name, wrong)
			}
		}
	}
}

func TestValuesHaveEffects(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0123", 16)
	objects := mustRender(t, map[string]any{
		"image": map[string]any{
			"registry": "example.com:5000/v", "digests": map[string]any{"virt-api": digest}, "pullPolicy": "Always",
			"pullSecrets": []any{map[string]any{"name": "registry"}},
		},
		"controller": map[string]any{
			"replicas": 3, "nodeSelector": map[string]any{"a": "b"}, "tolerations": []any{map[string]any{"operator": "Exists"}},
			"affinity": map[string]any{"nodeAffinity": map[string]any{}}, "resources": map[string]any{"limits": map[string]any{"memory": "3Gi"}},
		},
		"emulation": true,
		"kubevirt": map[string]any{"name": "mine", "spec": map[string]any{
			"imageTag": "v9", "configuration": map[string]any{"developerConfiguration": map[string]any{"cpuAllocationRatio": 5}},
		}},
		"crds": map[string]any{"keep": false},
	}, namespace)
	deployment, err := yaml.Marshal(objects["Deployment kubevirt/virt-controller"])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"replicas: 3\n", "nodeSelector:\n        a: b\n", "- operator: Exists\n", "nodeAffinity: {}\n", "memory: 3Gi\n",
		"imagePullPolicy: Always\n",
		"imagePullSecrets:\n      - name: registry\n", "image: example.com:5000/v/virt-controller:v0.1.0\n",
		"value: example.com:5000/v/virt-api@" + digest + "\n",
	} {
		if !strings.Contains(string(deployment), want) {
			t.Errorf("the Deployment has no %q:\n%s", want, deployment)
		}
	}
	for _, wrong := range []string{"control-plane", "memory: 2Gi"} {
		if strings.Contains(string(deployment), wrong) {
			t.Errorf("the Deployment has %q:\n%s", wrong, deployment)
		}
	}
	data, _ := objects["ConfigMap kubevirt/vireo-kubevirt"]["data"].(object)
	text, _ := data["kubevirt.yaml"].(string)
	var kubevirt object
	if err := yaml.UnmarshalStrict([]byte(text), &kubevirt); err != nil {
		t.Fatal(err)
	}
	want := object{
		"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": object{"name": "mine", "namespace": namespace},
		"spec": object{
			"imageTag": "v9", "imagePullPolicy": "Always", "imagePullSecrets": []any{object{"name": "registry"}},
			"configuration": object{"developerConfiguration": object{"useEmulation": true, "cpuAllocationRatio": float64(5)}},
		},
	}
	if diff := cmp.Diff(want, kubevirt); diff != "" {
		t.Errorf("KubeVirt (-want +got):\n%s", diff)
	}
	crd, _ := objects["CustomResourceDefinition /virtualmachines.kubevirt.io"]["metadata"].(object)
	if annotations, _ := crd["annotations"].(object); annotations["helm.sh/resource-policy"] != nil {
		t.Error("the CRDs are kept")
	}
}

// TestMonitoring checks the values about Prometheus, and that of the roles of users.
func TestMonitoring(t *testing.T) {
	objects := mustRender(t, map[string]any{
		"controller": map[string]any{"env": []any{map[string]any{"name": "OTEL_TRACES_SAMPLER", "value": "always_on"}}},
		"monitoring": map[string]any{
			"namespace": "prometheus", "account": "scraper", "runbookURL": "https://example.com/%s", "authorization": true,
		},
		"roles":    map[string]any{"aggregate": false},
		"kubevirt": map[string]any{"spec": map[string]any{"monitorAccount": "own"}},
	}, namespace)
	deployment, err := yaml.Marshal(objects["Deployment kubevirt/virt-controller"])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"- --port\n        - \"8443\"\n        - --metrics-authorization\n",
		"- name: OTEL_TRACES_SAMPLER\n          value: always_on\n",
		"- name: RUNBOOK_URL_TEMPLATE\n          value: https://example.com/%s\n", "- name: VIRT_BROKER_IMAGE\n",
	} {
		if !strings.Contains(string(deployment), want) {
			t.Errorf("the Deployment has no %q:\n%s", want, deployment)
		}
	}
	data, _ := objects["ConfigMap kubevirt/vireo-kubevirt"]["data"].(object)
	if text, _ := data["kubevirt.yaml"].(string); !strings.Contains(text,
		"spec:\n  monitorAccount: own\n  monitorNamespace: prometheus") {
		t.Errorf("the KubeVirt object is\n%s", text)
	}
	expectAggregation(t, objects, "false")
}

// TestReusedValues checks values that an earlier chart did not have, which --reuse-values does not add.
func TestReusedValues(t *testing.T) {
	objects := mustRender(t, map[string]any{"roles": nil, "monitoring": nil, "controller": map[string]any{"env": nil}},
		namespace)
	if diff := cmp.Diff(mustRender(t, nil, namespace), objects); diff != "" {
		t.Errorf("(-defaults +got):\n%s", diff)
	}
	expectAggregation(t, objects, "true")
}

func expectAggregation(t *testing.T, objects map[string]object, want string) {
	t.Helper()
	for _, role := range []string{"admin", "edit", "view"} {
		metadata, _ := objects["ClusterRole /kubevirt.io:"+role]["metadata"].(object)
		labels, _ := metadata["labels"].(object)
		if got := labels["rbac.authorization.k8s.io/aggregate-to-"+role]; got != want {
			t.Errorf("kubevirt.io:%s is aggregated: %v, want %s", role, got, want)
		}
	}
}

func TestPartsCanBeLeftOut(t *testing.T) {
	for name := range mustRender(t, map[string]any{
		"crds": map[string]any{"enabled": false}, "kubevirt": map[string]any{"create": false},
	}, namespace) {
		for _, kind := range []string{"CustomResourceDefinition", "ConfigMap", "NetworkPolicy", "ServiceMonitor", "Namespace",
			"Job kubevirt/vireo-apply"} {
			if strings.HasPrefix(name, kind) {
				t.Errorf("the chart has %s", name)
			}
		}
	}
}

// TestNotes checks what Helm prints after an installation: it waits for no object that the chart does not create.
func TestNotes(t *testing.T) {
	chart, err := loader.Load(directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		create      bool
		want, wrong string
	}{
		{true, "\n\nWait until it is available:\n\n  kubectl -n vms wait kubevirt/kubevirt --for ", "Create a KubeVirt object"},
		{false, "\n\nCreate a KubeVirt object in this namespace", "kubectl -n vms wait"},
	} {
		values, err := util.ToRenderValues(chart, map[string]any{"kubevirt": map[string]any{"create": tc.create}},
			common.ReleaseOptions{Name: "vireo", Namespace: "vms", IsInstall: true}, common.DefaultCapabilities)
		if err != nil {
			t.Fatal(err)
		}
		files, err := engine.Render(chart, values)
		if err != nil {
			t.Fatal(err)
		}
		notes := files["vireo/templates/NOTES.txt"]
		if !strings.Contains(notes, tc.want) || strings.Contains(notes, tc.wrong) {
			t.Errorf("kubevirt.create=%t:\n%s", tc.create, notes)
		}
	}
}

func TestTheSchemaRejectsMistakes(t *testing.T) {
	for name, values := range map[string]map[string]any{
		"a misspelled value":      {"emulaton": true},
		"a registry with a tag":   {"image": map[string]any{"registry": "example.com/v:v1"}},
		"an incomplete digest":    {"image": map[string]any{"digests": map[string]any{"virt-api": "sha256:00"}}},
		"an unknown component":    {"image": map[string]any{"digests": map[string]any{"virt-apy": "sha256:" + strings.Repeat("0", 64)}}},
		"no replicas":             {"controller": map[string]any{"replicas": 0}},
		"a runbook without name":  {"monitoring": map[string]any{"runbookURL": "https://example.com/"}},
		"a nameless variable":     {"controller": map[string]any{"env": []any{map[string]any{"value": "a"}}}},
		"a text for a condition":  {"crds": map[string]any{"keep": "no"}},
		"an unknown pull policy":  {"image": map[string]any{"pullPolicy": "Sometimes"}},
		"a spec that is a string": {"kubevirt": map[string]any{"spec": "{}"}},
	} {
		if _, err := render(t, values, namespace); err == nil {
			t.Errorf("the chart accepts %s", name)
		}
	}
}

// cluster is one in which the chart finds objects.
type cluster []runtime.Object

// GetClientFor implements engine.ClientProvider.
func (c cluster) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	group, err := schema.ParseGroupVersion(apiVersion)
	resource, _ := meta.UnsafeGuessKindToResource(group.WithKind(kind))
	objects := fake.NewSimpleDynamicClient(runtime.NewScheme(), c...)
	return objects.Resource(resource), kind == "Deployment", err
}

func TestRefusesAClusterOfKubeVirt(t *testing.T) {
	chart, err := loader.Load(directory)
	if err != nil {
		t.Fatal(err)
	}
	operator := func(replicas int64) runtime.Object {
		return &unstructured.Unstructured{Object: object{
			"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"namespace": "vms", "name": "virt-operator"},
			"spec": object{"replicas": replicas},
		}}
	}
	for name, test := range map[string]struct {
		found   cluster
		in      string
		refused bool
	}{
		"nothing":               {nil, "vms", false},
		"an operator that runs": {cluster{operator(2)}, "vms", true},
		"one without replicas":  {cluster{operator(0)}, "vms", false},
		"one elsewhere":         {cluster{operator(2)}, "elsewhere", false},
		"its webhook": {cluster{&unstructured.Unstructured{Object: object{
			"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
			"metadata": object{"name": "virt-operator-validator"},
		}}}, "vms", true},
	} {
		all, err := util.ToRenderValues(chart, nil, common.ReleaseOptions{Name: "vireo", Namespace: test.in, IsInstall: true},
			common.DefaultCapabilities)
		if err != nil {
			t.Fatal(err)
		}
		_, err = engine.RenderWithClientProvider(chart, all, test.found)
		if (err != nil) != test.refused || err != nil && !strings.Contains(err.Error(), "KubeVirt manages this cluster") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLint(t *testing.T) {
	for _, message := range lint.RunAll(directory, asConfig(), namespace).Messages {
		// An icon is for catalogs.
		if message.Severity >= support.WarningSev {
			t.Error(message)
		}
	}
}

// TestTheReleaseFits checks the size of the Secret in which Helm stores a release: its chart, values and manifests, as
// compressed JSON.
func TestTheReleaseFits(t *testing.T) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	for _, o := range mustRender(t, asConfig(), namespace) {
		content, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	err := filepath.WalkDir(directory, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		// Files are base64 in the JSON.
		_, err = w.Write([]byte(base64.StdEncoding.EncodeToString(content)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	// The limit of a Secret's data is 1 MiB; the release is base64 in it.
	const limit = 1 << 20
	if size := base64.StdEncoding.EncodedLen(packed.Len()); size > limit*9/10 {
		t.Errorf("a release has %d bytes, and a Secret %d", size, limit)
	} else {
		t.Logf("a release has %d KiB", size>>10)
	}
}
