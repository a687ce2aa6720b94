// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// newNamespace creates a namespace for one spec, prints its objects when the spec fails, and removes it.
func newNamespace(ctx context.Context) string {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "e2e-",
		// The launcher must comply with the strictest level of Pod Security.
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	Expect(k8s.Create(ctx, namespace)).To(Succeed())
	DeferCleanup(func(ctx context.Context) {
		if CurrentSpecReport().Failed() {
			dump(ctx, namespace.Name)
		}
		// Pools and replica sets are deleted first, because they would replace their VMs and VMIs.
		Expect(client.IgnoreNotFound(k8s.DeleteAllOf(ctx, &poolv1.VirtualMachinePool{}, client.InNamespace(namespace.Name)))).
			To(Succeed())
		Expect(client.IgnoreNotFound(k8s.DeleteAllOf(ctx, &v1.VirtualMachine{}, client.InNamespace(namespace.Name)))).
			To(Succeed())
		Expect(client.IgnoreNotFound(
			k8s.DeleteAllOf(ctx, &v1.VirtualMachineInstanceReplicaSet{}, client.InNamespace(namespace.Name)))).To(Succeed())
		Expect(client.IgnoreNotFound(k8s.DeleteAllOf(ctx, &v1.VirtualMachineInstance{}, client.InNamespace(namespace.Name)))).
			To(Succeed())
		Eventually(func(g Gomega) {
			// A guest that is still booting would use its whole grace period.
			g.Expect(client.IgnoreNotFound(
				k8s.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(namespace.Name), client.GracePeriodSeconds(1)))).
				To(Succeed())
			remaining := &v1.VirtualMachineInstanceList{}
			g.Expect(k8s.List(ctx, remaining, client.InNamespace(namespace.Name))).To(Succeed())
			g.Expect(remaining.Items).To(BeEmpty())
		}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).
			Should(Succeed(), "VMIs stay after their deletion")
		Expect(client.IgnoreNotFound(k8s.Delete(ctx, namespace))).To(Succeed())
	}, nodeTimeout(4*time.Minute))
	return namespace.Name
}

// dumpFailed prints the objects of a namespace that several specs share when one of them failed.
func dumpFailed(ctx context.Context, namespace string) {
	if CurrentSpecReport().Failed() && namespace != "" {
		dump(ctx, namespace)
	}
}

// dump prints the objects, logs and events of a namespace.
func dump(ctx context.Context, namespace string) {
	show := func(title string, value any) {
		text, err := yaml.Marshal(value)
		GinkgoWriter.Printf("--- %s\n%s%v\n", title, text, errText(err))
	}
	pools, vms, vmis, pods := &poolv1.VirtualMachinePoolList{}, &v1.VirtualMachineList{}, &v1.VirtualMachineInstanceList{},
		&corev1.PodList{}
	for _, list := range []client.ObjectList{pools, vms, vmis, pods} {
		if err := k8s.List(ctx, list, client.InNamespace(namespace)); err != nil {
			GinkgoWriter.Printf("list: %v\n", err)
		}
	}
	for i := range pools.Items {
		show("pool "+pools.Items[i].Name, pools.Items[i].Status)
	}
	for i := range vms.Items {
		show("vm "+vms.Items[i].Name, vms.Items[i].Status)
	}
	for i := range vmis.Items {
		show("vmi "+vmis.Items[i].Name, vmis.Items[i].Status)
	}
	for i := range pods.Items {
		show("pod "+pods.Items[i].Name, pods.Items[i].Status)
		for _, container := range pods.Items[i].Spec.Containers {
			GinkgoWriter.Printf("--- log of %s, %s\n%s\n", pods.Items[i].Name, container.Name,
				tail(podLog(ctx, &pods.Items[i], container.Name), 8000))
		}
	}
	events := &corev1.EventList{}
	_ = k8s.List(ctx, events, client.InNamespace(namespace))
	for _, event := range events.Items {
		GinkgoWriter.Printf("%s %s/%s %s: %s\n", event.LastTimestamp.Format(time.TimeOnly), event.InvolvedObject.Kind,
			event.InvolvedObject.Name, event.Reason, event.Message)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func tail(text string, n int) string {
	if len(text) > n {
		return "…" + text[len(text)-n:]
	}
	return text
}

func create(ctx context.Context, objects ...client.Object) {
	GinkgoHelper()
	for _, object := range objects {
		Expect(k8s.Create(ctx, object)).To(Succeed())
	}
}

// vmi reads the VMI of a VM; a missing one is nil.
func vmi(ctx context.Context, namespace, name string) *v1.VirtualMachineInstance {
	GinkgoHelper()
	object := &v1.VirtualMachineInstance{}
	err := k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object)
	if apierrors.IsNotFound(err) {
		return nil
	}
	Expect(err).NotTo(HaveOccurred())
	return object
}

// launcherPod reads the newest launcher Pod of a VMI; a missing one is nil.
func launcherPod(ctx context.Context, instance *v1.VirtualMachineInstance) *corev1.Pod {
	GinkgoHelper()
	pods := &corev1.PodList{}
	Expect(k8s.List(ctx, pods, client.InNamespace(instance.Namespace),
		client.MatchingLabels{v1.AppLabel: launcherpod.AppLabelValue, v1.CreatedByLabel: string(instance.UID)})).To(Succeed())
	var newest *corev1.Pod
	for i := range pods.Items {
		if newest == nil || newest.CreationTimestamp.Before(&pods.Items[i].CreationTimestamp) {
			newest = &pods.Items[i]
		}
	}
	return newest
}

// podLog returns the log of a container.
func podLog(ctx context.Context, pod *corev1.Pod, container string) string {
	stream, err := clientset.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name,
		&corev1.PodLogOptions{Container: container}).Stream(ctx)
	if err != nil {
		return ""
	}
	defer func() { _ = stream.Close() }()
	text, _ := io.ReadAll(io.LimitReader(stream, 4<<20))
	return string(text)
}

