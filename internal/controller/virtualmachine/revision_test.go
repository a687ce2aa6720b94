// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/firmware"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
)

func revision(annotations map[string]string) metav1.PartialObjectMetadata {
	return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}}
}

func TestIdentityOf(t *testing.T) {
	before := revision(nil)
	ofUID := revision(map[string]string{firmware.IdentityAnnotation: "vm-uid"})
	ofName := revision(map[string]string{firmware.IdentityAnnotation: "vm-name"})
	for name, tc := range map[string]struct {
		annotations map[string]string
		revisions   []metav1.PartialObjectMetadata
		want        firmware.Identity
	}{
		"a VM that never started":                           {want: firmware.FromUID},
		"a VM that started before identities were recorded": {revisions: []metav1.PartialObjectMetadata{before}, want: firmware.FromName},
		"the next start of such a VM":                       {revisions: []metav1.PartialObjectMetadata{before, ofName}, want: firmware.FromName},
		"a VM with a recorded identity":                     {revisions: []metav1.PartialObjectMetadata{ofUID}, want: firmware.FromUID},
		"a VM with several revisions":                       {revisions: []metav1.PartialObjectMetadata{ofUID, ofUID}, want: firmware.FromUID},
		"an unknown identity":                               {revisions: []metav1.PartialObjectMetadata{revision(map[string]string{firmware.IdentityAnnotation: "x"})}, want: firmware.FromName},
		"a VM that KubeVirt ran":                            {annotations: map[string]string{v1.ControllerAPIStorageVersionObservedAnnotation: "v1"}, want: firmware.FromName},
		"a VM with KubeVirt's annotation and a recorded identity": {
			annotations: map[string]string{v1.ControllerAPIStorageVersionObservedAnnotation: "v1"},
			revisions:   []metav1.PartialObjectMetadata{ofUID}, want: firmware.FromUID,
		},
	} {
		t.Run(name, func(t *testing.T) {
			vm := builder.MakeVM("vm").Obj()
			vm.Annotations = tc.annotations
			if got := identityOf(vm, tc.revisions); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func render(vm *v1.VirtualMachine, from firmware.Identity) *v1.VirtualMachineInstance {
	return newInstance(vm, vm.Spec.Template, firmware.Derive(vm.Namespace, vm.Name, vm.UID, from), false)
}

func TestSerialNumberInTemplateNeedsNoRestart(t *testing.T) {
	vm := builder.MakeVM("vm").UID("1").Obj()
	vmi := render(vm, firmware.FromUID)
	now := vm.Spec.Template.DeepCopy()
	now.Spec.Domain.Firmware = vmi.Spec.Domain.Firmware.DeepCopy()
	if got := compare(vm.Spec.Template, now, vmi, true, podspec.LiveMetadata{}); got.restart != "" {
		t.Errorf("the guest's identity written into the template requires a restart: %s", got.restart)
	}
	now.Spec.Domain.Firmware.Serial = "another"
	if got := compare(vm.Spec.Template, now, vmi, true, podspec.LiveMetadata{}); got.restart == "" {
		t.Error("another serial number needs a restart")
	}
}

// A user may write the data of a revision. If its quantity were decoded, this test would not end.
func TestAStartRevisionWithAHugeQuantityIsNotDecoded(t *testing.T) {
	revision := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "start"},
		Data:       runtime.RawExtension{Raw: []byte(`{"spec":{"template":{"spec":{"domain":{"memory":{"guest":"1e-1000000000"}}}}}}`)},
	}
	vmi := &v1.VirtualMachineInstance{}
	vmi.Status.VirtualMachineRevisionName = revision.Name
	spec, err := StartedSpec(t.Context(), &Scope{
		APIReader: fake.NewClientBuilder().WithObjects(revision).Build(),
		VM:        &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}, VMI: vmi,
	})
	if err == nil || !strings.Contains(err.Error(),
		"ControllerRevision ns/start: spec.template.spec.domain.memory.guest: ") {
		t.Errorf("got %v, %v", spec, err)
	}
}
