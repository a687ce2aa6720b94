// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
)

func TestOwnContainersFitIntoLimitRanges(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		out := corev1.ResourceList{}
		for name, value := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
			if value != "" {
				out[name] = resource.MustParse(value)
			}
		}
		return out
	}
	guaranteed := func() *builder.VMI {
		return makeVMI().Limit(corev1.ResourceCPU, "1").Limit(corev1.ResourceMemory, "1Gi")
	}
	const container, pod = corev1.LimitTypeContainer, corev1.LimitTypePod
	for _, tc := range []struct {
		name string
		vmi  *builder.VMI
		item corev1.LimitRangeItem
		want string
	}{
		{"none", makeVMI(), corev1.LimitRangeItem{}, "5m 3Mi to 0 20Mi"},
		{"least", makeVMI(), corev1.LimitRangeItem{Type: container, Min: list("10m", "16Mi")}, "10m 16Mi to 0 20Mi"},
		{"much", makeVMI(), corev1.LimitRangeItem{Type: container, Min: list("", "64Mi")}, "5m 64Mi to 0 64Mi"},
		{"a ratio of memory", makeVMI(), corev1.LimitRangeItem{Type: container, MaxLimitRequestRatio: list("", "2")}, "5m 10Mi to 0 20Mi"},
		{"a ratio of CPUs", makeVMI(), corev1.LimitRangeItem{Type: container, MaxLimitRequestRatio: list("2", "")}, "5m 3Mi to 5m 20Mi"},
		{"Guaranteed", guaranteed(), corev1.LimitRangeItem{Type: container, Min: list("20m", "64Mi")}, "20m 64Mi to 20m 64Mi"},
		{"of Pods, which have the guest's resources too", makeVMI(), corev1.LimitRangeItem{Type: pod, Min: list("1", "2Gi")}, "5m 3Mi to 0 20Mi"},
	} {
		made, err := podspec.Build(tc.vmi.Obj(), config())
		if err != nil {
			t.Fatal(err)
		}
		guest := made.Spec.Containers[0].Resources.DeepCopy()
		ranges := []corev1.LimitRange{{Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{tc.item}}}}
		changed := podspec.Fit(made, launcherpod.ConsoleLogContainer, ranges)
		got := made.Spec.Containers[1].Resources
		text := got.Requests.Cpu().String() + " " + got.Requests.Memory().String() + " to " + got.Limits.Cpu().String() +
			" " + got.Limits.Memory().String()
		if text != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, text, tc.want)
		}
		if podspec.Fit(made, launcherpod.ConsoleLogContainer, ranges) {
			t.Errorf("%s: it changes again", tc.name)
		}
		if changed != (tc.item.Type == container) {
			t.Errorf("%s: it is changed: %t", tc.name, changed)
		}
		if now := made.Spec.Containers[0].Resources; guest.String() != now.String() {
			t.Errorf("%s: the guest's container has %v", tc.name, now)
		}
	}
}
