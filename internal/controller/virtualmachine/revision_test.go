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
)

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
