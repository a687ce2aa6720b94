// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/podproc"
)

// Killing any of our processes, or the node's, must not affect a guest.
var _ = Describe("A running guest is not affected by", kvmLinuxLong(), Serial, Ordered, ContinueOnFailure, func() {
	BeforeAll(needLocalNodes)

	// There is a guest for each process that is killed. They boot in parallel. Each is stopped after one kill, and must
	// survive the earlier ones.
	const controller, kubelet = 2, 3
	survivors := []string{"virt-handler", "virt-broker", "containerd"}
	for name, third := range map[string]int{"virt-controller": controller, "kubelet": kubelet} {
		if extended(third).MatchesLabelFilter(GinkgoLabelFilter()) {
			survivors = append(survivors, name)
		}
	}
	var (
		namespace string
		instances map[string]*v1.VirtualMachineInstance
		qemus     map[string]podproc.Process
	)
	BeforeAll(func(ctx context.Context) {
		namespace, instances, qemus = newNamespace(ctx), map[string]*v1.VirtualMachineInstance{}, map[string]podproc.Process{}
		node := nodes(ctx)[0]
		for _, name := range survivors {
			create(ctx, makeVM(namespace, name, withNode(node)))
		}
		for _, name := range survivors {
			instances[name] = expectReady(ctx, namespace, name)
			qemus[name] = processOf(ctx, instances[name], "qemu-system-x86_64")
		}
		for _, name := range survivors {
			expectConsole(ctx, namespace, name, bootTimeout, ContainSubstring(guestReady))
		}
	}, nodeTimeout(8*time.Minute))
	AfterEach(func(ctx context.Context) { dumpFailed(ctx, namespace) }, nodeTimeout(time.Minute))

	DescribeTable("a killed process",
		func(ctx context.Context, name string, kill func(ctx context.Context, node string)) {
			kill(ctx, instances[name].Status.NodeName)

			By("keeping the same QEMU and the correct status for a while")
			Consistently(func(g Gomega) {
				for survivor, instance := range instances {
					g.Expect(processOf(ctx, instance, "qemu-system-x86_64")).To(Equal(qemus[survivor]))
					g.Expect(vmi(ctx, namespace, survivor)).To(
						And(HaveField("UID", instance.UID), HaveField("Status.Phase", v1.Running)))
				}
			}).WithContext(ctx).WithTimeout(20 * time.Second).WithPolling(time.Second).Should(Succeed())
			for survivor := range instances {
				expectReady(ctx, namespace, survivor)
			}

			By("stopping the guest as usual")
			log := followConsole(ctx, instances[name])
			setRunStrategy(ctx, namespace, name, v1.RunStrategyHalted)
			Eventually(log).WithContext(ctx).WithTimeout(shortTimeout).Should(ContainSubstring(guestShutdown))
			expectGone(ctx, instances[name])
			delete(instances, name)
		},
		Entry("virt-handler", specTimeout(8*time.Minute), "virt-handler", func(ctx context.Context, node string) {
			killComponent(ctx, "virt-handler", node)
		}),
		Entry("virt-broker", specTimeout(8*time.Minute), "virt-broker", func(ctx context.Context, node string) {
			killComponent(ctx, "virt-broker", node)
			By("opening a new connection to a console")
			at := openConsole(ctx, namespace, "virt-broker")
			at.press("echo ANSWER-$((6*7))\n")
			expectOutput(ctx, at.Out, "ANSWER-42")
			at.press("\x1d")
		}),
		Entry("virt-controller", extended(controller), specTimeout(8*time.Minute), "virt-controller",
			func(ctx context.Context, _ string) {
				killComponent(ctx, "virt-controller", "")
			}),
		Entry("containerd", specTimeout(8*time.Minute), "containerd", func(ctx context.Context, node string) {
			killOnNode(ctx, node, "containerd")
		}),
		Entry("the kubelet", extended(kubelet), specTimeout(8*time.Minute), "kubelet",
			func(ctx context.Context, node string) {
				before := componentPods(ctx, "virt-handler", node)
				killOnNode(ctx, node, "kubelet")
				By("keeping the agent, whose Pod has a device")
				Consistently(componentPods).WithArguments(ctx, "virt-handler", node).WithTimeout(20 * time.Second).
					WithPolling(time.Second).Should(HaveExactElements(And(HaveField("UID", before[0].UID),
					HaveField("Status.Phase", corev1.PodRunning))))
			}),
	)

	It("a restart of the agent while the launcher's socket is a link to another socket", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		create(ctx, makeVM(namespace, "hostile"))
		instance := expectReady(ctx, namespace, "hostile")
		replaceSocketBySymlink(ctx, instance)
		killComponent(ctx, "virt-handler", instance.Status.NodeName)

		By("running another VM on the same node meanwhile")
		create(ctx, makeVM(namespace, "neighbor", withNode(instance.Status.NodeName)))
		expectReady(ctx, namespace, "neighbor")
		Expect(vmi(ctx, namespace, "hostile").Status.Phase).To(Equal(v1.Running), "unknown is not failed")
	}, specTimeout(8*time.Minute))
})

// killComponent kills the processes of a component's Pods and waits until it is ready again. Each container has the
// name of its program.
func killComponent(ctx context.Context, component, node string) {
	GinkgoHelper()
	pods := componentPods(ctx, component, node)
	for i := range pods {
		for _, container := range pods[i].Spec.Containers {
			killProcess(mainProcess(&pods[i], container.Name))
		}
	}
	expectRestarted(ctx, pods)
}

// componentPods returns the Pods of a component, on one node if it is named.
func componentPods(ctx context.Context, component, node string) []corev1.Pod {
	GinkgoHelper()
	pods := &corev1.PodList{}
	Expect(k8s.List(ctx, pods, client.InNamespace("kubevirt"), client.MatchingLabels{v1.AppLabel: component})).
		To(Succeed())
	pods.Items = slices.DeleteFunc(pods.Items,
		func(pod corev1.Pod) bool { return node != "" && pod.Spec.NodeName != node })
	Expect(pods.Items).NotTo(BeEmpty(), "no Pod of %s on %q", component, node)
	for i := range pods.Items {
		Expect(pods.Items[i].Status.ContainerStatuses).NotTo(BeEmpty())
	}
	return pods.Items
}

// expectRestarted waits until the containers of Pods that were read before a kill have restarted, and are ready.
func expectRestarted(ctx context.Context, before []corev1.Pod) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		for i := range before {
			pod := &corev1.Pod{}
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(&before[i]), pod)).To(Succeed())
			for _, was := range before[i].Status.ContainerStatuses {
				at := slices.IndexFunc(pod.Status.ContainerStatuses,
					func(s corev1.ContainerStatus) bool { return s.Name == was.Name })
				g.Expect(at).NotTo(Equal(-1), was.Name)
				g.Expect(pod.Status.ContainerStatuses[at].RestartCount).To(BeNumerically(">", was.RestartCount), was.Name)
				g.Expect(pod.Status.ContainerStatuses[at].Ready).To(BeTrue(), was.Name)
			}
		}
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
}
