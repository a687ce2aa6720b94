// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	backupv1alpha1 "github.com/vireo-project/vireo/api/backup/v1alpha1"
	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	migrationsv1alpha1 "github.com/vireo-project/vireo/api/migrations/v1alpha1"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/test/apiserver"
)

// allHooks returns the webhooks with every kind of Vireo.
func allHooks(t *testing.T) map[string]http.Handler {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, v1.AddToScheme, v1beta1.AddToScheme, poolv1.AddToScheme, snapshotv1beta1.AddToScheme,
		clonev1beta1.AddToScheme, exportv1.AddToScheme, backupv1alpha1.AddToScheme, migrationsv1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return hooks(scheme, Options{Config: clusterconfig.NewStore()})
}

// review returns the response of a webhook.
func review(
	t *testing.T, hook http.Handler, operation admissionv1.Operation, object, old string,
) *admissionv1.AdmissionResponse {
	t.Helper()
	body := fmt.Sprintf(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"1","operation":%q,"object":%s,"oldObject":%s}}`,
		operation, object, old)
	request := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	hook.ServeHTTP(recorder, request)
	answer := &admissionv1.AdmissionReview{}
	if err := json.Unmarshal(recorder.Body.Bytes(), answer); err != nil || answer.Response == nil {
		t.Fatalf("%d %s: %v", recorder.Code, recorder.Body, err)
	}
	return answer.Response
}

// An object whose quantity takes hours to decode is refused, also one of a kind that the webhook does not expect: a
// decoder decodes it before it compares the kind. If it were decoded, this test would not end.
func TestNoWebhookDecodesHugeQuantities(t *testing.T) {
	const none, huge = `null`, `"1e-1000000000"`
	objects := []string{
		`{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","spec":{"domain":{"memory":{"guest":` + huge + `}}}}`,
		`{"apiVersion":"kubevirt.io/v1alpha3","kind":"VirtualMachine","spec":{"template":{"spec":{"domain":{"resources":{"limits":{"cpu":` + huge + `}}}}}}}`,
		`{"apiVersion":"pool.kubevirt.io/v1beta1","kind":"VirtualMachinePool","spec":{"virtualMachineTemplate":{"spec":{"template":{"spec":{"domain":{"memory":{"guest":` + huge + `}}}}}}}}`,
		`{"apiVersion":"instancetype.kubevirt.io/v1beta1","kind":"VirtualMachineInstancetype","spec":{"memory":{"guest":` + huge + `}}}`,
		`{"apiVersion":"migrations.kubevirt.io/v1alpha1","kind":"MigrationPolicy","spec":{"bandwidthPerMigration":` + huge + `}}`,
		`{"apiVersion":"v1","kind":"Pod","spec":{"overhead":{"cpu":` + huge + `}}}`,
		`{"spec":{"domain":{"memory":{"guest":` + huge + `}}}}`,
		`{"kind":"Unknown","spec":{"domain":{"memory":{"guest":` + huge + `}}}}`,
	}
	for name, hook := range allHooks(t) {
		for _, object := range objects {
			for _, response := range []*admissionv1.AdmissionResponse{
				review(t, hook, admissionv1.Create, object, none), review(t, hook, admissionv1.Update, object, object),
				review(t, hook, admissionv1.Delete, none, object),
				review(t, hook, admissionv1.Update, `{"apiVersion":"policy/v1","kind":"Eviction"}`, object),
			} {
				if response.Allowed || response.Result.Code != http.StatusBadRequest {
					t.Errorf("%s: allowed %v, %v", name, response.Allowed, response.Result)
				}
			}
		}
	}
}

// The configurations of config/webhook and the webhooks that are registered are the same.
func TestEveryWebhookIsRegistered(t *testing.T) {
	registered := allHooks(t)
	installed, err := apiserver.Webhooks(filepath.Join("..", "..", "..", "config", "webhook", "manifests.yaml"),
		func(name string) string { return name })
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, w := range installed.MutatingWebhooks[0].Webhooks {
		names = append(names, w.Name)
	}
	for _, w := range installed.ValidatingWebhooks[0].Webhooks {
		names = append(names, w.Name)
	}
	for _, name := range names {
		if registered[name] == nil {
			t.Errorf("webhook %s is not registered", name)
		}
	}
	if len(names) != len(registered) {
		t.Errorf("%d webhooks are registered, %d are installed", len(registered), len(names))
	}
}
