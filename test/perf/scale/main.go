// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command scale measures virt-controller and the agents with many VMs. kwok simulates the nodes and their Pods, and the
// agents use a simulated hypervisor. The API server, etcd, Kubernetes's scheduler and controllers, virt-controller and
// the agents' code are real. It prints a table and writes JSON. It fails if a phase does not complete, and not because
// of a figure. The phases before it are in the table.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"
)

// options are the flags of the benchmark.
type options struct {
	count, nodes int
	steady       time.Duration
	output       string
	// controller, kwok and kubernetes are the paths of programs, the last one of a directory.
	controller, kwok, kubernetes string
	// workDir is a directory for logs and the cluster's data.
	workDir string
}

const (
	// minNodes is the default for small fleets.
	minNodes = 20
	// vmsPerNode is the default for larger fleets.
	vmsPerNode = 50
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use: "scale", Short: "Measure virt-controller and agents with many VMs", Args: cobra.NoArgs, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctrl.SetLogger(logr.Discard())
			if o.nodes == 0 {
				o.nodes = max(minNodes, o.count/vmsPerNode)
			}
			return run(cmd.Context(), &o)
		},
	}
	cmd.Flags().IntVar(&o.count, "count", 500, "number of VMs")
	cmd.Flags().IntVar(&o.nodes, "nodes", 0,
		fmt.Sprintf("number of nodes; 0 means one for %d VMs, and at least %d", vmsPerNode, minNodes))
	cmd.Flags().DurationVar(&o.steady, "steady", time.Minute, "how long the steady fleet is observed")
	cmd.Flags().StringVar(&o.output, "output", ".bench/scale.json", "file for the figures")
	cmd.Flags().StringVar(&o.controller, "controller", "", "program with virt-controller, see test/perf/scale/controller")
	cmd.Flags().StringVar(&o.kwok, "kwok", "", "kwok's program")
	cmd.Flags().StringVar(&o.kubernetes, "kubernetes", "", "directory with kube-scheduler and kube-controller-manager")
	cmd.Flags().StringVar(&o.workDir, "work-dir", ".build/scale", "directory for logs and profiles")
	cmd.AddCommand(agentsCommand())
	return cmd
}

// run runs the phases one after the other.
func run(ctx context.Context, o *options) error {
	w := &world{o: o}
	defer w.stop()
	if err := w.start(ctx); err != nil {
		return err
	}
	r := &result{VMs: o.count, Nodes: o.nodes}
	for _, p := range []struct {
		name string
		do   func(context.Context, *phase) error
	}{
		{phaseStart, w.startAll},
		{phaseSteady, w.observeSteady},
		{phaseRestart, w.restartController},
		{phaseConfig, w.changeConfiguration},
		{phaseLoss, w.loseNode},
		{phaseDelete, w.deleteAll},
	} {
		fmt.Fprintf(os.Stderr, "scale: %s …\n", p.name)
		measured, err := w.measure(ctx, p.name, p.do)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", p.name, err), r.publish(os.Stdout, o.output))
		}
		r.Phases = append(r.Phases, measured)
	}
	return r.publish(os.Stdout, o.output)
}
