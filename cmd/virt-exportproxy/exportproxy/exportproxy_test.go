// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package exportproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/livelog"
	"github.com/vireo-project/vireo/internal/controller/install/certificatesigningrequest"
	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/rights"
)

const (
	installed = "kubevirt"
	// timeout is long enough for a loaded machine.
	timeout = 2 * time.Minute
)

// world is a real API server with the CRDs, the roles of config/rbac and virt-controller's signers, and an exporter.
type world struct {
	t      *testing.T
	g      *WithT
	config *rest.Config
	client client.Client
	trust  string
	bundle []byte
	// exporter is the address of a server with the certificate of the export default/export.
	exporter string
}

func start(t *testing.T) *world {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Fatal("set KUBEBUILDER_ASSETS to the directory of kube-apiserver and etcd, or use make test")
	}
	w := &world{t: t, g: NewWithT(t), trust: t.TempDir()}
	root := filepath.Join("..", "..", "..")
	env := apiserver.New(filepath.Join(root, "config", "crd", "bases"))
	rights.AuditTest(t, env, root, "cmd/virt-exportproxy/exportproxy")
	var err error
	w.config, err = env.Start()
	w.g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1.AddToScheme, exportv1.AddToScheme} {
		w.g.Expect(add(scheme)).To(Succeed())
	}
	w.client, err = client.New(w.config, client.Options{Scheme: scheme})
	w.g.Expect(err).NotTo(HaveOccurred())
	_, err = rights.Ship(t.Context(), root, w.client)
	w.g.Expect(err).NotTo(HaveOccurred())
	w.authorities()
	w.sign()
	return w
}

// authorities creates the CAs, and the exporter with a certificate of one of them.
func (w *world) authorities() {
	for _, role := range certificate.Authorities() {
		none, err := certificate.AuthorityFrom(role, nil)
		w.g.Expect(err).NotTo(HaveOccurred())
		authority, _, _, err := none.Advance(time.Now(), clusterconfig.Default().Certificates)
		w.g.Expect(err).NotTo(HaveOccurred())
		data, err := authority.Data()
		w.g.Expect(err).NotTo(HaveOccurred())
		w.g.Expect(w.client.Create(w.t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: installed, Name: role.AuthoritySecret(),
				Labels: map[string]string{v1.AppLabel: certificate.AuthorityLabelValue}},
			Type: corev1.SecretTypeTLS, Data: data,
		})).To(Succeed())
		w.g.Expect(os.WriteFile(filepath.Join(w.trust, role.Name), authority.Bundle(), 0o600)).To(Succeed())
		switch role.Name {
		case certificate.ExportProxyServing.Name:
			w.bundle = authority.Bundle()
		case certificate.Exporter.Name:
			w.export(authority)
		}
	}
}

func (w *world) export(authority certificate.Authority) {
	crt, key, err := authority.Issue(certificate.Subject{DNSNames: []string{content.ServerName("default", "export")}},
		time.Now(), time.Now().Add(time.Hour))
	w.g.Expect(err).NotTo(HaveOccurred())
	pair, err := tls.X509KeyPair(crt, key)
	w.g.Expect(err).NotTo(HaveOccurred())
	server := httptest.NewUnstartedServer(
		http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(rw, "exported "+r.URL.Path) }))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	w.t.Cleanup(server.Close)
	w.exporter = server.Listener.Addr().String()
}

// sign runs virt-controller's reconciler of CertificateSigningRequests.
func (w *world) sign() {
	mgr, err := ctrl.NewManager(rights.Controller.Impersonate(w.config, nil), ctrl.Options{
		Scheme: w.client.Scheme(), Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{installed: {}}},
	})
	w.g.Expect(err).NotTo(HaveOccurred())
	w.g.Expect((&certificatesigningrequest.Reconciler{Client: mgr.GetClient(), Namespace: installed,
		Config: clusterconfig.NewStore()}).SetupWithManager(mgr)).To(Succeed())
	w.background(mgr.Start)
}

// background runs a function until the test ends.
func (w *world) background(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
}

