// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package lifecycle

import (
	"fmt"

	"github.com/spf13/cobra"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

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
			api, vm, err := c.VM(args[0])
			if err != nil {
				return err
			}
			options := v1.StartOptions{Paused: paused, DryRun: dry.options(c.Out)}
			if err := api.Put(cmd.Context(), vm, "start", options); err != nil {
				return fmt.Errorf("error starting VirtualMachine: %w", err)
			}
			return scheduled(c, vm, "start")
		},
	}
	cmd.Flags().BoolVar(&paused, "paused", false, "Start the guest paused. It boots when it is unpaused.")
	dry.addTo(cmd)
	return cmd
}
