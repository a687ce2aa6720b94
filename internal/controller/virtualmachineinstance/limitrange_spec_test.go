// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("Containers of Vireo's own in a namespace with a LimitRange", func() {
	limit := func(ns string, item corev1.LimitRangeItem) {
		GinkgoHelper()
		item.Type = corev1.LimitTypeContainer
		ExpectCreated(&corev1.LimitRange{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "limits"},
			Spec:       corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{item}},
		})
	}
	memory := func(quantity string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(quantity)}
	}

	DescribeTable("have what it demands beside a guest", func(item corev1.LimitRangeItem, want string) {
		w := newWorld()
		limit(w.ns, item)
		vmi := w.create(builder.MakeVMI("a").Guest("128Mi"))
		w.Step(vmi)
		containers := ExpectExists(PodOf(vmi)).Spec.Containers
		Expect(containers).To(HaveLen(2))
		Expect(containers[1].Name).To(Equal(launcherpod.ConsoleLogContainer))
		Expect(containers[1].Resources.Requests.Memory().String()).To(Equal(want))
	},
		Entry("at least", corev1.LimitRangeItem{Min: memory("16Mi")}, "16Mi"),
		Entry("a ratio", corev1.LimitRangeItem{MaxLimitRequestRatio: memory("2"), Default: memory("256Mi"), DefaultRequest: memory("128Mi")}, "10Mi"),
	)
})
