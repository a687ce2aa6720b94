// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rotation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/cmd/virt-exportproxy/exportproxy"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/component/livelog"
	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/test/builder"
	"github.com/vireo-project/vireo/test/rights"
)

const (
	// triggerInterval is shorter than what a test may take, and long enough for a reconciliation.
	triggerInterval = 500 * time.Millisecond
	// renewal is how long before its certificate expires an exporter's Pod is replaced.
	renewal = 10 * time.Minute
)

// exported is an export that outlives its authority, virt-exportproxy, and what would run in the export's Pod.
type exported struct {
	w         *world
	export    *exportv1.VirtualMachineExport
	proxyPort int
	// pair is the certificate of the exporter.
	pair      atomic.Pointer[tls.Certificate]
	triggered time.Time
}

func startExport(w *world, log *livelog.Log) *exported {
	w.t.Helper()
	e := &exported{w: w}
	exporter := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, "exported "+r.URL.Path)
	}))
	exporter.TLS = &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return e.pair.Load(), nil },
	}
	exporter.StartTLS()
	w.t.Cleanup(exporter.Close)

	claim := builder.MakePVC("data").Namespace(metav1.NamespaceDefault).Bound("1Gi").Obj()
	status := claim.Status
	e.export = &exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault,
		Name: "export"}}
	e.export.Spec.Source = corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: claim.Name}
	e.export.Spec.TTLDuration = &metav1.Duration{Duration: 10 * rotations * w.lifetimes.CADuration}
	w.create(claim, e.export)
	claim.Status = status
	w.g.Expect(w.client.Status().Update(context.Background(), claim)).To(Succeed())

	listener, port := w.listen()
	e.proxyPort = port
	options := &exportproxy.Options{
		Address: "127.0.0.1", Port: port, Listener: listener, Namespace: rights.Namespace, TrustDirectory: w.trust,
		Clock: w.clock,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, exporter.Listener.Addr().String())
		},
	}
	account := rights.ExportProxy.Impersonate(w.config, nil)
	w.background("virt-exportproxy",
		func(ctx context.Context) error { return exportproxy.Run(ctx, account, options, log) })
	return e
}

// settle returns when the export is ready with what is trusted now. It does the parts of the kubelet and of the
// exporter's Pod.
func (e *exported) settle() {
	w := e.w
	w.t.Helper()
	ctx := context.Background()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: e.export.Namespace,
		Name: content.ServiceName(e.export.Name)}}
	secret := &corev1.Secret{}
	w.g.Eventually(func(g Gomega) {
		e.trigger(g)
		g.Expect(w.client.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
		if pod.Status.Phase != corev1.PodRunning {
			pod.Status.Phase = corev1.PodRunning
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			g.Expect(w.client.Status().Update(ctx, pod)).To(Succeed())
		}
		g.Expect(w.client.Get(ctx, client.ObjectKeyFromObject(e.export), e.export)).To(Succeed())
		g.Expect(e.export.Status).NotTo(BeNil())
		g.Expect(e.export.Status.Phase).To(Equal(exportv1.Ready), "%+v", e.export.Status.Conditions)
		authority := w.authority(g, certificate.Exporter)
		g.Expect(e.export.Status.Links.Internal.Cert).To(Equal(string(authority.Bundle())))

		g.Expect(w.client.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: pod.Spec.Volumes[0].Secret.SecretName},
			secret)).To(Succeed())
		pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
		g.Expect(err).NotTo(HaveOccurred())
		// The Pod is replaced if its certificate expires soon, and one that lasts longer can be had.
		end, _ := authority.End(w.clock.Now(), w.lifetimes)
		g.Expect(pair.Leaf.NotAfter).To(Or(BeTemporally(">", w.clock.Now().Add(renewal)), BeTemporally("==", end)))
		e.pair.Store(&pair)
	}, timeout, "10ms").Should(Succeed())
}

// trigger triggers a reconciliation of the export: virt-controller's own requeues use the real clock. Of the metadata,
// only changes of the owners do that.
func (e *exported) trigger(g Gomega) {
	if time.Since(e.triggered) < triggerInterval {
		return
	}
	e.triggered = time.Now()
	patch := fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"trigger","uid":%q}]}}`, e.triggered)
	g.Expect(e.w.client.Patch(context.Background(), e.export.DeepCopy(),
		client.RawPatch("application/merge-patch+json", []byte(patch)))).To(Succeed())
}

// expectDownload downloads through virt-exportproxy, over a new connection.
func (e *exported) expectDownload() {
	w := e.w
	w.t.Helper()
	outside := &http.Client{Transport: &http.Transport{TLSClientConfig: e.ingressTLS(), DisableKeepAlives: true}}
	address := fmt.Sprintf("https://127.0.0.1:%d%s/volumes/data/disk.tar.gz", e.proxyPort,
		content.ProxyPath(e.export.Namespace, e.export.Name))
	w.g.Eventually(func(g Gomega) {
		request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, address, nil)
		g.Expect(err).NotTo(HaveOccurred())
		request.Header.Set(content.TokenHeader, "token")
		response, err := outside.Do(request)
		g.Expect(err).NotTo(HaveOccurred())
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(body)).To(Equal("exported /volumes/data/disk.tar.gz"))
	}, timeout, "10ms").Should(Succeed())
}

// ingressTLS returns the configuration of an Ingress, with the test's clock.
func (e *exported) ingressTLS() *tls.Config {
	pool := x509.NewCertPool()
	e.w.g.Expect(pool.AppendCertsFromPEM(e.w.authority(e.w.g, certificate.ExportProxyServing).Bundle())).To(BeTrue())
	return &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: content.ProxyService + "." + rights.Namespace + ".svc",
		Time: e.w.clock.Now,
	}
}

// proxyLeaf returns the certificate of virt-exportproxy, or nil if it is not trusted at the time of the test's clock.
func (e *exported) proxyLeaf() *x509.Certificate {
	dialer := &tls.Dialer{Config: e.ingressTLS()}
	conn, err := dialer.DialContext(context.Background(), "tcp", fmt.Sprintf("127.0.0.1:%d", e.proxyPort))
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
