// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package admission

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	"github.com/vireo-project/vireo/api/migrations/v1alpha1"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	webhookv1 "github.com/vireo-project/vireo/internal/webhook/v1"
	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/rights"
)

const root = "../../.."

// The tests share an API server with Vireo's CRDs and webhooks, which have the rights of virt-controller's service
// account.
var (
	store   = clusterconfig.NewStore()
	restCfg *rest.Config
	scheme  = runtime.NewScheme()
	totals  struct{ cases, accepted, rejected, differing int }
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		fmt.Println("KUBEBUILDER_ASSETS is not set: run this through make test-wirecompat, which builds the API server")
		return 0
	}
	log.SetLogger(logr.Discard())
	env := apiserver.New(filepath.Join(root, "config", "crd", "bases"))
	hooks, err := apiserver.Webhooks(filepath.Join(root, "config", "webhook", "manifests.yaml"),
		func(name string) string { return name })
	if err != nil {
		fmt.Println("cannot read the webhooks:", err)
		return 1
	}
	env.WebhookInstallOptions = hooks
	defer func() {
		if err := env.Stop(); err != nil {
			fmt.Println("cannot stop the API server:", err)
		}
	}()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := start(ctx, env); err != nil {
		fmt.Println("cannot set up:", err)
		return 1
	}
	code := m.Run()
	fmt.Printf("admission: %d cases, %d accepted, %d rejected, %d differing on purpose\n",
		totals.cases, totals.accepted, totals.rejected, totals.differing)
	return code
}

func start(ctx context.Context, env *envtest.Environment) error {
	cfg, err := env.Start()
	if err != nil {
		return err
	}
	restCfg = cfg
	restCfg.QPS, restCfg.Burst = 1000, 1000
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme),
		v1beta1.AddToScheme(scheme),
		poolv1.AddToScheme(scheme)); err != nil {
		return err
	}
	admin, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	if _, err := rights.Ship(ctx, root, admin); err != nil {
		return err
	}
	serve := env.WebhookInstallOptions
	mgr, err := ctrl.NewManager(rights.Controller.Impersonate(cfg, nil), ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{
			Host: serve.LocalServingHost, Port: serve.LocalServingPort, CertDir: serve.LocalServingCertDir,
		}),
	})
	if err != nil {
		return err
	}
	if err := webhookv1.SetupWithManager(mgr, webhookv1.Options{
		Config: store, TrustedUsers: webhookv1.ServiceAccounts(rights.Namespace, string(rights.Controller)),
	}); err != nil {
		return err
	}
	go func() {
		if err := mgr.Start(ctx); err != nil {
			fmt.Println("the webhooks stopped:", err)
		}
	}()
	for deadline := time.Now().Add(warmUp); mgr.GetWebhookServer().StartedChecker()(nil) != nil; time.Sleep(
		50 * time.Millisecond) {
		if time.Now().After(deadline) {
			return errors.New("the webhooks do not answer")
		}
	}
	return nil
}
