// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"encoding/base64"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agentapi/nodecapabilities"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/kubevirt"
	"github.com/vireo-project/vireo/internal/controller/kubevirt/operator"
	"github.com/vireo-project/vireo/test/builder"
)

var _ = Describe("KubeVirt", func() {
	var (
		namespace  string
		reconciler *kubevirt.Reconciler
		writes     *Writes
		kv         *v1.KubeVirt
		recorded   *recordedEvents
	)

	newKubeVirt := func(name string) *v1.KubeVirt {
		return &v1.KubeVirt{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			// Independent of the nodes of other specs.
			Spec: v1.KubeVirtSpec{Infra: &v1.ComponentConfig{Replicas: ptr.To[uint8](2)}},
		}
	}
	reconcile := func(kv *v1.KubeVirt) error {
		_, err := reconciler.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(kv)})
		return err
	}
	agents := func() *appsv1.DaemonSet {
		return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: operator.HandlerName}}
	}
	api := func() *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: operator.APIName}}
	}
	apiService := func() *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(operator.APIServiceKind)
		u.SetName("v1.subresources.kubevirt.io")
		return u
	}
	bundles := func() *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: certificate.BundleName}}
	}
	authority := func(role certificate.Role) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role.AuthoritySecret()}}
	}
	service := func() *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kubevirt-prometheus-metrics"}}
	}
	// served writes virt-api's status, in place of the Deployment controller, which envtest lacks.
	served := func(ready int32) {
		GinkgoHelper()
		d := ExpectExists(api())
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: ready}
		ExpectStatus(d)
	}
	// rolledOut does the same for the agents and virt-api.
	rolledOut := func(ready int32) {
		GinkgoHelper()
		ds := ExpectExists(agents())
		ds.Status = appsv1.DaemonSetStatus{
			ObservedGeneration: ds.Generation, DesiredNumberScheduled: 2, CurrentNumberScheduled: 2,
			UpdatedNumberScheduled: 2, NumberReady: ready, NumberAvailable: ready,
		}
		ExpectStatus(ds)
		served(2)
	}
	expectCondition := func(kv *v1.KubeVirt, kind v1.KubeVirtConditionType, status corev1.ConditionStatus, reason string) {
		GinkgoHelper()
		for _, c := range ExpectExists(kv).Status.Conditions {
			if c.Type == kind {
				Expect(c.Status).To(Equal(status), "%s: %s", c.Reason, c.Message)
				Expect(c.Reason).To(Equal(reason))
				return
			}
		}
		Fail("there is no condition " + string(kind))
	}
	// collect removes what a foreground deletion left to the garbage collector, which envtest does not have.
	collect := func(object client.Object) {
		GinkgoHelper()
		Expect(k8sClient.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
		Expect(object.GetDeletionTimestamp()).NotTo(BeNil())
		object.SetFinalizers(nil)
		Expect(k8sClient.Update(ctx, object)).To(Succeed())
	}

	BeforeEach(func() {
		namespace = NewInstallNamespace()
		writes, recorded = NewWrites(), &recordedEvents{}
		reconciler = &kubevirt.Reconciler{
			Client: writes, APIReader: asController, Recorder: recorded, Namespace: namespace,
			Options: []clusterconfig.Option{clusterconfig.WithImages(clusterconfig.Images{Launcher: "e.org/l:v1", Handler: "e.org/h:v1", API: "e.org/a:v1"})},
		}
		kv = newKubeVirt("kubevirt")
		ExpectCreated(kv)
	})

	It("installs the agents, and is Deployed when all are ready", func() {
		Expect(reconcile(kv)).To(Succeed())
		Expect(ExpectExists(kv).Finalizers).To(ContainElement(kubevirt.Finalizer))
		Expect(kv.Status.Phase).To(Equal(v1.KubeVirtPhaseDeploying))
		expectCondition(kv, v1.KubeVirtConditionProgressing, corev1.ConditionTrue, kubevirt.ReasonDeploymentInProgress)
		Expect(ExpectExists(agents()).Spec.Template.Spec.Containers[0].Image).To(Equal("e.org/h:v1"))
		ExpectExists(service())

		rolledOut(2)
		Expect(reconcile(kv)).To(Succeed())
		Expect(ExpectExists(kv).Status.Phase).To(Equal(v1.KubeVirtPhaseDeployed))
		expectCondition(kv, v1.KubeVirtConditionAvailable, corev1.ConditionTrue, kubevirt.ReasonAllComponentsReady)
		Expect(kv.Status.ObservedKubeVirtVersion).To(Equal("v1"))
		Expect(kv.Status.ObservedDeploymentID).To(Equal(kv.Status.TargetDeploymentID))
		Expect(reconciler.DeploymentID(kv)).To(Equal(kv.Status.TargetDeploymentID), "the ID does not depend on observed objects")
		Expect(kv.Status.Generations).To(HaveLen(8))
		Expect(*kv.Status.ObservedGeneration).To(Equal(kv.Generation))
	})

	It("installs virt-api with its CA bundle, and is not Available until it is ready", func() {
		Expect(reconcile(kv)).To(Succeed())
		Expect(ExpectExists(api()).Spec.Template.Spec.Containers[0].Image).To(Equal("e.org/a:v1"))
		rolledOut(2)
		served(1)
		Expect(reconcile(kv)).To(Succeed())
		expectCondition(kv, v1.KubeVirtConditionAvailable, corev1.ConditionFalse, kubevirt.ReasonDeploymentInProgress)
		Expect(kv.Status.Conditions[0].Message).To(Equal("Deploying version v1 with registry e.org: 1 of 2 Pods of virt-api are ready"))

		trusted := ExpectExists(bundles()).Data
		for _, role := range certificate.Roles() {
			secret := ExpectExists(authority(role))
			Expect(trusted[role.Name]).To(Equal(string(secret.Data[corev1.TLSCertKey])))
		}
		ca, _, err := unstructured.NestedString(ExpectExists(apiService()).Object, "spec", "caBundle")
		Expect(err).NotTo(HaveOccurred())
		Expect(base64.StdEncoding.DecodeString(ca)).To(BeEquivalentTo(trusted[certificate.APIServing.Name]))
	})

	It("publishes an authority's successor before it signs, and removes the old one after it expired", func() {
		clock := testclock.NewFakePassiveClock(time.Now())
		reconciler.Clock = clock
		again := func() time.Duration {
			GinkgoHelper()
			r, err := reconciler.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(kv)})
			Expect(err).NotTo(HaveOccurred())
			return r.RequeueAfter
		}
		day := 24 * time.Hour
		again()
		rolledOut(2) // until then it reads the Pods more often
		Expect(again()).To(BeNumerically("~", 7*day-7*day/5, time.Minute))
		first := ExpectExists(authority(certificate.AgentServing)).Data[corev1.TLSCertKey]
		id := ExpectExists(kv).Status.TargetDeploymentID

		clock.SetTime(clock.Now().Add(6 * day))
		Expect(again()).To(BeNumerically("~", 10*time.Minute, time.Minute))
		Expect(ExpectExists(authority(certificate.AgentServing)).Data[corev1.TLSCertKey]).To(Equal(first), "the successor must not sign before it is trusted")
		Expect(ExpectExists(bundles()).Data[certificate.AgentServing.Name]).To(SatisfyAll(HavePrefix(string(first)), Not(Equal(string(first)))))

		clock.SetTime(clock.Now().Add(11 * time.Minute))
		again()
		second := ExpectExists(authority(certificate.AgentServing)).Data[corev1.TLSCertKey]
		Expect(second).NotTo(Equal(first))
		Expect(ExpectExists(bundles()).Data[certificate.AgentServing.Name]).To(Equal(string(second) + string(first)))

		clock.SetTime(clock.Now().Add(day))
		again()
		Expect(ExpectExists(bundles()).Data[certificate.AgentServing.Name]).To(Equal(string(second)))
		Expect(ExpectExists(kv).Status.TargetDeploymentID).To(Equal(id), "a new authority is no new installation")

		// Another lifetime replaces it.
		Expect(ExpectExists(authority(certificate.AgentServing)).Annotations).To(HaveKeyWithValue(certificate.DurationAnnotation, "168h0m0s"))
		before := ExpectExists(kv).DeepCopy()
		kv.Spec.CertificateRotationStrategy.SelfSigned = &v1.KubeVirtSelfSignConfiguration{CA: &v1.CertConfig{
			Duration: &metav1.Duration{Duration: day}, RenewBefore: &metav1.Duration{Duration: time.Minute},
		}}
		Expect(k8sClient.Patch(ctx, kv, client.MergeFrom(before))).To(Succeed())
		Expect(again()).To(BeNumerically("~", 30*time.Second, 5*time.Second))
		Expect(ExpectExists(authority(certificate.AgentServing)).Annotations).To(HaveKeyWithValue(certificate.DurationAnnotation, "24h0m0s"))
		clock.SetTime(clock.Now().Add(time.Minute))
		again()
		Expect(ExpectExists(authority(certificate.AgentServing)).Data[corev1.TLSCertKey]).NotTo(Equal(second))
	})

	It("rotates and publishes the other authorities when one cannot be written, and reports that one", func() {
		clock := testclock.NewFakePassiveClock(time.Now())
		reconciler.Clock = clock
		Expect(reconcile(kv)).To(Succeed())
		first := ExpectExists(bundles()).Data

		refused := authority(certificate.Roles()[0])
		reconciler.Client = interceptor.NewClient(writes, interceptor.Funcs{
			Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
				if o.GetName() == refused.Name {
					return ErrInjected
				}
				return c.Update(ctx, o, opts...)
			},
		})
		clock.SetTime(clock.Now().Add(6 * 24 * time.Hour))
		Expect(reconcile(kv)).To(MatchError(ErrInjected))
		now := ExpectExists(bundles()).Data
		for i, role := range certificate.Roles() {
			if i == 0 {
				Expect(now[role.Name]).To(Equal(first[role.Name]), "an authority that cannot be rotated stays trusted")
				continue
			}
			Expect(now[role.Name]).To(SatisfyAll(HavePrefix(first[role.Name]), Not(Equal(first[role.Name]))), role.Name)
		}
		expectCondition(kv, v1.KubeVirtConditionDegraded, corev1.ConditionTrue, kubevirt.ReasonDeploymentFailed)
		Expect(kv.Status.Conditions[0].Message).To(ContainSubstring(refused.Name))

		// An unreadable authority does not remove the trusted certificates.
		reconciler.Client = interceptor.NewClient(writes, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if key.Name == refused.Name {
					return ErrInjected
				}
				return c.Get(ctx, key, o, opts...)
			},
		})
		Expect(reconcile(kv)).To(MatchError(ErrInjected))
		Expect(ExpectExists(bundles()).Data).To(Equal(now))
	})

	It("reports an overdue rotation before the authority expires, with one event, and its recovery", func() {
		clock := testclock.NewFakePassiveClock(time.Now())
		reconciler.Clock = clock
		Expect(reconcile(kv)).To(Succeed())
		Expect(recorded.take()).To(BeEmpty())
		refused := authority(certificate.AgentMigration)
		reconciler.Client = interceptor.NewClient(writes, interceptor.Funcs{
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
			Expect(reconcile(kv)).To(MatchError(ErrInjected))
			expectCondition(kv, v1.KubeVirtConditionDegraded, corev1.ConditionTrue, kubevirt.ReasonCertificateRotationOverdue)
			Expect(kv.Status.Conditions[0].Message).To(SatisfyAll(ContainSubstring(refused.Name), ContainSubstring("ends at"),
				Not(ContainSubstring(authority(certificate.APIServing).Name))))
		}
		Expect(recorded.take()).To(ConsistOf(ContainSubstring(kubevirt.ReasonCertificateRotationOverdue)))

		reconciler.Client = writes
		Expect(reconcile(kv)).To(Succeed())
		expectCondition(kv, v1.KubeVirtConditionDegraded, corev1.ConditionFalse, kubevirt.ReasonDeploymentInProgress)
	})

	It("reports a component whose certificate request is pending for too long", func() {
		clock := testclock.NewFakePassiveClock(time.Now())
		reconciler.Clock = clock
		ask := func(user string) *certificatesv1.CertificateSigningRequest {
			csr := &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
				Spec: certificatesv1.CertificateSigningRequestSpec{
					SignerName: certificate.AgentServing.Signer(), Request: someRequest(), Usages: []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth},
				},
			}
			who := rest.CopyConfig(cfg)
			who.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
			c, err := client.New(who, client.Options{Scheme: scheme.Scheme})
			Expect(err).NotTo(HaveOccurred())
			Expect(c.Create(ctx, csr)).To(Succeed())
			DeferCleanup(func() { Expect(k8sClient.Delete(ctx, csr)).To(Succeed()) })
			return csr
		}
		stranger := ask("mallory")
		csr := ask(certificate.AgentServing.Requester(namespace))
		again, err := reconciler.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(kv)})
		Expect(err).NotTo(HaveOccurred())
		expectCondition(kv, v1.KubeVirtConditionDegraded, corev1.ConditionFalse, kubevirt.ReasonDeploymentInProgress)
		limit := certificate.PendingLimit(clusterconfig.Default().Certificates)
		Expect(again.RequeueAfter).To(SatisfyAll(BeNumerically(">", 0), BeNumerically("<=", limit+time.Second)))

		clock.SetTime(clock.Now().Add(limit + time.Second))
		Expect(reconcile(kv)).To(Succeed())
		expectCondition(kv, v1.KubeVirtConditionDegraded, corev1.ConditionTrue, kubevirt.ReasonCertificateRotationOverdue)
		Expect(kv.Status.Conditions[0].Message).To(SatisfyAll(
			ContainSubstring(csr.Name), ContainSubstring(certificate.AgentServing.Signer()), Not(ContainSubstring(stranger.Name))))
	})

	It("reports a component that has requested no certificate", func() {
		clock := testclock.NewFakePassiveClock(time.Now())
		reconciler.Clock = clock
		Expect(reconcile(kv)).To(Succeed())
		agent := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "virt-handler-x", Labels: map[string]string{v1.AppLabel: "virt-handler"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}
		ExpectCreated(agent)
		agent.Status = corev1.PodStatus{
			Phase:             corev1.PodRunning,
			ContainerStatuses: []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
			Conditions: []corev1.PodCondition{{
				Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(clock.Now()),
			}},
		}
		ExpectStatus(agent)
		ask := func(role certificate.Role, pod types.UID) {
			GinkgoHelper()
			who := rest.CopyConfig(cfg)
			who.Impersonate = rest.ImpersonationConfig{
				UserName: role.Requester(namespace), Groups: []string{"system:masters"},
				Extra: map[string][]string{"authentication.kubernetes.io/pod-uid": {string(pod)}},
			}
			c, err := client.New(who, client.Options{Scheme: scheme.Scheme})
			Expect(err).NotTo(HaveOccurred())
			csr := &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
				Spec: certificatesv1.CertificateSigningRequestSpec{
					SignerName: role.Signer(), Request: someRequest(), Usages: []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth},
				},
			}
			Expect(c.Create(ctx, csr)).To(Succeed())
			DeferCleanup(func() { Expect(k8sClient.Delete(ctx, csr)).To(Succeed()) })
		}
		// A request of another Pod does not count; this Pod has requested only the other role's certificate.
		ask(certificate.AgentServing, "another")
		ask(certificate.AgentMigration, agent.UID)
		again, err := reconciler.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(kv)})
		Expect(err).NotTo(HaveOccurred())
		expectCondition(kv, v1.KubeVirtConditionDegraded, corev1.ConditionFalse, kubevirt.ReasonDeploymentInProgress)
		Expect(again.RequeueAfter).To(SatisfyAll(BeNumerically(">", 0), BeNumerically("<=", 10*time.Minute)))

		clock.SetTime(clock.Now().Add(10*time.Minute + time.Second))
		Expect(reconcile(kv)).To(Succeed())
		expectCondition(kv, v1.KubeVirtConditionDegraded, corev1.ConditionTrue, kubevirt.ReasonCertificateRotationOverdue)
		Expect(kv.Status.Conditions[0].Message).To(SatisfyAll(ContainSubstring(agent.Name), ContainSubstring(certificate.AgentServing.Signer()),
			ContainSubstring(certificate.AgentServing.Requester(namespace)), Not(ContainSubstring(certificate.AgentMigration.Signer()))))
		Expect(recorded.take()).To(ConsistOf(ContainSubstring(kubevirt.ReasonCertificateRotationOverdue)))

		ask(certificate.AgentServing, agent.UID)
		Expect(reconcile(kv)).To(Succeed())
		expectCondition(kv, v1.KubeVirtConditionDegraded, corev1.ConditionFalse, kubevirt.ReasonDeploymentInProgress)
	})

	It("replaces an authority with an invalid key, and restores the CA bundles", func() {
		Expect(reconcile(kv)).To(Succeed())
		secret := ExpectExists(authority(certificate.APIClient))
		secret.Data[corev1.TLSPrivateKeyKey] = []byte("nonsense")
		Expect(k8sClient.Update(ctx, secret)).To(Succeed())
		trusted := ExpectExists(bundles())
		trusted.Data = nil
		Expect(k8sClient.Update(ctx, trusted)).To(Succeed())
		Expect(reconcile(kv)).To(Succeed())
		made := ExpectExists(authority(certificate.APIClient)).Data[corev1.TLSCertKey]
		Expect(ExpectExists(bundles()).Data[certificate.APIClient.Name]).To(Equal(string(made)))
	})

	It("writes nothing without a change", func() {
		Expect(reconcile(kv)).To(Succeed())
		rolledOut(2)
		Expect(reconcile(kv)).To(Succeed())
		writes.Take()
		before := []string{ExpectExists(agents()).ResourceVersion, ExpectExists(service()).ResourceVersion, ExpectExists(kv).ResourceVersion}
		managed := ExpectExists(agents()).ManagedFields

		Expect(reconcile(kv)).To(Succeed())
		Expect(writes.Take()).To(BeEmpty())
		Expect([]string{ExpectExists(agents()).ResourceVersion, ExpectExists(service()).ResourceVersion, ExpectExists(kv).ResourceVersion}).To(Equal(before))
		Expect(ExpectExists(agents()).ManagedFields).To(Equal(managed), "an apply without changes is a write too")
	})

	It("updates the agents when spec.imageTag changes", func() {
		Expect(reconcile(kv)).To(Succeed())
		rolledOut(2)
		Expect(reconcile(kv)).To(Succeed())

		ExpectExists(kv).Spec.ImageTag = "v2"
		Expect(k8sClient.Update(ctx, kv)).To(Succeed())
		Expect(reconcile(kv)).To(Succeed())
		Expect(ExpectExists(agents()).Spec.Template.Spec.Containers[0].Image).To(Equal("e.org/h:v2"))
		expectCondition(kv, v1.KubeVirtConditionDegraded, corev1.ConditionTrue, kubevirt.ReasonUpdateInProgress)
		Expect(kv.Status.TargetKubeVirtVersion).To(Equal("v2"))
		Expect(kv.Status.ObservedKubeVirtVersion).To(Equal("v1"))
	})

	It("reverts changes to what it installed, and deletes its leftovers", func() {
		Expect(reconcile(kv)).To(Succeed())
		ds := ExpectExists(agents())
		ds.Spec.Template.Spec.HostPID = false
		Expect(k8sClient.Update(ctx, ds)).To(Succeed())
		leftover := service()
		leftover.Name, leftover.Labels = "leftover", map[string]string{operator.ManagedByLabel: operator.ManagedBy}
		leftover.Spec.Ports = []corev1.ServicePort{{Port: 1}}
		other := service()
		other.Name, other.Spec.Ports = "not-managed", leftover.Spec.Ports
		ExpectCreated(leftover, other)

		Expect(reconcile(kv)).To(Succeed())
		Expect(ExpectExists(agents()).Spec.Template.Spec.HostPID).To(BeTrue())
		collect(leftover)
		ExpectExists(other)
	})

	It("reports invalid fields, and installs with the others", func() {
		ExpectExists(kv).Spec.Configuration.NetworkConfiguration = &v1.NetworkConfiguration{NetworkInterface: "pigeon"}
		Expect(k8sClient.Update(ctx, kv)).To(Succeed())
		Expect(reconcile(kv)).To(Succeed())
		rolledOut(2)
		Expect(reconcile(kv)).To(Succeed())
		expectCondition(kv, v1.KubeVirtConditionSynchronized, corev1.ConditionFalse, kubevirt.ReasonInvalidConfiguration)
	})

	It("requeues with a stale cache, and installs nothing until the cache is current", func() {
		writes.Stale = ExpectExists(kv).DeepCopy()
		metav1.SetMetaDataAnnotation(&kv.ObjectMeta, "of", "someone else")
		Expect(k8sClient.Update(ctx, kv)).To(Succeed())
		again, err := reconciler.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(kv)})
		Expect(err).NotTo(HaveOccurred())
		Expect(again.RequeueAfter).To(BeNumerically(">", 0))
		ExpectGone(agents())
		Expect(ExpectExists(kv).Finalizers).To(BeEmpty())

		writes.Stale = nil
		Expect(reconcile(kv)).To(Succeed())
		ExpectExists(agents())
		Expect(ExpectExists(kv).Annotations).To(HaveKey("of"))
	})

	It("waits for a cache that does not contain yet what was installed", func() {
		Expect(reconcile(kv)).To(Succeed())
		installed := ExpectExists(agents())
		writes.Blind = func(_ client.ObjectKey, o client.Object) bool { _, ds := o.(*appsv1.DaemonSet); return ds }
		Expect(reconcile(kv)).To(Succeed())
		Expect(ExpectExists(agents()).Generation).To(Equal(installed.Generation))
		Expect(ExpectExists(kv).Status.Phase).To(Equal(v1.KubeVirtPhaseDeploying))
		writes.Blind = nil
		rolledOut(2)
		Expect(reconcile(kv)).To(Succeed())
		Expect(ExpectExists(kv).Status.Phase).To(Equal(v1.KubeVirtPhaseDeployed))
	})

	It("reports a second KubeVirt object, and follows the first one", func() {
		Expect(reconcile(kv)).To(Succeed())
		second := newKubeVirt("second")
		ExpectCreated(second)
		Expect(reconcile(second)).To(Succeed())
		expectCondition(second, v1.KubeVirtConditionDegraded, corev1.ConditionTrue, kubevirt.ReasonExistingDeployment)
		Expect(second.Finalizers).To(BeEmpty())

		Expect(k8sClient.Delete(ctx, second)).To(Succeed())
		Expect(reconcile(second)).To(Succeed())
		ExpectExists(agents())
	})

	Describe("deletion", func() {
		var (
			vm      *v1.VirtualMachineInstance
			set     *v1.VirtualMachineInstanceReplicaSet
			machine *v1.VirtualMachine
			pool    *poolv1.VirtualMachinePool
		)

		BeforeEach(func() {
			deleteGuests()
			Expect(reconcile(kv)).To(Succeed())
			vm = &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "guest", Finalizers: []string{"test/guest-runs"}}}
			set = builder.MakeReplicaSet("set").Namespace(namespace).Obj()
			machine = builder.MakeVM("machine").Namespace(namespace).Strategy(v1.RunStrategyHalted).Obj()
			pool = builder.MakePool("pool").Namespace(namespace).Obj()
			ExpectCreated(vm, set, machine, pool)
			DeferCleanup(deleteGuests)
		})
		deleteKubeVirt := func(strategy v1.KubeVirtUninstallStrategy) {
			GinkgoHelper()
			ExpectExists(kv).Spec.UninstallStrategy = strategy
			Expect(k8sClient.Update(ctx, kv)).To(Succeed())
			Expect(k8sClient.Delete(ctx, kv)).To(Succeed())
			Expect(reconcile(kv)).To(Succeed())
		}

		It("is blocked while guests exist, with the reason", func() {
			deleteKubeVirt(v1.KubeVirtUninstallStrategyBlockUninstallIfWorkloadsExist)
			expectCondition(kv, v1.KubeVirtConditionDegraded, corev1.ConditionTrue, kubevirt.ReasonDeletionFailed)
			Expect(kv.Status.Conditions[0].Message).To(ContainSubstring(namespace + "/guest"))
			Expect(ExpectExists(agents()).DeletionTimestamp).To(BeNil())
			Expect(ExpectExists(vm).DeletionTimestamp).To(BeNil())
			Expect(ExpectExists(set).DeletionTimestamp).To(BeNil())
			Expect(ExpectExists(machine).DeletionTimestamp).To(BeNil())
			Expect(ExpectExists(pool).DeletionTimestamp).To(BeNil())
			Expect(kv.Status.Conditions[0].Message).To(ContainSubstring("1 VirtualMachineInstanceReplicaSets, 1 VirtualMachinePools"))
		})

		It("deletes guests, then what it installed and what the agents published, then its finalizer", func() {
			host := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
				GenerateName: "node-", Annotations: map[string]string{v1.VirtHandlerHeartbeat: "2026-01-01T00:00:00Z"},
				Labels: map[string]string{v1.NodeSchedulable: "false", "machine-type.node.kubevirt.io/q35": "true", "theirs": "stays"},
			}}
			ExpectCreated(host)
			published := metav1.ObjectMeta{
				Namespace: namespace, Name: nodecapabilities.ObjectName(host.Name), Labels: map[string]string{v1.AppLabel: nodecapabilities.LabelValue},
			}
			lease, report := &coordinationv1.Lease{ObjectMeta: published}, &corev1.ConfigMap{ObjectMeta: published}
			ExpectCreated(lease, report)
			deleteKubeVirt(v1.KubeVirtUninstallStrategyRemoveWorkloads)
			Expect(ExpectExists(kv).Status.Phase).To(Equal(v1.KubeVirtPhaseDeleting))
			Expect(ExpectExists(vm).DeletionTimestamp).NotTo(BeNil())
			ExpectGone(set)
			ExpectGone(machine)
			ExpectGone(pool)
			Expect(ExpectExists(agents()).DeletionTimestamp).To(BeNil(), "the agents must not be deleted before the guests")

			removeVMIFinalizers(vm)
			Expect(reconcile(kv)).To(Succeed())
			ExpectExists(kv)
			second := apiService()
			second.SetName("v1alpha3.subresources.kubevirt.io")
			budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "virt-api-pdb"}}
			front := service()
			front.Name = operator.APIName
			for _, o := range []client.Object{agents(), service(), api(), front, bundles(), budget, apiService(), second} {
				collect(o)
			}
			ExpectExists(authority(certificate.APIServing))
			reconcileInFull(reconciler, kv)
			ExpectNoCommonInstancetypes()
			for _, role := range certificate.Roles() {
				ExpectGone(authority(role))
			}
			Expect(reconcile(kv)).To(Succeed())
			ExpectGone(kv)
			ExpectGone(lease)
			ExpectGone(report)
			Expect(ExpectExists(host).Labels).To(Equal(map[string]string{"theirs": "stays"}))
			Expect(host.Annotations).To(BeEmpty())
		})
	})
})

