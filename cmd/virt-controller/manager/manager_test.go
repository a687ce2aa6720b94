// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/component/livelog"
	"github.com/vireo-project/vireo/internal/component/profiler"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/prometheus"
	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/rights"
)

const (
	root    = "../../.."
	timeout = time.Minute
	// Names of config/webhook, which the roles contain.
	mutatingWebhooks, validatingWebhooks = "virt-controller-mutating-webhook-configuration",
		"virt-controller-validating-webhook-configuration"
)

func TestMain(m *testing.M) {
	// Informers list before they watch, as with an API server without streaming lists. The variable is read once.
	if err := os.Setenv("KUBE_FEATURE_WatchListClient", "false"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// isWatched reports whether the API server serves a watch of a resource.
func isWatched(ctx context.Context, g Gomega, config *rest.Config, resource string) bool {
	server, err := discovery.NewDiscoveryClientForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	metrics, err := server.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	for line := range strings.Lines(string(metrics)) {
		if strings.HasPrefix(line, "apiserver_longrunning_requests{") && strings.Contains(line, `resource="`+resource+`"`) &&
			strings.Contains(line, `verb="WATCH"`) && !strings.HasSuffix(line, " 0\n") {
			return true
		}
	}
	return false
}

// TestRun runs all of virt-controller against a real API server: certificates, webhooks, metrics, readiness and the
// installation of the agents.
func TestRun(t *testing.T) {
	g := NewWithT(t)
	environment := apiserver.New(filepath.Join(root, "config", "crd", "bases"), filepath.Join(root, "test", "importer"))
	rights.AuditTest(t, environment, root, "cmd/virt-controller/manager")
	config := startAPIServer(t, environment)
	c, err := client.New(config, client.Options{Scheme: NewScheme()})
	g.Expect(err).NotTo(HaveOccurred())
	options := &Options{
		LauncherImage: "e.org/l:v1", HandlerImage: "e.org/h:v1", BrokerImage: "e.org/b:v1", APIImage: "e.org/a:v1",
		Namespace: "kubevirt", BindAddress: "127.0.0.1", Port: freePort(t), HealthPort: freePort(t), WebhookPort: freePort(t),
		WebhookService: "hooks", MutatingWebhooks: mutatingWebhooks, ValidatingWebhooks: validatingWebhooks,
		LeaderElection: true, PodName: "virt-controller-1", MetricsAuthorization: true,
	}
	_, err = rights.Ship(t.Context(), root, c)
	g.Expect(err).NotTo(HaveOccurred())
	token, err := rights.ScraperToken(t.Context(), c)
	g.Expect(err).NotTo(HaveOccurred())
	createWebhookConfigurations(t.Context(), g, c)
	start(t, rights.Controller.Impersonate(config, nil), options)

	// It is ready when the API server trusts its certificate.
	g.Eventually(func() error {
		_, err := rights.Get(t.Context(), fmt.Sprintf("http://127.0.0.1:%d/readyz", options.HealthPort), "")
		return err
	}, timeout).Should(Succeed())
	first := servedChain(g, c, options.WebhookPort)
	g.Expect(servedChain(g, c, options.Port).Raw).To(Equal(first.Raw), "metrics serve the same certificate")
	g.Expect(time.Until(first.NotAfter)).To(BeNumerically("<", 25*time.Hour))

	expectSecretPaths(t, g, c, options.WebhookPort)

	// Its Pod is the leader, and that is all that it has written.
	g.Eventually(func(g Gomega) {
		lease, events := &coordinationv1.Lease{}, &corev1.EventList{}
		g.Expect(c.Get(t.Context(), client.ObjectKey{Namespace: "kubevirt", Name: "virt-controller"}, lease)).To(Succeed())
		g.Expect(lease.Spec.HolderIdentity).To(HaveValue(Equal(options.PodName)))
		g.Expect(lease.Spec.LeaseDurationSeconds).To(HaveValue(BeNumerically("==", leaseDuration/time.Second)))
		g.Expect(c.List(t.Context(), events, client.InNamespace("kubevirt"))).To(Succeed())
		g.Expect(events.Items).To(BeEmpty())
	}, timeout).Should(Succeed())

	// Metrics need authorization with that option.
	g.Expect(rights.Scrape(t.Context(), options.Port, "")).To(MatchError(ContainSubstring("401")))
	g.Expect(rights.Scrape(t.Context(), options.Port, token)).To(Succeed())

	// The agents are installed for a KubeVirt object.
	g.Expect(c.Create(t.Context(), &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "kubevirt"}})).
		To(Succeed())
	agents := &appsv1.DaemonSet{}
	g.Eventually(func() error {
		return c.Get(t.Context(), client.ObjectKey{Namespace: "kubevirt", Name: manifests.HandlerName}, agents)
	}, timeout).Should(Succeed())

	// The common instance types are installed, and restored when one is deleted.
	small := &v1beta1.VirtualMachineClusterInstancetype{ObjectMeta: metav1.ObjectMeta{Name: "u1.small"}}
	g.Eventually(func() error { return c.Get(t.Context(), client.ObjectKeyFromObject(small), small) }, timeout).
		Should(Succeed())
	deleted := small.UID
	g.Expect(c.Delete(t.Context(), small)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(small), small)).To(Succeed())
		g.Expect(small.UID).NotTo(Equal(deleted))
	}, timeout).Should(Succeed())

	// The rules for Prometheus are installed and restored while the Prometheus operator is there.
	g.Expect(c.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: prometheus.DefaultNamespaces[1]}})).To(Succeed())
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: prometheus.RoleName}}
	g.Expect(apierrors.IsNotFound(c.Get(t.Context(), client.ObjectKeyFromObject(role), role))).To(BeTrue())
	operatorKinds := apiserver.Install(filepath.Join(root, "test", "prometheusoperator"))
	_, err = envtest.InstallCRDs(config, operatorKinds)
	g.Expect(err).NotTo(HaveOccurred())
	for range 2 {
		for kind, namespace := range map[string]string{"PrometheusRule": "kubevirt",
			"ServiceMonitor": prometheus.DefaultNamespaces[1]} {
			object := &unstructured.Unstructured{}
			object.SetGroupVersionKind(schema.GroupVersionKind{Group: "monitoring.coreos.com", Version: "v1", Kind: kind})
			object.SetNamespace(namespace)
			object.SetName(prometheus.Name)
			g.Eventually(func() error { return c.Get(t.Context(), client.ObjectKeyFromObject(object), object) }, timeout).
				Should(Succeed(), kind)
			g.Expect(c.Delete(t.Context(), object)).To(Succeed())
		}
		g.Eventually(func() error { return c.Get(t.Context(), client.ObjectKeyFromObject(role), role) }, timeout).
			Should(Succeed())
		g.Expect(c.Delete(t.Context(), role)).To(Succeed())
	}
	g.Eventually(func() error { return c.Get(t.Context(), client.ObjectKeyFromObject(role), role) }, timeout).
		Should(Succeed())
	// A kind that has just been installed is watched after some attempts.
	for _, resource := range []string{"prometheusrules", "servicemonitors"} {
		g.Eventually(func() bool { return isWatched(t.Context(), g, config, resource) }, timeout).Should(BeTrue(), resource)
	}
	g.Expect(envtest.UninstallCRDs(config, operatorKinds)).To(Succeed())
	g.Eventually(func() bool { return apierrors.IsNotFound(c.Get(t.Context(), client.ObjectKeyFromObject(role), role)) },
		timeout).Should(BeTrue())

	// /healthz reports the current version of the object, without authorization.
	g.Eventually(func(g Gomega) {
		kv := &v1.KubeVirt{}
		g.Expect(c.Get(t.Context(), client.ObjectKey{Namespace: "kubevirt", Name: "kubevirt"}, kv)).To(Succeed())
		g.Expect(configVersion(t.Context(), g, options.Port)).To(Equal(kv.ResourceVersion))
	}, timeout).Should(Succeed())

	// The servers of webhooks and metrics follow the configured version of TLS.
	configure := func(spec string) {
		kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "kubevirt"}}
		g.Expect(c.Patch(t.Context(), kv, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"configuration":`+spec+`}}`)))).To(Succeed())
	}
	configure(`{"tlsConfiguration":{"minTLSVersion":"VersionTLS13"}}`)
	for _, port := range []int{options.WebhookPort, options.Port} {
		g.Eventually(func() error { return rights.DialTLS12(t.Context(), port) }, timeout).
			Should(MatchError(ContainSubstring("protocol version")))
	}
	configure(`{"tlsConfiguration":null}`)
	for _, port := range []int{options.WebhookPort, options.Port} {
		g.Eventually(func() error { return rights.DialTLS12(t.Context(), port) }, timeout).Should(Succeed())
	}

	// Components get only the certificates of their own roles and nodes.
	issued := source(t, rights.Handler.ImpersonateOn(config, "blue"), certificate.AgentServing,
		certificate.AgentSubject("blue"))
	g.Eventually(issued.Current, timeout).ShouldNot(BeNil())
	g.Expect(issued.Current().Leaf.DNSNames).To(Equal([]string{"blue.virt-handler"}))
	other := source(t, rights.Handler.ImpersonateOn(config, "blue"), certificate.AgentServing,
		certificate.AgentSubject("red"))
	g.Eventually(func(g Gomega) {
		list := &certificatesv1.CertificateSigningRequestList{}
		g.Expect(c.List(t.Context(), list)).To(Succeed())
		var reasons []string
		for _, csr := range list.Items {
			for _, condition := range csr.Status.Conditions {
				if condition.Type == certificatesv1.CertificateDenied {
					reasons = append(reasons, condition.Reason)
				}
			}
		}
		g.Expect(reasons).To(ContainElement(certificate.ReasonWrongSubject))
	}, timeout).Should(Succeed())
	g.Expect(other.Current()).To(BeNil())

	// Profiles are for virt-api, which verifies virt-controller with the published CA.
	configure(`{"developerConfiguration":{"clusterProfiler":true}}`)
	api := source(t, rights.API.Impersonate(config, nil), certificate.APIClient, certificate.APIClientSubject())
	g.Eventually(api.Current, timeout).ShouldNot(BeNil())
	g.Eventually(func() (int, error) { return getProfiles(t, c, options.Port, api) }, timeout).Should(Equal(http.StatusOK))
	g.Expect(getProfiles(t, c, options.Port, issued)).To(Equal(http.StatusForbidden))

	// A lost certificate is replaced, and served without a restart.
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: certificate.WebhooksSecret}}
	g.Expect(c.Patch(t.Context(), secret, client.RawPatch("application/merge-patch+json", []byte(`{"data":null}`)))).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(servedChain(g, c, options.WebhookPort).Raw).NotTo(Equal(first.Raw))
	}, timeout, "200ms").Should(Succeed())
}

func TestMissingOptions(t *testing.T) {
	err := (&Options{}).Validate()
	for _, flag := range []string{"--launcher-image", "--handler-image", "--broker-image", "--api-image",
		"--install-namespace"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("no error about %s: %v", flag, err)
		}
	}
}

func startAPIServer(t *testing.T, environment *envtest.Environment) *rest.Config {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Fatal("set KUBEBUILDER_ASSETS to the directory of kube-apiserver and etcd, or use make test")
	}
	config, err := environment.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Error(err)
		}
	})
	return config
}

func start(t *testing.T, config *rest.Config, options *Options) {
	t.Helper()
	ended, stop := run(t, config, options)
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("virt-controller returned: %v", err)
		}
	})
}

// run runs virt-controller. It returns a channel that gets its error, and a function that stops it and waits for its
// end.
func run(t *testing.T, config *rest.Config, options *Options) (<-chan error, func()) {
	t.Helper()
	log, err := livelog.New(0)
	if err != nil {
		t.Fatal(err)
	}
	log.Install()
	ctx, cancel := context.WithCancel(context.Background())
	ended, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		ended <- Run(ctx, config, options, log)
	}()
	return ended, func() {
		cancel()
		<-done
	}
}

// source requests a certificate as the agent of a node.
func source(t *testing.T, config *rest.Config, role certificate.Role, subject certificate.Subject) *certificate.Source {
	t.Helper()
	s := certificate.NewSource(config, role, subject, certificate.Trust(t.TempDir()))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// getProfiles requests profiles as virt-api does, with the certificates to trust that are published now. It returns the
// code.
func getProfiles(t *testing.T, c client.Client, port int, own certificate.Provider) (int, error) {
	t.Helper()
	bundles := &corev1.ConfigMap{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "kubevirt", Name: certificate.BundleName},
		bundles); err != nil {
		return 0, err
	}
	trust := t.TempDir()
	for role, bundle := range bundles.Data {
		if err := os.WriteFile(filepath.Join(trust, role), []byte(bundle), 0o600); err != nil {
			return 0, err
		}
	}
	config, err := certificate.ControllerClient(own, certificate.Trust(trust), "kubevirt")
	if err != nil {
		return 0, err
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		fmt.Sprintf("https://127.0.0.1:%d%s", port, profiler.DumpPath), http.NoBody)
	if err != nil {
		return 0, err
	}
	response, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}).Do(
		request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

// createWebhookConfigurations creates the configurations that get the CA bundle. They match no requests, since no
// Service leads to the test.
func createWebhookConfigurations(ctx context.Context, g *WithT, c client.Client) {
	service := admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "kubevirt", Name: "hooks",
		Path: ptr.To("/hook")}}
	none := ptr.To(admissionv1.SideEffectClassNone)
	g.Expect(c.Create(ctx, &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: mutatingWebhooks},
		Webhooks: []admissionv1.MutatingWebhook{{Name: "virtualmachines-mutator.kubevirt.io", ClientConfig: service,
			SideEffects: none, AdmissionReviewVersions: []string{"v1"}}},
	})).To(Succeed())
	g.Expect(c.Create(ctx, &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: validatingWebhooks},
		Webhooks: []admissionv1.ValidatingWebhook{{Name: validatingWebhook, ClientConfig: service, SideEffects: none,
			AdmissionReviewVersions: []string{"v1"}}},
	})).To(Succeed())
}

// validatingWebhook is the webhook in the validating configuration.
const validatingWebhook = "virtualmachine-validator.kubevirt.io"

// expectSecretPaths expects that a webhook responds at the path of its configuration only, and that the configuration
// gets this path again when someone else writes it.
func expectSecretPaths(t *testing.T, g Gomega, c client.Client, port int) {
	t.Helper()
	configuration := &admissionv1.ValidatingWebhookConfiguration{}
	path := func() string {
		g.Expect(c.Get(t.Context(), client.ObjectKey{Name: validatingWebhooks}, configuration)).To(Succeed())
		return ptr.Deref(configuration.Webhooks[0].ClientConfig.Service.Path, "")
	}
	post := func(path string) int {
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		defer transport.CloseIdleConnections()
		response, err := (&http.Client{Transport: transport}).Post(fmt.Sprintf("https://127.0.0.1:%d%s", port, path),
			"application/json", strings.NewReader("{}"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(response.Body.Close()).To(Succeed())
		return response.StatusCode
	}
	first := path()
	g.Expect(first).To(MatchRegexp("^/[0-9a-f]{32}/" + validatingWebhook + "$"))
	g.Expect(post(first)).To(Equal(http.StatusOK))
	for _, other := range []string{"/", "/hook", "/" + validatingWebhook, "/virtualmachines-validate"} {
		g.Expect(post(other)).To(Equal(http.StatusNotFound), other)
	}
	// As kubectl replace does with the manifest.
	configuration.Webhooks[0].ClientConfig.Service.Path, configuration.Webhooks[0].ClientConfig.CABundle = nil, nil
	g.Expect(c.Update(t.Context(), configuration)).To(Succeed())
	g.Eventually(path, timeout, "10ms").Should(Equal(first))
}

// servedChain returns the serving certificate. It connects as the API server does: with the Service's name, and the CA
// of the webhook configurations.
func servedChain(g Gomega, c client.Client, port int) *x509.Certificate {
	ctx := context.Background()
	mutating, validating := &admissionv1.MutatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfiguration{}
	g.Expect(c.Get(ctx, client.ObjectKey{Name: mutatingWebhooks}, mutating)).To(Succeed())
	g.Expect(c.Get(ctx, client.ObjectKey{Name: validatingWebhooks}, validating)).To(Succeed())
	ca := mutating.Webhooks[0].ClientConfig.CABundle
	g.Expect(validating.Webhooks[0].ClientConfig.CABundle).To(Equal(ca))
	pool := x509.NewCertPool()
	g.Expect(pool.AppendCertsFromPEM(ca)).To(BeTrue())

	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: pool, ServerName: "hooks.kubevirt.svc",
		MinVersion: tls.VersionTLS12}}
	conn, err := dialer.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(conn.Close()).To(Succeed()) }()
	secured, ok := conn.(*tls.Conn)
	g.Expect(ok).To(BeTrue())
	return secured.ConnectionState().PeerCertificates[0]
}

// configVersion returns the version of the configuration that /healthz reports on the port of the metrics.
func configVersion(ctx context.Context, g Gomega, port int) string {
	body, err := rights.Get(ctx, fmt.Sprintf("https://127.0.0.1:%d/healthz", port), "")
	g.Expect(err).NotTo(HaveOccurred())
	check := map[string]any{}
	g.Expect(json.Unmarshal(body, &check)).To(Succeed())
	g.Expect(check["apiserver"]).To(HaveKeyWithValue("connectivity", "ok"))
	version, ok := check["config-resource-version"].(string)
	g.Expect(ok).To(BeTrue())
	return version
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
	}()
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("address %s", listener.Addr())
	}
	return address.Port
}
