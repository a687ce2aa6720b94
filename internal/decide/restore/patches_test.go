// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package restore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
)

func TestParsePatches(t *testing.T) {
	for name, tc := range map[string]struct{ patch, err string }{
		"an address with colons": {patch: `{"op": "replace", "path": "/spec/template/spec/domain/devices/interfaces/0/macAddress", "value": "02:00:00:00:00:02"}`},
		"a path with colons and commas": {
			patch: `{"op": "add", "path": "/spec/template/metadata/annotations/example.com~1a:b,c", "value": "/status/x,y:z"}`,
		},
		"keys in another order":  {patch: `{"value": {"path": "/metadata"}, "path": "/spec/runStrategy", "op": "add"}`},
		"a move within the spec": {patch: `{"op": "move", "from": "/spec/a", "path": "/spec/b"}`},
		"a label":                {patch: `{"op": "add", "path": "/metadata/labels/a", "value": "b"}`},
		"an annotation":          {patch: `{"op": "add", "path": "/metadata/annotations/a", "value": "b"}`},
		"all labels":             {`{"op": "remove", "path": "/metadata/labels"}`, "patching is valid only for elements under /spec/ only: "},
		"the name":               {`{"op": "replace", "path": "/metadata/name", "value": "b"}`, "patching is valid only for elements under /spec/ only: "},
		"the whole spec":         {`{"op": "remove", "path": "/spec"}`, "patching is valid only for elements under /spec/ only: "},
		"another field":          {`{"op": "add", "path": "/specification/x", "value": 1}`, "patching is valid only for elements under /spec/ only: "},
		"a copy from elsewhere":  {`{"op": "copy", "from": "/metadata/uid", "path": "/spec/x"}`, "patching is valid only for elements under /spec/ only: "},
		"a list":                 {patch: ` [{"op": "remove", "path": "/spec/a"}, {"op": "remove", "path": "/spec/b"}]`},
		"the name in a list":     {`[{"op": "replace", "path": "/metadata/name", "value": "b"}]`, "patching is valid only for elements under /spec/ only: "},
		"a list in a list":       {`[[{"op": "remove", "path": "/spec/a"}]]`, "patch is not valid JSON"},
		"lists":                  {`[{"op": "remove", "path": "/spec/a"}], [{"op": "remove", "path": "/spec/b"}]`, "patch is not valid JSON"},
		"an empty list":          {`[]`, "patch is not valid JSON: it is empty"},
		"several operations":     {patch: `{"op": "remove", "path": "/spec/a"}, {"op": "remove", "path": "/spec/b"}`},
		"the name as well": {
			`{"op": "remove", "path": "/spec/a"},{"op": "replace", "path": "/metadata/name", "value": "b"}`, "patching is valid only for elements under /spec/ only: ",
		},
		"two lists":        {`{"op": "remove", "path": "/spec/a"}],[{"op": "remove", "path": "/spec/b"}`, "patch is not valid JSON"},
		"nothing":          {` `, "patch is not valid JSON: it is empty"},
		"no JSON":          {`op: remove`, "patch is not valid JSON"},
		"no path":          {`{"op": "remove"}`, "has no path"},
		"null":             {`null`, "has no path"},
		"a number as path": {`{"op": "remove", "path": 1}`, "has no path"},
		"a number as from": {`{"op": "move", "path": "/spec/x", "from": 1}`, "has no valid from"},
	} {
		t.Run(name, func(t *testing.T) {
			err := CheckPatch(tc.patch)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("got %v, want %q", err, tc.err)
			}
		})
	}
}

func TestPatchesOfANewTarget(t *testing.T) {
	c := newCluster()
	toNew(c)
	c.Restore.Spec.Patches = []string{
		`{"op": "replace", "path": "/spec/template/spec/domain/devices/interfaces/0/macAddress", "value": "02:00:00:00:00:02"}`,
		`{"op": "add", "path": "/spec/template/metadata", "value": {"annotations": {}}},
		 {"op": "add", "path": "/spec/template/metadata/annotations/example.com~1a:b,c", "value": "x:y,z"}`,
		// KubeVirt copies this annotation, and clones with filters remove it.
		`[{"op": "remove", "path": "/metadata/annotations/kubectl.kubernetes.io~1last-applied-configuration"}]`,
	}
	c.run(t, all)
	template := c.Target.Spec.Template
	if got := template.Spec.Domain.Devices.Interfaces[0].MacAddress; got != "02:00:00:00:00:02" {
		t.Errorf("the address is %s", got)
	}
	if got := template.ObjectMeta.Annotations["example.com/a:b,c"]; got != "x:y,z" {
		t.Errorf("the annotation is %q", got)
	}
	existing := newCluster()
	existing.Restore.Spec.Patches = c.Restore.Spec.Patches
	existing.run(t, all)
	if got := existing.Target.Spec.Template.Spec.Domain.Devices.Interfaces[0].MacAddress; got != mac {
		t.Errorf("an existing target was patched: %s", got)
	}
}

