// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	backupv1alpha1 "github.com/vireo-project/vireo/api/backup/v1alpha1"
	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	migrationsv1alpha1 "github.com/vireo-project/vireo/api/migrations/v1alpha1"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	webhookserver "github.com/vireo-project/vireo/internal/webhook/server"
	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/rights"
)

// The specs share an API server with the CRDs and the webhooks of this repository.
var (
	suiteConfig = clusterconfig.NewStore()
	k8s         client.Client // an administrator
	kubectl     func(args ...string) (stdout, stderr io.Reader, err error)
	controller  client.Client // virt-controller's account, with its rights
	// webhookAddress is the address of the webhook server, and paths are those that the API server uses.
	webhookAddress string
	paths          webhookserver.Paths
)

func TestWebhooks(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("KUBEBUILDER_ASSETS is not set: run this through make test, which builds the API server")
	}
	RegisterFailHandler(Fail)
	// Gomega's default of one second is too short for a busy machine.
	SetDefaultEventuallyTimeout(30 * time.Second)
	RunSpecs(t, "webhooks against a real API server")
}

var _ = BeforeSuite(func() {
	log.SetLogger(zap.New(zap.WriteTo(GinkgoWriter), zap.UseDevMode(true)))
	ctx, cancel := context.WithCancel(context.Background())
	DeferCleanup(cancel)

	root := filepath.Join("..", "..", "..")
	env := apiserver.New(filepath.Join(root, "config", "crd", "bases"))
	paths, _ = webhookserver.Paths{}.Renew(time.Now(), time.Now())
	hooks, err := apiserver.Webhooks(filepath.Join(root, "config", "webhook", "manifests.yaml"), paths.Path)
	Expect(err).NotTo(HaveOccurred())
	env.WebhookInstallOptions = hooks
	audit, err := rights.NewAudit(env, GinkgoT().TempDir())
	Expect(err).NotTo(HaveOccurred())
	cfg, err := env.Start()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() {
		cancel() // The API server waits for open watches.
		Expect(env.Stop()).To(Succeed())
		Expect(audit.Check(root, "internal/webhook/v1", !failed)).To(Succeed())
	})

	scheme := runtime.NewScheme()
	Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	Expect(v1.AddToScheme(scheme)).To(Succeed())
	Expect(v1beta1.AddToScheme(scheme)).To(Succeed())
	Expect(poolv1.AddToScheme(scheme)).To(Succeed())
	Expect(snapshotv1beta1.AddToScheme(scheme)).To(Succeed())
	Expect(clonev1beta1.AddToScheme(scheme)).To(Succeed())
	Expect(exportv1.AddToScheme(scheme)).To(Succeed())
	Expect(backupv1alpha1.AddToScheme(scheme)).To(Succeed())
	Expect(migrationsv1alpha1.AddToScheme(scheme)).To(Succeed())

	k8s, err = client.New(cfg, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	_, err = rights.Ship(ctx, root, k8s)
	Expect(err).NotTo(HaveOccurred())
	account := rights.Controller.Impersonate(cfg, nil)
	controller, err = client.New(account, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())

	opts := env.WebhookInstallOptions
	webhookAddress = net.JoinHostPort(opts.LocalServingHost, strconv.Itoa(opts.LocalServingPort))
	serving, err := tls.LoadX509KeyPair(filepath.Join(opts.LocalServingCertDir, "tls.crt"),
		filepath.Join(opts.LocalServingCertDir, "tls.key"))
	Expect(err).NotTo(HaveOccurred())
	mgr, err := ctrl.NewManager(account, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhookserver.New(webhookserver.Options{
			Address: webhookAddress, Webhook: paths.Webhook,
			TLS: []func(*tls.Config){func(config *tls.Config) { config.Certificates = []tls.Certificate{serving} }},
		}),
	})
	Expect(err).NotTo(HaveOccurred())
	Expect(SetupWithManager(mgr, Options{
		Config:       suiteConfig,
		TrustedUsers: ServiceAccounts(rights.Namespace, string(rights.Controller)),

		LiveMigration: true,
	})).To(Succeed())
	go func() {
		defer GinkgoRecover()
		Expect(mgr.Start(ctx)).To(Succeed())
	}()
	Eventually(func() error { return mgr.GetWebhookServer().StartedChecker()(nil) }).WithTimeout(waitLimit).
		Should(Succeed())

	admin, err := env.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	Expect(err).NotTo(HaveOccurred())
	tool, err := admin.Kubectl()
	Expect(err).NotTo(HaveOccurred())
	kubectl = tool.Run
})

// failed reports whether a spec has failed.
var failed bool

var _ = ReportAfterEach(func(report SpecReport) { failed = failed || report.Failed() })
