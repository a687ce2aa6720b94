// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/apiserver/agentclient"
	"github.com/vireo-project/vireo/internal/apiserver/profile"
	"github.com/vireo-project/vireo/internal/apiserver/server"
	"github.com/vireo-project/vireo/internal/apiserver/subresource"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/health"
	"github.com/vireo-project/vireo/test/apiserver"
	fakeagent "github.com/vireo-project/vireo/test/fakes/agent"
	"github.com/vireo-project/vireo/test/pki"
	"github.com/vireo-project/vireo/test/rights"
)

// The specs share a real API server with the CRDs, and virt-api, which delegates authentication and authorization to
// it.
var (
	env     *envtest.Environment
	k8s     client.Client  // an administrator of the API server
	address string         // virt-api's address
	serving []byte         // virt-api's serving certificate
	proxy   *pki.Authority // the front proxy's CA

	nodeAgent *fakeagent.Agent // the agent of the only node
)

func TestServer(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("KUBEBUILDER_ASSETS is not set: run this through make test, which builds the API server")
	}
	RegisterFailHandler(Fail)
	// Gomega's default of one second is too short for a loaded machine.
	SetDefaultEventuallyTimeout(30 * time.Second)
	RunSpecs(t, "virt-api against a real API server")
}

var _ = BeforeSuite(func() {
	env = apiserver.New(filepath.Join("..", "..", "..", "config", "crd", "bases"))
	proxy = pki.FrontProxy(GinkgoT(), env, GinkgoT().TempDir())
	root := filepath.Join("..", "..", "..")
	audit, err := rights.NewAudit(env, GinkgoT().TempDir())
	Expect(err).NotTo(HaveOccurred())
	config, err := env.Start()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() {
		Expect(env.Stop()).To(Succeed())
		Expect(audit.Check(root, "internal/apiserver/server", !failed)).To(Succeed())
	})
	scheme := runtime.NewScheme()
	Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	Expect(v1.AddToScheme(scheme)).To(Succeed())
	k8s, err = client.New(config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	_, err = rights.Ship(context.Background(), root, k8s)
	Expect(err).NotTo(HaveOccurred())
	nodeAgent = fakeagent.Start(GinkgoT(), "node1")
	createAgentPod()
	server := startServer(newAPI())
	DeferCleanup(server.stop)
})

// configuration is that of the cluster.
var configuration = clusterconfig.NewStore()

// failed reports whether a spec has failed.
var failed bool

var _ = ReportAfterEach(func(report SpecReport) { failed = failed || report.Failed() })

// newAPI returns the API of a cluster with one node, whose agent is nodeAgent. It has the permissions of virt-api's
// service account.
func newAPI() *subresource.API {
	GinkgoHelper()
	config := rights.API.Impersonate(env.Config, nil)
	apiServer, err := discovery.NewDiscoveryClientForConfig(config)
	Expect(err).NotTo(HaveOccurred())
	own, err := client.New(config, client.Options{Scheme: k8s.Scheme()})
	Expect(err).NotTo(HaveOccurred())
	enabled := clusterconfig.Default()
	enabled.ClusterProfiler = true
	return &subresource.API{
		Client: own, Config: func() clusterconfig.Config { return enabled },
		Profiles: &profile.Client{Pods: own, Namespace: rights.Namespace, TLS: func(string, string) (*tls.Config, error) {
			return nil, errors.New("the components of this suite serve no profiles")
		}},
		Health: &health.Check{APIServer: apiServer, ConfigVersion: func() string { return "17" }},
		Agents: agentclient.New(agentclient.Options{
			Pods: own, Namespace: rights.Namespace, Port: nodeAgent.Port, TLS: nodeAgent.Authority.Client(GinkgoT()),
		}),
	}
}

