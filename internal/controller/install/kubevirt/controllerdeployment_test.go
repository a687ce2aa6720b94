// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"maps"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
)

// shippedController is virt-controller's Deployment as it is installed.
func shippedController() *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
		Name: manifests.ControllerName, Labels: map[string]string{v1.AppLabel: manifests.ControllerName},
		Annotations: map[string]string{"of": "the user"},
	}}
	d.Spec.Replicas = ptr.To[int32](2)
	d.Spec.Template.Spec = corev1.PodSpec{
		NodeSelector: map[string]string{"kubernetes.io/os": "linux"},
		Tolerations:  []corev1.Toleration{{Key: "CriticalAddonsOnly", Operator: corev1.TolerationOpExists}},
		Containers: []corev1.Container{{
			Name: manifests.ControllerName, Image: "e.org/v/virt-controller:v1", Args: []string{"--port", "8443"},
			Env: []corev1.EnvVar{{Name: "VIRT_HANDLER_IMAGE", Value: "e.org/v/virt-handler:v1"}},
		}},
	}
	return d
}

// customized returns what a Deployment becomes under a spec.
func customized(t *testing.T, live *appsv1.Deployment, spec v1.KubeVirtSpec) *appsv1.Deployment {
	t.Helper()
	c := &controllerDeployment{live: live}
	var err error
	if c.installed, err = installedShape(live); err != nil {
		t.Fatal(err)
	}
	if err := c.customize(&spec, manifests.SettingsOf(&spec, clusterconfig.Default())); err != nil {
		t.Fatal(err)
	}
	return c.desired
}

func TestControllerFollowsTheObjectAndCanBeTakenBack(t *testing.T) {
	spec := v1.KubeVirtSpec{ImageTag: "v2",
		Infra: &v1.ComponentConfig{Replicas: ptr.To[uint8](3), NodePlacement: &v1.NodePlacement{
			NodeSelector: map[string]string{"infra": "yes"}, Tolerations: []corev1.Toleration{{Key: "infra"}},
		}}}
	changed := customized(t, shippedController(), spec)
	if changed.Spec.Template.Spec.Containers[0].Image != "e.org/v/virt-controller:v2" || *changed.Spec.Replicas != 3 ||
		changed.Annotations[CustomizedAnnotation] == "" {
		t.Fatalf("%+v", changed)
	}
	same := &controllerDeployment{live: changed, desired: customized(t, changed, spec)}
	if !same.matches() {
		t.Error("a second reconciliation changes it again")
	}
	if same.image() != "e.org/v/virt-controller:v2" || (*controllerDeployment)(nil).image() != "" {
		t.Errorf("image %q", same.image())
	}
	back := &controllerDeployment{live: shippedController(), desired: customized(t, changed, v1.KubeVirtSpec{})}
	if !back.matches() {
		t.Errorf("taken back, it is not what was installed: %+v", back.desired)
	}
	again := customized(t, changed, v1.KubeVirtSpec{ImageTag: "v3"})
	if again.Spec.Template.Spec.Containers[0].Image != "e.org/v/virt-controller:v3" || *again.Spec.Replicas != 2 ||
		len(again.Spec.Template.Spec.Tolerations) != 1 {
		t.Errorf("an earlier change stays: %+v", again.Spec)
	}
}

func TestControllerKeepsWhatUsersChange(t *testing.T) {
	live := customized(t, shippedController(), v1.KubeVirtSpec{ImageTag: "v2"})
	live.Spec.Template.Spec.Containers[0].Env = append(live.Spec.Template.Spec.Containers[0].Env,
		corev1.EnvVar{Name: "MINE", Value: "x"})
	live.Spec.Template.Annotations = map[string]string{"kubectl.kubernetes.io/restartedAt": "now"}
	for _, tag := range []string{"v2", ""} {
		d := customized(t, live, v1.KubeVirtSpec{ImageTag: tag})
		c := d.Spec.Template.Spec.Containers[0]
		if len(c.Env) != 2 || d.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] != "now" {
			t.Errorf("tag %q: %+v, %v", tag, c, d.Spec.Template.Annotations)
		}
		if want := map[string]string{"v2": "v2", "": "v1"}[tag]; c.Image != "e.org/v/virt-controller:"+want {
			t.Errorf("tag %q: image %s", tag, c.Image)
		}
	}
}

