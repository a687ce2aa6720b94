// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package apiserver configures envtest's API server for tests, with timeouts for loaded machines. Each suite starts its own:
// admission policies, webhooks, roles and the audit log belong to the whole server, and suites run in parallel. A server with
// Vireo's CustomResourceDefinitions takes about twelve seconds of CPU time.
package apiserver

import (
	"time"

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
