// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/livelog"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/rights"
)

// timeout is long enough for a busy node.
const timeout = 2 * time.Minute

func TestMain(m *testing.M) {
	// Like an API server without WatchList: informers list first. The variable is read once.
	if err := os.Setenv("KUBE_FEATURE_WatchListClient", "false"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// TestRun runs virt-handler with its service account and the policies for agents, on a node without guests and without
// virt-broker.
func TestRun(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Fatal("set KUBEBUILDER_ASSETS to the directory of kube-apiserver and etcd, or use make test")
	}
	g := NewWithT(t)
	const root = "../../.."
	environment := apiserver.New(filepath.Join(root, "config", "crd", "bases"))
	rights.AuditTest(t, environment, root, "cmd/virt-handler/agent")
	config, err := environment.Start()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Error(err)
		}
	})
	scheme := apiruntime.NewScheme()
	g.Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	g.Expect(v1.AddToScheme(scheme)).To(Succeed())
	api, err := client.New(config, client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = rights.Ship(t.Context(), root, api)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(rights.RestrictAgents(t.Context(), root, config, api)).To(Succeed())
	g.Expect(api.Create(t.Context(),
		&v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: rights.Namespace, Name: "kubevirt"}})).To(Succeed())
	token, err := rights.ScraperToken(t.Context(), api)
	g.Expect(err).NotTo(HaveOccurred())

	account, _, err := rights.Handler.OnNode(t.Context(), config, api, "blue")
	g.Expect(err).NotTo(HaveOccurred())
	options := &Options{
		Node: "blue", Listen: "127.0.0.1", PodIP: "127.0.0.1", Namespace: rights.Namespace, TrustDir: t.TempDir(),
		Port: freePort(t), HealthPort: freePort(t), ConsoleServerPort: freePort(t), MigrationPort: freePort(t),
		KubeletRoot: t.TempDir(), PrivateDir: t.TempDir(), CapabilitiesDir: t.TempDir(),
		MetricsAuthorization: true,
	}
	log, err := livelog.New(0)
	g.Expect(err).NotTo(HaveOccurred())
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	t.Setenv("TMPDIR", os.TempDir()) // the agent sets it
	go func() { done <- Run(ctx, account, options, log) }()
	defer stop()

	// It writes its heartbeat and the node's capabilities.
	name := client.ObjectKey{Namespace: rights.Namespace, Name: agentapi.ObjectName("blue")}
	lease, report := &coordinationv1.Lease{}, &corev1.ConfigMap{}
	g.Eventually(func() error { return api.Get(ctx, name, lease) }, timeout).Should(Succeed())
	g.Expect(lease.Spec.HolderIdentity).To(HaveValue(Equal("blue")))
	g.Eventually(func() error { return api.Get(ctx, name, report) }, timeout).Should(Succeed())
	g.Expect(report.Data).To(HaveKey(agentapi.CapabilitiesKey))

	// Metrics need authorization with that option.
	g.Eventually(func() error { return rights.Scrape(ctx, options.Port, token) }, timeout).Should(Succeed())
	g.Expect(rights.Scrape(ctx, options.Port, "")).To(MatchError(ContainSubstring("401")))

	// Their server follows the configured version of TLS.
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"configuration":{"tlsConfiguration":{"minTLSVersion":"VersionTLS13"}}}}`))
	g.Expect(rights.DialTLS12(ctx, options.Port)).To(Succeed())
	g.Expect(api.Patch(ctx, &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: rights.Namespace, Name: "kubevirt"}},
		patch)).To(Succeed())
	g.Eventually(func() error { return rights.DialTLS12(ctx, options.Port) }, timeout).
		Should(MatchError(ContainSubstring("protocol version")))

	// It releases its Lease when it stops.
	stop()
	g.Eventually(done, timeout).Should(Receive(BeNil()))
	g.Expect(api.Get(context.Background(), name, lease)).To(Succeed())
	g.Expect(lease.Spec.HolderIdentity).To(HaveValue(BeEmpty()))
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("address %s", listener.Addr())
	}
	return address.Port
}
