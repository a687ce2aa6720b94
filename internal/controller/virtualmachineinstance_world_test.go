// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller

import (
	"fmt"
	"slices"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
)

// recordedEvents is an event recorder that collects events as "Normal Reason: note".
type recordedEvents struct {
	mu     sync.Mutex
	events []string
}

//nolint:revive // argument-limit: the signature is client-go's.
func (h *recordedEvents) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, fmt.Sprintf("%s %s: %s", kind, reason, fmt.Sprintf(note, args...)))
}

// fromSource is an event recorder that appends the source to the event.
type fromSource struct {
	*recordedEvents
	source string
}

func (o fromSource) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) { //nolint:revive // argument-limit: as above
	o.recordedEvents.Eventf(regarding, related, kind, reason, action, note+" [%s]", append(slices.Clone(args), o.source)...)
}

// agent returns a recorder of events whose source is the agent of a node.
func (h *recordedEvents) agent(node string) events.EventRecorder {
	return fromSource{h, "virt-handler on " + node}
}

func (h *recordedEvents) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := h.events
	h.events = nil
	return out
}

type fixedConfig struct{ clusterconfig.Config }

func (f fixedConfig) Current() clusterconfig.Config { return f.Config }

func (f fixedConfig) Subscribe(notify func(clusterconfig.Config)) { notify(f.Config) }

// world is a VMI reconciler with the suite's API server and a fake clock.
type world struct {
	*virtualmachineinstance.Reconciler
	writes *Writes
	events *recordedEvents
	clock  *clocktesting.FakePassiveClock
	ns     string
}

func newWorld() *world {
	config := clusterconfig.Default()
	config.Images.Launcher = "registry.example/virt-launcher:v1"
	config.DefaultArchitecture, config.KubeVirt = "amd64", "kubevirt"
	w := &world{writes: NewWrites(), events: &recordedEvents{}, clock: clocktesting.NewFakePassiveClock(time.Now()), ns: NewNamespace()}
	w.Reconciler = &virtualmachineinstance.Reconciler{
		Client: w.writes, APIReader: asController, Recorder: w.events, AgentRecorder: w.events.agent, Config: fixedConfig{Config: config}, Clock: w.clock,
		Namespace: "kubevirt", DataVolumes: imports{Reader: k8sClient},
	}
	return w
}

func (w *world) create(b *builder.VMI) *v1.VirtualMachineInstance {
	GinkgoHelper()
	vmi := b.Namespace(w.ns).Finalizers(v1.VirtualMachineInstanceFinalizer).Obj()
	ExpectCreated(vmi)
	return ExpectExists(vmi)
}

func (w *world) reconcile(vmi *v1.VirtualMachineInstance) (ctrl.Result, error) {
	return w.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(vmi)})
}

// expectReconciled reconciles once and expects exactly these writes, in any order.
func (w *world) expectReconciled(vmi *v1.VirtualMachineInstance, writes ...string) ctrl.Result {
	GinkgoHelper()
	result, err := w.reconcile(vmi)
	Expect(err).NotTo(HaveOccurred())
	w.writes.ExpectWritten(writes...)
	return result
}

// expectReconciledInOrder reconciles once and expects exactly these writes, in this order.
func (w *world) expectReconciledInOrder(vmi *v1.VirtualMachineInstance, writes ...string) {
	GinkgoHelper()
	_, err := w.reconcile(vmi)
	Expect(err).NotTo(HaveOccurred())
	w.writes.ExpectWrittenInOrder(writes...)
}

// expectQuiet reconciles once and expects neither a write nor an event.
func (w *world) expectQuiet(vmi *v1.VirtualMachineInstance) {
	GinkgoHelper()
	w.expectReconciled(vmi)
	Expect(w.events.take()).To(BeEmpty())
}

