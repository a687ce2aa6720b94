// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package takeover

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// left returns what a version of KubeVirt leaves in a cluster.
func left(t *testing.T, release string) *Cluster {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", release+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{ServerVersion: "v1.37.0", Served: Served, StoredVersions: map[string][]string{},
		Operator: &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "virt-operator"}}}
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		u := unstructured.Unstructured{}
		if err := decoder.Decode(&u); errors.Is(err, io.EOF) {
			return c
		} else if err != nil {
			t.Fatal(err)
		}
		switch u.GetKind() {
		case "KubeVirt":
			c.KubeVirt = convert[v1.KubeVirt](t, &u)
		case "VirtualMachineInstance":
			c.VMIs = append(c.VMIs, *convert[v1.VirtualMachineInstance](t, &u))
		case "VirtualMachineInstanceMigration":
			c.Migrations = append(c.Migrations, *convert[v1.VirtualMachineInstanceMigration](t, &u))
		case "Pod":
			c.Pods = append(c.Pods, *convert[corev1.Pod](t, &u))
		default:
			c.Work = append(c.Work, u)
		}
	}
}

func convert[T any](t *testing.T, u *unstructured.Unstructured) *T {
	t.Helper()
	object := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, object); err != nil {
		t.Fatal(err)
	}
	return object
}

// verdicts returns the verdict of each guest, with its reasons.
func verdicts(p Plan) map[string]string {
	found := map[string]string{}
	for _, g := range p.Guests {
		found[g.Name] = strings.Join(append([]string{string(g.Verdict)}, g.Reasons...), ", ")
	}
	return found
}