func TestDownloadThroughTheProxy(t *testing.T) {
	// As with an API server without streaming lists: informers list, then watch.
	t.Setenv("KUBE_FEATURE_WatchListClient", "false")
	w := start(t)
	listener, observed := w.listen(), w.listen()
	w.g.Expect(observed.Close()).To(Succeed())
	log, err := livelog.New(0)
	w.g.Expect(err).NotTo(HaveOccurred())
	options := &Options{
		Address: "127.0.0.1", Port: 8443, MetricsPort: portOf(observed), Namespace: installed, TrustDirectory: w.trust,
		Listener: listener,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, w.exporter)
		},
	}
	w.background(func(ctx context.Context) error {
		return Run(ctx, rights.ExportProxy.Impersonate(w.config, nil), options, log)
	})

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.bundle)
	outside := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: roots, ServerName: "virt-exportproxy." + installed + ".svc", MinVersion: tls.VersionTLS12,
	}}}
	from := func(address, path string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+path, nil)
		w.g.Expect(err).NotTo(HaveOccurred())
		request.Header.Set(content.TokenHeader, "token")
		response, err := outside.Do(request)
		if err != nil {
			return 0, err.Error()
		}
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		w.g.Expect(err).NotTo(HaveOccurred())
		return response.StatusCode, string(body)
	}
	get := func(path string) (int, string) { return from(listener.Addr().String(), path) }
	code := func(path string) func() int {
		return func() int {
			code, _ := get(path)
			return code
		}
	}
	w.g.Eventually(code("/healthz"), timeout, "100ms").Should(Equal(http.StatusOK))
	const path = "/api/export.kubevirt.io/v1/namespaces/default/virtualmachineexports/export/volumes/data/disk.img"
	w.g.Expect(code(path)()).To(Equal(http.StatusNotFound))

	export := &exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "export"}}
	export.Spec.Source = corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "data"}
	w.g.Expect(w.client.Create(t.Context(), export)).To(Succeed())
	w.g.Eventually(code(path), timeout, "100ms").Should(Equal(http.StatusServiceUnavailable))
	export.Status = &exportv1.VirtualMachineExportStatus{Phase: exportv1.Ready}
	w.g.Expect(w.client.Status().Update(t.Context(), export)).To(Succeed())
	w.g.Eventually(code(path), timeout, "100ms").Should(Equal(http.StatusOK))
	_, body := get(path)
	w.g.Expect(body).To(Equal("exported /volumes/data/disk.img"))
	w.g.Expect(w.client.Delete(t.Context(), export)).To(Succeed())
	w.g.Eventually(code(path), timeout, "100ms").Should(Equal(http.StatusNotFound))

	// The metrics are not for clients from outside.
	w.g.Expect(code("/metrics")()).To(Equal(http.StatusBadRequest))
	found, metrics := from(observed.Addr().String(), "/metrics")
	w.g.Expect(found).To(Equal(http.StatusOK))
	w.g.Expect(metrics).To(
		And(ContainSubstring("kubevirt_rest_client_requests_total{"), ContainSubstring("\ngo_goroutines ")))
	found, health := from(observed.Addr().String(), "/healthz")
	w.g.Expect(found).To(Equal(http.StatusOK))
	w.g.Expect(health).To(ContainSubstring("config-resource-version"))
	found, _ = from(observed.Addr().String(), path)
	w.g.Expect(found).To(Equal(http.StatusNotFound))
}

func (w *world) listen() net.Listener {
	w.t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(w.t.Context(), "tcp", "127.0.0.1:0")
	w.g.Expect(err).NotTo(HaveOccurred())
	return listener
}

func portOf(listener net.Listener) int {
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return 0
	}
	return address.Port
}

func TestOptions(t *testing.T) {
	for name, tc := range map[string]struct {
		options Options
		valid   bool
	}{
		"valid":           {Options{Address: "0.0.0.0", Port: 8443, Namespace: installed}, true},
		"no namespace":    {Options{Address: "0.0.0.0", Port: 8443}, false},
		"no address":      {Options{Port: 8443, Namespace: installed}, false},
		"an invalid port": {Options{Address: "::", Port: 0, Namespace: installed}, false},
		"metrics":         {Options{Address: "::", Port: 8443, MetricsPort: 8444, Namespace: installed}, true},
		"metrics outside": {Options{Address: "::", Port: 8443, MetricsPort: 8443, Namespace: installed}, false},
	} {
		if err := tc.options.Validate(); (err == nil) != tc.valid {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
