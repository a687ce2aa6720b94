// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package rotation runs virt-controller, virt-api, virt-exportproxy and the servers of two node agents with the roles
// and the admission policies of config/ against a real API server, and advances their clock through several rotations
// of every certificate.
//
// The clock of the API server cannot be advanced. It verifies certificates in two places, as the client of virt-api and
// of the webhooks. In both, the test takes its place, with its CA bundle and the test's clock (world.front,
// world.served).
package rotation

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/cmd/virt-api/virtapi"
	"github.com/vireo-project/vireo/cmd/virt-controller/manager"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/livelog"
	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/pki"
	"github.com/vireo-project/vireo/test/rights"
)

const (
	root = "../.."
	// timeout is long enough for a busy computer.
	timeout = time.Minute
	// Names of config/webhook.
	mutatingWebhooks, validatingWebhooks = "virt-controller-mutating-webhook-configuration",
		"virt-controller-validating-webhook-configuration"
	webhookService = "virt-controller-webhook-service"
)

// world is an installation.
type world struct {
	t      *testing.T
	g      *WithT
	config *rest.Config // an administrator's
	client client.Client
	clock  *testclock.FakeClock
	trust  string // the directory with the CA certificates, which the kubelet would mount
	proxy  *pki.Authority

	webhookPort, apiPort int
	red, blue            *agent
	exported             *exported
	// strategy is that of the KubeVirt object, and lifetimes what follows from it.
	strategy  *v1.KubeVirtSelfSignConfiguration
	lifetimes clusterconfig.Certificates
}

func newWorld(t *testing.T, strategy *v1.KubeVirtSelfSignConfiguration) *world {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Fatal("set KUBEBUILDER_ASSETS to the directory of kube-apiserver and etcd, or use make test")
	}
	w := &world{t: t, g: NewWithT(t), clock: testclock.NewFakeClock(time.Now()), trust: t.TempDir(), strategy: strategy}
	kv := &v1.KubeVirt{Spec: v1.KubeVirtSpec{
		CertificateRotationStrategy: v1.KubeVirtCertificateRotateStrategy{SelfSigned: strategy}}}
	configured, err := clusterconfig.FromKubeVirt(kv)
	w.g.Expect(err).NotTo(HaveOccurred())
	w.lifetimes = configured.Certificates
	env := apiserver.New(filepath.Join(root, "config", "crd", "bases"))
	w.proxy = pki.FrontProxy(t, env, t.TempDir())
	rights.AuditTest(t, env, root, "test/rotation")
	w.config, err = env.Start()
	w.g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	w.client, err = client.New(w.config, client.Options{Scheme: manager.NewScheme()})
	w.g.Expect(err).NotTo(HaveOccurred())
	w.install()

	log, err := livelog.New(0)
	w.g.Expect(err).NotTo(HaveOccurred())
	log.Install()
	w.startController(log)
	w.publish()
	w.red, w.blue = startAgent(w, "red"), startAgent(w, "blue")
	w.startAPI(log)
	w.exported = startExport(w, log)
	return w
}

func (w *world) create(objects ...client.Object) {
	w.t.Helper()
	for _, o := range objects {
		w.g.Expect(w.client.Create(context.Background(), o)).To(Succeed())
	}
}

// install creates the objects of config/ and the KubeVirt object. The webhook configurations have no rules, since no
// Service leads to the webhooks.
func (w *world) install() {
	_, err := rights.Ship(context.Background(), root, w.client)
	w.g.Expect(err).NotTo(HaveOccurred())
	for _, file := range []string{"node-restriction.yaml", "status.yaml", "certificate-requests.yaml"} {
		w.g.Expect(rights.CreateFile(context.Background(), w.client, filepath.Join(root, "config", "admission", file))).
			To(Succeed())
	}
	to := admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: rights.Namespace,
		Name: webhookService}}
	none := ptr.To(admissionv1.SideEffectClassNone)
	w.create(&admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: mutatingWebhooks},
		Webhooks: []admissionv1.MutatingWebhook{{Name: "a.kubevirt.io", ClientConfig: to, SideEffects: none,
			AdmissionReviewVersions: []string{"v1"}}},
	}, &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: validatingWebhooks},
		Webhooks: []admissionv1.ValidatingWebhook{{Name: "virtualmachine-validator.kubevirt.io", ClientConfig: to,
			SideEffects: none, AdmissionReviewVersions: []string{"v1"}}},
	}, &v1.KubeVirt{
		ObjectMeta: metav1.ObjectMeta{Namespace: rights.Namespace, Name: "kubevirt"},
		Spec: v1.KubeVirtSpec{
			CertificateRotationStrategy: v1.KubeVirtCertificateRotateStrategy{SelfSigned: w.strategy}},
	})
	// The API server does not report when a policy is effective: send requests until one is denied.
	handler := rights.Handler.Impersonate(w.config, nil)
	asHandler, err := client.New(handler, client.Options{Scheme: w.client.Scheme()})
	w.g.Expect(err).NotTo(HaveOccurred())
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	w.g.Expect(err).NotTo(HaveOccurred())
	request, err := certutil.MakeCSR(key, &pkix.Name{CommonName: "admin"}, nil, nil)
	w.g.Expect(err).NotTo(HaveOccurred())
	w.g.Eventually(func() error {
		return asHandler.Create(context.Background(), &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "denied"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: "kubernetes.io/kube-apiserver-client", Request: request,
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
			},
		}, client.DryRunAll)
	}, timeout, "50ms").Should(MatchError(ContainSubstring("kubevirt-certificate-requests")))
}

