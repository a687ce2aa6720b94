// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package console implements the command console: a terminal at a guest's serial port.
package console

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// Command returns the command console.
func Command(c *cli.CLI) *cobra.Command {
	var minutes int
	cmd := &cobra.Command{
		Use:   "console (VMI)",
		Short: "Connect to a console of a virtual machine instance.",
		Long: "Connect to the serial console of a virtual machine instance. While the instance starts, the command waits. Ctrl+] quits.\n" +
			"A console has one client: a new client disconnects the former one.",
		Example: c.Examples(`
# Connect to the console on VirtualMachineInstance 'myvmi':
virtctl console myvmi

# Wait one minute for it to run (default 5 minutes):
virtctl console --timeout=1 myvmi

# Print the earlier output of the guest, without connecting:
kubectl logs -l vm.kubevirt.io/name=myvmi -c compute`),
		Args:              c.OneArgument("VMI"),
		ValidArgsFunction: c.CompleteInstances,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, vmi, err := c.Instance(args[0])
			if err != nil {
				return err
			}
			objects, err := c.Objects()
			if err != nil {
				return err
			}
			s := &session{
				cli:  c,
				vmi:  vmi,
				dial: Dialer{CLI: c, API: api, Objects: objects, VMI: vmi, Timeout: time.Duration(minutes) * time.Minute},
			}
			return s.run(cmd.Context())
		},
	}
	cmd.Flags().IntVar(&minutes, "timeout", 5, "The number of minutes to wait for the virtual machine instance to be ready.")
	return cmd
}
