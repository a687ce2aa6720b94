// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/podproc"
)

// needLocalNodes skips a spec that accesses processes of nodes, unless the nodes run on this host.
func needLocalNodes() {
	if !hasLocalNodes() {
		Skip("kills processes of nodes: only on a cluster that `make cluster-up` made (VIREO_CLUSTER names its program)")
	}
}

// hasLocalNodes reports whether the processes of the nodes, and the addresses of Pods, are those of this machine.
func hasLocalNodes() bool { return os.Getenv("VIREO_CLUSTER") != "" }

// podProcess finds the only process of a Pod with this command name. The cgroup's name contains the Pod's UID.
func podProcess(pod *corev1.Pod, command string) podproc.Process {
	GinkgoHelper()
	found := podProcesses(pod, command)
	Expect(found).To(HaveLen(1), "processes %q of Pod %s", command, pod.Name)
	return found[0]
}

// mainProcess finds the process of a program in a Pod that was started first: the program's probe may run beside it.
func mainProcess(pod *corev1.Pod, program string) podproc.Process {
	GinkgoHelper()
	all, err := podproc.Of(pod.UID)
	Expect(err).NotTo(HaveOccurred())
	found := podproc.Oldest(all, program)
	Expect(found).NotTo(BeNil(), "no process %q in Pod %s", program, pod.Name)
	return *found
}

func podProcesses(pod *corev1.Pod, program string) []podproc.Process {
	GinkgoHelper()
	all, err := podproc.Of(pod.UID)
	Expect(err).NotTo(HaveOccurred())
	return slices.DeleteFunc(all, func(p podproc.Process) bool { return p.Program != program })
}

// processOf finds a process in a VMI's launcher Pod.
func processOf(ctx context.Context, instance *v1.VirtualMachineInstance, command string) podproc.Process {
	GinkgoHelper()
	pod := launcherPod(ctx, instance)
	Expect(pod).NotTo(BeNil())
	return podProcess(pod, command)
}

func killProcess(p podproc.Process) {
	GinkgoHelper()
	Expect(syscall.Kill(p.PID, syscall.SIGKILL)).To(Succeed())
}

func killInPod(ctx context.Context, instance *v1.VirtualMachineInstance, command string) {
	GinkgoHelper()
	killProcess(processOf(ctx, instance, command))
}

// phaseAndReason is a state of a VMI that a watch returned.
type phaseAndReason struct {
	Phase  v1.VirtualMachineInstancePhase
	Reason string
}

// watchPhases records the phases and reasons of a VMI from now on, because a failed VMI is soon replaced.
func watchPhases(ctx context.Context, instance *v1.VirtualMachineInstance) func() []phaseAndReason {
	GinkgoHelper()
	watching, err := client.NewWithWatch(restConfig, client.Options{Scheme: k8s.Scheme()})
	Expect(err).NotTo(HaveOccurred())
	stream, err := watching.Watch(ctx, &v1.VirtualMachineInstanceList{}, client.InNamespace(instance.Namespace),
		client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("metadata.name", instance.Name)})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(stream.Stop)
	var (
		mutex sync.Mutex
		seen  []phaseAndReason
	)
	go func() {
		for event := range stream.ResultChan() {
			if object, ok := event.Object.(*v1.VirtualMachineInstance); ok && object.UID == instance.UID {
				mutex.Lock()
				seen = append(seen, phaseAndReason{object.Status.Phase, object.Status.Reason})
				mutex.Unlock()
			}
		}
	}()
	return func() []phaseAndReason {
		mutex.Lock()
		defer mutex.Unlock()
		return append([]phaseAndReason(nil), seen...)
	}
}

// replaceSocketBySymlink replaces libvirtd's socket in the Pod's volume by a link to the socket of another process on
// the node, as a guest could that controls its launcher Pod.
func replaceSocketBySymlink(ctx context.Context, instance *v1.VirtualMachineInstance) {
	GinkgoHelper()
	pod := launcherPod(ctx, instance)
	root := filepath.Join("/proc", strconv.Itoa(processOf(ctx, instance, "libvirtd").PID), "root")
	socket := filepath.Join(root, "/var/run/kubevirt/sockets/libvirt-sock")
	Expect(os.Remove(socket)).To(Succeed())
	Expect(os.Symlink("/var/lib/kubelet/device-plugins/kubelet.sock", socket)).To(Succeed())
	GinkgoWriter.Printf("replaced the socket of %s\n", pod.Name)
}

// eventuallyRestarted waits until a node's kubelet has renewed its Lease and reports the node as ready after
// a process was killed on it. A Node without changes is written only every few minutes.
func eventuallyRestarted(ctx context.Context, node string, after time.Time) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		lease := &coordinationv1.Lease{}
		g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: node}, lease)).To(Succeed())
		g.Expect(lease.Spec.RenewTime.Time).To(BeTemporally(">", after))
		object := &corev1.Node{}
		g.Expect(k8s.Get(ctx, client.ObjectKey{Name: node}, object)).To(Succeed())
		g.Expect(object.Status.Conditions).To(ContainElement(And(
			HaveField("Type", corev1.NodeReady), HaveField("Status", corev1.ConditionTrue))))
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(time.Second).Should(Succeed())
}

// killOnNode kills a process of the node itself and restarts it, as the node's init system does.
func killOnNode(ctx context.Context, node, component string) {
	GinkgoHelper()
	killed := time.Now()
	cluster := os.Getenv("VIREO_CLUSTER")
	out, err := exec.CommandContext(ctx, cluster, "stop", node+"/"+component).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	out, err = exec.CommandContext(ctx, cluster, "start").CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	eventuallyRestarted(ctx, node, killed)
}