// TestImpossiblePatchesFail has patches that cannot be applied, however often that is tried.
func TestImpossiblePatchesFail(t *testing.T) {
	for name, tc := range map[string]struct{ patch, want string }{
		"the UUID, which only VMIs have": {`{"op":"replace","path":"/spec/template/spec/domain/firmware/uuid","value":"x"}`, "/spec/template/spec/domain/firmware/uuid"},
		"a field that is not there":      {`{"op":"remove","path":"/spec/template/spec/x"}`, "/spec/template/spec/x"},
		"not a VM":                       {`{"op":"replace","path":"/spec/template","value":1}`, "cannot unmarshal number"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			toNew(c)
			c.Restore.Spec.Patches = []string{tc.patch}
			claims := len(c.Claims)
			var last Step
			for i := 0; !Finished(c.Restore.Status); i++ {
				if i == 10 {
					t.Fatalf("the restore does not end: %+v", c.Restore.Status)
				}
				last = Next(c.Observed)
				c.apply(last, all)
			}
			failure := conditions.Find(c.Restore.Status.Conditions, v1beta1.ConditionFailure)
			if !strings.HasPrefix(failure.Reason, "error patching VM copy: ") || !strings.Contains(failure.Reason, tc.want) ||
				!strings.HasSuffix(failure.Reason, "Try again with other patches") {
				t.Errorf("it failed because of %q", failure.Reason)
			}
			if last.Event == nil || last.Event.Reason != snapshot.RestoreFailedEvent || last.RequeueAfter != 0 ||
				c.Target != nil || len(c.Claims) != claims {
				t.Errorf("step %+v, event %+v, target %v, %d claims", last, last.Event, c.Target, len(c.Claims))
			}
		})
	}
}

// TestPatchesAreBounded has texts that the schema of a restore admits and that would exhaust virt-controller.
func TestPatchesAreBounded(t *testing.T) {
	// Each copy doubles it.
	doubling := []string{`{"op": "add", "path": "/metadata/annotations/x", "value": {"0": "` + strings.Repeat("x", 1024) + `"}}`}
	copying := `{"op": "copy", "from": "/metadata/annotations/x", "path": "/metadata/annotations/x/%d"}`
	for i := range maxCopies {
		doubling = append(doubling, fmt.Sprintf(copying, i+1))
	}
	const tooMany = "at most 1024 patch operations are possible, and 16 copies among them"
	for name, tc := range map[string]struct {
		patches []string
		want    string
	}{
		"copies of copies": {doubling, "the patched object has more than 1572864 bytes"},
		"many copies":      {append(slices.Clone(doubling), fmt.Sprintf(copying, 0)), tooMany},
		"many operations":  {[]string{strings.Repeat(`{"op": "test", "path": "/spec/x", "value": 1},`, maxOperations) + doubling[0]}, tooMany},
		"a huge exponent in a field with another letter case": {
			[]string{`{"op": "add", "path": "/spec/template/spec/domain/memory", "value": {"Guest": "1e999999999"}}`}, "memory.Guest",
		},
		"a field with another letter case": {
			[]string{`{"op": "add", "path": "/spec/template/spec/domain/memory", "value": {"Guest": "1Gi"}}`}, "",
		},
		"a huge exponent": {
			[]string{`{"op": "add", "path": "/spec/template/spec/domain/memory", "value": {"guest": "1e999999999"}}`}, "guest",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			toNew(c)
			c.Restore.Spec.Patches = tc.patches
			for range 5 {
				c.apply(Next(c.Observed), all)
			}
			if tc.want == "" {
				c.run(t, all)
				if guest := c.Target.Spec.Template.Spec.Domain.Memory.Guest; guest != nil {
					t.Errorf("the unknown field was read as %s", guest)
				}
				return
			}
			reason := conditions.Find(c.Restore.Status.Conditions, v1beta1.ConditionReady).Reason
			if !strings.Contains(reason, tc.want) {
				t.Errorf("got %q, want %q", reason, tc.want)
			}
		})
	}
}

