// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package apiserver configures envtest's API server for tests, with timeouts for loaded machines. Each suite starts its
// own: admission policies, webhooks, roles and the audit log belong to the whole server, and suites run in parallel. A
// server with Vireo's CustomResourceDefinitions takes about twelve seconds of CPU time.
package apiserver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

const (
	// startTimeout bounds the start of etcd and the API server, which takes seconds on an idle machine.
	startTimeout = 3 * time.Minute
	// stopTimeout bounds the graceful stop of each of the two.
	stopTimeout = 2 * time.Minute
	// installTimeout bounds the time until CustomResourceDefinitions are served.
	installTimeout = 2 * time.Minute
)

// New returns an API server, which is not started, with the CustomResourceDefinitions of directories.
func New(crds ...string) *envtest.Environment {
	return &envtest.Environment{
		CRDDirectoryPaths:        crds,
		ErrorIfCRDPathMissing:    true,
		CRDInstallOptions:        Install(),
		ControlPlaneStartTimeout: startTimeout,
		ControlPlaneStopTimeout:  stopTimeout,
	}
}

// Install returns the options to install the CustomResourceDefinitions of directories in a running API server.
func Install(crds ...string) envtest.CRDInstallOptions {
	return envtest.CRDInstallOptions{Paths: crds, ErrorIfPathMissing: true, MaxTime: installTimeout}
}

// Webhooks returns the webhooks of a manifest, which is that of config/webhook, with paths that depend on their names,
// since the manifest has none. Package webhook/v1 registers them with the path /name.
func Webhooks(file string, path func(name string) string) (envtest.WebhookInstallOptions, error) {
	options := envtest.WebhookInstallOptions{}
	raw, err := os.Open(file)
	if err != nil {
		return options, err
	}
	defer func() { _ = raw.Close() }()
	mutating, validating := &admissionv1.MutatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfiguration{}
	documents := yaml.NewYAMLOrJSONDecoder(raw, 4096)
	for _, into := range []any{mutating, validating} {
		if err := documents.Decode(into); err != nil {
			return options, fmt.Errorf("%s: %w", file, err)
		}
	}
	if err := documents.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		return options, fmt.Errorf("%s has more than the two configurations of webhooks", file)
	}
	// envtest adds the slash.
	of := func(name string) *string { return ptr.To(strings.TrimPrefix(path(name), "/")) }
	for i := range mutating.Webhooks {
		mutating.Webhooks[i].ClientConfig.Service.Path = of(mutating.Webhooks[i].Name)
	}
	for i := range validating.Webhooks {
		validating.Webhooks[i].ClientConfig.Service.Path = of(validating.Webhooks[i].Name)
	}
	options.MutatingWebhooks = []*admissionv1.MutatingWebhookConfiguration{mutating}
	options.ValidatingWebhooks = []*admissionv1.ValidatingWebhookConfiguration{validating}
	return options, nil
}