// createAgentPod creates the Pod by which virt-api finds the agent.
func createAgentPod() {
	GinkgoHelper()
	ctx := context.Background()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: rights.Namespace, Name: "virt-handler-1",
			Labels: map[string]string{"kubevirt.io": "virt-handler"}},
		Spec: corev1.PodSpec{NodeName: nodeAgent.Node,
			Containers: []corev1.Container{{Name: "virt-handler", Image: "virt-handler"}}},
	}
	Expect(k8s.Create(ctx, pod)).To(Succeed())
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}}}
	Expect(k8s.Status().Update(ctx, pod)).To(Succeed())
}

// runningServer is a virt-api.
type runningServer struct {
	*server.Server
	begin func() // begins the shutdown
	done  chan error
	clock *clocktesting.FakeClock
}

// cut makes the time pass that streams have to end.
func (r *runningServer) cut() {
	GinkgoHelper()
	Eventually(r.clock.HasWaiters).WithTimeout(stopLimit).Should(BeTrue())
	r.clock.Step(server.StreamDrain)
}

// stop stops it, and waits for no stream.
func (r *runningServer) stop() {
	GinkgoHelper()
	r.begin()
	r.cut()
	Eventually(r.done).WithTimeout(stopLimit).Should(Receive(BeNil()))
}

// startServer runs virt-api on a port of its own until it is stopped.
func startServer(api *subresource.API) *runningServer {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	certificate, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	Expect(err).NotTo(HaveOccurred())
	serving = certificate
	kubeconfig, err := env.ControlPlane.AddUser(envtest.User{Name: rights.API.User()}, nil)
	Expect(err).NotTo(HaveOccurred())
	access, err := kubeconfig.KubeConfig()
	Expect(err).NotTo(HaveOccurred())
	Expect(os.WriteFile(filepath.Join(dir, "kubeconfig"), access, 0o600)).To(Succeed())
	own, err := dynamiccertificates.NewStaticCertKeyContent("serving", certificate, key)
	Expect(err).NotTo(HaveOccurred())
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	address = listener.Addr().String()
	clock := clocktesting.NewFakeClock(time.Now())
	s, err := server.New(server.Options{
		Listener: listener, Address: "127.0.0.1",
		Clock: clock, Certificate: own, Kubeconfig: filepath.Join(dir, "kubeconfig"), RestrictTLS: configuration.RestrictTLS,
	}, api.Verbs)
	Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	Eventually(func() error { return as("anybody").Get().AbsPath("/healthz").Do(context.Background()).Error() }).
		WithTimeout(startLimit).Should(Succeed())
	// virt-api reads the front proxy's CA a moment after it starts listening. Before that, nobody is an administrator.
	missing := group + "/v1/namespaces/default/virtualmachineinstances/missing/guestosinfo"
	Eventually(func() (int, error) {
		response, err := getAsAdmin(missing)
		if err != nil {
			return 0, err
		}
		return response.StatusCode, response.Body.Close()
	}).WithTimeout(startLimit).Should(Equal(http.StatusNotFound))
	return &runningServer{Server: s, begin: cancel, done: done, clock: clock}
}

// as returns a client of virt-api with the certificate of a user.
func as(name string) *rest.RESTClient {
	GinkgoHelper()
	user, err := env.AddUser(envtest.User{Name: name}, nil)
	Expect(err).NotTo(HaveOccurred())
	config := rest.CopyConfig(user.Config())
	config.Host = "https://" + address
	config.TLSClientConfig = rest.TLSClientConfig{
		CAData: serving, CertData: config.CertData, KeyData: config.KeyData,
	}
	config.NegotiatedSerializer = clientgoscheme.Codecs.WithoutConversion()
	config.GroupVersion = &metav1.SchemeGroupVersion
	c, err := rest.UnversionedRESTClientFor(config)
	Expect(err).NotTo(HaveOccurred())
	return c
}

// allow grants a user one verb on one subresource.
func allow(user, verb, resource string) {
	GinkgoHelper()
	name := strings.ReplaceAll("test:"+user+":"+verb+":"+resource, "/", ":")
	Expect(k8s.Create(context.Background(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{subresource.GroupName}, Resources: []string{resource},
			Verbs: []string{verb}}},
	})).To(Succeed())
	Expect(k8s.Create(context.Background(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
	})).To(Succeed())
}
