// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command start measures what starting VMs costs on the cluster of KUBECONFIG: the time from creation to Running,
// compared with bare Pods in the same run; the time of each step; the writes per VM, counted in the API server's audit
// log; and the memory of the processes beside the guest. It prints a table and writes JSON. It fails for no result.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// options are the flags of the benchmark.
type options struct {
	count      int
	output     string
	auditLog   string
	namespace  string
	guestImage string
	podImage   string
	guestMiB   int64
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	var o options
	cmd := &cobra.Command{
		Use: "start", Short: "Measure what starting VMs costs", Args: cobra.NoArgs, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o) },
	}
	cmd.Flags().IntVar(&o.count, "count", 10, "how many VMs and how many Pods, one by one and then all at once")
	cmd.Flags().StringVar(&o.output, "output", ".bench/start.json", "file for the figures")
	cmd.Flags().StringVar(&o.auditLog, "audit-log", "", "the API server's audit log, from which writes are counted")
	cmd.Flags().StringVar(&o.namespace, "namespace", "bench-start", "namespace to work in; made and removed")
	cmd.Flags().StringVar(&o.guestImage, "guest-image", "localhost/vireo/guest-small:dev", "containerDisk to boot")
	cmd.Flags().StringVar(&o.podImage, "pod-image", "localhost/vireo/test-tools:dev", "image of the bare Pods")
	cmd.Flags().Int64Var(&o.guestMiB, "guest-mib", 1024, "guest memory of the VM whose overhead is measured")
	err := cmd.ExecuteContext(ctx)
	stop()
	if err != nil {
		os.Exit(1)
	}
}

// run takes the measurements one after the other.
func run(ctx context.Context, o options) error {
	b, err := newBench(ctx, o)
	if err != nil {
		return err
	}
	defer b.cleanUp()
	var r result
	r.Count = o.count
	for _, step := range []struct {
		title string
		do    func(context.Context, *result) error
	}{
		{"warm up", b.warmUp},
		{fmt.Sprintf("%d Pods one by one", o.count), b.podsOneByOne},
		{fmt.Sprintf("%d VMs one by one", o.count), b.vmsOneByOne},
		{fmt.Sprintf("%d VMs with an instance type and a preference one by one", o.count), b.typedVMsOneByOne},
		{fmt.Sprintf("%d Pods at once", o.count), b.podsAtOnce},
		{fmt.Sprintf("%d VMs at once", o.count), b.vmsAtOnce},
		{"memory beside the guest", b.memory},
		{"components at rest", b.components},
	} {
		fmt.Fprintf(os.Stderr, "bench: %s …\n", step.title)
		if err := step.do(ctx, &r); err != nil {
			return fmt.Errorf("%s: %w", step.title, err)
		}
	}
	return r.publish(o.output)
}
