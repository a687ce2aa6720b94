// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command chaos migrates a guest back and forth between the two nodes of the local cluster. In each run it injects a fault: it kills a
// process, or interrupts a connection, at a phase of the migration (docs/adr/0023-migration-protocol.md) that it derives from the run's
// seed. README.md describes what it checks.
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

// errFailed is the end of a test in which runs failed.
var errFailed = errors.New("something went wrong that must not")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	ctrl.SetLogger(logr.Discard())
	var o options
	cmd := &cobra.Command{
		Use: "chaos", Short: "Migrate a guest while things go wrong", Args: cobra.NoArgs, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return test(cmd.Context(), o) },
	}
	cmd.Flags().IntVar(&o.runs, "runs", plan.Cells(), "how many migrations; as many as there are pairs of a fault and a phase meet each once")
	cmd.Flags().Uint64Var(&o.seed, "seed", 0, "seed of the first run, the others count on from there; 0 takes one from the clock")
	cmd.Flags().StringVar(&o.output, "output", ".bench/chaos.json", "file for what was seen")
	cmd.Flags().StringVar(&o.evidence, "evidence", ".bench/chaos", "folder for what there is to know about runs that failed")
	cmd.Flags().StringVar(&o.namespace, "namespace", "vireo-chaos", "namespace to work in; made and removed")
	cmd.Flags().StringVar(&o.cluster, "cluster", os.Getenv("VIREO_CLUSTER"), "the program of the local cluster (hack/cluster/cluster)")
	cmd.Flags().StringVar(&o.rootfs, "launcher-rootfs", os.Getenv("VIREO_LAUNCHER_ROOTFS"), "root file system with the QEMU of the self-test")
	cmd.Flags().StringVar(&o.image, "kernel-image", "localhost/vireo/guest-small-kernel:dev", "image with the guest's kernel and initrd")
	cmd.Flags().DurationVar(&o.bound, "bound", 90*time.Second, "how long after what was broken is mended all has to be well")
	err := cmd.ExecuteContext(ctx)
	stop()
	if err != nil {
		os.Exit(1)
	}
}

// test proves that it would notice, and makes the runs. What was seen is told also after an interrupt.
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
	fmt.Println("chaos: two QEMUs that execute and write one disk: would that be noticed? …")
	if err := selftest.Run(o.rootfs, cluster.state()); err != nil {
		return fmt.Errorf("the self-test: %w", err)
	}
	fmt.Println("chaos: it is, by both; a guest is started …")
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

// series makes the runs until the last, or an interrupt.
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
			r.Aborted = fmt.Sprintf("no guest runs any more after run %d: %v", i+1, err)
			fmt.Println("chaos:", r.Aborted)
			return
		}
	}
}
