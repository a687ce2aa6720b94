// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rotation

import (
	"context"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"time"

	. "github.com/onsi/gomega"
	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/cmd/virt-controller/manager"
	"github.com/vireo-project/vireo/test/rights"
)

// Keys of the Secret with the webhooks' certificate and its CA. Source: open-policy-agent/cert-controller pkg/rotator/rotator.go.
const caCertificate, caKey = "ca.crt", "ca.key"

// expectWebhookRotation replaces the certificate of the webhooks, and then its CA, by ones that expire in an hour, and expects
// them to be renewed. The library that renews them has no clock to inject.
func (w *world) expectWebhookRotation() {
	w.t.Helper()
	maker := &rotator.CertRotator{
		CAName: "kubevirt.io", CAOrganization: "kubevirt.io", DNSName: webhookService + "." + rights.Namespace + ".svc",
		ExtKeyUsages: &[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	notBefore, notAfter := time.Now().Add(-23*time.Hour), time.Now().Add(time.Hour)

	before := w.webhookSecret()
	ca := w.pair(before.Data[caCertificate], before.Data[caKey])
	key, ok := ca.PrivateKey.(*rsa.PrivateKey)
	w.g.Expect(ok).To(BeTrue())
	old, oldKey, err := maker.CreateCertPEM(&rotator.KeyPairArtifacts{Cert: ca.Leaf, Key: key}, notBefore, notAfter)
	w.g.Expect(err).NotTo(HaveOccurred())
	w.update(before, map[string][]byte{corev1.TLSCertKey: old, corev1.TLSPrivateKeyKey: oldKey})
	after := w.expectRenewed(notAfter)
	w.g.Expect(after.Data[caCertificate]).To(Equal(before.Data[caCertificate]), "the CA is not replaced with the certificate")

	authority, err := maker.CreateCACert(notBefore, notAfter)
	w.g.Expect(err).NotTo(HaveOccurred())
	old, oldKey, err = maker.CreateCertPEM(authority, notBefore, notAfter)
	w.g.Expect(err).NotTo(HaveOccurred())
	w.update(after, map[string][]byte{
		caCertificate: authority.CertPEM, caKey: authority.KeyPEM, corev1.TLSCertKey: old, corev1.TLSPrivateKeyKey: oldKey,
	})
	last := w.expectRenewed(notAfter)
	w.g.Expect(last.Data[caCertificate]).NotTo(Or(Equal(authority.CertPEM), Equal(before.Data[caCertificate])))
}

func (w *world) webhookSecret() *corev1.Secret {
	w.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: rights.Namespace, Name: manager.CertificateSecret}}
	w.g.Expect(w.client.Get(context.Background(), client.ObjectKeyFromObject(secret), secret)).To(Succeed())
	return secret
}

// update writes keys of the Secret.
func (w *world) update(secret *corev1.Secret, data map[string][]byte) {
	w.t.Helper()
	before := secret.DeepCopy()
	maps.Copy(secret.Data, data)
	w.g.Expect(w.client.Patch(context.Background(), secret, client.MergeFrom(before))).To(Succeed())
}

func (w *world) pair(certificate, key []byte) tls.Certificate {
	w.t.Helper()
	pair, err := tls.X509KeyPair(certificate, key)
	w.g.Expect(err).NotTo(HaveOccurred())
	return pair
}

// expectRenewed returns when the certificate and the CA of the webhooks expire after a time, and the certificate served is
// trusted with the webhook configurations.
func (w *world) expectRenewed(expiry time.Time) *corev1.Secret {
	w.t.Helper()
	var secret *corev1.Secret
	w.g.Eventually(func(g Gomega) {
		ctx := context.Background()
		secret = w.webhookSecret()
		for _, names := range [][2]string{{corev1.TLSCertKey, corev1.TLSPrivateKeyKey}, {caCertificate, caKey}} {
			pair, err := tls.X509KeyPair(secret.Data[names[0]], secret.Data[names[1]])
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(pair.Leaf.NotAfter).To(BeTemporally(">", expiry.Add(time.Minute)), names[0])
		}
		mutating, validating := &admissionv1.MutatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfiguration{}
		g.Expect(w.client.Get(ctx, client.ObjectKey{Name: mutatingWebhooks}, mutating)).To(Succeed())
		g.Expect(w.client.Get(ctx, client.ObjectKey{Name: validatingWebhooks}, validating)).To(Succeed())
		for _, to := range []admissionv1.WebhookClientConfig{mutating.Webhooks[0].ClientConfig, validating.Webhooks[0].ClientConfig} {
			g.Expect(to.CABundle).To(Equal(secret.Data[caCertificate]))
		}
		pool := x509.NewCertPool()
		g.Expect(pool.AppendCertsFromPEM(mutating.Webhooks[0].ClientConfig.CABundle)).To(BeTrue())
		conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", w.webhookPort), &tls.Config{
			MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: webhookService + "." + rights.Namespace + ".svc",
		})
		g.Expect(err).NotTo(HaveOccurred())
		defer func() { _ = conn.Close() }()
		g.Expect(conn.ConnectionState().PeerCertificates[0].NotAfter).To(BeTemporally(">", expiry.Add(time.Minute)))
	}, timeout, "50ms").Should(Succeed())
	return secret
}
