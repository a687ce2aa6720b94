// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package lifecycle

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

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
			api, vm, err := c.VM(args[0])
			if err != nil {
				return err
			}
			if err := api.Put(cmd.Context(), vm, t.verb, t.body(seconds, dry.options(c.Out))); err != nil {
				return fmt.Errorf("error %s VirtualMachine: %w", t.doing, err)
			}
			return scheduled(c, vm, t.verb)
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
	cmd.Flags().BoolVar(&g.force, "force", false, "Do not wait for the guest to shut down. Needs --grace-period. Data that the guest has not written to its disks may be lost.")
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
