// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/podproc"
)

const (
	// unresponsiveTimeout limits the time until a lost node is reported: a minute, or the time that new virt-controllers
	// take to start if all were on that node, as after a drain.
	unresponsiveTimeout = 2 * time.Minute
	// nodeLostTimeout is somewhat longer than Kubernetes' default until a node is not ready.
	nodeLostTimeout = 2 * time.Minute
	// destroyTimeout limits the time until the agent of a reconnected node has destroyed a guest that was replaced: less
	// than any grace period.
	destroyTimeout = 20 * time.Second
)

// A node is disconnected twice. Its guest runs all the time, which can be observed because this host shows the
// processes of the nodes.
var _ = Describe("A guest on a disconnected node", Serial, Ordered, extended(1), func() {
	BeforeAll(needLocalNodes)

	var (
		namespace, node string
		instance        *v1.VirtualMachineInstance
		pod             *corev1.Pod
		qemu            podproc.Process
	)
	BeforeAll(func(ctx context.Context) {
		all := nodes(ctx)
		if len(all) < 2 {
			Skip("needs a second node")
		}
		namespace, node = newNamespace(ctx), all[1]
		create(ctx, makeVM(namespace, "vm", withPreferredNode(node)))
		instance = expectReady(ctx, namespace, "vm")
		Expect(instance.Status.NodeName).To(Equal(node))
		pod = launcherPod(ctx, instance)
		qemu = podProcess(pod, "qemu-system-x86_64")
		DeferCleanup(func(ctx context.Context) {
			setNetwork(ctx, "mend", node)
			setOutOfService(ctx, node, false)
			expectNodeBack(ctx, node)
		}, nodeTimeout(3*time.Minute))
	}, nodeTimeout(4*time.Minute))
	AfterEach(func(ctx context.Context) { dumpFailed(ctx, namespace) }, nodeTimeout(time.Minute))

	It("keeps running, and the VMI is Ready again when the node is reconnected", func(ctx context.Context) {
		cut := disconnect(ctx, node)
		Eventually(func(g Gomega) {
			g.Expect(readNode(ctx, node).Labels).To(HaveKeyWithValue(v1.NodeSchedulable, "false"))
			object := vmi(ctx, namespace, "vm")
			g.Expect(object.Status.Reason).To(Equal("NodeUnresponsive"))
			g.Expect(condition(object, v1.VirtualMachineInstanceNodeUnresponsive)).To(HaveField("Status", corev1.ConditionTrue))
		}).WithContext(ctx).WithTimeout(unresponsiveTimeout).WithPolling(pollInterval).Should(Succeed())
		reportTime("the VMI reported NodeUnresponsive", cut)

		reconnected := time.Now()
		setNetwork(ctx, "mend", node)
		expectNodeBack(ctx, node)
		Eventually(func(g Gomega) {
			object := vmi(ctx, namespace, "vm")
			g.Expect(object.Status.Reason).To(BeEmpty())
			g.Expect(condition(object, v1.VirtualMachineInstanceNodeUnresponsive)).To(BeNil())
			g.Expect(condition(object, v1.VirtualMachineInstanceReady)).To(HaveField("Status", corev1.ConditionTrue))
		}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
		reportTime("the VMI was Ready again", reconnected)
		Expect(vmi(ctx, namespace, "vm").UID).To(Equal(instance.UID))
		Expect(qemusOf(ctx, namespace, pod)).To(ConsistOf(qemu), "the same QEMU, and no other")
	}, specTimeout(6*time.Minute))

	It("starts on another node when its node is declared out of service, and the old one is destroyed when that is reconnected", func(ctx context.Context) {
		cut := disconnect(ctx, node)
		Eventually(func() *v1.VirtualMachineInstanceCondition {
			return condition(vmi(ctx, namespace, "vm"), v1.VirtualMachineInstanceNodeUnresponsive)
		}).WithContext(ctx).WithTimeout(nodeLostTimeout).WithPolling(pollInterval).Should(And(
			HaveField("Reason", v1.VirtualMachineInstanceReasonNodeLost),
			HaveField("Message", ContainSubstring("kubectl taint nodes "+node+
				" node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"))))
		Expect(condition(vmi(ctx, namespace, "vm"), v1.VirtualMachineInstanceReady)).
			To(HaveField("Status", corev1.ConditionFalse))
		reportTime("the VMI reported how to take its node out of service", cut)
		Expect(vmi(ctx, namespace, "vm").Status.Phase).To(Equal(v1.Running))
		Expect(qemusOf(ctx, namespace, pod)).To(ConsistOf(qemu))

		declared := time.Now()
		setOutOfService(ctx, node, true)
		expectNewInstance(ctx, instance)
		next := expectReady(ctx, namespace, "vm")
		reportTime("the guest ran on another node", declared)
		Expect(next.Status.NodeName).NotTo(Equal(node))
		successor := processOf(ctx, next, "qemu-system-x86_64")
		Expect(podProcess(pod, "qemu-system-x86_64")).To(Equal(qemu), "the disconnected node must not be affected")

		// If the launcher does not run, the kubelet's SIGTERM does not end the guest: only the agent can.
		launcher := podProcess(pod, "virt-launcher")
		Expect(syscall.Kill(launcher.PID, syscall.SIGSTOP)).To(Succeed())
		DeferCleanup(func() { _ = syscall.Kill(launcher.PID, syscall.SIGCONT) })
		reconnected := time.Now()
		setNetwork(ctx, "mend", node)
		Eventually(func() []podproc.Process { return podProcesses(pod, "qemu-system-x86_64") }).
			WithContext(ctx).WithTimeout(destroyTimeout).WithPolling(100 * time.Millisecond).Should(BeEmpty())
		reportTime("the old guest was destroyed", reconnected)
		_ = syscall.Kill(launcher.PID, syscall.SIGCONT)
		setOutOfService(ctx, node, false)
		expectNodeBack(ctx, node)
		Expect(vmi(ctx, namespace, "vm").UID).To(Equal(next.UID))
		Expect(qemusOf(ctx, namespace, pod)).To(ConsistOf(successor))
	}, specTimeout(5*time.Minute))
})

// withPreferredNode prefers a node for a VM.
func withPreferredNode(node string) option {
	return func(vm *v1.VirtualMachine) {
		spec(vm).Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
				Weight: 100,
				Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
				}}},
			}},
		}}
	}
}

