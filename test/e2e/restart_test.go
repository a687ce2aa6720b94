// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Killing any of our processes, or the node's, must not change a VM's fate.
var _ = Describe("A running guest outlives", func() {
	BeforeEach(needLocalNodes)

	DescribeTable("a killed process",
		func(ctx context.Context, kill func(ctx context.Context, node string)) {
			namespace := newNamespace(ctx)
			create(ctx, makeVM(namespace, "survivor"))
			instance := expectReady(ctx, namespace, "survivor")
			expectConsole(ctx, namespace, "survivor", bootTimeout, ContainSubstring(guestReady))
			qemu := processOf(ctx, instance, "qemu-system-x86_64")

			kill(ctx, instance.Status.NodeName)

			By("seeing the same QEMU and a right status for a while")
			Consistently(func(g Gomega) {
				g.Expect(processOf(ctx, instance, "qemu-system-x86_64")).To(Equal(qemu))
				now := vmi(ctx, namespace, "survivor")
				g.Expect(now).To(And(HaveField("UID", instance.UID), HaveField("Status.Phase", v1.Running)))
			}).WithContext(ctx).WithTimeout(20 * time.Second).WithPolling(time.Second).Should(Succeed())
			expectReady(ctx, namespace, "survivor")

			By("stopping the guest as if nothing had happened")
			setRunStrategy(ctx, namespace, "survivor", v1.RunStrategyHalted)
			expectGone(ctx, instance)
		},
		Entry("virt-handler", SpecTimeout(8*time.Minute), func(ctx context.Context, node string) {
			killComponent(ctx, "virt-handler", node)
		}),
		Entry("virt-controller", SpecTimeout(8*time.Minute), func(ctx context.Context, _ string) {
			killComponent(ctx, "virt-controller", "")
		}),
		Entry("containerd", SpecTimeout(8*time.Minute), func(ctx context.Context, node string) {
			killOnNode(ctx, node, "containerd")
		}),
		Entry("the kubelet", SpecTimeout(8*time.Minute), func(ctx context.Context, node string) {
			killOnNode(ctx, node, "kubelet")
		}),
	)

	It("an agent that comes back while its launcher's socket leads elsewhere", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		create(ctx, makeVM(namespace, "hostile"))
		instance := expectReady(ctx, namespace, "hostile")
		replaceSocketBySymlink(ctx, instance)
		killComponent(ctx, "virt-handler", instance.Status.NodeName)

		By("running another VM on the same node meanwhile")
		create(ctx, makeVM(namespace, "neighbor", withNode(instance.Status.NodeName)))
		expectReady(ctx, namespace, "neighbor")
		Expect(vmi(ctx, namespace, "hostile").Status.Phase).To(Equal(v1.Running), "unknown is not failed")
	}, SpecTimeout(8*time.Minute))
})

// killComponent kills the processes of a component's Pods and waits until it is ready again.
func killComponent(ctx context.Context, component, node string) {
	GinkgoHelper()
	pods := &corev1.PodList{}
	Expect(k8s.List(ctx, pods, client.InNamespace("kubevirt"), client.MatchingLabels{v1.AppLabel: component})).To(Succeed())
	killed := map[string]int32{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if node != "" && pod.Spec.NodeName != node {
			continue
		}
		Expect(pod.Status.ContainerStatuses).NotTo(BeEmpty())
		killed[pod.Name] = pod.Status.ContainerStatuses[0].RestartCount
		killProcess(podProcess(pod, component))
	}
	Expect(killed).NotTo(BeEmpty(), "no Pod of %s on %q", component, node)
	Eventually(func(g Gomega) {
		for name, restarts := range killed {
			pod := &corev1.Pod{}
			g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: "kubevirt", Name: name}, pod)).To(Succeed())
			g.Expect(pod.Status.ContainerStatuses[0].RestartCount).To(BeNumerically(">", restarts))
			g.Expect(pod.Status.ContainerStatuses[0].Ready).To(BeTrue())
		}
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
}
