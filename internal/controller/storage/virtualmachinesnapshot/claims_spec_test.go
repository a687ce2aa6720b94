// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinesnapshot_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("VirtualMachineSnapshot and its claims", func() {
	It("stores annotations of claims that the cache does not have", func() {
		w := newSnapshots()
		w.vm()
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "root"}}
		note := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"note":"mine"}}}`))
		Expect(K8sClient.Patch(ctx, claim, note)).To(Succeed())
		cached := ExpectExists(claim)
		cached.Annotations = nil
		w.Writes.Stale = cached
		of := w.request("snap")
		w.Step(of)
		Expect(ExpectExists(ContentOf(of)).Spec.VolumeBackups[0].PersistentVolumeClaim.Annotations).
			To(HaveKeyWithValue("note", "mine"))
	})
})
