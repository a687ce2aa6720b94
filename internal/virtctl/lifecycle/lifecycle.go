// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package lifecycle implements the commands that start, stop, restart, pause, reboot and migrate VMs.
package lifecycle

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// dryRun is the flag --dry-run. As in KubeVirt, it has no value.
type dryRun bool

func (d *dryRun) addTo(cmd *cobra.Command) {
	cmd.Flags().BoolVar((*bool)(d), "dry-run", false, "Check the request and change nothing.")
}

// options returns the request's dryRun field, and prints that nothing will be changed.
func (d *dryRun) options(out io.Writer) []string {
	if !*d {
		return nil
	}
	_, _ = fmt.Fprintln(out, "Dry Run execution")
	return []string{metav1.DryRunAll}
}

// change sends a request to the VM that an argument names. doing is for the error.
func change(cmd *cobra.Command, c *cli.CLI, argument, verb, doing string, body func() any) error {
	api, vm, err := c.VM(argument)
	if err != nil {
		return err
	}
	if err := api.Put(cmd.Context(), vm, verb, body()); err != nil {
		return fmt.Errorf("error %s VirtualMachine: %w", doing, err)
	}
	return scheduled(c, vm, verb)
}

// scheduled prints that the request was accepted. The sentence is KubeVirt's, because scripts match it.
func scheduled(c *cli.CLI, object subresources.Object, verb string) error {
	_, err := fmt.Fprintf(c.Out, "%s %s was scheduled to %s\n", object.Kind(), object.Name, verb)
	return err
}

// Start returns the command start.
func Start(c *cli.CLI) *cobra.Command {
	var paused bool
	var dry dryRun
	cmd := &cobra.Command{
		Use:   "start (VM)",
		Short: "Start a virtual machine.",
		Example: c.Examples(`
# Start a virtual machine called 'myvm':
virtctl start myvm

# Start it paused, to open its screen before it boots:
virtctl start myvm --paused
virtctl vnc myvm
virtctl unpause vm myvm`),
		Args:              c.OneArgument("VM"),
		ValidArgsFunction: c.CompleteVMs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return change(cmd, c, args[0], "start", "starting", func() any {
				return v1.StartOptions{Paused: paused, DryRun: dry.options(c.Out)}
			})
		},
	}
	cmd.Flags().BoolVar(&paused, "paused", false, "Start the guest paused. It boots when it is unpaused.")
	dry.addTo(cmd)
	return cmd
}

// Stop returns the command stop.
func Stop(c *cli.CLI) *cobra.Command {
	return termination{
		verb: "stop", doing: "stopping", short: "Stop a virtual machine.",
		long: "Stop a virtual machine: its guest is requested to shut down, and is powered off unless it has done so within the VM's\n" +
			"terminationGracePeriodSeconds.",
		body: func(seconds *int64, dry []string) any { return v1.StopOptions{GracePeriod: seconds, DryRun: dry} },
	}.command(c)
}

// Restart returns the command restart.
func Restart(c *cli.CLI) *cobra.Command {
	return termination{
		verb: "restart", doing: "restarting", short: "Restart a virtual machine.",
		long: "Restart a virtual machine: its instance is stopped and another is started from the VM's current template.\n" +
			"To let the guest reboot within the same instance, use soft-reboot or reset.",
		body: func(seconds *int64, dry []string) any {
			return v1.RestartOptions{GracePeriodSeconds: seconds, DryRun: dry}
		},
	}.command(c)
}

// termination is stop or restart.
type termination struct {
	verb, doing, short, long string
	body                     func(seconds *int64, dry []string) any
}

func (t termination) command(c *cli.CLI) *cobra.Command {
	var dry dryRun
	var g grace
	cmd := &cobra.Command{
		Use:   t.verb + " (VM)",
		Short: t.short,
		Long:  t.long,
		Example: c.Examples(fmt.Sprintf(`
# %[1]s a virtual machine called 'myvm':
virtctl %[1]s myvm

# %[1]s it immediately, as by a power failure:
virtctl %[1]s myvm --force --grace-period=0`, t.verb)),
		Args:              c.OneArgument("VM"),
		ValidArgsFunction: c.CompleteVMs,
		RunE: func(cmd *cobra.Command, args []string) error {
			seconds, err := g.seconds(cmd)
			if err != nil {
				return err
			}
			return change(cmd, c, args[0], t.verb, t.doing, func() any { return t.body(seconds, dry.options(c.Out)) })
		},
	}
	g.addTo(cmd)
	dry.addTo(cmd)
	return cmd
}