// console returns the output of the guest's serial console so far.
func console(ctx context.Context, namespace, name string) string {
	GinkgoHelper()
	instance := vmi(ctx, namespace, name)
	if instance == nil {
		return ""
	}
	pod := launcherPod(ctx, instance)
	if pod == nil {
		return ""
	}
	return podLog(ctx, pod, launcherpod.ConsoleLogContainer)
}

// expectConsole waits until the guest's console output matches.
func expectConsole(
	ctx context.Context, namespace, name string, timeout time.Duration, matcher gomegatypes.GomegaMatcher,
) {
	GinkgoHelper()
	Eventually(func() string { return console(ctx, namespace, name) }).
		WithContext(ctx).WithTimeout(timeout).WithPolling(pollInterval).Should(matcher)
}

// expectReady waits until a VM's guest runs and is ready, and returns its VMI.
func expectReady(ctx context.Context, namespace, name string) *v1.VirtualMachineInstance {
	GinkgoHelper()
	var instance *v1.VirtualMachineInstance
	Eventually(func(g Gomega) {
		vm := &v1.VirtualMachine{}
		g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, vm)).To(Succeed())
		g.Expect(vm.Status.PrintableStatus).To(Equal(v1.VirtualMachineStatusRunning))
		g.Expect(vm.Status.Ready).To(BeTrue())
		instance = vmi(ctx, namespace, name)
		g.Expect(instance).NotTo(BeNil())
		g.Expect(instance.Status.Phase).To(Equal(v1.Running))
		g.Expect(condition(instance, v1.VirtualMachineInstanceReady)).To(HaveField("Status", corev1.ConditionTrue))
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
	return instance
}

