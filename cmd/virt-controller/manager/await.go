// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/vireo-project/vireo/internal/component/health"
	"github.com/vireo-project/vireo/internal/controller/install/guard"
)

// await returns when KubeVirt does not manage the cluster. Until then the process is alive and not ready, and changes
// nothing but a condition of the KubeVirt object.
func await(ctx context.Context, config *rest.Config, o *Options, log logr.Logger) (*guard.Guard, error) {
	scheme := NewScheme()
	other, err := guard.New(ctx, config, scheme, o.Namespace)
	if err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("cannot make a client: %w", err)
	}
	go func() { _ = other.Start(ctx) }()
	var reason atomic.Value
	reason.Store("whether KubeVirt's operator is installed is not known yet")
	probes, err := probeManager(config, o, func(*http.Request) error { return fmt.Errorf("%s", reason.Load()) })
	if err != nil {
		return nil, err
	}
	serving, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- probes.Start(serving) }()
	err = other.Await(ctrl.LoggerInto(ctx, log), c, func(found string) {
		reason.Store(guard.Message(found))
		log.Info(guard.Message(found))
	})
	stop()
	return other, errors.Join(err, <-served) // The next server listens on the same port.
}

// probeManager returns a manager that only serves the kubelet's probes: the process is alive, and ready if the check
// passes.
func probeManager(config *rest.Config, o *Options, ready healthz.Checker) (ctrl.Manager, error) {
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: NewScheme(), Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return nil, err
	}
	if mgr, err = health.WithProbes(mgr, net.JoinHostPort("", strconv.Itoa(o.HealthPort))); err != nil {
		return nil, err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, err
	}
	return mgr, mgr.AddReadyzCheck("kubevirt", ready)
}

// onEveryReplica is a runnable that does not wait for the leader election.
type onEveryReplica func(context.Context) error

// Start implements manager.Runnable.
func (f onEveryReplica) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (onEveryReplica) NeedLeaderElection() bool { return false }
