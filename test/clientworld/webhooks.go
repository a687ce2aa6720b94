// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/vireo-project/vireo/api/backup"
	"github.com/vireo-project/vireo/api/clone"
	"github.com/vireo-project/vireo/api/export"
	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	webhookv1 "github.com/vireo-project/vireo/internal/webhook/v1"
	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/rights"
)

// storageGroups are the API groups whose webhooks run. Those of VMs, VMIs and migrations do not: the tests write these
// objects as the components do.
var storageGroups = []string{snapshot.GroupName, clone.GroupName, export.GroupName, backup.GroupName}

// storageWebhooks returns the webhooks of a manifest that are called for objects of storageGroups.
func storageWebhooks(file string) (envtest.WebhookInstallOptions, error) {
	options, err := apiserver.Webhooks(file, func(name string) string { return name })
	if err != nil {
		return options, err
	}
	other := func(rules []admissionregistrationv1.RuleWithOperations) bool {
		return !slices.ContainsFunc(rules, func(rule admissionregistrationv1.RuleWithOperations) bool {
			return slices.ContainsFunc(rule.APIGroups, func(group string) bool { return slices.Contains(storageGroups, group) })
		})
	}
	mutating, validating := options.MutatingWebhooks[0], options.ValidatingWebhooks[0]
	mutating.Webhooks = slices.DeleteFunc(mutating.Webhooks,
		func(w admissionregistrationv1.MutatingWebhook) bool { return other(w.Rules) })
	validating.Webhooks = slices.DeleteFunc(validating.Webhooks,
		func(w admissionregistrationv1.ValidatingWebhook) bool { return other(w.Rules) })
	return options, nil
}

// gates is the configuration of the webhooks.
type gates struct{ config clusterconfig.Config }

// Current implements webhookv1.ConfigSource.
func (g gates) Current() clusterconfig.Config { return g.config }

// startWebhooks runs the webhooks with virt-controller's account, and returns when they serve.
func (w *world) startWebhooks(ctx context.Context, scheme *runtime.Scheme) error {
	log.SetLogger(logr.Discard())
	manager, err := ctrl.NewManager(rights.Controller.Impersonate(w.config, nil), ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{
			Host: w.webhooks.LocalServingHost, Port: w.webhooks.LocalServingPort, CertDir: w.webhooks.LocalServingCertDir,
		}),
	})
	if err != nil {
		return err
	}
	if err := webhookv1.SetupWithManager(manager, webhookv1.Options{
		Config: gates{settings()}, TrustedUsers: webhookv1.ServiceAccounts(rights.Namespace, string(rights.Controller)),
		LiveMigration: true,
	}); err != nil {
		return err
	}
	go func() {
		if err := manager.Start(ctx); err != nil && ctx.Err() == nil {
			w.Fatalf("webhooks: %v", err)
		}
	}()
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, readyTimeout, true, func(context.Context) (bool, error) {
		return manager.GetWebhookServer().StartedChecker()(nil) == nil, nil
	})
	if err != nil {
		return fmt.Errorf("the webhooks do not serve: %w", err)
	}
	return nil
}
