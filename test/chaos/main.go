// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command chaos migrates a guest back and forth between the two nodes of the local cluster. In each run it injects a
// fault: it kills a process, or interrupts a connection, at a phase of the migration
// (docs/adr/0023-migration-protocol.md) that it derives from the run's seed. README.md describes what it checks.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/go-logr/logr"

	"github.com/vireo-project/vireo/test/chaos/plan"
	"github.com/vireo-project/vireo/test/chaos/selftest"
)

// options are the flags.
type options struct {
	runs      int
	seed      uint64
	output    string
	evidence  string
	namespace string
	cluster   string
	rootfs    string
	image     string
	bound     time.Duration
}

// errFailed is the result of a test with failed runs.
var errFailed = errors.New("the chaos test failed")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	ctrl.SetLogger(logr.Discard())
	var o options
	cmd := &cobra.Command{
		Use: "chaos", Short: "Migrate a guest and inject faults", Args: cobra.NoArgs, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return test(cmd.Context(), o) },
	}
	cmd.Flags().IntVar(&o.runs, "runs", plan.Cells(),
		"number of migrations; the default is the number of pairs of a fault and a phase, each of which then occurs once")
	cmd.Flags().Uint64Var(&o.seed, "seed", 0,
		"seed of the first run, which each further run increments; 0 takes the current time")
	cmd.Flags().StringVar(&o.output, "output", ".bench/chaos.json", "file for the results")
	cmd.Flags().StringVar(&o.evidence, "evidence", ".bench/chaos",
		"directory for journals, and for the logs and objects of failed runs")
	cmd.Flags().StringVar(&o.namespace, "namespace", "vireo-chaos", "namespace of the guest, which is created and removed")
	cmd.Flags().StringVar(&o.cluster, "cluster", os.Getenv("VIREO_CLUSTER"),
		"program of the local cluster (hack/cluster/cluster)")
	cmd.Flags().StringVar(&o.rootfs, "launcher-rootfs", os.Getenv("VIREO_LAUNCHER_ROOTFS"),
		"root file system of virt-launcher, with the QEMU of the self-test")
	cmd.Flags().StringVar(&o.image, "kernel-image", "localhost/vireo/guest-small-kernel:dev",
		"image with the guest's kernel and initrd")
	cmd.Flags().DurationVar(&o.bound, "bound", 90*time.Second,
		"how long after the repair of all faults the checks must pass")
	err := cmd.ExecuteContext(ctx)
	stop()
	if err != nil {
		os.Exit(1)
	}
}

// test runs the self-test and then the runs. The results are printed also after an interrupt.
func test(ctx context.Context, o options) (err error) {
	if o.seed == 0 {
		o.seed = uint64(time.Now().Unix())
	}
	if o.rootfs, err = filepath.Abs(o.rootfs); err != nil {
		return err
	}
	cluster, err := openCluster(ctx, o.cluster)
	if err != nil {
		return err
	}
	fmt.Println("chaos: self-test: are two QEMUs that run on one disk detected? …")
	if err := selftest.Run(o.rootfs, cluster.state()); err != nil {
		return fmt.Errorf("self-test: %w", err)
	}
	fmt.Println("chaos: the self-test passed; starting a guest …")
	h, err := newHarness(ctx, o, cluster)
	if h != nil {
		defer func() { err = errors.Join(err, h.cleanUp()) }()
	}
	if err != nil {
		return err
	}
	r := &report{Seed: o.seed, Started: time.Now().UTC(), Cells: plan.Cells()}
	h.series(ctx, o, r)
	return errors.Join(r.publish(os.Stdout, o.output), r.verdict())
}

// series executes the runs, and stops early at an interrupt or if no guest can be started.
func (h *harness) series(ctx context.Context, o options, r *report) {
	for i := range o.runs {
		result := h.run(ctx, plan.Of(o.seed+uint64(i)))
		if ctx.Err() != nil {
			fmt.Println("chaos: interrupted")
			return
		}
		r.add(result)
		fmt.Printf("%*d/%d %s\n", len(fmt.Sprint(o.runs)), i+1, o.runs, result.line())
		if len(result.Failures) == 0 && result.Outcome != waits {
			continue
		}
		if err := h.restart(ctx); err != nil {
			r.Aborted = fmt.Sprintf("no guest could be started after run %d: %v", i+1, err)
			fmt.Println("chaos:", r.Aborted)
			return
		}
	}
}
