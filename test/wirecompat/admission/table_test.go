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

// Users that send requests.
const (
	person     = "alice"
	controller = "system:serviceaccount:kubevirt:kubevirt-controller"
)

// skipped is the field in the API server's error if it skipped CEL rules because the object is invalid anyway.
const skipped = "<nil>"

// warmUp is how long the webhooks may take to be available.
const warmUp = 30 * time.Second

// testCase is a case of a table.
type testCase struct {
	name string
	// object is created. If change is set, it is created as it is and then updated with the change.
	object client.Object
	change func(client.Object)
	// config is the KubeVirt object's configuration.
	config v1.KubeVirtConfiguration
	// by is the user. Default: person.
	by string
	// fields are all fields in the error; none means that the object is accepted.
	fields []string
	// says is a part of the error that KubeVirt's clients may match, or of a warning if the object is accepted.
	says string
	// differs is why KubeVirt's result is different, if it is.
	differs string
}

// decide runs the cases of a table.
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
			warnings, err := try(t, tc)
			if len(tc.fields) == 0 {
				expectAccepted(t, tc, err, warnings)
			} else {
				expectRejected(t, tc, err)
			}
		})
	}
}

// try sends the request of a case and returns the warnings and the error.
func try(t *testing.T, tc *testCase) (texts []string, result error) {
	t.Helper()
	kv := &v1.KubeVirt{}
	kv.Spec.Configuration = *tc.config.DeepCopy()
	if err := store.Set(kv); err != nil {
		t.Fatalf("invalid configuration of the case: %v", err)
	}
	by := tc.by
	if by == "" {
		by = person
	}
	received := &warnings{}
	c := clientOf(t, by, received)
	object := tc.object.DeepCopyObject().(client.Object)
	if tc.change == nil {
		result = c.Create(t.Context(), object, client.DryRunAll)
		return received.texts, result
	}
	creator := clientOf(t, controller, &warnings{})
	if err := creator.Create(t.Context(), object); err != nil {
		t.Fatalf("cannot create the object to change: %v", err)
	}
	defer remove(t, creator, object)
	tc.change(object)
	result = c.Update(t.Context(), object, client.DryRunAll)
	return received.texts, result
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
	// Remove the finalizers, which the mutating webhooks add again.
	if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); err == nil {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
		if err := client.IgnoreNotFound(c.Patch(ctx, object, patch)); err != nil {
			t.Fatal(err)
		}
	}
}

func expectAccepted(t *testing.T, tc *testCase, err error, warnings []string) {
	t.Helper()
	if err != nil {
		t.Fatalf("rejected: %v", err)
	}
	if tc.says != "" && !slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, tc.says) }) {
		t.Errorf("no warning contains %q: %q", tc.says, warnings)
	}
}

func expectRejected(t *testing.T, tc *testCase, err error) {
	t.Helper()
	if err == nil {
		t.Fatal("accepted")
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code == http.StatusInternalServerError {
		t.Fatalf("neither accepted nor rejected: %v", err)
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
		t.Errorf("rejected for %v, want %v: %v", fields, want, err)
	}
	if tc.says != "" && !strings.Contains(err.Error(), tc.says) {
		t.Errorf("the error does not contain %q: %v", tc.says, err)
	}
}

// warnings collects the warnings in responses.
type warnings struct{ texts []string }

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(code int, _, text string) {
	if code == 299 { // RFC 7234: miscellaneous persistent warning
		w.texts = append(w.texts, text)
	}
}

func clientOf(t *testing.T, user string, received *warnings) client.Client {
	t.Helper()
	config := rest.CopyConfig(restCfg)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	config.WarningHandler = received
	c, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper(t)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
