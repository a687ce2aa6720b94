// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package inspect

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// OSInfo returns the command guestosinfo.
func OSInfo(c *cli.CLI) *cobra.Command {
	return report(c, "guestosinfo", "guestosinfo", "Return guest agent info about operating system.")
}

// UserList returns the command userlist.
func UserList(c *cli.CLI) *cobra.Command {
	return report(c, "userlist", "userlist", "Return full list of logged in users on the guest machine.")
}

// FilesystemList returns the command fslist.
func FilesystemList(c *cli.CLI) *cobra.Command {
	return report(c, "fslist", "filesystemlist", "Return full list of filesystems available on the guest machine.")
}

// report returns a command that prints a subresource as the server returns it.
func report(c *cli.CLI, name, verb, short string) *cobra.Command {
	var output cli.Output
	cmd := &cobra.Command{
		Use:   name + " (VMI)",
		Short: short,
		Long:  short + "\nThe guest needs a running QEMU guest agent.",
		Example: c.Examples(fmt.Sprintf(`
# Of a virtual machine instance called 'myvmi':
virtctl %[1]s myvmi

# In YAML:
virtctl %[1]s myvmi -o yaml`, name)),
		Args:              c.OneArgument("VMI"),
		ValidArgsFunction: c.CompleteInstances,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, vmi, err := c.Instance(args[0])
			if err != nil {
				return err
			}
			var content json.RawMessage
			if err := api.Get(cmd.Context(), vmi, verb, nil, &content); err != nil {
				return fmt.Errorf("error getting %s of VirtualMachineInstance %s: %w", name, vmi.Name, err)
			}
			return output.PrintJSON(c.Out, content)
		},
	}
	output.AddTo(cmd, "json")
	return cmd
}
