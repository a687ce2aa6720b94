// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package inspect

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// PermittedDevices returns the command permitted-devices.
func PermittedDevices(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "permitted-devices",
		Short: "List the permitted devices for vmis.",
		Example: c.Examples(`
# Print the devices of nodes that VMs may use:
virtctl permitted-devices`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			objects, err := c.Objects()
			if err != nil {
				return err
			}
			kubevirt, err := cli.KubeVirt(cmd.Context(), objects)
			if err != nil {
				return err
			}
			var devices, gpus []string
			if permitted := kubevirt.Spec.Configuration.PermittedHostDevices; permitted != nil {
				for _, device := range permitted.PciHostDevices {
					devices = append(devices, device.ResourceName)
				}
				for _, device := range permitted.USB {
					devices = append(devices, device.ResourceName)
				}
				for _, device := range permitted.MediatedDevices {
					gpus = append(gpus, device.ResourceName)
				}
			}
			_, err = fmt.Fprintf(c.Out, "Permitted Devices: \nHost Devices: \n%s \nGPU Devices: \n%s\n", strings.Join(devices, ", "), strings.Join(gpus, ", "))
			return err
		},
	}
}
