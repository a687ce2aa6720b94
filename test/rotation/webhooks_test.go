// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rotation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/test/rights"
)

// webhookLeaf returns the certificate of the webhooks, or nil if one of the webhook configurations does not trust it at
// the time of the test's clock.
func (w *world) webhookLeaf() *x509.Certificate {
	w.t.Helper()
	ctx := context.Background()
	mutating, validating := &admissionv1.MutatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfiguration{}
	w.g.Expect(w.client.Get(ctx, client.ObjectKey{Name: mutatingWebhooks}, mutating)).To(Succeed())
	w.g.Expect(w.client.Get(ctx, client.ObjectKey{Name: validatingWebhooks}, validating)).To(Succeed())
	var leaf *x509.Certificate
	for _, bundle := range [][]byte{mutating.Webhooks[0].ClientConfig.CABundle,
		validating.Webhooks[0].ClientConfig.CABundle} {
		if leaf = w.served(bundle); leaf == nil {
			return nil
		}
	}
	return leaf
}

// webhookPath returns the path of a webhook in its configuration.
func (w *world) webhookPath() string {
	w.t.Helper()
	configuration := &admissionv1.ValidatingWebhookConfiguration{}
	w.g.Expect(w.client.Get(context.Background(), client.ObjectKey{Name: validatingWebhooks}, configuration)).To(Succeed())
	return ptr.Deref(configuration.Webhooks[0].ClientConfig.Service.Path, "")
}

// expectWebhook expects a webhook to respond at a path.
func (w *world) expectWebhook(path string) {
	w.t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	url := fmt.Sprintf("https://127.0.0.1:%d%s", w.webhookPort, path)
	response, err := (&http.Client{Transport: transport}).Post(url, "application/json", strings.NewReader("{}"))
	w.g.Expect(err).NotTo(HaveOccurred())
	w.g.Expect(response.Body.Close()).To(Succeed())
	w.g.Expect(response.StatusCode).To(Equal(http.StatusOK))
}

// served returns the certificate of the webhooks if it is trusted with a bundle.
func (w *world) served(bundle []byte) *x509.Certificate {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	dialer := &tls.Dialer{Config: &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: webhookService + "." + rights.Namespace + ".svc",
		Time: w.clock.Now,
	}}
	conn, err := dialer.DialContext(context.Background(), "tcp", fmt.Sprintf("127.0.0.1:%d", w.webhookPort))
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close() }()
	secured, ok := conn.(*tls.Conn)
	if !ok {
		return nil
	}
	return secured.ConnectionState().PeerCertificates[0]
}

// webhookAuthority returns the CA certificate that signs the certificate of the webhooks.
func (w *world) webhookAuthority() *x509.Certificate {
	w.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: rights.Namespace, Name: certificate.WebhooksSecret}}
	w.g.Expect(w.client.Get(context.Background(), client.ObjectKeyFromObject(secret), secret)).To(Succeed())
	pair, err := tls.X509KeyPair(secret.Data["authority-"+corev1.TLSCertKey],
		secret.Data["authority-"+corev1.TLSPrivateKeyKey])
	w.g.Expect(err).NotTo(HaveOccurred())
	return pair.Leaf
}

// triggerWebhooks triggers a reconciliation of the webhooks' certificate, as trigger does for the KubeVirt object.
func (w *world) triggerWebhooks(patch client.Patch) {
	w.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: rights.Namespace, Name: certificate.WebhooksSecret}}
	w.g.Expect(w.client.Patch(context.Background(), secret, patch)).To(Succeed())
}