// reportTime adds the time since an instant to the report.
func reportTime(what string, since time.Time) {
	GinkgoHelper()
	AddReportEntry(fmt.Sprintf("%s after %.1f s", what, time.Since(since).Seconds()))
}

func disconnect(ctx context.Context, node string) time.Time {
	GinkgoHelper()
	now := time.Now()
	setNetwork(ctx, "cut", node)
	return now
}

// setNetwork disconnects a node from the network ("cut") or reconnects it ("mend").
func setNetwork(ctx context.Context, verb, node string) {
	GinkgoHelper()
	out, err := exec.CommandContext(ctx, os.Getenv("VIREO_CLUSTER"), verb, node).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
}

// setOutOfService adds the taint that the VMI's condition advises, or removes it.
func setOutOfService(ctx context.Context, name string, out bool) {
	GinkgoHelper()
	// Kubernetes also writes taints, so a conflict is retried.
	Eventually(func() error {
		node := readNode(ctx, name)
		patch := client.MergeFromWithOptions(node.DeepCopy(), client.MergeFromWithOptimisticLock{})
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints,
			func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
		if out {
			node.Spec.Taints = append(node.Spec.Taints,
				corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute})
		}
		return k8s.Patch(ctx, node, patch)
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
}

func readNode(ctx context.Context, name string) *corev1.Node {
	GinkgoHelper()
	node := &corev1.Node{}
	Expect(k8s.Get(ctx, client.ObjectKey{Name: name}, node)).To(Succeed())
	return node
}

// expectNodeBack waits until VMs and other Pods can start on a node again.
func expectNodeBack(ctx context.Context, name string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		node := readNode(ctx, name)
		g.Expect(node.Labels).To(HaveKeyWithValue(v1.NodeSchedulable, "true"))
		g.Expect(node.Annotations).NotTo(HaveKey("kubevirt.io/unresponsive-since"))
		g.Expect(node.Spec.Taints).To(BeEmpty())
		g.Expect(node.Status.Conditions).To(ContainElement(And(
			HaveField("Type", corev1.NodeReady), HaveField("Status", corev1.ConditionTrue))))
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
}

// qemusOf returns the QEMU processes of a namespace's launcher Pods, and of one that may no longer be in the API
// server.
func qemusOf(ctx context.Context, namespace string, old *corev1.Pod) []podproc.Process {
	GinkgoHelper()
	found := podProcesses(old, "qemu-system-x86_64")
	pods := &corev1.PodList{}
	Expect(k8s.List(ctx, pods, client.InNamespace(namespace),
		client.MatchingLabels{v1.AppLabel: launcherpod.AppLabelValue})).To(Succeed())
	for i := range pods.Items {
		if pods.Items[i].UID != old.UID {
			found = append(found, podProcesses(&pods.Items[i], "qemu-system-x86_64")...)
		}
	}
	return found
}
