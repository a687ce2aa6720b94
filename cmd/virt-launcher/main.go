// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command virt-launcher is PID 1 of each VM's Pod.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcher"
	"github.com/vireo-project/vireo/internal/launcher/dhcp"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// usageError is the exit code for an invalid command line and for a subcommand that fails.
const usageError = 2

func main() {
	// The launcher's memory is overhead of every VM: collect garbage early.
	debug.SetGCPercent(20)
	debug.SetMemoryLimit(8 << 20)

	os.Exit(run(os.Args[1:]))
}

// run returns the exit code. An invalid command line is an outcome, too: the VMI fails with it.
func run(arguments []string) int {
	code := 0
	root := command(&code)
	root.SetArgs(arguments)
	ran, err := root.ExecuteC()
	if err == nil {
		return code
	}
	if log := ran.Flags().Lookup(terminationLogFlag); ran == root && log != nil {
		if failed := launcher.WriteFailure(log.Value.String(), err); failed != nil {
			logger(0).Error(failed, "Cannot write the outcome")
		}
	}
	return usageError
}

const long = `virt-launcher is PID 1 of a VM's Pod. It starts libvirtd, serves DHCP to the guest, copies the guest's serial
console to the container guest-console-log, shuts the guest down on SIGTERM, and exits with the guest's outcome:
0 if the guest shut down, 1 if it failed. It writes a description of the outcome to the termination log.

The node agent defines and starts the domain through libvirtd's socket; virt-launcher never does.`

const example = `  virt-launcher --namespace default --name fedora --uid 7b4c… --grace-period-seconds 30 \
    --interface eth0,masquerade,10.0.2.0/24,fd10:0:2::/120`

// terminationLogFlag is the flag for the file with the outcome.
const terminationLogFlag = "termination-log"

// arguments are the unparsed options of the command line.
type arguments struct {
	options    launcher.Options
	grace      int
	verbosity  int
	interfaces []string
	dhcp       []string
}

// parse returns the launcher's options.
func (a *arguments) parse() (launcher.Options, error) {
	options := a.options
	options.GracePeriod = time.Duration(a.grace) * time.Second
	for _, text := range a.interfaces {
		parsed, err := dhcp.ParseInterface(text)
		if err != nil {
			return options, fmt.Errorf("--interface %s: %w", text, err)
		}
		options.Interfaces = append(options.Interfaces, parsed)
	}
	if err := dhcp.AddOptions(options.Interfaces, a.dhcp); err != nil {
		return options, fmt.Errorf("--dhcp-option %w", err)
	}
	return options, options.Validate()
}

func (a *arguments) bind(cmd *cobra.Command) {
	o, flags := &a.options, cmd.Flags()
	flags.StringVar(&o.Name, "name", "", "name of the VirtualMachineInstance")
	flags.StringVar(&o.Namespace, "namespace", "", "namespace of the VirtualMachineInstance")
	flags.StringVar(&o.UID, "uid", "", "UID of the VirtualMachineInstance")
	flags.StringVar(&o.Subdomain, "subdomain", "",
		"subdomain of the VirtualMachineInstance, for the DNS search list that the guest gets by DHCP")
	flags.IntVar(&a.grace, "grace-period-seconds", 30,
		"seconds within which the guest must shut down before it is destroyed; with 0 it is destroyed at once")
	flags.StringArrayVar(&a.interfaces, "interface", nil, strings.ReplaceAll(dhcp.InterfaceUsage, "\n", " "))
	flags.StringArrayVar(&a.dhcp, "dhcp-option", nil, strings.ReplaceAll(dhcp.OptionUsage, "\n", " "))
	flags.StringVar(&o.LibvirtLogFilters, "libvirt-log-filters", "",
		"libvirtd's log filters, for example \"1:qemu 3:rpc\"; invalid ones are ignored. By default only warnings and errors are logged")
	flags.StringVar(&o.TerminationLog, terminationLogFlag, "/dev/termination-log",
		"file to which the outcome is written, as one line of JSON")
	flags.IntVarP(&a.verbosity, "v", "v", 0, "log verbosity; 1 adds all libvirt events and all messages of libvirtd")
}

