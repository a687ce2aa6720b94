// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	"maps"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachineInstance of a VM", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("has its VM's revision in the status when it is assigned", func() {
		vm := builder.MakeVM("vm").UID("6a1a24a1-4061-4607-8bf4-000000000001").Obj()
		vmi := w.create(builder.MakeVMI("vm").OwnedBy(vm).Annotation(v1.VirtualMachineGenerationAnnotation, "7"))
		w.Step(vmi)
		w.assign(vmi, "node-1")
		Expect(vmi.Status.VirtualMachineRevisionName).To(Equal("revision-start-vm-6a1a24a1-4061-4607-8bf4-000000000001-7"))
	})

	It("copies the labels and annotations that virt-controller's flags select to the Pod, except those that belong to the Pod", func() {
		config := w.Config.(FixedConfig)
		config.LiveMetadata = podspec.LiveMetadata{
			Annotations: []string{"acme.example/*", "kubevirt.io/domain"},
			Labels:      []string{"tier", v1.AppLabel, v1.CreatedByLabel},
		}
		w.Config = config
		vmi := w.create(builder.MakeVMI("vm").Label("tier", "web").Annotation("acme.example/zone", "a"))
		w.Step(vmi)
		created := ExpectExists(PodOf(vmi))
		vmi = ExpectExists(vmi)
		vmi.Labels = map[string]string{"tier": "db", "other": "x", v1.AppLabel: "mine", v1.CreatedByLabel: "me"}
		vmi.Annotations = map[string]string{"acme.example/rack": "b", "kubevirt.io/domain": "x"}
		Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
		w.Step(vmi)
		pod := ExpectExists(PodOf(vmi))
		wantLabels, wantAnnotations := maps.Clone(created.Labels), maps.Clone(created.Annotations)
		wantLabels["tier"] = "db"
		wantAnnotations["acme.example/rack"] = "b"
		delete(wantAnnotations, "acme.example/zone")
		Expect(pod.Labels).To(Equal(wantLabels))
		Expect(pod.Annotations).To(Equal(wantAnnotations))
		w.events.Take()
		w.expectQuiet(vmi)
	})

	It("copies the descheduler's annotation to the Pod, and removes it", func() {
		const evict = "descheduler.alpha.kubernetes.io/evict"
		vmi := w.create(builder.MakeVMI("vm").Annotation("note", "x"))
		w.Step(vmi)
		metav1.SetMetaDataAnnotation(&ExpectExists(vmi).ObjectMeta, evict, "true")
		vmi.Annotations["note"] = "y"
		Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
		w.Step(vmi)
		pod := ExpectExists(PodOf(vmi))
		Expect(pod.Annotations).To(And(HaveKeyWithValue(evict, "true"), HaveKeyWithValue("note", "x")))
		w.events.Take()
		w.expectQuiet(vmi)

		delete(ExpectExists(vmi).Annotations, evict)
		Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
		w.Step(vmi)
		Expect(ExpectExists(PodOf(vmi)).Annotations).NotTo(HaveKey(evict))
		w.expectQuiet(vmi)
	})
})
