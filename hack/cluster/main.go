// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command cluster runs a local Kubernetes cluster on this machine. README.md describes it.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/go-logr/zapr"

	"github.com/vireo-project/vireo/hack/cluster/internal/cluster"
	"github.com/vireo-project/vireo/hack/cluster/internal/plan"
	"github.com/vireo-project/vireo/hack/cluster/internal/provisioner"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		cancel()
		os.Exit(1) //nolint:gocritic // cancel was called right before
	}
}

func root() *cobra.Command {
	c := &cobra.Command{
		Use:           "cluster",
		Short:         "A local Kubernetes cluster on this machine",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.AddCommand(up(), start(), down(), leftovers(), status(), env(), load(), execute(), stop(), cut(), mend(), multus(),
		provision())
	return c
}

// with opens the cluster for one command.
func with(ctx context.Context, exclusive bool, do func(*cluster.Machine) error) error {
	machine, release, err := cluster.Open(ctx, os.Stdout, exclusive)
	if err != nil {
		return err
	}
	defer release()
	return do(machine)
}

func up() *cobra.Command {
	options := cluster.Options{Plan: plan.Defaults()}
	nodeCIDR, podCIDR, serviceCIDR := options.Plan.NodeCIDR.String(), options.Plan.PodCIDR.String(),
		options.Plan.ServiceCIDR.String()
	c := &cobra.Command{
		Use:   "up",
		Short: "Start the cluster, or those components that do not run",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var errs [3]error
			options.Plan.NodeCIDR, errs[0] = netip.ParsePrefix(nodeCIDR)
			options.Plan.PodCIDR, errs[1] = netip.ParsePrefix(podCIDR)
			options.Plan.ServiceCIDR, errs[2] = netip.ParsePrefix(serviceCIDR)
			if err := errors.Join(errs[:]...); err != nil {
				return err
			}
			return with(cmd.Context(), true, func(m *cluster.Machine) error { return m.Up(cmd.Context(), options) })
		},
	}
	f := c.Flags()
	f.IntVar(&options.Plan.Nodes, "nodes", options.Plan.Nodes, "number of nodes")
	f.StringVar(&nodeCIDR, "node-cidr", nodeCIDR, "network of the nodes, a /24")
	f.StringVar(&podCIDR, "pod-cidr", podCIDR, "network of the Pods, a /16")
	f.StringVar(&serviceCIDR, "service-cidr", serviceCIDR, "network of the Services, a /16")
	f.StringVar(&options.Clone, "clone", ".", "directory in which .cluster/kubeconfig is written")
	f.StringVar(&options.Kubernetes, "kubernetes", "", "directory of the Kubernetes programs")
	f.StringVar(&options.Etcd, "etcd", "", "directory of etcd")
	f.StringVar(&options.Containerd, "containerd", "", "directory of containerd, its shim and ctr")
	f.StringVar(&options.CoreDNS, "coredns", "", "directory of coredns")
	f.StringVar(&options.Multus, "multus", "", "directory of multus")
	f.StringVar(&options.Pause, "pause", "", "the pause program")
	f.StringVar(&options.CSIDriver, "csi-driver", "", "directory of the CSI driver, which then makes the volumes")
	f.StringVar(&options.CSISidecars, "csi-sidecars", "", "directory of the CSI driver's sidecars and of their kinds")
	f.BoolVar(&options.ExclusiveCPUs, "exclusive-cpus", false,
		"let guaranteed Pods have whole CPUs of their own, on a cluster of one node; CPU 0 is for all others")
	c.MarkFlagsRequiredTogether("csi-driver", "csi-sidecars")
	for _, name := range []string{"kubernetes", "etcd", "containerd", "coredns", "multus", "pause"} {
		_ = c.MarkFlagRequired(name)
	}
	return c
}

