// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package apiserver is the real API server that tests run beside: envtest's, with patience for machines that do much else.
package apiserver

import (
	"time"

	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

const (
	// startTimeout bounds how long etcd and the API server take to answer. They need seconds on a machine of their own.
	startTimeout = 3 * time.Minute
	// installTimeout bounds how long kinds take to be served.
	installTimeout = 2 * time.Minute
)

// New is an API server with the kinds of some directories of CustomResourceDefinitions, before it is started.
func New(crds ...string) *envtest.Environment {
	return &envtest.Environment{
		CRDDirectoryPaths:        crds,
		ErrorIfCRDPathMissing:    true,
		CRDInstallOptions:        Install(),
		ControlPlaneStartTimeout: startTimeout,
	}
}

// Install says how to add kinds to an API server that runs.
func Install(crds ...string) envtest.CRDInstallOptions {
	return envtest.CRDInstallOptions{Paths: crds, ErrorIfPathMissing: true, MaxTime: installTimeout}
}
