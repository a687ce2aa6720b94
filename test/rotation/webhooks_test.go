// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rotation

import (
	"context"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	. "github.com/onsi/gomega"
	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/manager"
	"github.com/vireo-project/vireo/test/rights"
)

// Keys of the Secret with the webhooks' certificate and its CA. Source: open-policy-agent/cert-controller pkg/rotator/rotator.go.
const caCertificate, caKey = "ca.crt", "ca.key"

// expectWebhooksFollow lets the certificate of the webhooks and then its CA come to their last hour. The library that renews them goes by
// the machine's clock, so that they are made old instead.
func (w *world) expectWebhooksFollow() {
	w.t.Helper()
	maker := &rotator.CertRotator{
		CAName: "kubevirt.io", CAOrganization: "kubevirt.io", DNSName: webhookService + "." + rights.Namespace + ".svc",
		ExtKeyUsages: &[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	begin, end := time.Now().Add(-23*time.Hour), time.Now().Add(time.Hour)

	before := w.webhookSecret()
	ca := w.pair(before.Data[caCertificate], before.Data[caKey])
	key, ok := ca.PrivateKey.(*rsa.PrivateKey)
	w.g.Expect(ok).To(BeTrue())
	old, oldKey, err := maker.CreateCertPEM(&rotator.KeyPairArtifacts{Cert: ca.Leaf, Key: key}, begin, end)
	w.g.Expect(err).NotTo(HaveOccurred())
	w.age(before, map[string][]byte{corev1.TLSCertKey: old, corev1.TLSPrivateKeyKey: oldKey})
	after := w.expectRenewed(end)
	w.g.Expect(after.Data[caCertificate]).To(Equal(before.Data[caCertificate]), "the CA of a certificate that ends is not replaced with it")

	authority, err := maker.CreateCACert(begin, end)
	w.g.Expect(err).NotTo(HaveOccurred())
	old, oldKey, err = maker.CreateCertPEM(authority, begin, end)
	w.g.Expect(err).NotTo(HaveOccurred())
	w.age(after, map[string][]byte{
		caCertificate: authority.CertPEM, caKey: authority.KeyPEM, corev1.TLSCertKey: old, corev1.TLSPrivateKeyKey: oldKey,
	})
	last := w.expectRenewed(end)
	w.g.Expect(last.Data[caCertificate]).NotTo(Or(Equal(authority.CertPEM), Equal(before.Data[caCertificate])))
}

func (w *world) webhookSecret() *corev1.Secret {
	w.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: rights.Namespace, Name: manager.CertificateSecret}}
	w.g.Expect(w.client.Get(context.Background(), client.ObjectKeyFromObject(secret), secret)).To(Succeed())
	return secret
}

func (w *world) age(secret *corev1.Secret, data map[string][]byte) {
	w.t.Helper()
	before := secret.DeepCopy()
	for name, content := range data {
		secret.Data[name] = content
	}
	w.g.Expect(w.client.Patch(context.Background(), secret, client.MergeFrom(before))).To(Succeed())
}

func (w *world) pair(certificate, key []byte) tls.Certificate {
	w.t.Helper()
	pair, err := tls.X509KeyPair(certificate, key)
	w.g.Expect(err).NotTo(HaveOccurred())
	return pair
}

// expectRenewed returns when nothing of the webhooks ends at a time, and what they serve is what the API server trusts.
func (w *world) expectRenewed(end time.Time) *corev1.Secret {
	w.t.Helper()
	var secret *corev1.Secret
	w.g.Eventually(func(g Gomega) {
		ctx := context.Background()
		secret = w.webhookSecret()
		for _, names := range [][2]string{{corev1.TLSCertKey, corev1.TLSPrivateKeyKey}, {caCertificate, caKey}} {
			pair, err := tls.X509KeyPair(secret.Data[names[0]], secret.Data[names[1]])
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(pair.Leaf.NotAfter).To(BeTemporally(">", end.Add(time.Minute)), names[0])
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
		g.Expect(conn.ConnectionState().PeerCertificates[0].NotAfter).To(BeTemporally(">", end.Add(time.Minute)))
	}, patience, "50ms").Should(Succeed())
	return secret
}