// grace are the flags --force and --grace-period, which must be given together.
type grace struct {
	force  bool
	period int64
}

func (g *grace) addTo(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&g.force, "force", false,
		"Do not wait for the guest to shut down. Needs --grace-period. Data that the guest has not written to its disks may be lost.")
	cmd.Flags().Int64Var(&g.period, "grace-period", -1, "Seconds that the guest has to shut down. Needs --force.")
}

// seconds returns the grace period of the flags, or nil.
func (g *grace) seconds(cmd *cobra.Command) (*int64, error) {
	switch {
	case cmd.Flags().Changed("grace-period") != g.force:
		return nil, errors.New("must both use --force=true and set --grace-period")
	case g.force:
		return &g.period, nil
	default:
		return nil, nil
	}
}

// Pause returns the command pause.
func Pause(c *cli.CLI) *cobra.Command {
	return suspension{
		verb: "pause", doing: "pausing",
		short: "Pause a virtual machine: stop its CPUs and keep its memory.",
		body:  func(dry []string) any { return v1.PauseOptions{DryRun: dry} },
	}.command(c)
}

// Unpause returns the command unpause.
func Unpause(c *cli.CLI) *cobra.Command {
	return suspension{
		verb: "unpause", doing: "unpausing",
		short: "Resume a paused virtual machine.",
		body:  func(dry []string) any { return v1.UnpauseOptions{DryRun: dry} },
	}.command(c)
}

// suspension is pause or unpause.
type suspension struct {
	verb, doing, short string
	body               func(dry []string) any
}

func (s suspension) command(c *cli.CLI) *cobra.Command {
	var dry dryRun
	cmd := &cobra.Command{
		Use:   s.verb + " vm|vmi (VM)|(VMI)",
		Short: s.short,
		Example: c.Examples(fmt.Sprintf(`
# %[1]s a virtual machine called 'myvm':
virtctl %[1]s vm myvm

# %[1]s an instance that has no VM:
virtctl %[1]s vmi myvmi`, s.verb)),
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: c.CompleteKindAndName,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := kindAndName(args)
			if err != nil {
				return err
			}
			api, vmi, err := c.Instance(name)
			if err != nil {
				return err
			}
			err = api.Put(cmd.Context(), vmi, s.verb, s.body(dry.options(c.Out)))
			if apierrors.IsNotFound(err) {
				return fmt.Errorf("error %s VirtualMachineInstance %s: %w\nA VM that is stopped has no instance. See: %s explain %s",
					s.doing, vmi.Name, err, c.Program, vmi.Name)
			}
			if err != nil {
				return fmt.Errorf("error %s VirtualMachineInstance %s: %w", s.doing, vmi.Name, err)
			}
			return scheduled(c, vmi, s.verb)
		},
	}
	dry.addTo(cmd)
	return cmd
}

// kindAndName parses "vm NAME", as in KubeVirt, and "vm/NAME" or "NAME", as in kubectl.
func kindAndName(args []string) (string, error) {
	if len(args) == 1 {
		return args[0], nil
	}
	if _, err := cli.Resource(args[0]); err != nil {
		return "", err
	}
	return args[1], nil
}

// SoftReboot returns the command soft-reboot.
func SoftReboot(c *cli.CLI) *cobra.Command {
	return reboot(c, "soft-reboot", "softreboot", "soft rebooting",
		"Request the guest of a virtual machine instance to reboot, by its agent or by ACPI.")
}

// Reset returns the command reset.
func Reset(c *cli.CLI) *cobra.Command {
	return reboot(c, "reset", "reset", "resetting",
		"Reset a virtual machine instance, like the reset button of a computer.")
}

func reboot(c *cli.CLI, name, verb, doing, short string) *cobra.Command {
	return &cobra.Command{
		Use:   name + " (VMI)",
		Short: short,
		Example: c.Examples(fmt.Sprintf(`
# %[1]s a virtual machine instance called 'myvmi':
virtctl %[1]s myvmi`, name)),
		Args:              c.OneArgument("VMI"),
		ValidArgsFunction: c.CompleteInstances,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, vmi, err := c.Instance(args[0])
			if err != nil {
				return err
			}
			if err := api.Put(cmd.Context(), vmi, verb, struct{}{}); err != nil {
				return fmt.Errorf("error %s VirtualMachineInstance %s: %w", doing, vmi.Name, err)
			}
			return scheduled(c, vmi, name)
		},
	}
}
