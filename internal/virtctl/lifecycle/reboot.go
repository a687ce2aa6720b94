// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package lifecycle

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

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
