// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package admission

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Who acts.
const (
	person     = "alice"
	controller = "system:serviceaccount:kubevirt:kubevirt-controller"
)

// skipped is what the API server names when it left CEL rules out, since the object is wrong anyway.
const skipped = "<nil>"

// warmUp is how long the webhooks may take to answer for the first time.
const warmUp = 30 * time.Second

// testCase is one line of a table.
type testCase struct {
	name string
	// object is created. If change is set, it is created as it is and then updated with the change.
	object client.Object
	change func(client.Object)
	// config is the KubeVirt object's configuration.
	config v1.KubeVirtConfiguration
	// by is who acts: person unless said otherwise.
	by string
	// fields are the fields that a refusal names, all of them; none means that the object is taken.
	fields []string
	// says is a part of the refusal that clients of KubeVirt may match, or of a warning if the object is taken.
	says string
	// differs says why KubeVirt decides otherwise, if it does.
	differs string
}

// decide runs a table.
func decide(t *testing.T, cases []testCase) {
	t.Helper()
	seen := map[string]bool{}
	for i := range cases {
		tc := &cases[i]
		if seen[tc.name] {
			t.Errorf("two cases are called %q", tc.name)
		}
		seen[tc.name] = true
		t.Run(tc.name, func(t *testing.T) {
			totals.cases++
			if tc.differs != "" {
				totals.differing++
			}
			if len(tc.fields) == 0 {
				totals.accepted++
			} else {
				totals.rejected++
			}
			warnings, verdict := try(t, tc)
			if len(tc.fields) == 0 {
				expectTaken(t, tc, verdict, warnings)
			} else {
				expectRefused(t, tc, verdict)
			}
		})
	}
}

// try sends what a case says and returns what came back.
func try(t *testing.T, tc *testCase) (heardOf []string, verdict error) {
	t.Helper()
	kv := &v1.KubeVirt{}
	kv.Spec.Configuration = *tc.config.DeepCopy()
	if err := store.Set(kv); err != nil {
		t.Fatalf("the configuration of the case is wrong: %v", err)
	}
	by := tc.by
	if by == "" {
		by = person
	}
	heard := &warnings{}
	c := clientOf(t, by, heard)
	object := tc.object.DeepCopyObject().(client.Object)
	if tc.change == nil {
		verdict = c.Create(t.Context(), object, client.DryRunAll)
		return heard.texts, verdict
	}
	creator := clientOf(t, controller, &warnings{})
	if err := creator.Create(t.Context(), object); err != nil {
		t.Fatalf("cannot create what is to be changed: %v", err)
	}
	defer remove(t, creator, object)
	tc.change(object)
	verdict = c.Update(t.Context(), object, client.DryRunAll)
	return heard.texts, verdict
}

func remove(t *testing.T, c client.Client, object client.Object) {
	t.Helper()
	ctx := t.Context()
	if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		t.Fatal(err)
	}
	object.SetFinalizers(nil)
	if err := errors.Join(c.Update(ctx, object), client.IgnoreNotFound(c.Delete(ctx, object))); err != nil {
		t.Fatal(err)
	}
	// The mutating webhooks put ours back.
	if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); err == nil {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
		if err := client.IgnoreNotFound(c.Patch(ctx, object, patch)); err != nil {
			t.Fatal(err)
		}
	}
}

func expectTaken(t *testing.T, tc *testCase, err error, warnings []string) {
	t.Helper()
	if err != nil {
		t.Fatalf("refused: %v", err)
	}
	if tc.says != "" && !slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, tc.says) }) {
		t.Errorf("no warning says %q: %q", tc.says, warnings)
	}
}

func expectRefused(t *testing.T, tc *testCase, err error) {
	t.Helper()
	if err == nil {
		t.Fatal("taken")
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code == http.StatusInternalServerError {
		t.Fatalf("no verdict: %v", err)
	}
	var fields []string
	if details := status.Status().Details; details != nil {
		for _, cause := range details.Causes {
			if cause.Field != skipped {
				fields = append(fields, cause.Field)
			}
		}
	}
	slices.Sort(fields)
	want := slices.Sorted(slices.Values(tc.fields))
	if fields = slices.Compact(fields); !slices.Equal(fields, want) {
		t.Errorf("refused for %v, want %v: %v", fields, want, err)
	}
	if tc.says != "" && !strings.Contains(err.Error(), tc.says) {
		t.Errorf("the refusal does not say %q: %v", tc.says, err)
	}
}

// warnings listens to those that come with an answer.
type warnings struct{ texts []string }

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(code int, _, text string) {
	if code == 299 { // RFC 7234: a persistent warning that is none of the others
		w.texts = append(w.texts, text)
	}
}

func clientOf(t *testing.T, user string, heard *warnings) client.Client {
	t.Helper()
	config := rest.CopyConfig(restCfg)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	config.WarningHandler = heard
	c, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper(t)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
