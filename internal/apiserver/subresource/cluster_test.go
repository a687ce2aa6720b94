// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/health"
	own "github.com/vireo-project/vireo/internal/component/version"
	"github.com/vireo-project/vireo/test/builder"
)

const root = "/apis/subresources.kubevirt.io/v1/"

func TestVersion(t *testing.T) {
	w := newWorld(t)
	code, text := w.do(http.MethodGet, root+"version", "")
	info := own.Info{}
	if err := json.Unmarshal([]byte(text), &info); code != http.StatusOK || err != nil || info.GitVersion != own.Version || info.GoVersion == "" {
		t.Errorf("got %d %s", code, text)
	}
}

// unreachableServer is an API server that does not respond.
type unreachableServer struct{}

func (unreachableServer) ServerVersion() (*version.Info, error) { return nil, errors.New("no route") }

func TestHealthz(t *testing.T) {
	w := newWorld(t)
	expect := func(wantCode int, connectivity string) {
		t.Helper()
		var response struct {
			APIServer map[string]any `json:"apiserver"`
			Version   string         `json:"config-resource-version"`
		}
		code, text := w.do(http.MethodGet, root+"healthz", "")
		if err := json.Unmarshal([]byte(text), &response); err != nil || code != wantCode ||
			response.APIServer["connectivity"] != connectivity || response.Version != "17" {
			t.Errorf("got %d %s", code, text)
		}
	}
	expect(http.StatusOK, "ok")
	w.restart(func(a *API) {
		a.Health = &health.Check{APIServer: unreachableServer{}, ConfigVersion: func() string { return "17" }}
	})
	expect(http.StatusInternalServerError, "failed")
}

func TestUnimplementedVerbs(t *testing.T) {
	w := newWorld(t)
	for _, u := range unimplementedVerbs {
		path, name := root+u.name, u.name
		if u.resource != "" {
			path, name = root+"namespaces/ns/"+u.resource+"/vm/"+u.name, u.resource+"/"+u.name
		}
		w.expect(u.method, path, "{}", 501, name+" is not implemented by Vireo yet: ")
	}
}

func TestExpandSpec(t *testing.T) {
	typed := builder.MakeVM("typed").Namespace("ns").With(func(vm *v1.VirtualMachine) {
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "small"}
	}).Obj()
	preferred := builder.MakeVM("preferred").Namespace("ns").With(func(vm *v1.VirtualMachine) {
		vm.Spec.Preference = &v1.PreferenceMatcher{Name: "debian"}
	}).Obj()
	w := newWorld(t, builder.MakeVM("vm").Namespace("ns").Label("a", "b").Obj(), typed, preferred)
	w.expect(http.MethodGet, vmPath+"none/expand-spec", "", 404, `virtualmachine.kubevirt.io "none" not found`)
	w.expect(http.MethodGet, vmPath+"typed/expand-spec", "", 501, "spec.instancetype: expanding instance types is not implemented yet")
	w.expect(http.MethodGet, vmPath+"preferred/expand-spec", "", 501, "spec.preference: expanding preferences is not implemented yet")
	code, text := w.do(http.MethodGet, vmPath+"vm/expand-spec", "")
	vm := &v1.VirtualMachine{}
	if err := json.Unmarshal([]byte(text), vm); code != http.StatusOK || err != nil || vm.Kind != "VirtualMachine" || vm.Labels["a"] != "b" {
		t.Errorf("got %d %s", code, text)
	}
}

func TestExpandVMSpec(t *testing.T) {
	const path = root + "namespaces/ns/expand-vm-spec"
	const spec = `"spec":{"runStrategy":"Halted","template":{"spec":{"domain":{"devices":{}}}}}`
	w := newWorld(t)
	for _, tc := range []struct {
		body    string
		code    int
		message string
	}{
		{`{"metadata":{"name":"vm"},` + spec + `}`, 200, ""},
		{`{"metadata":{"name":"vm","namespace":"ns"},` + spec + `}`, 200, ""},
		{`{"metadata":{"namespace":"other"},` + spec + `}`, 400, "VM namespace must be empty or ns"},
		{`{"metadata":{"name":"vm"},"spec":{"instancetype":{"name":"small"},"template":{"spec":{}}}}`, 501, "spec.instancetype"},
		{"", 400, "empty request body"},
		{"{", 400, "Can not unmarshal Request body to struct, error: "},
		{`{"spec":{}}`, 400, "Object is not a valid VirtualMachine"},
		{`{"spec":{"running":"yes","template":{}}}`, 400, "Object is not a valid VirtualMachine"},
		{`{"spec":{"template":{"spec":{"domian":{}}}}}`, 400, "Object is not a valid VirtualMachine"},
	} {
		w.expect(http.MethodPut, path, tc.body, tc.code, tc.message)
	}
	_, text := w.do(http.MethodPut, path, `{"metadata":{"name":"vm"},`+spec+`}`)
	vm := &v1.VirtualMachine{}
	if err := json.Unmarshal([]byte(text), vm); err != nil || vm.Namespace != "ns" || vm.APIVersion != "kubevirt.io/v1" {
		t.Errorf("got %s", text)
	}
	_, text = w.do(http.MethodPut, path, `{"spec":{"template":{"spec":{"domian":{}}}}}`)
	status := metav1.Status{}
	if err := json.Unmarshal([]byte(text), &status); err != nil || !strings.Contains(status.Details.Causes[0].Message, `unknown field "spec.template.spec.domian"`) {
		t.Errorf("got %s", text)
	}
}