func TestPlanForWhatKubeVirtLeaves(t *testing.T) {
	const bound = "its container disk d is mounted by KubeVirt's agent, and not an image volume"
	const plugged = "its hotplugged volume extra is a file system"
	for release, want := range map[string]map[string]string{
		"v1.9.0": {"always": "Adopted", "rerun": "Adopted", "windows": "Adopted", "hotplugged": "StopFirst, " + plugged},
		// Without the feature gate ImageVolume, which was off by default.
		"v1.7.4": {"always": "StopFirst, " + bound, "rerun": "StopFirst, " + bound, "windows": "Adopted",
			"hotplugged": "StopFirst, " + bound + ", " + plugged},
	} {
		p := Make(left(t, release))
		if p.Version != release || len(p.Stops) > 0 {
			t.Errorf("%s: %+v", release, p)
		}
		got := verdicts(p)
		for name, verdict := range want {
			if got[name] != verdict {
				t.Errorf("%s: %s: %s, want %s", release, name, got[name], verdict)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: guests %v", release, got)
		}
	}
}

func TestStops(t *testing.T) {
	work := func(kind string, status map[string]any) unstructured.Unstructured {
		return unstructured.Unstructured{Object: map[string]any{"kind": kind, "metadata": map[string]any{
			"namespace": "demo", "name": "busy"}, "status": status}}
	}
	forged := func(c *Cluster, change func(*corev1.Pod)) {
		pod := c.Pods[0].DeepCopy()
		pod.Name = "forged"
		change(pod)
		c.Pods = append(c.Pods, *pod)
	}
	for name, test := range map[string]struct {
		change func(*Cluster)
		want   string
	}{
		"an older KubeVirt":    {func(c *Cluster) { c.KubeVirt.Status.ObservedKubeVirtVersion = "v1.6.3" }, "only KubeVirt 1.7 to 1.9"},
		"a newer KubeVirt":     {func(c *Cluster) { c.KubeVirt.Status.ObservedKubeVirtVersion = "v1.10.0" }, "only KubeVirt 1.7 to 1.9"},
		"no version":           {func(c *Cluster) { c.KubeVirt.Status.ObservedKubeVirtVersion = "" }, "only KubeVirt 1.7 to 1.9"},
		"one that is repaired": {func(c *Cluster) { c.KubeVirt.Status.Conditions = nil }, "not Available"},
		"one that is deleted": {func(c *Cluster) { c.KubeVirt.DeletionTimestamp = ptr.To(metav1.Now()) },
			"deletes all VirtualMachines"},
		"no operator": {func(c *Cluster) { c.Operator = nil }, "There is none"},
		"the Operator Lifecycle Manager": {func(c *Cluster) { c.Operator.Labels = map[string]string{"olm.owner": "x"} },
			"The Operator Lifecycle Manager owns it"},
		"the HyperConverged operator": {func(c *Cluster) {
			c.Operator.OwnerReferences = []metav1.OwnerReference{{Kind: "ClusterServiceVersion", Name: "hco.v1"}}
		}, "ClusterServiceVersion hco.v1 owns it"},
		"Argo CD": {func(c *Cluster) {
			c.Operator.Annotations = map[string]string{"argocd.argoproj.io/tracking-id": "x"}
		}, "Argo CD owns it"},
		"Flux": {func(c *Cluster) {
			c.Operator.Labels = map[string]string{"kustomize.toolkit.fluxcd.io/name": "x"}
		}, "Flux owns it"},
		"Helm": {func(c *Cluster) {
			c.Operator.Annotations = map[string]string{"meta.helm.sh/release-name": "x"}
		}, "Helm owns it"},
		"OpenShift":      {func(c *Cluster) { c.OpenShift = true }, "SecurityContextConstraints"},
		"old Kubernetes": {func(c *Cluster) { c.ServerVersion = "v1.32.4" }, "no image volumes"},
		"an old export": {func(c *Cluster) {
			c.StoredVersions["virtualmachineexports.export.kubevirt.io"] = []string{"v1alpha1", "v1beta1"}
		}, "has v1alpha1, which Vireo does not serve. Write all its objects in v1"},
		"a migration": {func(c *Cluster) { c.Migrations[0].Status.Phase = v1.MigrationRunning }, `Its phase is "Running"`},
		"a snapshot": {func(c *Cluster) {
			c.Work = append(c.Work, work("VirtualMachineSnapshot", map[string]any{"phase": "InProgress"}))
		}, "VirtualMachineSnapshot demo/busy"},
		"a restore": {func(c *Cluster) { c.Work = append(c.Work, work("VirtualMachineRestore", nil)) }, "VirtualMachineRestore demo/busy"},
		"a clone":   {func(c *Cluster) { c.Work = append(c.Work, work("VirtualMachineClone", nil)) }, "VirtualMachineClone demo/busy"},
		"a backup":  {func(c *Cluster) { c.Work = append(c.Work, work("VirtualMachineBackup", nil)) }, "VirtualMachineBackup demo/busy"},
		"a memory dump": {func(c *Cluster) {
			dump := &v1.VirtualMachineMemoryDumpRequest{Phase: v1.MemoryDumpInProgress}
			c.VMs = []v1.VirtualMachine{{Status: v1.VirtualMachineStatus{MemoryDumpRequest: dump}}}
		}, "being dumped (InProgress)"},
		"a plugged volume": {func(c *Cluster) {
			c.VMs = []v1.VirtualMachine{{Status: v1.VirtualMachineStatus{VolumeRequests: []v1.VirtualMachineVolumeRequest{{}}}}}
		}, "status.volumeRequests"},
		"a guest that starts":            {func(c *Cluster) { c.VMIs[0].Status.Phase = v1.Scheduled }, `It is being started ("Scheduled")`},
		"two launchers":                  {func(c *Cluster) { forged(c, func(*corev1.Pod) {}) }, "2 unfinished launcher Pods belong to it"},
		"a guest that waits for a state": {func(c *Cluster) { c.VMIs[0].Status.Phase = v1.WaitingForSync }, "It is being started"},
		"a guest that stops":             {func(c *Cluster) { c.VMIs[0].DeletionTimestamp = ptr.To(metav1.Now()) }, "It is being stopped"},
		"a Pod of another node":          {func(c *Cluster) { c.Pods[0].Spec.NodeName = "elsewhere" }, `on node "elsewhere", which is not the one`},
		"a Pod that is not active":       {func(c *Cluster) { c.Pods[0].UID = "forged" }, "which is not the one of status.activePods"},
		"HyperConverged": {func(c *Cluster) {
			c.KubeVirt.OwnerReferences = []metav1.OwnerReference{{Kind: "HyperConverged", Name: "hco"}}
		}, "HyperConverged hco owns it"},
		"no launcher": {func(c *Cluster) { c.Pods = nil }, "0 unfinished launcher Pods belong to it"},
	} {
		c := left(t, "v1.9.0")
		test.change(c)
		stops := Make(c).Stops
		if !slices.ContainsFunc(stops, func(f Finding) bool { return strings.Contains(f.Object+": "+f.Message, test.want) }) {
			t.Errorf("%s: %+v lacks %q", name, stops, test.want)
		}
	}
	for name, change := range map[string]func(*corev1.Pod){
		"a finished one": func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded },
		"an orphan":      func(pod *corev1.Pod) { pod.OwnerReferences = nil },
	} {
		c := left(t, "v1.9.0")
		forged(c, change)
		if stops := Make(c).Stops; len(stops) > 0 {
			t.Errorf("%s: %+v", name, stops)
		}
	}
}