// command returns the root command. It stores the launcher's exit code in code.
func command(code *int) *cobra.Command {
	var given arguments
	cmd := &cobra.Command{
		Use: "virt-launcher", Short: "PID 1 of a VM's Pod", Long: long, Example: example,
		Args: cobra.NoArgs, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options, err := given.parse()
			if err != nil {
				return err
			}
			*code = launcher.Run(logr.NewContext(cmd.Context(), logger(given.verbosity)), options)
			return nil
		},
	}
	cmd.SetContext(context.Background())
	cmd.AddCommand(capabilitiesCommand(), probeCommand(code), awaitGuestCommand(), bindVolumesCommand())
	given.bind(cmd)
	return cmd
}

func capabilitiesCommand() *cobra.Command {
	var out string
	var stay, written bool
	cmd := &cobra.Command{
		Use: "capabilities", Short: "Write libvirt's capabilities on this node, as XML", Args: cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if written {
				return launcher.CapabilitiesWritten(out)
			}
			if err := launcher.SetNoNewPrivs(); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGTERM, unix.SIGINT)
			defer stop()
			if err := launcher.WriteCapabilities(logr.NewContext(ctx, logger(0)), out); err != nil || !stay {
				return err
			}
			if os.Getpid() == 1 {
				_ = unix.Kill(-1, unix.SIGKILL) // what libvirtd has left, such as a QEMU that it was probing
			}
			<-ctx.Done()
			return nil
		},
	}
	cmd.Flags().BoolVar(&stay, "stay", false, "run until a signal when the files are written")
	cmd.Flags().BoolVar(&written, "written", false, "only check whether the files have been written")
	cmd.Flags().StringVar(&out, "out", "/var/lib/kubevirt-node-labeller",
		"directory to which capabilities.xml and domcapabilities.xml are written")
	return cmd
}

// bindVolumesCommand is the command of a Pod that only makes Kubernetes bind its volumes.
func bindVolumesCommand() *cobra.Command {
	return &cobra.Command{
		Use: launcherpod.BindVolumesCommand, Short: "Exit: the Pod's volumes are bound", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(),
				"The volumes of this Pod are bound. They are filled now, and then the VM starts.")
			return err
		},
	}
}

// probeCommand is the command that the kubelet runs for a guest agent or exec probe.
func probeCommand(code *int) *cobra.Command {
	var probe launcher.Probe
	var seconds int
	cmd := &cobra.Command{
		Use:          "probe [flags] [-- command [argument...]]",
		Short:        "Run a command in the guest, or ping the guest agent, and exit with its code",
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			probe.Command, probe.Timeout = args, time.Duration(seconds)*time.Second
			exit, err := probe.Run(cmd.Context(), cmd.OutOrStdout())
			*code = exit
			return err
		},
	}
	cmd.Flags().StringVar(&probe.Domain, "domain", "", "name of the guest's domain")
	cmd.Flags().IntVar(&seconds, "timeout-seconds", 1, "seconds within which the guest must respond")
	return cmd
}

// awaitGuestCommand is the command of the startup probe of a migration's target.
func awaitGuestCommand() *cobra.Command {
	var await launcher.Await
	var seconds int
	cmd := &cobra.Command{
		Use: launcherpod.AwaitGuestCommand, Short: "Wait until the guest of a migration runs in this Pod",
		Args: cobra.NoArgs, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			await.Timeout = time.Duration(seconds) * time.Second
			return await.Run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&await.Domain, "domain", "", "name of the guest's domain")
	cmd.Flags().IntVar(&seconds, "timeout-seconds", 1, "seconds to wait")
	return cmd
}

// logger logs in the format of zapr in the other components: {"level","ts","msg",…}. zap itself would import net/http.
func logger(verbosity int) logr.Logger {
	return logr.FromSlogHandler(launcher.NewLogHandler(os.Stderr, slog.Level(-verbosity)))
}