// TestAPatchedVMIsRecognized has a patch that removes the mark of the restore.
func TestAPatchedVMIsRecognized(t *testing.T) {
	c := newCluster()
	toNew(c)
	c.Restore.Spec.Patches = []string{`{"op": "remove", "path": "/metadata/annotations/restore.kubevirt.io~1lastRestoreUID"}`}
	c.run(t, all)
}

// TestWorkOfPatchesIsBounded has a VM that is as large as a content may be, and patches that the schemas admit, each of
// which copies a long list.
func TestWorkOfPatchesIsBounded(t *testing.T) {
	const list = "/spec/template/spec/dnsConfig/searches/"
	for name, operation := range map[string]string{
		"remove": `{"op": "remove", "path": "` + list + `0"}`,
		"add":    `{"op": "add", "path": "` + list + `0", "value": ""}`,
		"move":   `{"op": "move", "from": "` + list + `0", "path": "` + list + `1"}`,
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(func(vm *v1.VirtualMachine) {
				vm.Spec.Template.Spec.DNSConfig = &corev1.PodDNSConfig{Searches: make([]string, 330_000)}
			})
			toNew(c)
			c.Patches = &Patches{}
			c.Restore.Spec.Patches = []string{"[" + strings.Repeat(operation+",", maxOperations-1) + operation + "]"}
			for range 10 {
				c.apply(Next(c.Observed), all)
			}
			failure := conditions.Find(c.Restore.Status.Conditions, v1beta1.ConditionFailure)
			if failure == nil || !strings.Contains(failure.Reason, "too many patch operations for an object of ") {
				t.Errorf("the restore goes on: %+v", c.Restore.Status)
			}
			if c.Patches.applied != 1 || c.Target != nil {
				t.Errorf("patches were applied %d times, the target is %v", c.Patches.applied, c.Target)
			}
		})
	}
}

// TestPatchesAreAppliedOnce has a restore that is reconciled again and again while it waits.
func TestPatchesAreAppliedOnce(t *testing.T) {
	c := newCluster()
	toNew(c)
	c.Patches = &Patches{}
	c.Restore.Spec.Patches = []string{`{"op": "add", "path": "/metadata/annotations/a", "value": "b"}`}
	modes := c.BindingModes
	c.BindingModes = nil
	var last Step
	for range 10 {
		last = Next(c.Observed)
		c.apply(last, all)
	}
	if reason := conditions.Find(c.Restore.Status.Conditions,
		v1beta1.ConditionProgressing).Reason; c.Patches.applied != 1 || !strings.Contains(reason, "StorageClass") {
		t.Errorf("patches were applied %d times while the restore waits: %s", c.Patches.applied, reason)
	}
	c.BindingModes = modes
	for range 3 {
		Next(c.Observed)
	}
	c.run(t, all)
	if c.Patches.applied != 1 || c.Target.Annotations["a"] != "b" {
		t.Errorf("patches were applied %d times, the annotations are %v", c.Patches.applied, c.Target.Annotations)
	}
	other := c.Restore.DeepCopy()
	other.UID = "another"
	if _, err := c.Patches.apply(other.UID, []byte(`{"metadata":{"annotations":{}}}`), other.Spec.Patches); err != nil || c.Patches.applied != 2 {
		t.Errorf("another restore: %v, applied %d times", err, c.Patches.applied)
	}
}

// TestErrorsAreRetriedLessAndLessOften has a restore that reports an error for a long time.
func TestErrorsAreRetriedLessAndLessOften(t *testing.T) {
	c := newCluster()
	c.BindingModes = nil
	var delays []time.Duration
	for range 30 {
		step := Next(c.Observed)
		c.apply(step, all)
		if step.RequeueAfter > 0 {
			delays = append(delays, step.RequeueAfter)
			c.Now = c.Now.Add(step.RequeueAfter)
		}
	}
	want := []time.Duration{retry, retry, 2 * retry, 4 * retry, 8 * retry, 16 * retry, maxRetry, maxRetry}
	if len(delays) < len(want) || !slices.Equal(delays[:len(want)], want) {
		t.Errorf("got %v, want %v", delays, want)
	}
}

// A million texts fit into a request. The errors of all took seconds and hundreds of MiB.
func TestTooManyTextsAreOneError(t *testing.T) {
	for _, text := range []string{"", "1", `{"op":"remove","path":"/spec/template"}`} {
		if errs := CheckPatches(slices.Repeat([]string{text}, maxOperations+1)); len(errs) != 1 ||
			!strings.Contains(errs[0].Error(), "at most 1024") {
			t.Errorf("%q: %d errors", text, len(errs))
		}
	}
}