// expectPhase waits for a phase of a VMI.
func expectPhase(
	ctx context.Context, namespace, name string, phase v1.VirtualMachineInstancePhase,
) *v1.VirtualMachineInstance {
	GinkgoHelper()
	var instance *v1.VirtualMachineInstance
	Eventually(func(g Gomega) {
		instance = vmi(ctx, namespace, name)
		g.Expect(instance).NotTo(BeNil())
		g.Expect(instance.Status.Phase).To(Equal(phase))
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
	return instance
}

// expectNewInstance waits until a VM's VMI was replaced.
func expectNewInstance(ctx context.Context, before *v1.VirtualMachineInstance) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		instance := vmi(ctx, before.Namespace, before.Name)
		g.Expect(instance).NotTo(BeNil())
		g.Expect(instance.UID).NotTo(Equal(before.UID))
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
}

func condition(
	instance *v1.VirtualMachineInstance, kind v1.VirtualMachineInstanceConditionType,
) *v1.VirtualMachineInstanceCondition {
	for i := range instance.Status.Conditions {
		if instance.Status.Conditions[i].Type == kind {
			return &instance.Status.Conditions[i]
		}
	}
	return nil
}

// setRunStrategy changes a VM as a user with `kubectl patch` does.
func setRunStrategy(ctx context.Context, namespace, name string, strategy v1.VirtualMachineRunStrategy) {
	GinkgoHelper()
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	patch := fmt.Sprintf(`{"spec":{"runStrategy":%q}}`, strategy)
	Expect(k8s.Patch(ctx, vm, client.RawPatch("application/merge-patch+json", []byte(patch)))).To(Succeed())
}

// expectGone waits until an object no longer exists.
func expectGone(ctx context.Context, object client.Object) {
	GinkgoHelper()
	Eventually(func() bool {
		return apierrors.IsNotFound(k8s.Get(ctx, client.ObjectKeyFromObject(object), object))
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).
		Should(BeTrue(), "%T %s stays", object, object.GetName())
}

// makePeer returns a Pod with the tests' peer program, on a node or on any.
func makePeer(namespace, name, node string, args ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"peer": name}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To(int64(1)),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To(int64(1000)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "tools", Image: image("test-tools"), ImagePullPolicy: corev1.PullIfNotPresent, Args: args,
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false),
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
	if node != "" {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	}
	return pod
}

// startPeer runs the tests' peer program in a Pod and waits until it is ready.
func startPeer(ctx context.Context, namespace, name, node string, args ...string) *corev1.Pod {
	GinkgoHelper()
	return startPod(ctx, makePeer(namespace, name, node, args...))
}

// startPod creates a Pod and waits until it runs.
func startPod(ctx context.Context, pod *corev1.Pod) *corev1.Pod {
	GinkgoHelper()
	create(ctx, pod)
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
		g.Expect(pod.Status.Phase).To(Equal(corev1.PodRunning))
		g.Expect(pod.Status.PodIP).NotTo(BeEmpty())
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
	return pod
}

// execIn runs a command in a Pod's first container.
func execIn(ctx context.Context, pod *corev1.Pod, command ...string) (string, error) {
	request := clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).
		SubResource("exec").VersionedParams(&corev1.PodExecOptions{
		Container: pod.Spec.Containers[0].Name, Command: command, Stdout: true, Stderr: true,
	}, clientgoscheme.ParameterCodec)
	executor, err := remotecommand.NewSPDYExecutor(restConfig, "POST", request.URL())
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &out})
	return out.String(), err
}

// expectExec runs a command in a Pod until its output matches.
func expectExec(
	ctx context.Context, pod *corev1.Pod, timeout time.Duration, matcher gomegatypes.GomegaMatcher, command ...string,
) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		out, err := execIn(ctx, pod, command...)
		g.Expect(err).NotTo(HaveOccurred(), out)
		g.Expect(out).To(matcher)
	}).WithContext(ctx).WithTimeout(timeout).WithPolling(2 * time.Second).Should(Succeed())
}

// nodes returns the names of the nodes that can run VMs.
func nodes(ctx context.Context) []string {
	GinkgoHelper()
	list := &corev1.NodeList{}
	Expect(k8s.List(ctx, list, client.MatchingLabels{v1.NodeSchedulable: "true"})).To(Succeed())
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// followConsole reads a guest's console until its Pod ends, since the log is deleted with the Pod. The returned
// function returns what was read so far.
func followConsole(ctx context.Context, instance *v1.VirtualMachineInstance) func() string {
	GinkgoHelper()
	pod := launcherPod(ctx, instance)
	Expect(pod).NotTo(BeNil())
	read, err := followPod(ctx, pod)
	Expect(err).NotTo(HaveOccurred())
	return read
}

// followPod follows the console's log of a launcher Pod.
func followPod(ctx context.Context, pod *corev1.Pod) (func() string, error) {
	stream, err := clientset.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
		Container: launcherpod.ConsoleLogContainer, Follow: true,
	}).Stream(ctx)
	if err != nil {
		return nil, err
	}
	var (
		mutex sync.Mutex
		text  bytes.Buffer
	)
	go func() {
		defer func() { _ = stream.Close() }()
		chunk := make([]byte, 4096)
		for {
			n, err := stream.Read(chunk)
			mutex.Lock()
			text.Write(chunk[:n])
			mutex.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return func() string {
		mutex.Lock()
		defer mutex.Unlock()
		return text.String()
	}, nil
}
