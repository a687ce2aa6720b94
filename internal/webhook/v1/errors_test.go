// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/specsupport"
)

// withManyErrors sets 20 times as many wrong values as a response lists.
func withManyErrors(spec *v1.VirtualMachineInstanceSpec) {
	spec.Domain.CPU = &v1.CPU{Features: make([]v1.CPUFeature, 20*specsupport.MaxErrors)}
	for i := range spec.Domain.CPU.Features {
		spec.Domain.CPU.Features[i] = v1.CPUFeature{Name: "vmx", Policy: "unknown"}
	}
}

// Joining the texts of all errors that fit into one object takes minutes.
func TestResponsesListALimitedNumberOfErrors(t *testing.T) {
	config := fixedConfig{clusterconfig.Default()}
	vm := newVM("vm", withManyErrors)
	set := &v1.VirtualMachineInstanceReplicaSet{Spec: v1.VirtualMachineInstanceReplicaSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
		Template: &v1.VirtualMachineInstanceTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
			Spec: vm.Spec.Template.Spec},
	}}
	for what, validate := range map[string]func() error{
		"VM": func() error { _, err := (&vmValidator{config: config}).ValidateCreate(t.Context(), vm); return err },
		"VMI": func() error {
			_, err := (&vmiValidator{config: config}).ValidateCreate(t.Context(), newVMI("vmi", withManyErrors))
			return err
		},
		"pool": func() error {
			_, err := (&poolValidator{config: config}).ValidateCreate(t.Context(), newPool("pool", withManyErrors))
			return err
		},
		"set": func() error {
			_, err := (&replicaSetValidator{config: config}).ValidateCreate(t.Context(), set)
			return err
		},
	} {
		var status apierrors.APIStatus
		if err := validate(); !apierrors.IsInvalid(err) || !errors.As(err, &status) {
			t.Errorf("%s: got %v", what, err)
		} else if n := len(status.Status().Details.Causes); n != specsupport.MaxErrors {
			t.Errorf("%s: %d errors are listed", what, n)
		}
	}
}

func TestLimitedNumberOfWarningsAboutATemplate(t *testing.T) {
	template := &v1.VirtualMachineInstanceTemplateSpec{Spec: *newSpec(withManyErrors)}
	if warnings := errorsOfTemplate(nil, "ns", "vm", template,
		clusterconfig.Default()); len(warnings) != specsupport.MaxErrors {
		t.Errorf("%d warnings", len(warnings))
	}
}
