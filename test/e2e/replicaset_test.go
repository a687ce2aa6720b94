// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// makeReplicaSet returns a set of small guests.
func makeReplicaSet(namespace, name string, replicas int32) *v1.VirtualMachineInstanceReplicaSet {
	set := &v1.VirtualMachineInstanceReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	set.Spec.Replicas = ptr.To(replicas)
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"vm": name}}
	set.Spec.Template = makeVM(namespace, name).Spec.Template
	return set
}

// expectReplicas waits until a set has n VMIs, all of them ready, and returns them.
func expectReplicas(ctx context.Context, set *v1.VirtualMachineInstanceReplicaSet, n int) []v1.VirtualMachineInstance {
	GinkgoHelper()
	list := &v1.VirtualMachineInstanceList{}
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(set), set)).To(Succeed())
		g.Expect(set.Status.Replicas).To(BeEquivalentTo(n))
		g.Expect(set.Status.ReadyReplicas).To(BeEquivalentTo(n))
		g.Expect(set.Status.Conditions).To(BeEmpty())
		g.Expect(k8s.List(ctx, list, client.InNamespace(set.Namespace))).To(Succeed())
		g.Expect(list.Items).To(HaveLen(n))
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
	return list.Items
}

var _ = Describe("A replica set", extended(3), func() {
	It("is scaled to 6 guests and back by its autoscaler, replaces a guest that ended, and is deleted without its guests",
		func(ctx context.Context) {
			namespace := newNamespace(ctx)
			set := makeReplicaSet(namespace, "web", 1)
			create(ctx, set)
			first := expectReplicas(ctx, set, 1)[0]

			By("replacing a guest whose Pod is deleted")
			Expect(k8s.Delete(ctx, launcherPod(ctx, &first))).To(Succeed())
			expectGone(ctx, first.DeepCopy())
			second := expectReplicas(ctx, set, 1)[0]
			Expect(second.Name).NotTo(Equal(first.Name), "it is created before the old one is removed")

			By("scaling up")
			load := serveMetrics(ctx, namespace, "external.metrics.k8s.io")
			load(6)
			create(ctx, autoscaler(namespace, autoscalingv2.CrossVersionObjectReference{
				APIVersion: v1.GroupVersion.String(), Kind: v1.VirtualMachineInstanceReplicaSetGroupVersionKind.Kind,
				Name: set.Name,
			}, externalLoad))
			six := expectReplicas(ctx, set, 6)
			names := map[string]bool{}
			for i := range six {
				names[six[i].Name] = true
			}
			Expect(names).To(HaveKey(second.Name))

			By("scaling down")
			load(1)
			last := expectReplicas(ctx, set, 1)[0]
			Expect(last.Name).To(Equal(second.Name), "the newest of equal VMIs are deleted first")

			By("keeping its guest when it is deleted with propagation policy Orphan")
			Expect(k8s.Delete(ctx, set, client.PropagationPolicy(metav1.DeletePropagationOrphan))).To(Succeed())
			expectGone(ctx, set)
			Consistently(func() *v1.VirtualMachineInstance { return vmi(ctx, namespace, last.Name) }).
				WithContext(ctx).WithTimeout(5 * time.Second).WithPolling(pollInterval).
				Should(And(HaveField("DeletionTimestamp", BeNil()), HaveField("OwnerReferences", BeEmpty()),
					HaveField("UID", last.UID)))
		}, specTimeout(15*time.Minute))
})
