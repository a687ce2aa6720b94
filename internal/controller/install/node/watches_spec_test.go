// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package node_test

import (
	"context"
	"encoding/json"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/install/node"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// What triggers the reconciler: these specs write what agents and users write, and never call Reconcile.
var _ = Describe("Under a manager, a Node", Ordered, func() {
	var (
		namespace string
		recorder  *RecordedEvents
		host      *corev1.Node
	)
	BeforeAll(func() {
		namespace, recorder = NewInstallNamespace(), &RecordedEvents{}
		here := cache.ByObject{Namespaces: map[string]cache.Config{namespace: {}}}
		mgr, err := ctrl.NewManager(ControllerConfig, ctrl.Options{
			Scheme: scheme.Scheme, Metrics: server.Options{BindAddress: "0"},
			Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
				&coordinationv1.Lease{}: here, &corev1.ConfigMap{}: here,
			}},
		})
		Expect(err).NotTo(HaveOccurred())
		Expect((&node.Reconciler{
			Client: mgr.GetClient(), Recorder: recorder, Namespace: namespace, Config: clusterconfig.NewStore(),
		}).SetupWithManager(mgr)).To(Succeed())
		running, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- mgr.Start(running) }()
		DeferCleanup(func() {
			stop()
			Eventually(done).Should(Receive(Succeed()))
		})
	})
	meta := func() metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: namespace, Name: agentapi.ObjectName(host.Name),
			Labels: map[string]string{v1.AppLabel: agentapi.LabelValue},
		}
	}
	report := func(model string) *corev1.ConfigMap {
		GinkgoHelper()
		raw, err := json.Marshal(agentapi.Capabilities{Devices: true, CPUModels: []string{model}})
		Expect(err).NotTo(HaveOccurred())
		return &corev1.ConfigMap{ObjectMeta: meta(), Data: map[string]string{agentapi.CapabilitiesKey: string(raw)}}
	}
	// lease is valid for so long that its expiry triggers nothing in a spec that does not wait for it.
	lease := func(seconds int32) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: meta(), Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &host.Name, LeaseDurationSeconds: ptr.To(seconds), RenewTime: &metav1.MicroTime{Time: time.Now()},
		}}
	}
	labels := func() map[string]string { return ExpectExists(host).Labels }
	// With the agent's report, and no Lease yet.
	BeforeEach(func() {
		host = &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}}
		ExpectCreated(host)
		ExpectCreated(report("EPYC"))
	})

	It("is labeled when its agent renews its Lease for the first time, and reports another CPU", func() {
		ExpectCreated(lease(300))
		const model = "cpu-model.node.kubevirt.io/"
		Eventually(labels).Should(And(HaveKeyWithValue(node.SchedulableLabel, "true"), HaveKey(model+"EPYC")))
		Expect(K8sClient.Update(ctx, report("Skylake"))).To(Succeed())
		Eventually(labels).Should(And(HaveKey(model+"Skylake"), Not(HaveKey(model+"EPYC"))))
	})

	It("is not schedulable once its agent's Lease expires, without any event", func() {
		ExpectCreated(lease(2))
		Eventually(labels).Should(HaveKeyWithValue(node.SchedulableLabel, "true"))
		Eventually(labels).Should(HaveKeyWithValue(node.SchedulableLabel, "false"))
		Eventually(recorder.Take).Should(ConsistOf(ContainSubstring(node.ReasonNodeUnresponsive)))
	})

	It("gets its labels and its heartbeat back when a user removes them", func() {
		ExpectCreated(lease(300))
		Eventually(labels).Should(HaveKeyWithValue(node.SchedulableLabel, "true"))
		for _, field := range []string{"labels", "annotations"} {
			removal := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"`+field+`":null}}`))
			Expect(K8sClient.Patch(ctx, host, removal)).To(Succeed())
			Eventually(func(g Gomega) {
				g.Expect(labels()).To(HaveKeyWithValue(node.SchedulableLabel, "true"))
				g.Expect(host.Annotations).To(HaveKey(node.HeartbeatAnnotation))
			}).Should(Succeed())
		}
	})

	It("takes its agent's Lease and report with it when it is deleted", func() {
		ExpectCreated(lease(300))
		Eventually(labels).Should(HaveKeyWithValue(node.SchedulableLabel, "true"))
		Expect(K8sClient.Delete(ctx, host)).To(Succeed())
		for _, of := range []client.Object{lease(300), report("EPYC")} {
			Eventually(func() bool {
				return apierrors.IsNotFound(K8sClient.Get(ctx, client.ObjectKeyFromObject(of), of))
			}).Should(BeTrue())
		}
	})
})
