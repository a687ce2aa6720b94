// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller_test

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

type fixedConfig struct{ clusterconfig.Config }

func (f fixedConfig) Current() clusterconfig.Config { return f.Config }

func (f fixedConfig) Subscribe(notify func(clusterconfig.Config)) { notify(f.Config) }

// world is a VMI reconciler with the suite's API server and a fake clock.
type world struct {
	*virtualmachineinstance.Reconciler
	writes *Writes
	events *RecordedEvents
	clock  *clocktesting.FakePassiveClock
	ns     string
}

func newWorld() *world {
	config := clusterconfig.Default()
	config.Images.Launcher = "registry.example/virt-launcher:v1"
	config.DefaultArchitecture, config.KubeVirt = "amd64", "kubevirt"
	w := &world{writes: NewWrites(), events: &RecordedEvents{}, clock: clocktesting.NewFakePassiveClock(time.Now()), ns: NewNamespace()}
	w.Reconciler = &virtualmachineinstance.Reconciler{
		Client: w.writes, APIReader: AsController, Recorder: w.events, AgentRecorder: w.events.Agent, Config: fixedConfig{Config: config}, Clock: w.clock,
		Namespace: "kubevirt", DataVolumes: DataVolumes{},
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
	Expect(w.events.Take()).To(BeEmpty())
}

// createPodEvent creates an event of the launcher Pod, as the kubelet does.
func createPodEvent(vmi *v1.VirtualMachineInstance, at time.Time, reason, message string) {
	GinkgoHelper()
	pod := ExpectExists(PodOf(vmi))
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

// setLauncherStatus sets the node and the status of the launcher Pod, as scheduler and kubelet do.
func setLauncherStatus(vmi *v1.VirtualMachineInstance, node string, status *builder.PodStatus) *corev1.Pod {
	GinkgoHelper()
	pod := ExpectExists(PodOf(vmi))
	if node != "" && pod.Spec.NodeName == "" {
		Expect(K8sClient.SubResource("binding").Create(ctx, pod, &corev1.Binding{
			ObjectMeta: pod.ObjectMeta, Target: corev1.ObjectReference{Kind: "Node", Name: node},
		})).To(Succeed())
		pod = ExpectExists(PodOf(vmi))
	}
	conditions, class := pod.Status.Conditions, pod.Status.QOSClass
	pod.Status = status.Obj()
	pod.Status.QOSClass = class
	for _, c := range conditions {
		if c.Type == v1.VirtualMachineUnpaused || c.Type == corev1.PodScheduled && len(pod.Status.Conditions) == 0 {
			pod.Status.Conditions = append(pod.Status.Conditions, c)
		}
	}
	Expect(K8sClient.Status().Update(ctx, pod)).To(Succeed())
	return ExpectExists(PodOf(vmi))
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
	w.events.Take()
	return ExpectExists(vmi)
}

// agent patches the status as virt-handler does.
func agent(vmi *v1.VirtualMachineInstance, change func(*v1.VirtualMachineInstanceStatus)) {
	GinkgoHelper()
	before := ExpectExists(vmi).DeepCopy()
	change(&vmi.Status)
	_, err := vmistatus.Patch(ctx, K8sClient, vmistatus.Handler, before, vmi)
	Expect(err).NotTo(HaveOccurred())
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