func TestVerdicts(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*v1.VirtualMachineInstance, *corev1.Pod)
		want   string
	}{
		"a root launcher": {func(_ *v1.VirtualMachineInstance, pod *corev1.Pod) { pod.Spec.SecurityContext = nil },
			"StopFirst, its launcher runs as root"},
		"a memory dump's claim": {func(vmi *v1.VirtualMachineInstance, _ *corev1.Pod) {
			vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus, v1.VolumeStatus{Name: "dump",
				MemoryDumpVolume: &v1.DomainMemoryDumpInfo{}})
		}, "StopFirst, the claim dump of a memory dump is mounted"},
		"a utility volume": {func(vmi *v1.VirtualMachineInstance, _ *corev1.Pod) {
			vmi.Spec.UtilityVolumes = []v1.UtilityVolume{{Name: "u"}}
		}, "StopFirst, it has utility volumes"},
		"a block device": {func(vmi *v1.VirtualMachineInstance, _ *corev1.Pod) {
			vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus, v1.VolumeStatus{Name: "disk",
				HotplugVolume:             &v1.HotplugVolumeStatus{},
				PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{VolumeMode: ptr.To(corev1.PersistentVolumeBlock)}})
		}, "Adopted"},
		"a kernel of an image": {func(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) {
			vmi.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{Container: &v1.KernelBootContainer{Image: "k"}}}
			vmi.Spec.Volumes, pod.Spec.Volumes = nil, nil
		}, "StopFirst, its kernel is mounted by KubeVirt's agent"},
		"a hook": {func(vmi *v1.VirtualMachineInstance, _ *corev1.Pod) {
			vmi.Annotations = map[string]string{"hooks.kubevirt.io/hookSidecars": "[]"}
		}, "AdoptedOnce, metadata.annotations"},
		"a GPU": {func(vmi *v1.VirtualMachineInstance, _ *corev1.Pod) {
			vmi.Spec.Domain.Devices.GPUs = []v1.GPU{{Name: "gpu", DeviceName: "example.com/gpu"}}
		}, "AdoptedOnce, spec.domain.devices.gpus"},
	} {
		c := left(t, "v1.9.0")
		for i := range c.VMIs {
			if c.VMIs[i].Name != "always" {
				continue
			}
			for j := range c.Pods {
				if strings.HasPrefix(c.Pods[j].Name, "virt-launcher-always-") {
					test.change(&c.VMIs[i], &c.Pods[j])
				}
			}
		}
		if got := verdicts(Make(c))["always"]; !strings.HasPrefix(got, test.want) {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

func TestNotes(t *testing.T) {
	c := left(t, "v1.9.0")
	c.ServerVersion, c.Presets, c.Exports, c.NetworkPolicies = "v1.34.1", 2, 1, []string{"kubevirt/allow"}
	c.KubeVirt.Spec.CustomizeComponents.Patches = []v1.CustomizeComponentsPatch{{}}
	c.KubeVirt.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods = []v1.WorkloadUpdateMethod{v1.WorkloadUpdateMethodEvict}
	var notes []string
	for _, n := range Make(c).Notes {
		notes = append(notes, n.Object+": "+n.Message)
	}
	all := strings.Join(notes, "\n")
	for _, want := range []string{"feature gate ImageVolume", "2 presets", "1 exports", "kubevirt/allow",
		"customizeComponents.patches", "Only Evict"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not among\n%s", want, all)
		}
	}
}

// TestServed compares Served with the CRDs.
func TestServed(t *testing.T) {
	files, err := filepath.Glob("../../../config/crd/bases/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(text, crd); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(crd.Name, "virtualmachineinstancepresets.") {
			continue // Presets are not installed.
		}
		var served []string
		stored := ""
		for _, version := range crd.Spec.Versions {
			served = append(served, version.Name)
			if version.Storage {
				stored = version.Name
			}
		}
		want := Served[crd.Name]
		if len(want) != len(served) || len(want) == 0 || want[len(want)-1] != stored ||
			slices.ContainsFunc(served, func(v string) bool { return !slices.Contains(want, v) }) {
			t.Errorf("%s serves %v and stores %s, want %v", crd.Name, served, stored, want)
		}
	}
}
