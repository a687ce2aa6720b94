// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificatesigningrequest_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/install/certificatesigningrequest"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("CertificateSigningRequest", func() {
	var (
		namespace  string
		steps      Steps
		reconciler *certificatesigningrequest.Reconciler
	)
	// request creates a request as a service account of the installation whose token is bound to a node. The API server
	// records the requester in the spec.
	request := func(account, node string, role certificate.Role, subject certificate.Subject,
		usages ...certificatesv1.KeyUsage) *certificatesv1.CertificateSigningRequest {
		GinkgoHelper()
		who := rest.CopyConfig(AdminConfig)
		who.Impersonate = rest.ImpersonationConfig{
			UserName: "system:serviceaccount:" + namespace + ":" + account,
			Groups:   []string{"system:masters"}, // the roles of the accounts are not installed here
			Extra:    map[string][]string{"authentication.kubernetes.io/node-name": {node}},
		}
		c, err := client.New(who, client.Options{Scheme: scheme.Scheme})
		Expect(err).NotTo(HaveOccurred())
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		Expect(err).NotTo(HaveOccurred())
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: subject.CommonName}, DNSNames: subject.DNSNames,
		}, key)
		Expect(err).NotTo(HaveOccurred())
		csr := &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: role.Signer(),
				Usages:     append([]certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature}, usages...),
				Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			},
		}
		Expect(c.Create(ctx, csr)).To(Succeed())
		return csr
	}
	agentRequest := func(node, of string) *certificatesv1.CertificateSigningRequest {
		GinkgoHelper()
		return request("kubevirt-handler", node, certificate.AgentServing, certificate.AgentSubject(of),
			certificatesv1.UsageServerAuth)
	}
	reconcile := func(csr *certificatesv1.CertificateSigningRequest) {
		GinkgoHelper()
		steps.Step(csr)
		ExpectExists(csr)
	}
	condition := func(csr *certificatesv1.CertificateSigningRequest) certificatesv1.CertificateSigningRequestCondition {
		GinkgoHelper()
		Expect(csr.Status.Conditions).NotTo(BeEmpty())
		return csr.Status.Conditions[len(csr.Status.Conditions)-1]
	}

	BeforeEach(func() {
		namespace = NewInstallNamespace()
		steps.Writes = NewWrites()
		reconciler = &certificatesigningrequest.Reconciler{
			Client: steps.Writes, Namespace: namespace, Config: clusterconfig.NewStore(),
		}
		steps.Of = reconciler
	})

	It("approves and signs an agent's request for its own node in two writes, and does not write it again", func() {
		authority := NewAuthority(namespace, certificate.AgentServing, time.Now())
		csr := agentRequest("blue", "blue")
		steps.ExpectBudget(csr, "update CertificateSigningRequest/approval", "update CertificateSigningRequest/status")
		ExpectExists(csr)
		Expect(condition(csr).Type).To(Equal(certificatesv1.CertificateApproved))
		signed, err := certutil.ParseCertsPEM(csr.Status.Certificate)
		Expect(err).NotTo(HaveOccurred())
		pool := x509.NewCertPool()
		Expect(pool.AppendCertsFromPEM(authority.Bundle())).To(BeTrue())
		_, err = signed[0].Verify(x509.VerifyOptions{Roots: pool, DNSName: "blue.virt-handler"})
		Expect(err).NotTo(HaveOccurred())
		Expect(time.Until(signed[0].NotAfter)).To(BeNumerically("~", 24*time.Hour, time.Minute))
		steps.ExpectSteady(csr)
	})

	It("denies a request for another node's name, with the reason", func() {
		NewAuthority(namespace, certificate.AgentServing, time.Now())
		csr := agentRequest("blue", "red")
		reconcile(csr)
		Expect(condition(csr)).To(SatisfyAll(
			HaveField("Type", certificatesv1.CertificateDenied), HaveField("Reason", certificate.ReasonWrongSubject),
			HaveField("Message", ContainSubstring("blue.virt-handler")),
		))
		steps.ExpectSteady(csr)
		Expect(ExpectExists(csr).Status.Certificate).To(BeEmpty())
	})

	It("denies an agent's request for virt-api's certificate", func() {
		NewAuthority(namespace, certificate.APIClient, time.Now())
		csr := request("kubevirt-handler", "blue", certificate.APIClient, certificate.APIClientSubject(),
			certificatesv1.UsageClientAuth)
		reconcile(csr)
		Expect(condition(csr).Reason).To(Equal(certificate.ReasonWrongRequester))
		csr = request("kubevirt-apiserver", "blue", certificate.APIClient, certificate.APIClientSubject(),
			certificatesv1.UsageClientAuth)
		reconcile(csr)
		Expect(csr.Status.Certificate).NotTo(BeEmpty())
	})

	It("does not sign an invalid request that another client approved", func() {
		NewAuthority(namespace, certificate.AgentServing, time.Now())
		csr := agentRequest("blue", "red")
		approve(csr, "Careless", "I approve everything")
		Expect(K8sClient.SubResource("approval").Update(ctx, csr)).To(Succeed())
		reconcile(csr)
		Expect(condition(csr)).To(SatisfyAll(
			HaveField("Type", certificatesv1.CertificateFailed), HaveField("Reason", certificate.ReasonWrongSubject),
		))
		Expect(csr.Status.Certificate).To(BeEmpty())
	})

	It("signs an approved request after a failed write", func() {
		NewAuthority(namespace, certificate.AgentServing, time.Now())
		csr := agentRequest("blue", "blue")
		steps.Writes.Fail = func(request string) error {
			if request == "update CertificateSigningRequest/status" {
				return ErrInjected
			}
			return nil
		}
		_, err := steps.Try(csr)
		Expect(err).To(MatchError(ErrInjected))
		steps.Writes.Fail = nil
		reconcile(csr)
		Expect(csr.Status.Conditions).To(ConsistOf(HaveField("Type", certificatesv1.CertificateApproved)))
		Expect(csr.Status.Certificate).NotTo(BeEmpty())
	})

	It("approves nothing without an authority, and enqueues the unsigned requests when it exists", func() {
		csr := agentRequest("blue", "blue")
		steps.ExpectSteady(csr)
		Expect(reconciler.Unsigned(ctx, nil)).To(
			ContainElement(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(csr)}))
		NewAuthority(namespace, certificate.AgentServing, time.Now())
		reconcile(csr)
		Expect(csr.Status.Certificate).NotTo(BeEmpty())
		Expect(reconciler.Unsigned(ctx, nil)).NotTo(
			ContainElement(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(csr)}))
	})

	It("does not touch requests to other signers", func() {
		csr := agentRequest("blue", "blue")
		other := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
			Spec: csr.Spec}
		other.Spec.SignerName = "example.org/some-signer"
		Expect(K8sClient.Create(ctx, other)).To(Succeed())
		steps.ExpectSteady(other)
		Expect(kubevirt.IsPending(other)).To(BeFalse())
	})
})

// approve adds the condition with which a client approves a request.
func approve(csr *certificatesv1.CertificateSigningRequest, reason, message string) {
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: reason, Message: message,
	})
}
