// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package node_test

import (
	"encoding/json"
	"maps"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/install/node"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("Node", func() {
	var (
		namespace string
		steps     Steps
		recorder  *events.FakeRecorder
		host      *corev1.Node
		clock     *clocktesting.FakePassiveClock
	)

	meta := func() metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: namespace, Name: agentapi.ObjectName(host.Name),
			Labels: map[string]string{v1.AppLabel: agentapi.LabelValue},
		}
	}
	lease := func() *coordinationv1.Lease { return &coordinationv1.Lease{ObjectMeta: meta()} }
	report := func() *corev1.ConfigMap { return &corev1.ConfigMap{ObjectMeta: meta()} }
	reconcile := func() ctrl.Result {
		GinkgoHelper()
		return steps.Step(host)
	}
	publish := func(r agentapi.Capabilities) {
		GinkgoHelper()
		raw, err := json.Marshal(r)
		Expect(err).NotTo(HaveOccurred())
		cm := report()
		cm.Data = map[string]string{agentapi.CapabilitiesKey: string(raw)}
		if apierrors.IsAlreadyExists(K8sClient.Create(ctx, cm)) {
			Expect(K8sClient.Update(ctx, cm)).To(Succeed())
		}
	}
	beat := func() {
		GinkgoHelper()
		l := lease()
		err := K8sClient.Get(ctx, client.ObjectKeyFromObject(l), l)
		l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &host.Name, LeaseDurationSeconds: ptr.To[int32](40),
			RenewTime: &metav1.MicroTime{Time: clock.Now()}}
		if err != nil {
			Expect(K8sClient.Create(ctx, l)).To(Succeed())
			return
		}
		Expect(K8sClient.Update(ctx, l)).To(Succeed())
	}

	BeforeEach(func() {
		namespace = NewInstallNamespace()
		clock = clocktesting.NewFakePassiveClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
		host = &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}}
		Expect(K8sClient.Create(ctx, host)).To(Succeed())
		recorder, steps.Writes = events.NewFakeRecorder(10), NewWrites()
		steps.Of = &node.Reconciler{
			Client: steps.Writes, Recorder: recorder, Namespace: namespace, Config: clusterconfig.NewStore(),
			Clock: clock,
		}
	})

	It("labels a node from its agent's report", func() {
		publish(agentapi.Capabilities{Devices: true, CPUModels: []string{"EPYC"}, MachineTypes: []string{"q35"}})
		beat()
		Expect(reconcile().RequeueAfter).To(Equal(40 * time.Second))
		ExpectExists(host)
		Expect(host.Labels).To(HaveKeyWithValue(node.SchedulableLabel, "true"))
		Expect(host.Labels).To(HaveKeyWithValue("cpu-model.node.kubevirt.io/EPYC", "true"))
		Expect(host.Labels).To(HaveKeyWithValue("machine-type.node.kubevirt.io/q35", "true"))
		Expect(host.Annotations).To(HaveKeyWithValue(node.HeartbeatAnnotation, "2026-01-02T03:04:05Z"))
	})

	It("writes nothing without a change, and the heartbeat once a minute", func() {
		publish(agentapi.Capabilities{Devices: true})
		beat()
		steps.ExpectBudget(host, "patch Node")
		steps.ExpectSteady(host)
		for range 5 {
			clock.SetTime(clock.Now().Add(10 * time.Second))
			beat()
			steps.ExpectSteady(host)
		}
		clock.SetTime(clock.Now().Add(10 * time.Second))
		beat()
		steps.ExpectBudget(host, "patch Node")
	})

	It("marks a node whose Lease has expired as not schedulable, with one event", func() {
		publish(agentapi.Capabilities{Devices: true, CPUModels: []string{"EPYC"}})
		beat()
		reconcile()

		clock.SetTime(clock.Now().Add(40 * time.Second))
		Expect(reconcile()).To(BeZero())
		ExpectExists(host)
		Expect(host.Labels).To(HaveKeyWithValue(node.SchedulableLabel, "false"))
		Expect(host.Labels).To(HaveKey("cpu-model.node.kubevirt.io/EPYC"))
		Expect(host.Annotations).To(HaveKeyWithValue(node.UnresponsiveAnnotation, "2026-01-02T03:04:05Z"),
			"the VMI reconciler reads this annotation")
		Expect(recorder.Events).To(Receive(ContainSubstring(node.ReasonNodeUnresponsive)))

		steps.ExpectSteady(host)
		Expect(recorder.Events).NotTo(Receive(), "the event is recorded once")
		beat()
		reconcile()
		Expect(ExpectExists(host).Labels).To(HaveKeyWithValue(node.SchedulableLabel, "true"))
		Expect(host.Annotations).NotTo(HaveKey(node.UnresponsiveAnnotation))
	})

	It("keeps a node schedulable while its agent is replaced, and records no event if none follows", func() {
		publish(agentapi.Capabilities{Devices: true})
		beat()
		reconcile()
		l := ExpectExists(lease())
		l.Spec.HolderIdentity = ptr.To("")
		Expect(K8sClient.Update(ctx, l)).To(Succeed())
		Expect(reconcile().RequeueAfter).To(Equal(node.Timeout))
		Expect(ExpectExists(host).Labels).To(HaveKeyWithValue(node.SchedulableLabel, "true"))
		clock.SetTime(clock.Now().Add(node.Timeout))
		Expect(reconcile()).To(BeZero())
		Expect(ExpectExists(host).Labels).To(HaveKeyWithValue(node.SchedulableLabel, "false"))
		Expect(host.Annotations).NotTo(HaveKey(node.UnresponsiveAnnotation))
		Expect(recorder.Events).NotTo(Receive())
	})

	It("retries when the Node cannot be written, and records the event afterwards only", func() {
		publish(agentapi.Capabilities{Devices: true})
		beat()
		reconcile()
		clock.SetTime(clock.Now().Add(40 * time.Second))
		steps.Writes.Fail = func(string) error { return ErrInjected }
		_, err := steps.Try(host)
		Expect(err).To(MatchError(ErrInjected))
		Expect(recorder.Events).NotTo(Receive())
		steps.Writes.Fail = nil
		reconcile()
		Expect(ExpectExists(host).Labels).To(HaveKeyWithValue(node.SchedulableLabel, "false"))
		Expect(recorder.Events).To(Receive(ContainSubstring(node.ReasonNodeUnresponsive)))
	})

	It("writes the same labels again with a stale cache, and keeps those of others", func() {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
		Expect(K8sClient.Get(ctx, client.ObjectKeyFromObject(host), object)).To(Succeed())
		publish(agentapi.Capabilities{Devices: true, CPUModels: []string{"EPYC"}})
		beat()
		reconcile()
		labels := maps.Clone(ExpectExists(host).Labels)
		metav1.SetMetaDataLabel(&host.ObjectMeta, "of", "someone-else")
		Expect(K8sClient.Update(ctx, host)).To(Succeed())

		steps.Writes.Stale = object
		reconcile()
		Expect(ExpectExists(host).Labels).To(HaveKeyWithValue("of", "someone-else"))
		delete(host.Labels, "of")
		Expect(host.Labels).To(Equal(labels))
	})

	It("ignores a Node that is deleted meanwhile", func() {
		publish(agentapi.Capabilities{Devices: true})
		beat()
		steps.Writes.Fail = func(string) error { return apierrors.NewNotFound(corev1.Resource("nodes"), host.Name) }
		reconcile()
	})

	It("ignores a Lease or ConfigMap without an agent's label", func() {
		beat()
		l := lease()
		Expect(K8sClient.Get(ctx, client.ObjectKeyFromObject(l), l)).To(Succeed())
		l.Labels = nil
		Expect(K8sClient.Update(ctx, l)).To(Succeed())
		steps.ExpectSteady(host)
		Expect(node.OfAgent(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "virt-controller"}})).To(BeEmpty())
		Expect(node.OfAgent(ctx, lease())[0].Name).To(Equal(host.Name))
	})

	It("removes labels without an agent's Lease, and deletes Lease and report without a Node", func() {
		publish(agentapi.Capabilities{Devices: true, CPUModels: []string{"EPYC"}})
		beat()
		reconcile()
		Expect(K8sClient.Delete(ctx, lease())).To(Succeed())
		reconcile()
		Expect(ExpectExists(host).Labels).NotTo(HaveKey(node.SchedulableLabel))
		Expect(host.Labels).NotTo(HaveKey("cpu-model.node.kubevirt.io/EPYC"))
		Expect(host.Annotations).NotTo(HaveKey(node.HeartbeatAnnotation))

		beat()
		Expect(K8sClient.Delete(ctx, host)).To(Succeed())
		reconcile()
		ExpectGone(lease())
		ExpectGone(report())
	})
})
