// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachineInstance on claims with file systems", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("reads the overhead of file systems from the importer's configuration", func() {
		config := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "CDIConfig", "metadata": map[string]any{"name": "config"},
			"spec": map[string]any{},
		}}
		Expect(K8sClient.Create(ctx, config)).To(Succeed())
		DeferCleanup(func() { Expect(K8sClient.Delete(ctx, config)).To(Succeed()) })
		config.Object["status"] = map[string]any{"filesystemOverhead": map[string]any{
			"global": "0.07", "storageClass": map[string]any{"slow": "0.2", "odd": "twenty"},
		}}
		Expect(K8sClient.Status().Update(ctx, config)).To(Succeed())
		overhead := func(name string, change ...func(*corev1.PersistentVolumeClaim)) v1.Percent {
			GinkgoHelper()
			pvc := builder.MakePVC(name).Namespace(w.ns).Bound("2Gi").Obj()
			for _, do := range change {
				do(pvc)
			}
			status := pvc.Status
			ExpectCreated(pvc)
			pvc.Status = status
			ExpectStatus(pvc)
			vmi := w.create(builder.MakeVMI("vm-"+name).PVC("root", name))
			w.Step(vmi)
			w.assign(vmi, "node-1")
			return *vmi.Status.VolumeStatus[0].PersistentVolumeClaimInfo.FilesystemOverhead
		}
		of := func(class string) func(*corev1.PersistentVolumeClaim) {
			return func(pvc *corev1.PersistentVolumeClaim) { pvc.Spec.StorageClassName = &class }
		}
		Expect(overhead("unclassed")).To(BeEquivalentTo("0.07"))
		Expect(overhead("slow", of("slow"))).To(BeEquivalentTo("0.2"))
		Expect(overhead("odd", of("odd"))).To(BeEquivalentTo("0.07"))
		w.DataVolumes = NoDataVolumes{}
		Expect(overhead("without")).To(BeEquivalentTo("0.055"))
	})
})
