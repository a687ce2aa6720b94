// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// The phases.
const (
	phaseStart   = "start of all VMs"
	phaseSteady  = "steady fleet"
	phaseRestart = "restart of virt-controller"
	phaseConfig  = "change of the configuration"
	phaseLoss    = "loss of a node"
	phaseDelete  = "deletion of all VMs"
)

const (
	// creators is how many VMs are created at a time.
	creators = 16
	// quiet is how long nothing must happen until the cluster counts as settled.
	quiet = 5 * time.Second
	// idleShare is the share of a CPU below which virt-controller counts as idle.
	idleShare = 0.1
	// tick is the interval of observations.
	tick = 500 * time.Millisecond
)

// settle waits until our processes write nothing and virt-controller is idle.
func (w *world) settle(ctx context.Context) error {
	_, err := w.settled(ctx)
	return err
}

// settled is like settle, and returns since when.
func (w *world) settled(ctx context.Context) (time.Time, error) {
	last, used := time.Now(), time.Duration(-1)
	err := w.poll(ctx, "quiet", tick, func() (bool, error) {
		u, err := w.find(controllerName).usage()
		if err != nil {
			return false, err
		}
		if used < 0 || float64(u.cpu-used) > idleShare*float64(tick) {
			last = time.Now()
		}
		if changed := w.audit.quietSince(); changed.After(last) {
			last = changed
		}
		used = u.cpu
		return time.Since(last) >= quiet, nil
	})
	return last, err
}

// startAll creates all VMs and waits until they run.
func (w *world) startAll(ctx context.Context, p *phase) error {
	if err := w.followFleet(ctx); err != nil {
		return err
	}
	begin := time.Now()
	create, creating := errgroup.WithContext(ctx)
	create.SetLimit(creators)
	for i := range w.o.count {
		create.Go(func() error { return w.api.Create(creating, makeVM(i)) })
	}
	if err := create.Wait(); err != nil {
		return err
	}
	p.value("VMs created", time.Since(begin).Seconds(), "s")
	if err := w.allRunning(ctx); err != nil {
		return err
	}
	p.value("all VMs run", time.Since(begin).Seconds(), "s")
	return w.settle(ctx)
}

func (w *world) allRunning(ctx context.Context) error {
	ready, all := 0, 0
	err := w.poll(ctx, "running VMs", 50*time.Millisecond, func() (bool, error) {
		ready, all = w.fleet.readyCount()
		return ready == w.o.count, nil
	})
	if err != nil {
		return fmt.Errorf("%d of %d VMs run: %w", ready, all, err)
	}
	return nil
}

// observeSteady does nothing.
func (w *world) observeSteady(ctx context.Context, _ *phase) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(w.o.steady):
	}
	return w.saveProfile(ctx, "heap")
}

// saveProfile stores a profile of virt-controller. Without a garbage collection before it, it is about the last one.
func (w *world) saveProfile(ctx context.Context, name string) error {
	url := fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/%s", w.pprofPort, name)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(w.o.workDir, controllerName+"."+name+".pprof"), content, 0o600)
}

// restartController restarts virt-controller.
func (w *world) restartController(ctx context.Context, p *phase) error {
	w.end(w.find(controllerName), syscall.SIGTERM)
	begin := time.Now()
	if err := w.startController(ctx); err != nil {
		return err
	}
	p.value("ready", time.Since(begin).Seconds(), "s")
	idle, err := w.settled(ctx)
	if err != nil {
		return err
	}
	p.value("idle", idle.Sub(begin).Seconds(), "s")
	return nil
}

// changeConfiguration changes a setting that concerns every VM's reconciler and no VM.
func (w *world) changeConfiguration(ctx context.Context, p *phase) error {
	begin := time.Now()
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"configuration":{"migrations":{"parallelMigrationsPerCluster":7}}}}`))
	if err := w.api.Patch(ctx, kubeVirt(), patch); err != nil {
		return err
	}
	idle, err := w.settled(ctx)
	p.value("idle", idle.Sub(begin).Seconds(), "s")
	return err
}

// loseNode stops a node and its agent, as a power cut does, and then declares the node out of service, as a fencing
// agent does.
func (w *world) loseNode(ctx context.Context, p *phase) error {
	lost := nodeName(1)
	guests, _ := w.fleet.on(lost)
	p.value("VMs on the node", float64(guests), "")
	begin := time.Now()
	w.end(w.find(lostAgentName), syscall.SIGKILL)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: lost}}
	selected, err := metav1.ParseToLabelSelector(simulatedLabel)
	if err != nil {
		return err
	}
	for label := range selected.MatchLabels {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, label)
		if err := w.api.Patch(ctx, node, client.RawPatch("application/merge-patch+json", patch)); err != nil {
			return err
		}
	}
	if err := w.poll(ctx, "VMIs that report the loss", 50*time.Millisecond, func() (bool, error) {
		all, unresponsive := w.fleet.on(lost)
		return all == unresponsive, nil
	}); err != nil {
		return err
	}
	p.value("loss is reported", time.Since(begin).Seconds(), "s")
	begin = time.Now()
	taint := []byte(`{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","value":"nodeshutdown","effect":"NoExecute"}]}}`)
	if err := w.api.Patch(ctx, node, client.RawPatch("application/strategic-merge-patch+json", taint)); err != nil {
		return err
	}
	if err := w.poll(ctx, "VMs that left the node", 50*time.Millisecond, func() (bool, error) {
		all, _ := w.fleet.on(lost)
		return all == 0, nil
	}); err != nil {
		return err
	}
	if err := w.allRunning(ctx); err != nil {
		return err
	}
	p.value("all VMs run again after the taint", time.Since(begin).Seconds(), "s")
	return w.settle(ctx)
}

// deleteAll deletes all VMs.
func (w *world) deleteAll(ctx context.Context, p *phase) error {
	begin := time.Now()
	// An API server ends a request after a minute, in which a busy machine does not delete all of them.
	if err := w.poll(ctx, "the deletion of all VMs", time.Second, func() (bool, error) {
		err := w.api.DeleteAllOf(ctx, &v1.VirtualMachine{}, client.InNamespace(namespace))
		if apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsInternalError(err) {
			return false, nil
		}
		return err == nil, err
	}); err != nil {
		return err
	}
	if err := w.poll(ctx, "the end of all VMs", 50*time.Millisecond,
		func() (bool, error) { return w.gone(ctx) }); err != nil {
		return err
	}
	p.value("all VMs are gone", time.Since(begin).Seconds(), "s")
	return w.settle(ctx)
}
