// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtapi

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"k8s.io/client-go/tools/clientcmd"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/install/certificatesigningrequest"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/pki"
	"github.com/vireo-project/vireo/test/rights"
)

const (
	installed = "kubevirt"
	// timeout is long enough for a loaded machine.
	timeout = 2 * time.Minute
)

// cluster is a real API server with its aggregation layer, the CRDs, service accounts with the roles of config/rbac,
// and virt-controller's signers.
type cluster struct {
	g      *WithT
	config *rest.Config
	client client.Client
	trust  string
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Fatal("set KUBEBUILDER_ASSETS to the directory of kube-apiserver and etcd, or use make test")
	}
	g := NewWithT(t)
	env := apiserver.New(filepath.Join("..", "..", "..", "config", "crd", "bases"))
	pki.FrontProxy(t, env, t.TempDir())
	rights.AuditTest(t, env, filepath.Join("..", "..", ".."), "cmd/virt-api/virtapi")
	config, err := env.Start()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	scheme, err := newScheme()
	g.Expect(err).NotTo(HaveOccurred())
	c, err := client.New(config, client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	world := &cluster{g: g, config: config, client: c, trust: t.TempDir()}
	_, err = rights.Ship(context.Background(), filepath.Join("..", "..", ".."), c)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(rights.CreateFile(context.Background(), c, filepath.Join("..", "..", "..", "config", "rbac", "users.yaml"))).
		To(Succeed())
	g.Expect(rights.CreateFile(context.Background(), c,
		filepath.Join("..", "..", "..", "config", "admission", "virt-api.yaml"))).To(Succeed())
	world.createAuthorities()
	world.startSigners(t)
	return world
}

func (w *cluster) create(o client.Object) {
	w.g.Expect(w.client.Create(context.Background(), o)).To(Succeed())
}

// createAuthorities creates the CAs as the KubeVirt reconciler does, and writes their certificates where the kubelet
// would mount them.
func (w *cluster) createAuthorities() {
	for _, role := range certificate.Roles() {
		none, err := certificate.AuthorityFrom(role, nil)
		w.g.Expect(err).NotTo(HaveOccurred())
		authority, _, _, err := none.Advance(time.Now(), clusterconfig.Default().Certificates)
		w.g.Expect(err).NotTo(HaveOccurred())
		data, err := authority.Data()
		w.g.Expect(err).NotTo(HaveOccurred())
		w.create(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: installed, Name: role.AuthoritySecret(),
				Labels: map[string]string{v1.AppLabel: certificate.AuthorityLabelValue},
			},
			Type: corev1.SecretTypeTLS, Data: data,
		})
		w.g.Expect(os.WriteFile(filepath.Join(w.trust, role.Name), authority.Bundle(), 0o600)).To(Succeed())
	}
}

// startSigners runs virt-controller's reconciler of CertificateSigningRequests.
func (w *cluster) startSigners(t *testing.T) {
	t.Helper()
	mgr, err := ctrl.NewManager(rights.Controller.Impersonate(w.config, nil), ctrl.Options{
		Scheme: w.client.Scheme(), Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{installed: {}}},
	})
	w.g.Expect(err).NotTo(HaveOccurred())
	w.g.Expect((&certificatesigningrequest.Reconciler{
		Client: mgr.GetClient(), Namespace: installed, Config: clusterconfig.NewStore(),
	}).SetupWithManager(mgr)).To(Succeed())
	background(t, mgr.Start)
}

// background runs a function until the test ends.
func background(t *testing.T, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// component returns a client configuration of a service account, with a token that is bound to a Pod, and that Pod.
func (w *cluster) component(account rights.Account, node string) (*rest.Config, *corev1.Pod) {
	config, pod, err := account.OnNode(context.Background(), w.config, w.client, node)
	w.g.Expect(err).NotTo(HaveOccurred())
	return config, pod
}

// kubeconfig writes a client configuration to a file.
func (w *cluster) kubeconfig(t *testing.T, config *rest.Config) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	w.g.Expect(clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {
			Token: config.BearerToken, ClientCertificateData: config.CertData, ClientKeyData: config.KeyData,
		}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, file)).To(Succeed())
	return file
}

// register creates the operator's APIService, changed to the port on which the test listens. Its Service has the usual
// name, which the certificate is for, but is of type ExternalName.
func (w *cluster) register(port int) {
	w.create(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: installed, Name: agentapi.ServiceName},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	})
	bundle, err := os.ReadFile(filepath.Join(w.trust, certificate.APIServing.Name))
	w.g.Expect(err).NotTo(HaveOccurred())
	settings := manifests.Settings{
		Namespace: installed, Config: clusterconfig.Default(),
		Bundles: map[string][]byte{certificate.APIServing.Name: bundle},
	}
	settings.Config.Images = clusterconfig.Images{Launcher: "l", Handler: "h", Broker: "b", API: "a"}
	objects, err := manifests.Render(settings)
	w.g.Expect(err).NotTo(HaveOccurred())
	for _, o := range objects {
		if o.GetKind() == manifests.APIServiceKind.Kind {
			w.g.Expect(unstructured.SetNestedField(o.Object, int64(port), "spec", "service", "port")).To(Succeed())
			w.create(o)
		}
	}
}

// as returns a client of the API server that impersonates a user.
func (w *cluster) as(user string) *rest.RESTClient {
	return w.impersonating(user, "system:authenticated")
}

// asAdmin returns a client of the API server that impersonates an administrator.
func (w *cluster) asAdmin() *rest.RESTClient {
	return w.impersonating("admin", "system:masters", "system:authenticated")
}

func (w *cluster) impersonating(user string, groups ...string) *rest.RESTClient {
	config := rest.CopyConfig(w.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	config.GroupVersion = &metav1.SchemeGroupVersion
	config.NegotiatedSerializer = codecs
	c, err := rest.UnversionedRESTClientFor(config)
	w.g.Expect(err).NotTo(HaveOccurred())
	return c
}

func listen(t *testing.T) (net.Listener, int) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("address %s", listener.Addr())
	}
	return listener, address.Port
}