// background runs a function until the test ends.
func (w *world) background(name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("%s: %v", name, err)
		}
	})
}

// startController runs virt-controller with its service account.
func (w *world) startController(log *livelog.Log) {
	var metrics, health int
	w.webhookPort, metrics, health = w.freePort(), w.freePort(), w.freePort()
	options := &manager.Options{
		LauncherImage: "e.org/l:v1", HandlerImage: "e.org/h:v1", BrokerImage: "e.org/b:v1", APIImage: "e.org/a:v1",
		ExporterImage: "e.org/e:v1", Namespace: rights.Namespace,
		BindAddress: "127.0.0.1", Port: metrics, HealthPort: health, WebhookPort: w.webhookPort,
		WebhookService: webhookService, MutatingWebhooks: mutatingWebhooks, ValidatingWebhooks: validatingWebhooks,
		LeaderElection: true, Clock: w.clock, SkipNameValidation: true,
	}
	account := rights.Controller.Impersonate(w.config, nil)
	w.background("virt-controller", func(ctx context.Context) error { return manager.Run(ctx, account, options, log) })
}

// startAPI runs virt-api with its service account.
func (w *world) startAPI(log *livelog.Log) {
	config, _, err := rights.API.OnNode(context.Background(), w.config, w.client, "control-plane")
	w.g.Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(w.t.TempDir(), "kubeconfig")
	w.g.Expect(clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: config.BearerToken}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, file)).To(Succeed())
	listener, port := w.listen()
	w.apiPort = port
	options := &virtapi.Options{
		Address: "127.0.0.1", Port: port, Listener: listener, ConsoleServerPort: w.red.consolePort,
		Namespace: rights.Namespace, TrustDirectory: w.trust, Kubeconfig: file, Clock: w.clock,
	}
	w.background("virt-api", func(ctx context.Context) error { return virtapi.Run(ctx, config, options, log) })
}

// publish waits until the ConfigMap contains the current CA certificates, and writes them to files as the kubelet
// would.
func (w *world) publish() {
	w.t.Helper()
	bundles := &corev1.ConfigMap{}
	w.g.Eventually(func(g Gomega) {
		g.Expect(w.client.Get(context.Background(),
			client.ObjectKey{Namespace: rights.Namespace, Name: certificate.BundleName}, bundles)).To(Succeed())
		for _, role := range certificate.Authorities() {
			g.Expect(bundles.Data[role.Name]).To(Equal(string(w.authority(g, role).Bundle())), role.Name)
		}
	}, timeout, "10ms").Should(Succeed())
	for name, bundle := range bundles.Data {
		// Replace the file atomically, like the kubelet.
		temporary := filepath.Join(w.trust, ".new-"+name)
		w.g.Expect(os.WriteFile(temporary, []byte(bundle), 0o600)).To(Succeed())
		w.g.Expect(os.Rename(temporary, filepath.Join(w.trust, name))).To(Succeed())
	}
}

// authority reads the CA of a role from its Secret.
func (w *world) authority(g Gomega, role certificate.Role) certificate.Authority {
	secret := &corev1.Secret{}
	g.Expect(w.client.Get(context.Background(),
		client.ObjectKey{Namespace: rights.Namespace, Name: role.AuthoritySecret()}, secret)).To(Succeed())
	authority, err := certificate.AuthorityFrom(role, secret.Data)
	g.Expect(err).NotTo(HaveOccurred())
	return authority
}

func (w *world) listen() (net.Listener, int) {
	listener, err := (&net.ListenConfig{}).Listen(w.t.Context(), "tcp", "127.0.0.1:0")
	w.g.Expect(err).NotTo(HaveOccurred())
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		w.t.Fatalf("address %s", listener.Addr())
	}
	return listener, address.Port
}

func (w *world) freePort() int {
	listener, port := w.listen()
	w.g.Expect(listener.Close()).To(Succeed())
	return port
}

// trigger triggers a reconciliation of the KubeVirt object. virt-controller's own requeues use the real clock.
func (w *world) trigger() {
	w.t.Helper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: rights.Namespace,
		Name: "kubevirt-prometheus-metrics"}}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"test/time":%q}}}`, w.clock.Now())
	w.g.Expect(w.client.Patch(context.Background(), service,
		client.RawPatch("application/merge-patch+json", []byte(patch)))).To(Succeed())
	w.triggerWebhooks(client.RawPatch("application/merge-patch+json", []byte(patch)))
}
