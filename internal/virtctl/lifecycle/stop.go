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

// Stop makes the command stop.
func Stop(c *cli.CLI) *cobra.Command {
	return ending{
		verb: "stop", doing: "stopping", short: "Stop a virtual machine.",
		long: "Stop a virtual machine: its guest is asked to shut down, and is switched off when it has not done so within the VM's\n" +
			"terminationGracePeriodSeconds.",
		body: func(seconds *int64, dry []string) any { return v1.StopOptions{GracePeriod: seconds, DryRun: dry} },
	}.command(c)
}

// Restart makes the command restart.
func Restart(c *cli.CLI) *cobra.Command {
	return ending{
		verb: "restart", doing: "restarting", short: "Restart a virtual machine.",
		long: "Restart a virtual machine: its instance is stopped and another is started, which has what changed in the VM's template.\n" +
			"To let the guest reboot within the same instance, use soft-reboot or reset.",
		body: func(seconds *int64, dry []string) any {
			return v1.RestartOptions{GracePeriodSeconds: seconds, DryRun: dry}
		},
	}.command(c)
}

// ending is a verb that ends an instance, in the guest's time or at once.
type ending struct {
	verb, doing, short, long string
	body                     func(seconds *int64, dry []string) any
}

func (e ending) command(c *cli.CLI) *cobra.Command {
	var dry dryRun
	var g grace
	cmd := &cobra.Command{
		Use:   e.verb + " (VM)",
		Short: e.short,
		Long:  e.long,
		Example: c.Examples(fmt.Sprintf(`
# %[1]s a virtual machine called 'myvm':
virtctl %[1]s myvm

# %[1]s it at once, like pulling the plug:
virtctl %[1]s myvm --force --grace-period=0`, e.verb)),
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
			if err := api.Put(cmd.Context(), vm, e.verb, e.body(seconds, dry.options(c.Out))); err != nil {
				return fmt.Errorf("error %s VirtualMachine: %w", e.doing, err)
			}
			return scheduled(c, vm, e.verb)
		},
	}
	g.addTo(cmd)
	dry.addTo(cmd)
	return cmd
}

// grace are the flags --force and --grace-period, of which none or both must be given.
type grace struct {
	force  bool
	period int64
}

func (g *grace) addTo(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&g.force, "force", false, "Do not wait for the guest to shut down. Needs --grace-period, and may lose what the guest has not written to its disks.")
	cmd.Flags().Int64Var(&g.period, "grace-period", -1, "Seconds that the guest has to shut down. Needs --force.")
}

// seconds are those that were asked for, or nil.
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
