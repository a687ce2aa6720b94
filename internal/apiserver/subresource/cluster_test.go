// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/health"
	own "github.com/vireo-project/vireo/internal/component/version"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/test/builder"
)

const root = "/apis/subresources.kubevirt.io/v1/"

func TestVersion(t *testing.T) {
	w := newWorld(t)
	code, text := w.do(http.MethodGet, root+"version", "")
	info := own.Info{}
	if err := json.Unmarshal([]byte(text), &info); code != http.StatusOK || err != nil || info.GitVersion != own.Version ||
		info.GoVersion == "" {
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
	vm := func(name string, change func(*v1.VirtualMachine)) *v1.VirtualMachine {
		return builder.MakeVM(name).Namespace("ns").Label("a", "b").With(func(vm *v1.VirtualMachine) {
			vm.Spec.Template.Spec.Domain.CPU, vm.Spec.Template.Spec.Domain.Memory = nil, nil
			vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "small"}
			vm.Spec.Preference = &v1.PreferenceMatcher{Name: "linux", Kind: "VirtualMachinePreference"}
		}).With(change).Obj()
	}
	nothing := func(*v1.VirtualMachine) {}
	stored := vm("stored", func(vm *v1.VirtualMachine) { vm.UID = "1" })
	revision, err := reference.NewRevision(stored, instancetypeWith("old", 7))
	if err != nil {
		t.Fatal(err)
	}
	stored.Spec.Instancetype.Name = "old"
	stored.Status.InstancetypeRef = &v1.InstancetypeStatusRef{
		Name: "old", Kind: "VirtualMachineClusterInstancetype",
		ControllerRevisionRef: &v1.ControllerRevisionRef{Name: revision.Name},
	}
	w := newWorld(
		t, vm("plain", func(vm *v1.VirtualMachine) { vm.Spec.Instancetype, vm.Spec.Preference = nil, nil }),
		vm("typed", nothing), stored, vm("missing", func(vm *v1.VirtualMachine) { vm.Spec.Instancetype.Name = "none" }),
		vm("conflicting", func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.Domain.CPU = &v1.CPU{Cores: 3} }),
		vm("inferring", func(vm *v1.VirtualMachine) {
			vm.Spec.Instancetype = &v1.InstancetypeMatcher{
				InferFromVolume: "root"}
		}),
		instancetypeWith("small", 2), revision, &v1beta1.VirtualMachinePreference{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "linux"},
			Spec:       v1beta1.VirtualMachinePreferenceSpec{PreferredSubdomain: ptr.To("preferred")},
		},
	)
	w.expect(http.MethodGet, vmPath+"none/expand-spec", "", 404, `virtualmachine.kubevirt.io "none" not found`)
	w.expect(http.MethodGet, vmPath+"missing/expand-spec", "", 500,
		`virtualmachineclusterinstancetypes.instancetype.kubevirt.io "none" not found`)
	w.expect(http.MethodGet, vmPath+"conflicting/expand-spec", "", 500,
		"VM conflicts with instancetype spec in fields: [spec.template.spec.domain.cpu.cores]")
	w.expect(http.MethodGet, vmPath+"inferring/expand-spec", "", 500, "the InstancetypeMatcher has no name")
	for name, cpus := range map[string]uint32{"plain": 0, "typed": 2, "stored": 7} {
		code, text := w.do(http.MethodGet, vmPath+name+"/expand-spec", "")
		got := &v1.VirtualMachine{}
		if err := json.Unmarshal([]byte(text), got); code != http.StatusOK || err != nil || got.Kind != "VirtualMachine" ||
			got.Labels["a"] != "b" {
			t.Fatalf("%s: got %d %s", name, code, text)
		}
		if got.Spec.Instancetype != nil || got.Spec.Preference != nil || got.Status.InstancetypeRef != nil {
			t.Errorf("%s: still refers to an instance type or a preference: %s", name, text)
		}
		spec := &got.Spec.Template.Spec
		if cpus == 0 {
			if spec.Domain.CPU != nil {
				t.Errorf("%s: changed: %s", name, text)
			}
			continue
		}
		if spec.Domain.CPU == nil || spec.Domain.CPU.Sockets != cpus || spec.Domain.Memory == nil ||
			spec.Subdomain != "preferred" {
			t.Errorf("%s: not expanded: %s", name, text)
		}
	}
}

func instancetypeWith(name string, cpus uint32) *v1beta1.VirtualMachineClusterInstancetype {
	return &v1beta1.VirtualMachineClusterInstancetype{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "VirtualMachineClusterInstancetype"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1beta1.VirtualMachineInstancetypeSpec{
			CPU: v1beta1.CPUInstancetype{Guest: cpus}, Memory: v1beta1.MemoryInstancetype{Guest: resource.MustParse("1Gi")},
		},
	}
}

func TestExpandVMSpec(t *testing.T) {
	const path = root + "namespaces/ns/expand-vm-spec"
	const spec = `"spec":{"runStrategy":"Halted","template":{"spec":{"domain":{"devices":{}}}}}`
	w := newWorld(t, instancetypeWith("small", 2))
	for _, tc := range []struct {
		body    string
		code    int
		message string
	}{
		{`{"metadata":{"name":"vm"},` + spec + `}`, 200, ""},
		{`{"metadata":{"name":"vm","namespace":"ns"},` + spec + `}`, 200, ""},
		{`{"metadata":{"namespace":"other"},` + spec + `}`, 400, "VM namespace must be empty or ns"},
		{`{"metadata":{"name":"vm"},"spec":{"instancetype":{"name":"small"},"template":{"spec":{}}}}`, 200, ""},
		{`{"metadata":{"name":"vm"},"spec":{"instancetype":{"name":"none"},"template":{"spec":{}}}}`, 400, `"none" not found`},
		{"", 400, "empty request body"},
		{"{", 400, "Can not unmarshal Request body to struct, error: "},
		// Decoding these would take hours.
		{`{"spec":{"template":{"spec":{"domain":{"memory":{"guest":"1e-1000000000"}}}}}}`, 400, "spec.template.spec.domain.memory.guest: "},
		{`{"spec":{"template":{"spec":{"domain":{"memory":{"guest":"1e-1000000000","guest":"1Gi"}}}}}}`, 400, "spec.template.spec.domain.memory.guest: "},
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
	_, text = w.do(http.MethodPut, path, `{"metadata":{"name":"vm"},"spec":{"instancetype":{"name":"small"},"template":{"spec":{}}}}`)
	expanded := &v1.VirtualMachine{}
	if err := json.Unmarshal([]byte(text), expanded); err != nil || expanded.Spec.Instancetype != nil ||
		expanded.Spec.Template.Spec.Domain.CPU.Sockets != 2 {
		t.Errorf("got %s", text)
	}
	_, text = w.do(http.MethodPut, path, `{"spec":{"template":{"spec":{"domian":{}}}}}`)
	status := metav1.Status{}
	if err := json.Unmarshal([]byte(text), &status); err != nil || !strings.Contains(status.Details.Causes[0].Message, `unknown field "spec.template.spec.domian"`) {
		t.Errorf("got %s", text)
	}
}
