// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package explain

import (
	"github.com/spf13/cobra"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// Command returns the command explain.
func Command(c *cli.CLI) *cobra.Command {
	var output cli.Output
	cmd := &cobra.Command{
		Use:   "explain (VM)",
		Short: "Explain why a virtual machine does not run, or what it waits for.",
		Long: "Explain on one screen why a virtual machine does not run, or what it waits for, and what to do about it.\n" +
			"The sources are the VM, its instance, its Pod, its claims, its node, the KubeVirt object and their events.",
		Example: c.Examples(`
# Explain why 'myvm' does not run:
virtctl explain myvm

# Print the explanation as JSON:
virtctl explain myvm -o json`),
		Args:              c.OneArgument("VM"),
		ValidArgsFunction: c.CompleteVMs,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, vm, err := c.VM(args[0])
			if err != nil {
				return err
			}
			objects, err := c.Objects()
			if err != nil {
				return err
			}
			snapshot, err := Gather(cmd.Context(), objects, vm.Namespace, vm.Name, c.Program)
			if err != nil {
				return err
			}
			report := Explain(snapshot)
			if output.IsSet() {
				return output.Print(c.Out, report)
			}
			return report.Print(c.Out)
		},
	}
	output.AddTo(cmd, "")
	return cmd
}
