// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
)

// withoutGuest removes the memory from a template, so that it is that of the resources.
func withoutGuest(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Memory = nil }

// TestSizeInResources follows a VM whose template gets memory.guest while its guest runs. Until then, the memory is
// that of the resources.
func TestSizeInResources(t *testing.T) {
	base := builder.MakeVM("vm").Template(
		builder.MakeVMI("vm").Request(corev1.ResourceMemory, "1Gi").With(withoutGuest)).Obj().Spec.Template
	vmi := builder.MakeVMI("vm").Guest("1Gi").Request(corev1.ResourceMemory, "1Gi").Phase(v1.Running).Obj()
	vmi.Spec.Architecture = "amd64"
	vmi.Spec.Domain.Memory.MaxGuest = ptr.To(resource.MustParse("4Gi"))
	vmi.Status.Memory = &v1.MemoryStatus{GuestAtBoot: ptr.To(resource.MustParse("1Gi")),
		GuestCurrent: ptr.To(resource.MustParse("1Gi"))}
	s := &Scope{VMI: vmi}
	for _, memory := range []string{"1042Mi", ""} {
		template, want := base.DeepCopy(), "1Gi"
		if memory != "" {
			template.Spec.Domain.Memory, want = &v1.Memory{Guest: ptr.To(resource.MustParse(memory))}, memory
		}
		if got := compare(base, template, vmi, true, podspec.LiveMetadata{}); got.restart != "" {
			t.Errorf("memory %q: %s, %v", memory, got.restart, got.changed)
		}
		if got := s.resizeMemory(vmi, &template.Spec); !got.pending || got.restart != "" || got.failure != nil {
			t.Errorf("memory %q: %+v", memory, got)
		}
		domain := vmi.Spec.Domain
		if domain.Memory.Guest.String() != want || domain.Resources.Requests.Memory().String() != want {
			t.Errorf("memory %q: guest %s, request %s", memory, domain.Memory.Guest, domain.Resources.Requests.Memory())
		}
		if got := compare(base, template, vmi, false, podspec.LiveMetadata{}).restart; (got != "") != (memory != "") {
			t.Errorf("memory %q without live updates: %q", memory, got)
		}
	}
}

// TestGrow checks that requests and limits of a VMI grow together, so that its Pod keeps its QoS class.
func TestGrow(t *testing.T) {
	cpus := func(quantity string) corev1.ResourceList {
		if quantity == "" {
			return nil
		}
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(quantity)}
	}
	for name, tc := range map[string]struct {
		request, limit, templateRequest, templateLimit, wantRequest,
		wantLimit string
	}{
		"none":                        {},
		"request":                     {"1", "", "1", "", "1200m", ""},
		"request and limit":           {"1", "2", "1", "2", "1200m", "2200m"},
		"limit, which is the request": {"2", "2", "", "2", "2200m", "2200m"},
		"not of the template":         {"1", "2", "", "", "1", "2"},
		"no request":                  {"0", "", "0", "", "0", ""},
	} {
		has := v1.ResourceRequirements{Requests: cpus(tc.request), Limits: cpus(tc.limit)}
		template := v1.ResourceRequirements{Requests: cpus(tc.templateRequest), Limits: cpus(tc.templateLimit)}
		grow(&has, &template, corev1.ResourceCPU, resource.MustParse("200m"))
		want := v1.ResourceRequirements{Requests: cpus(tc.wantRequest), Limits: cpus(tc.wantLimit)}
		if !equality.Semantic.DeepEqual(has, want) {
			t.Errorf("%s: got %v, want %v", name, has, want)
		}
	}
}