// createPodEvent creates an event of the launcher Pod, as the kubelet does.
func createPodEvent(vmi *v1.VirtualMachineInstance, at time.Time, reason, message string) {
	GinkgoHelper()
	pod := ExpectExists(podOf(vmi))
	ExpectCreated(&corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: vmi.Namespace, GenerateName: pod.Name + "."},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Type:           corev1.EventTypeWarning, Reason: reason, Message: message,
		Source:         corev1.EventSource{Component: "kubelet"},
		FirstTimestamp: metav1.NewTime(at), LastTimestamp: metav1.NewTime(at),
	})
}

// advance advances the clock.
func (w *world) advance(d time.Duration) { w.clock.SetTime(w.clock.Now().Add(d)) }

// shownFor is how long the final phase of a deleted VMI is shown.
const shownFor = 1500 * time.Millisecond

func podOf(vmi *v1.VirtualMachineInstance) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: vmi.Namespace, Name: podspec.PodName(vmi)}}
}

// setLauncherStatus sets the node and the status of the launcher Pod, as scheduler and kubelet do.
func setLauncherStatus(vmi *v1.VirtualMachineInstance, node string, status *builder.PodStatus) *corev1.Pod {
	GinkgoHelper()
	pod := ExpectExists(podOf(vmi))
	if node != "" && pod.Spec.NodeName == "" {
		Expect(k8sClient.SubResource("binding").Create(ctx, pod, &corev1.Binding{
			ObjectMeta: pod.ObjectMeta, Target: corev1.ObjectReference{Kind: "Node", Name: node},
		})).To(Succeed())
		pod = ExpectExists(podOf(vmi))
	}
	conditions, class := pod.Status.Conditions, pod.Status.QOSClass
	pod.Status = status.Obj()
	pod.Status.QOSClass = class
	for _, c := range conditions {
		if c.Type == v1.VirtualMachineUnpaused || c.Type == corev1.PodScheduled && len(pod.Status.Conditions) == 0 {
			pod.Status.Conditions = append(pod.Status.Conditions, c)
		}
	}
	Expect(k8sClient.Status().Update(ctx, pod)).To(Succeed())
	return ExpectExists(podOf(vmi))
}

// assigned creates a VMI and reconciles it until it is Scheduled, on a node that does not exist.
func (w *world) assigned(b *builder.VMI) *v1.VirtualMachineInstance {
	GinkgoHelper()
	return w.assignedTo("node-1", b)
}

func (w *world) assignedTo(host string, b *builder.VMI) *v1.VirtualMachineInstance {
	GinkgoHelper()
	vmi := w.create(b)
	w.expectReconciled(vmi, "create Pod")
	setLauncherStatus(vmi, host, builder.MakePodStatus().Running())
	w.expectReconciled(vmi, "patch VirtualMachineInstance", "patch Pod/status", "patch VirtualMachineInstance/status")
	w.events.take()
	return ExpectExists(vmi)
}

// agent patches the status as virt-handler does.
func agent(vmi *v1.VirtualMachineInstance, change func(*v1.VirtualMachineInstanceStatus)) {
	GinkgoHelper()
	before := ExpectExists(vmi).DeepCopy()
	change(&vmi.Status)
	_, err := vmistatus.Patch(ctx, k8sClient, vmistatus.Handler, before, vmi)
	Expect(err).NotTo(HaveOccurred())
}

func running(status *v1.VirtualMachineInstanceStatus) {
	vmistatus.SetPhase(status, v1.Running, metav1.Now())
	vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceReady, Status: corev1.ConditionTrue,
	}, metav1.Now())
}

func haveCondition(kind v1.VirtualMachineInstanceConditionType, status corev1.ConditionStatus, reason, message string,
) gomegatypes.GomegaMatcher {
	return WithTransform(func(vmi *v1.VirtualMachineInstance) string {
		c := vmistatus.FindCondition(&vmi.Status, kind)
		if c == nil {
			return "none"
		}
		return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
	}, And(HavePrefix("%s %s ", status, reason), ContainSubstring(message)))
}

func haveNoCondition(kind v1.VirtualMachineInstanceConditionType) gomegatypes.GomegaMatcher {
	return WithTransform(func(vmi *v1.VirtualMachineInstance) any {
		return vmistatus.FindCondition(&vmi.Status, kind)
	}, BeNil())
}