func TestANewManifestIsWhatIsInstalled(t *testing.T) {
	live := customized(t, shippedController(), v1.KubeVirtSpec{Infra: &v1.ComponentConfig{Replicas: ptr.To[uint8](3)}})
	// As kubectl apply and Helm do, which keep annotations that they do not know.
	live.Spec = shippedController().Spec
	live.Spec.Template.Spec.Containers[0].Image = "e.org/v/virt-controller:v5"
	d := customized(t, live, v1.KubeVirtSpec{})
	if d.Spec.Template.Spec.Containers[0].Image != "e.org/v/virt-controller:v5" || *d.Spec.Replicas != 2 ||
		d.Annotations[CustomizedAnnotation] != "" {
		t.Errorf("%+v", d.Spec)
	}
}

func TestManifestsOfTheVersionThatTheTagNamesAreWhatIsInstalled(t *testing.T) {
	spec := v1.KubeVirtSpec{ImageTag: "v2"}
	live := customized(t, shippedController(), spec)
	// They contain the image that the tag has already set.
	live.Spec.Template.Spec.Containers[0].Env[0].Value = "e.org/v/virt-handler:v2"
	live = customized(t, live, spec)
	if back := customized(t, live,
		v1.KubeVirtSpec{}); back.Spec.Template.Spec.Containers[0].Image != "e.org/v/virt-controller:v2" {
		t.Errorf("without the tag, an older version is installed: %+v", back.Spec.Template.Spec)
	}
	if live.Annotations[CustomizedAnnotation] != "" {
		t.Error("the Deployment is as it was installed, and is recorded as changed")
	}
}

func TestAnnotationsOfAPatchOfTheControllerCanBeTakenBack(t *testing.T) {
	patched := v1.KubeVirtSpec{CustomizeComponents: v1.CustomizeComponents{Patches: []v1.CustomizeComponentsPatch{{
		ResourceType: "Deployment", ResourceName: "virt-controller", Type: v1.MergePatchType, Patch: `{"metadata":{"annotations":{"a":"b","of":"the patch"}}}`,
	}}}}
	live := customized(t, shippedController(), patched)
	if live.Annotations["a"] != "b" || live.Annotations["of"] != "the patch" ||
		live.Annotations[manifests.CustomizerAnnotation] == "" {
		t.Fatalf("annotations %v", live.Annotations)
	}
	live.Annotations["deployment.kubernetes.io/revision"] = "2"
	if same := (&controllerDeployment{live: live, desired: customized(t, live, patched)}); !same.matches() {
		t.Error("a second reconciliation changes it again")
	}
	back := customized(t, live, v1.KubeVirtSpec{}).Annotations
	if want := map[string]string{"of": "the user", "deployment.kubernetes.io/revision": "2"}; !maps.Equal(back, want) {
		t.Errorf("taken back, the annotations are %v", back)
	}
}

func TestAnotherPatchOfTheControllerReplacesTheFirst(t *testing.T) {
	patched := func(path, value string) v1.KubeVirtSpec {
		return v1.KubeVirtSpec{CustomizeComponents: v1.CustomizeComponents{Patches: []v1.CustomizeComponentsPatch{{
			ResourceType: "Deployment", ResourceName: "virt-controller", Type: v1.JSONPatchType, Patch: `[{"op":"add","path":"` + path + `","value":` + value + `}]`,
		}}}}
	}
	live := customized(t, shippedController(), patched("/spec/template/spec/containers/0/args/-", `"--v=9"`))
	if args := live.Spec.Template.Spec.Containers[0].Args; len(args) != 3 {
		t.Fatalf("arguments %v", args)
	}
	d := customized(t, live, patched("/spec/template/spec/hostNetwork", "true"))
	if !d.Spec.Template.Spec.HostNetwork || len(d.Spec.Template.Spec.Containers[0].Args) != 2 {
		t.Errorf("%+v", d.Spec.Template.Spec)
	}
}
