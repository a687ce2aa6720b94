// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// What triggers the reconciler: these specs write what users and Kubernetes' controllers write, and never call
// Reconcile.
var _ = Describe("Under a manager, a KubeVirt object", Ordered, func() {
	var k *installation
	exists := func(object client.Object) func() error {
		return func() error { return K8sClient.Get(ctx, client.ObjectKeyFromObject(object), object) }
	}
	// reason returns the reason of a condition of the KubeVirt object if it is true.
	reason := func(kind v1.KubeVirtConditionType) func() string {
		return func() string {
			c := conditions.Find(ExpectExists(k.kv).Status.Conditions, kind)
			if c == nil || c.Status != corev1.ConditionTrue {
				return ""
			}
			return c.Reason
		}
	}
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: k.namespace, Name: name} }
	// collectAll removes what foreground deletions left to the garbage collector, which envtest does not have.
	collectAll := func() {
		GinkgoHelper()
		second := k.apiService()
		second.SetName("v1alpha3.subresources.kubevirt.io")
		front := k.service()
		front.Name = manifests.APIName
		for _, o := range []client.Object{
			k.agents(), k.brokers(), k.service(), k.api(), front, k.bundles(), k.apiService(), second,
			&policyv1.PodDisruptionBudget{ObjectMeta: named("virt-api-pdb")},
			&policyv1.PodDisruptionBudget{ObjectMeta: named("virt-controller-pdb")},
		} {
			if exists(o)() == nil && o.GetDeletionTimestamp() != nil {
				k.collect(o)
			}
		}
	}
	BeforeAll(func() {
		k = newInstallation(func(s *v1.KubeVirtSpec) { s.Infra = nil })
		// A request for a certificate that is created now counts as pending for too long.
		late := certificate.PendingLimit(clusterconfig.Default().Certificates) + time.Minute
		k.reconciler.Clock = testclock.NewFakePassiveClock(time.Now().Add(late))
		collectAll() // APIServices have no namespace, and other specs delete them.
		k.run()
	})
	// Each spec begins with a complete installation.
	BeforeEach(func() {
		for _, component := range []client.Object{k.brokers(), k.agents(), k.api()} {
			Eventually(exists(component)).Should(Succeed())
		}
		// What the spec before has changed may change a component again in between.
		Eventually(func() string {
			_ = InterceptGomegaFailure(func() { k.rolledOut(2) })
			return reason(v1.KubeVirtConditionAvailable)()
		}).Should(Equal(kubevirt.ReasonAllComponentsReady))
	})

	It("is not Available while no agent is ready, and no virt-api", func() {
		k.rolled(k.agents(), 0)
		Eventually(reason(v1.KubeVirtConditionAvailable)).Should(BeEmpty())
		k.rolled(k.agents(), 2)
		Eventually(reason(v1.KubeVirtConditionAvailable)).Should(Equal(kubevirt.ReasonAllComponentsReady))
		k.served(0)
		Eventually(reason(v1.KubeVirtConditionAvailable)).Should(BeEmpty())
	})

	DescribeTable("has restored what another client deletes", func(of func() client.Object) {
		object := of()
		Eventually(exists(object)).Should(Succeed())
		deleted := object.GetUID()
		Expect(K8sClient.Delete(ctx, object)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(exists(object)()).To(Succeed())
			g.Expect(object.GetUID()).NotTo(Equal(deleted))
		}).Should(Succeed())
	},
		Entry("the agents", func() client.Object { return k.agents() }),
		Entry("virt-api", func() client.Object { return k.api() }),
		Entry("a disruption budget", func() client.Object {
			return &policyv1.PodDisruptionBudget{ObjectMeta: named("virt-api-pdb")}
		}),
		Entry("a Service", func() client.Object { return k.service() }),
		Entry("the CA bundles", func() client.Object { return k.bundles() }),
		Entry("an authority", func() client.Object { return k.authority(certificate.APIServing) }),
		Entry("an APIService", func() client.Object { return k.apiService() }),
		Entry("a common instance type", func() client.Object {
			return &v1beta1.VirtualMachineClusterInstancetype{ObjectMeta: metav1.ObjectMeta{Name: "u1.small"}}
		}),
		Entry("a common preference", func() client.Object {
			return &v1beta1.VirtualMachineClusterPreference{ObjectMeta: metav1.ObjectMeta{Name: "fedora"}}
		}),
	)

	It("publishes the CA of virt-controller's own servers, which another reconciler writes", func() {
		webhooks, _, err := certificate.Webhooks{}.Renew(certificate.Renewal{
			Now: time.Now(), Lifetimes: clusterconfig.Default().Certificates, Names: []string{"virt-controller"},
		})
		Expect(err).NotTo(HaveOccurred())
		data, err := webhooks.Data()
		Expect(err).NotTo(HaveOccurred())
		ExpectCreated(&corev1.Secret{ObjectMeta: named(certificate.WebhooksSecret), Data: data})
		Eventually(func() map[string]string { return ExpectExists(k.bundles()).Data }).
			Should(HaveKeyWithValue(certificate.ControllerServing.Name, string(webhooks.Bundle())))
	})

	It("follows the number of nodes that accept guests", func() {
		replicas := func() *int32 { return ExpectExists(k.api()).Spec.Replicas }
		Expect(replicas()).To(HaveValue(BeEquivalentTo(2)))
		host := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}}
		ExpectCreated(host)
		DeferCleanup(func() { Expect(K8sClient.Delete(ctx, host)).To(Succeed()) })
		label := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+v1.NodeSchedulable+`":"true"}}}`))
		Expect(K8sClient.Patch(ctx, host, label)).To(Succeed())
		Eventually(replicas).Should(HaveValue(BeEquivalentTo(1)), "there is one node")
	})

	It("gives virt-controller's Deployment, which others create, a disruption budget", func() {
		own := &appsv1.Deployment{ObjectMeta: named(manifests.ControllerName)}
		own.Labels = map[string]string{v1.AppLabel: manifests.ControllerName}
		own.Spec.Replicas = ptr.To[int32](2)
		own.Spec.Selector = &metav1.LabelSelector{MatchLabels: own.Labels}
		own.Spec.Template.Labels = own.Labels
		own.Spec.Template.Spec.Containers = []corev1.Container{{Name: manifests.ControllerName, Image: "e.org/c:v1"}}
		ExpectCreated(own)
		Eventually(exists(&policyv1.PodDisruptionBudget{ObjectMeta: named("virt-controller-pdb")})).Should(Succeed())
		Expect(K8sClient.Delete(ctx, own)).To(Succeed())
		Eventually(func() *metav1.Time {
			return ExpectExists(&policyv1.PodDisruptionBudget{ObjectMeta: named("virt-controller-pdb")}).DeletionTimestamp
		}).ShouldNot(BeNil())
	})

	It("is Degraded while a component's request for a certificate is pending for too long", func() {
		component := rest.CopyConfig(AdminConfig)
		component.Impersonate = rest.ImpersonationConfig{
			UserName: certificate.AgentServing.Requester(k.namespace), Groups: []string{"system:masters"},
		}
		c, err := client.New(component, client.Options{Scheme: scheme.Scheme})
		Expect(err).NotTo(HaveOccurred())
		csr := &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: certificate.AgentServing.Signer(), Request: someRequest(),
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth},
			},
		}
		Expect(c.Create(ctx, csr)).To(Succeed())
		Eventually(reason(v1.KubeVirtConditionDegraded)).Should(Equal(kubevirt.ReasonCertificateRotationOverdue))
		csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
			Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: "Unknown",
		}}
		Expect(K8sClient.SubResource("approval").Update(ctx, csr)).To(Succeed())
		Eventually(reason(v1.KubeVirtConditionDegraded)).Should(BeEmpty())
	})

	It("updates the brokers when its spec changes", func() {
		image := func() string { return ExpectExists(k.brokers()).Spec.Template.Spec.Containers[0].Image }
		tag := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"imageTag":"v2"}}`))
		Expect(K8sClient.Patch(ctx, k.kv, tag)).To(Succeed())
		Eventually(image).Should(Equal("e.org/b:v2"))
		back := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"imageTag":null}}`))
		Expect(K8sClient.Patch(ctx, k.kv, back)).To(Succeed())
		Eventually(image).Should(Equal("e.org/b:v1"))
	})

	// The last spec, because it deletes the object.
	It("is succeeded by a second one when it is gone", func() {
		const held = "test/held"
		second := k.newKubeVirt("second")
		ExpectCreated(second)
		Eventually(func() *v1.KubeVirtCondition {
			return conditions.Find(ExpectExists(second).Status.Conditions, v1.KubeVirtConditionDegraded)
		}).Should(HaveValue(HaveField("Reason", kubevirt.ReasonExistingDeployment)))
		deleteGuests()
		Eventually(func() error {
			ExpectExists(k.kv).Finalizers = append(k.kv.Finalizers, held)
			return K8sClient.Update(ctx, k.kv)
		}).Should(Succeed())
		Expect(K8sClient.Delete(ctx, k.kv)).To(Succeed())
		Eventually(func() []string {
			collectAll()
			return ExpectExists(k.kv).Finalizers
		}).Should(ConsistOf(held))
		ExpectGone(k.agents())
		release := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		Expect(K8sClient.Patch(ctx, k.kv, release)).To(Succeed())
		Eventually(exists(k.agents())).Should(Succeed())
	})
})