// someRequest returns a certificate request with a subject of no component.
func someRequest() []byte {
	GinkgoHelper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Expect(err).NotTo(HaveOccurred())
	request, err := certutil.MakeCSR(key, &pkix.Name{}, []string{"nobody"}, nil)
	Expect(err).NotTo(HaveOccurred())
	return request
}

// deleteGuests deletes the VMs, VMIs and replica sets of other specs: an uninstallation lists all namespaces.
func deleteGuests() {
	GinkgoHelper()
	vms, vmis := &v1.VirtualMachineList{}, &v1.VirtualMachineInstanceList{}
	Expect(k8sClient.List(ctx, vms)).To(Succeed())
	Expect(k8sClient.List(ctx, vmis)).To(Succeed())
	sets := &v1.VirtualMachineInstanceReplicaSetList{}
	Expect(k8sClient.List(ctx, sets)).To(Succeed())
	pools := &poolv1.VirtualMachinePoolList{}
	Expect(k8sClient.List(ctx, pools)).To(Succeed())
	var guests []client.Object
	for i := range pools.Items {
		guests = append(guests, &pools.Items[i])
	}
	for i := range sets.Items {
		guests = append(guests, &sets.Items[i])
	}
	for i := range vms.Items {
		guests = append(guests, &vms.Items[i])
	}
	for i := range vmis.Items {
		guests = append(guests, &vmis.Items[i])
	}
	for _, guest := range guests {
		guest.SetFinalizers(nil)
		Expect(client.IgnoreNotFound(k8sClient.Update(ctx, guest))).To(Succeed())
		Expect(client.IgnoreNotFound(k8sClient.Delete(ctx, guest))).To(Succeed())
	}
}

// removeVMIFinalizers removes a VMI's finalizers, as its reconciler does when the guest has shut down.
func removeVMIFinalizers(vmi *v1.VirtualMachineInstance) {
	GinkgoHelper()
	Expect(k8sClient.Get(ctx, client.ObjectKeyFromObject(vmi), vmi)).To(Succeed())
	vmi.Finalizers = nil
	Expect(k8sClient.Update(ctx, vmi)).To(Succeed())
}
