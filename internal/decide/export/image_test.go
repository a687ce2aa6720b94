// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package export

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/exporter/content"
)

// expectImage expects the condition OCIReady, and the link only if it is True. An empty condition means none.
func expectImage(t *testing.T, step *Step, want string) {
	t.Helper()
	got := ""
	if c := conditions.Find(step.Status.Conditions, exportv1.ConditionOCIReady); c != nil {
		got = strings.TrimSpace(string(c.Status) + " " + c.Reason + " " + c.Message)
	}
	if got != want {
		t.Errorf("OCIReady is %q, not %q", got, want)
	}
	url := ""
	if links := step.Status.Links.Internal; links != nil {
		for _, m := range links.Manifests {
			if m.Type == exportv1.OCI {
				url = m.Url
			}
		}
	}
	expected := ""
	if strings.HasPrefix(want, "True") {
		expected = "https://virt-export-export.default.svc/export.oci.tar"
	}
	if url != expected {
		t.Errorf("the address is %q, not %q", url, expected)
	}
}

func TestImage(t *testing.T) {
	w := vmWorld()
	w.Config.OCI = true
	step := next(t, w)
	expectImage(t, step, "False DigestsPending")
	if served, err := content.Parse([]byte(step.Pod.Annotations[ContentAnnotation])); err != nil || !served.OCI {
		t.Errorf("the Pod serves %+v, %v", served, err)
	}
	w.Export.Status, w.Service = step.Status, serviceOf(w)
	w.Pod = podOf(w, corev1.PodRunning, func(p *corev1.Pod) { p.Status.Conditions = nil })
	step = next(t, w)
	expectImage(t, step, "False DigestsPending")
	if ready := conditions.Find(step.Status.Conditions, exportv1.ConditionReady); !strings.Contains(ready.Message,
		"reads the disks") {
		t.Errorf("it waits for %q", ready.Message)
	}
	w.Pod = podOf(w, corev1.PodRunning)
	w.Export.Status = next(t, w).Status
	expectImage(t, next(t, w), "True DigestsComputed")

	w.Config.External = &External{Host: "export.example"}
	w.Pod = podOf(w, corev1.PodRunning)
	external := next(t, w).Status.Links.External.Manifests
	const want = "https://export.example/api/export.kubevirt.io/v1/namespaces/default/virtualmachineexports/export/export.oci.tar"
	if last := external[len(external)-1]; last.Type != exportv1.OCI || last.Url != want {
		t.Errorf("got %+v", last)
	}

	// Once the gate is off, the exporter does not serve the image any more, and its Pod stays.
	w.Config.OCI = false
	step = next(t, w)
	expectImage(t, step, "")
	if step.Delete || strings.Contains(step.Content, `"oci"`) || step.Content == "" {
		t.Errorf("got %+v", step)
	}
}

func TestExportsWithoutAnImage(t *testing.T) {
	claims := claimWorld(diskContent)
	claims.Config.OCI = true
	claims.Service, claims.Pod = serviceOf(claims), podOf(claims, corev1.PodRunning)
	expectImage(t, next(t, claims), "")

	// Neither can a VM whose manifest is not known, or is too large.
	w := vmWorld()
	w.Config.OCI, w.Problem = true, "The instance type contradicts the VM"
	w.Service, w.Pod = serviceOf(w), podOf(w, corev1.PodRunning)
	expectImage(t, next(t, w), "False DigestsPending There is no manifest of the VM, which an OCI image needs")
	w.Problem = ""
	w.VM.Annotations["long"] = strings.Repeat("x", content.MaxSize)
	w.Pod = podOf(w, corev1.PodRunning)
	expectImage(t, next(t, w), "False DigestsPending There is no manifest of the VM, which an OCI image needs")
}

// An exporter computes digests when it starts, so one that was started without them is replaced.
func TestAnExporterWithoutDigestsIsReplaced(t *testing.T) {
	w := vmWorld()
	w.Service, w.Pod = serviceOf(w), podOf(w, corev1.PodRunning)
	if step := next(t, w); step.Delete {
		t.Fatalf("got %+v", step)
	}
	w.Config.OCI = true
	step := next(t, w)
	if !step.Delete {
		t.Errorf("got %+v", step)
	}
	expectImage(t, step, "False DigestsPending")
}

// A VM whose manifest is not known for a while keeps its exporter, with the downloads and the digests that it has.
func TestAnExporterKeepsItsDigestsWithoutAManifest(t *testing.T) {
	w := vmWorld()
	w.Config.OCI = true
	w.Service, w.Pod = serviceOf(w), podOf(w, corev1.PodRunning)
	plan := func(problem string) *Step {
		t.Helper()
		w.Problem = problem
		step := next(t, w)
		if step.Delete {
			t.Fatalf("with the problem %q, the Pod is deleted", problem)
		}
		w.Export.Status = step.Status
		if step.Content != "" {
			w.Pod.Annotations[ContentAnnotation] = step.Content
		}
		return step
	}
	expectImage(t, plan(""), "True DigestsComputed")
	const problem = "The instance type does not exist"
	step := plan(problem)
	expectImage(t, step, "False DigestsPending There is no manifest of the VM, which an OCI image needs")
	if served, err := content.Parse([]byte(step.Content)); err != nil || served.OCI {
		t.Errorf("the exporter serves %+v, %v", served, err)
	}
	step = plan("")
	expectImage(t, step, "True DigestsComputed")
	if served, err := content.Parse([]byte(step.Content)); err != nil || !served.OCI {
		t.Errorf("the exporter serves %+v, %v", served, err)
	}

	// One that may not have started yet still has to read that it is to compute digests.
	w.Pod = podOf(w, corev1.PodPending)
	if step := plan(problem); step.Content != "" {
		t.Errorf("the exporter starts with %s", step.Content)
	}
	w.Pod.Status = podOf(w, corev1.PodRunning).Status
	if step := plan(problem); step.Content == "" {
		t.Error("the exporter keeps the old content")
	}
}
