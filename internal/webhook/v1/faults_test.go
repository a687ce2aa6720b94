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
	"github.com/vireo-project/vireo/internal/faults"
)

// wrong has many faults.
func wrong(spec *v1.VirtualMachineInstanceSpec) {
	spec.Domain.CPU = &v1.CPU{Features: make([]v1.CPUFeature, 20*faults.Most)}
	for i := range spec.Domain.CPU.Features {
		spec.Domain.CPU.Features[i] = v1.CPUFeature{Name: "vmx", Policy: "unknown"}
	}
}

// TestAnswersListSomeFaults: an object has room for so many that the text of all would take a processor for minutes.
func TestAnswersListSomeFaults(t *testing.T) {
	config := fixedConfig{clusterconfig.Default()}
	vm := newVM("vm", wrong)
	set := &v1.VirtualMachineInstanceReplicaSet{Spec: v1.VirtualMachineInstanceReplicaSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
		Template: &v1.VirtualMachineInstanceTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: vm.Spec.Template.Spec},
	}}
	for what, judge := range map[string]func() error{
		"VM": func() error { _, err := (&vmValidator{config: config}).ValidateCreate(t.Context(), vm); return err },
		"VMI": func() error {
			_, err := (&vmiValidator{config: config}).ValidateCreate(t.Context(), newVMI("vmi", wrong))
			return err
		},
		"set": func() error {
			_, err := (&replicaSetValidator{config: config}).ValidateCreate(t.Context(), set)
			return err
		},
	} {
		var answer apierrors.APIStatus
		if err := judge(); !apierrors.IsInvalid(err) || !errors.As(err, &answer) {
			t.Errorf("%s: got %v", what, err)
		} else if n := len(answer.Status().Details.Causes); n != faults.Most {
			t.Errorf("%s: %d faults are listed", what, n)
		}
	}
}

// TestWarningsListSomeFaults is about an instance that will be refused though its VM is not.
func TestWarningsListSomeFaults(t *testing.T) {
	template := &v1.VirtualMachineInstanceTemplateSpec{Spec: *newSpec(wrong)}
	if told := faultsOfTemplate(nil, "ns", "vm", template, clusterconfig.Default()); len(told) != faults.Most {
		t.Errorf("%d warnings", len(told))
	}
}
