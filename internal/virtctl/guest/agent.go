// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package guest has the commands that show what a guest's agent reports: guestosinfo, userlist and fslist.
package guest

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// OSInfo makes the command guestosinfo.
func OSInfo(c *cli.CLI) *cobra.Command {
	return report(c, "guestosinfo", "guestosinfo", "Return guest agent info about operating system.")
}

// UserList makes the command userlist.
func UserList(c *cli.CLI) *cobra.Command {
	return report(c, "userlist", "userlist", "Return full list of logged in users on the guest machine.")
}

// FilesystemList makes the command fslist.
func FilesystemList(c *cli.CLI) *cobra.Command {
	return report(c, "fslist", "filesystemlist", "Return full list of filesystems available on the guest machine.")
}

// report is a command that prints what the agent says, as the server hands it on.
func report(c *cli.CLI, name, verb, short string) *cobra.Command {
	var output cli.Output
	cmd := &cobra.Command{
		Use:   name + " (VMI)",
		Short: short,
		Long:  short + "\nThe guest needs a running QEMU guest agent.",
		Example: c.Examples(fmt.Sprintf(`
# What the agent of a virtual machine instance called 'myvmi' says:
virtctl %[1]s myvmi

# As YAML:
virtctl %[1]s myvmi -o yaml`, name)),
		Args:              c.OneArgument("VMI"),
		ValidArgsFunction: c.CompleteInstances,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, vmi, err := c.Instance(args[0])
			if err != nil {
				return err
			}
			var answer json.RawMessage
			if err := api.Get(cmd.Context(), vmi, verb, nil, &answer); err != nil {
				return fmt.Errorf("error getting %s of VirtualMachineInstance %s: %w", name, vmi.Name, err)
			}
			return output.PrintJSON(c.Out, answer)
		},
	}
	output.AddTo(cmd, "json")
	return cmd
}