func start() *cobra.Command {
	return &cobra.Command{
		Use:   "start",
		Short: "Start those components of the cluster that do not run, with the options of its creation",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return with(cmd.Context(), true, func(m *cluster.Machine) error { return m.Start(cmd.Context()) })
		},
	}
}

func down() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the cluster and everything that was created for it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return with(cmd.Context(), true, func(m *cluster.Machine) error { return m.Down(cmd.Context()) })
		},
	}
}

func leftovers() *cobra.Command {
	return &cobra.Command{
		Use:   "leftovers",
		Short: "List what a cluster has left on this machine, and fail if there is anything",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return with(cmd.Context(), false, func(m *cluster.Machine) error {
				left, err := m.Leftovers()
				if err != nil {
					return err
				}
				for _, leftover := range left {
					cmd.Println(leftover)
				}
				if len(left) > 0 {
					return fmt.Errorf("%d resources of the cluster are left: run down", len(left))
				}
				return nil
			})
		},
	}
}

func status() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Print the components; fail if one does not run",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return with(cmd.Context(), false, func(m *cluster.Machine) error { return m.Status(cmd.Context()) })
		},
	}
}

func env() *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: "Print paths and process IDs as shell variables",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return with(cmd.Context(), false, func(m *cluster.Machine) error { return m.Env() })
		},
	}
}

func load() *cobra.Command {
	return &cobra.Command{
		Use:   "load <archive.tar>...",
		Short: "Load image archives into every node",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return with(cmd.Context(), false, func(m *cluster.Machine) error { return m.Load(cmd.Context(), args) })
		},
	}
}

func execute() *cobra.Command {
	return &cobra.Command{
		Use:   "exec <node> -- <command>...",
		Short: "Run a command inside a node",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return with(cmd.Context(), false, func(m *cluster.Machine) error { return m.Exec(cmd.Context(), args[0], args[1:]) })
		},
	}
}

func stop() *cobra.Command {
	var number int
	c := &cobra.Command{
		Use:   "stop <component>",
		Short: "Kill one component; start starts it again",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return with(cmd.Context(), true, func(m *cluster.Machine) error {
				return m.Stop(cmd.Context(), args[0], syscall.Signal(number))
			})
		},
	}
	c.Flags().IntVar(&number, "signal", int(syscall.SIGKILL), "number of the signal to send")
	return c
}

func multus() *cobra.Command {
	return &cobra.Command{
		Use:       "multus on|off",
		Short:     "Enable or disable further networks for Pods: Multus, and a second bridge on every node",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"on", "off"},
		RunE: func(cmd *cobra.Command, args []string) error {
			return with(cmd.Context(), true, func(m *cluster.Machine) error { return m.Multus(cmd.Context(), args[0] == "on") })
		},
	}
}

func cut() *cobra.Command {
	return &cobra.Command{
		Use:   "cut <node>",
		Short: "Disconnect a node from the network; its processes keep running",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return with(cmd.Context(), true, func(m *cluster.Machine) error { return m.Cut(cmd.Context(), args[0]) })
		},
	}
}

func mend() *cobra.Command {
	return &cobra.Command{
		Use:   "mend <node>",
		Short: "Connect a node to the network again",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return with(cmd.Context(), true, func(m *cluster.Machine) error { return m.Mend(cmd.Context(), args[0]) })
		},
	}
}

// provision runs the provisioner of the cluster's storage classes.
func provision() *cobra.Command {
	var kubeconfig, directory string
	c := &cobra.Command{
		Use:    "provision",
		Short:  "Create volumes for the claims of the local storage classes",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger, err := zap.NewProduction()
			if err != nil {
				return fmt.Errorf("set up logging: %w", err)
			}
			ctrl.SetLogger(zapr.NewLogger(logger))
			settings, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				return fmt.Errorf("read the kubeconfig: %w", err)
			}
			return provisioner.Run(cmd.Context(), settings, directory)
		},
	}
	c.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the provisioner")
	c.Flags().StringVar(&directory, "directory", "", "directory of the volumes")
	return c
}
