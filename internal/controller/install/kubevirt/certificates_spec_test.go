// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt_test

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("KubeVirt with certificates", func() {
	var k *installation

	BeforeEach(func() {
		deleteCommonInstancetypes()
		k = newInstallation(func(s *v1.KubeVirtSpec) { s.Configuration = withoutCommonInstancetypes() })
	})

	It("publishes an authority's successor before it signs, and removes the old one after it expired", func() {
		clock := testclock.NewFakePassiveClock(time.Now())
		k.reconciler.Clock = clock
		again := func() time.Duration {
			GinkgoHelper()
			r, err := Reconcile(k.reconciler, k.kv)
			Expect(err).NotTo(HaveOccurred())
			return r.RequeueAfter
		}
		day := 24 * time.Hour
		again()
		k.rolledOut(2) // until then it reads the Pods more often
		Expect(again()).To(BeNumerically("~", 7*day-7*day/5, time.Minute))
		first := ExpectExists(k.authority(certificate.AgentServing)).Data[corev1.TLSCertKey]
		id := ExpectExists(k.kv).Status.TargetDeploymentID

		clock.SetTime(clock.Now().Add(6 * day))
		Expect(again()).To(BeNumerically("~", 10*time.Minute, time.Minute))
		Expect(ExpectExists(k.authority(certificate.AgentServing)).Data[corev1.TLSCertKey]).
			To(Equal(first), "the successor must not sign before it is trusted")
		Expect(ExpectExists(k.bundles()).Data[certificate.AgentServing.Name]).
			To(SatisfyAll(HavePrefix(string(first)), Not(Equal(string(first)))))

		clock.SetTime(clock.Now().Add(11 * time.Minute))
		again()
		second := ExpectExists(k.authority(certificate.AgentServing)).Data[corev1.TLSCertKey]
		Expect(second).NotTo(Equal(first))
		Expect(ExpectExists(k.bundles()).Data[certificate.AgentServing.Name]).To(Equal(string(second) + string(first)))

		clock.SetTime(clock.Now().Add(day))
		again()
		Expect(ExpectExists(k.bundles()).Data[certificate.AgentServing.Name]).To(Equal(string(second)))
		Expect(ExpectExists(k.kv).Status.TargetDeploymentID).To(Equal(id), "a new authority is no new installation")

		// Another lifetime replaces it.
		Expect(ExpectExists(k.authority(certificate.AgentServing)).Annotations).
			To(HaveKeyWithValue(certificate.DurationAnnotation, "168h0m0s"))
		before := ExpectExists(k.kv).DeepCopy()
		k.kv.Spec.CertificateRotationStrategy.SelfSigned = &v1.KubeVirtSelfSignConfiguration{CA: &v1.CertConfig{
			Duration: &metav1.Duration{Duration: day}, RenewBefore: &metav1.Duration{Duration: 6 * time.Minute},
		}}
		Expect(K8sClient.Patch(ctx, k.kv, client.MergeFrom(before))).To(Succeed())
		Expect(again()).To(BeNumerically("~", 3*time.Minute, 5*time.Second))
		Expect(ExpectExists(k.authority(certificate.AgentServing)).Annotations).
			To(HaveKeyWithValue(certificate.DurationAnnotation, "24h0m0s"))
		clock.SetTime(clock.Now().Add(3 * time.Minute))
		again()
		Expect(ExpectExists(k.authority(certificate.AgentServing)).Data[corev1.TLSCertKey]).NotTo(Equal(second))
	})

	It("does not let a successor sign while an object that has to trust it cannot be written", func() {
		clock := testclock.NewFakePassiveClock(time.Now())
		k.reconciler.Clock = clock
		Expect(k.reconcile(k.kv)).To(Succeed())
		signing := func(role certificate.Role) []byte { return ExpectExists(k.authority(role)).Data[corev1.TLSCertKey] }
		serving, other := signing(certificate.APIServing), signing(certificate.AgentServing)

		before := ExpectExists(k.kv).DeepCopy()
		k.kv.Spec.CustomizeComponents.Patches = []v1.CustomizeComponentsPatch{{
			ResourceType: "APIService", ResourceName: k.apiService().GetName(), Type: v1.JSONPatchType, Patch: `[{"op":"replace","path":"/spec/nowhere/x","value":1}]`,
		}}
		Expect(K8sClient.Patch(ctx, k.kv, client.MergeFrom(before))).To(Succeed())
		for _, after := range []time.Duration{6 * 24 * time.Hour, time.Hour} {
			clock.SetTime(clock.Now().Add(after))
			Expect(k.reconcile(k.kv)).NotTo(Succeed())
		}
		Expect(signing(certificate.APIServing)).To(Equal(serving), "its APIService has not got the successor")
		Expect(signing(certificate.AgentServing)).NotTo(Equal(other))

		before = ExpectExists(k.kv).DeepCopy()
		k.kv.Spec.CustomizeComponents.Patches = nil
		Expect(K8sClient.Patch(ctx, k.kv, client.MergeFrom(before))).To(Succeed())
		for range 2 { // the first one publishes it
			Expect(k.reconcile(k.kv)).To(Succeed())
		}
		Expect(signing(certificate.APIServing)).NotTo(Equal(serving))
	})

	It("rotates and publishes the other authorities when one cannot be written, and reports that one", func() {
		clock := testclock.NewFakePassiveClock(time.Now())
		k.reconciler.Clock = clock
		Expect(k.reconcile(k.kv)).To(Succeed())
		first := ExpectExists(k.bundles()).Data

		refused := k.authority(certificate.Roles()[0])
		k.reconciler.Client = interceptor.NewClient(k.writes, interceptor.Funcs{
			Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
				if o.GetName() == refused.Name {
					return ErrInjected
				}
				return c.Update(ctx, o, opts...)
			},
		})
		clock.SetTime(clock.Now().Add(6 * 24 * time.Hour))
		Expect(k.reconcile(k.kv)).To(MatchError(ErrInjected))
		now := ExpectExists(k.bundles()).Data
		for i, role := range certificate.Roles() {
			if i == 0 {
				Expect(now[role.Name]).To(Equal(first[role.Name]), "an authority that cannot be rotated stays trusted")
				continue
			}
			Expect(now[role.Name]).To(SatisfyAll(HavePrefix(first[role.Name]), Not(Equal(first[role.Name]))), role.Name)
		}
		k.expectCondition(k.kv, v1.KubeVirtConditionDegraded, corev1.ConditionTrue, kubevirt.ReasonDeploymentFailed)
		Expect(k.kv.Status.Conditions[0].Message).To(ContainSubstring(refused.Name))

		// An unreadable authority does not remove the trusted certificates.
		k.reconciler.Client = interceptor.NewClient(k.writes, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
				opts ...client.GetOption) error {
				if key.Name == refused.Name {
					return ErrInjected
				}
				return c.Get(ctx, key, o, opts...)
			},
		})
		Expect(k.reconcile(k.kv)).To(MatchError(ErrInjected))
		Expect(ExpectExists(k.bundles()).Data).To(Equal(now))
	})

	It("reports an overdue rotation before the authority expires, with one event, and its recovery", func() {
		clock := testclock.NewFakePassiveClock(time.Now())
		k.reconciler.Clock = clock
		Expect(k.reconcile(k.kv)).To(Succeed())
		Expect(k.recorded.Take()).To(BeEmpty())
		refused := k.authority(certificate.AgentMigration)
		k.reconciler.Client = interceptor.NewClient(k.writes, interceptor.Funcs{
			Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
				if o.GetName() == refused.Name {
					return ErrInjected
				}
				return c.Update(ctx, o, opts...)
			},
		})
		// Renewed from 1.4 days before the end on, late from 0.7 days before.
		clock.SetTime(clock.Now().Add(154 * time.Hour))
		for range 2 {
			Expect(k.reconcile(k.kv)).To(MatchError(ErrInjected))
			k.expectCondition(k.kv, v1.KubeVirtConditionDegraded, corev1.ConditionTrue,
				kubevirt.ReasonCertificateRotationOverdue)
			Expect(k.kv.Status.Conditions[0].Message).To(SatisfyAll(ContainSubstring(refused.Name), ContainSubstring("ends at"),
				Not(ContainSubstring(k.authority(certificate.APIServing).Name))))
		}
		Expect(k.recorded.Take()).To(ConsistOf(ContainSubstring(kubevirt.ReasonCertificateRotationOverdue)))

		k.reconciler.Client = k.writes
		Expect(k.reconcile(k.kv)).To(Succeed())
		k.expectCondition(k.kv, v1.KubeVirtConditionDegraded, corev1.ConditionFalse, kubevirt.ReasonDeploymentInProgress)
	})

	It("reports a component whose certificate request is pending for too long", func() {
		clock := testclock.NewFakePassiveClock(time.Now())
		k.reconciler.Clock = clock
		requestCertificate := func(user string) *certificatesv1.CertificateSigningRequest {
			csr := &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
				Spec: certificatesv1.CertificateSigningRequestSpec{
					SignerName: certificate.AgentServing.Signer(), Request: someRequest(),
					Usages: []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth},
				},
			}
			who := rest.CopyConfig(AdminConfig)
			who.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
			c, err := client.New(who, client.Options{Scheme: scheme.Scheme})
			Expect(err).NotTo(HaveOccurred())
			Expect(c.Create(ctx, csr)).To(Succeed())
			DeferCleanup(func() { Expect(K8sClient.Delete(ctx, csr)).To(Succeed()) })
			return csr
		}
		stranger := requestCertificate("mallory")
		csr := requestCertificate(certificate.AgentServing.Requester(k.namespace))
		again, err := Reconcile(k.reconciler, k.kv)
		Expect(err).NotTo(HaveOccurred())
		k.expectCondition(k.kv, v1.KubeVirtConditionDegraded, corev1.ConditionFalse, kubevirt.ReasonDeploymentInProgress)
		limit := certificate.PendingLimit(clusterconfig.Default().Certificates)
		Expect(again.RequeueAfter).To(SatisfyAll(BeNumerically(">", 0), BeNumerically("<=", limit+time.Second)))

		clock.SetTime(clock.Now().Add(limit + time.Second))
		Expect(k.reconcile(k.kv)).To(Succeed())
		k.expectCondition(k.kv, v1.KubeVirtConditionDegraded, corev1.ConditionTrue, kubevirt.ReasonCertificateRotationOverdue)
		Expect(k.kv.Status.Conditions[0].Message).To(SatisfyAll(
			ContainSubstring(csr.Name), ContainSubstring(certificate.AgentServing.Signer()),
			Not(ContainSubstring(stranger.Name))))
	})

	It("reports a component that has requested no certificate", func() {
		clock := testclock.NewFakePassiveClock(time.Now())
		k.reconciler.Clock = clock
		Expect(k.reconcile(k.kv)).To(Succeed())
		agent := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: "virt-handler-x",
				Labels: map[string]string{v1.AppLabel: "virt-handler"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}
		ExpectCreated(agent)
		agent.Status = corev1.PodStatus{
			Phase: corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{{Name: "c",
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
			Conditions: []corev1.PodCondition{{
				Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(clock.Now()),
			}},
		}
		ExpectStatus(agent)
		requestCertificate := func(role certificate.Role, pod types.UID) {
			GinkgoHelper()
			who := rest.CopyConfig(AdminConfig)
			who.Impersonate = rest.ImpersonationConfig{
				UserName: role.Requester(k.namespace), Groups: []string{"system:masters"},
				Extra: map[string][]string{"authentication.kubernetes.io/pod-uid": {string(pod)}},
			}
			c, err := client.New(who, client.Options{Scheme: scheme.Scheme})
			Expect(err).NotTo(HaveOccurred())
			csr := &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
				Spec: certificatesv1.CertificateSigningRequestSpec{
					SignerName: role.Signer(), Request: someRequest(),
					Usages: []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth},
				},
			}
			Expect(c.Create(ctx, csr)).To(Succeed())
			DeferCleanup(func() { Expect(K8sClient.Delete(ctx, csr)).To(Succeed()) })
		}
		// A request of another Pod does not count; this Pod has requested only the other roles' certificates.
		requestCertificate(certificate.AgentServing, "another")
		requestCertificate(certificate.AgentMigration, agent.UID)
		requestCertificate(certificate.AgentBackup, agent.UID)
		again, err := Reconcile(k.reconciler, k.kv)
		Expect(err).NotTo(HaveOccurred())
		k.expectCondition(k.kv, v1.KubeVirtConditionDegraded, corev1.ConditionFalse, kubevirt.ReasonDeploymentInProgress)
		Expect(again.RequeueAfter).To(SatisfyAll(BeNumerically(">", 0), BeNumerically("<=", 10*time.Minute)))

		clock.SetTime(clock.Now().Add(10*time.Minute + time.Second))
		Expect(k.reconcile(k.kv)).To(Succeed())
		k.expectCondition(k.kv, v1.KubeVirtConditionDegraded, corev1.ConditionTrue, kubevirt.ReasonCertificateRotationOverdue)
		Expect(k.kv.Status.Conditions[0].Message).To(
			SatisfyAll(ContainSubstring(agent.Name), ContainSubstring(certificate.AgentServing.Signer()),
				ContainSubstring(certificate.AgentServing.Requester(k.namespace)),
				Not(ContainSubstring(certificate.AgentMigration.Signer()))))
		Expect(k.recorded.Take()).To(ConsistOf(ContainSubstring(kubevirt.ReasonCertificateRotationOverdue)))

		requestCertificate(certificate.AgentServing, agent.UID)
		Expect(k.reconcile(k.kv)).To(Succeed())
		k.expectCondition(k.kv, v1.KubeVirtConditionDegraded, corev1.ConditionFalse, kubevirt.ReasonDeploymentInProgress)
	})

	It("replaces an authority with an invalid key, and restores the CA bundles", func() {
		Expect(k.reconcile(k.kv)).To(Succeed())
		secret := ExpectExists(k.authority(certificate.APIClient))
		secret.Data[corev1.TLSPrivateKeyKey] = []byte("nonsense")
		Expect(K8sClient.Update(ctx, secret)).To(Succeed())
		trusted := ExpectExists(k.bundles())
		trusted.Data = nil
		Expect(K8sClient.Update(ctx, trusted)).To(Succeed())
		Expect(k.reconcile(k.kv)).To(Succeed())
		made := ExpectExists(k.authority(certificate.APIClient)).Data[corev1.TLSCertKey]
		Expect(ExpectExists(k.bundles()).Data[certificate.APIClient.Name]).To(Equal(string(made)))
	})
})
