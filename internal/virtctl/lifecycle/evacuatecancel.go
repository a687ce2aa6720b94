// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package lifecycle

import (
	"fmt"

	"github.com/spf13/cobra"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// EvacuateCancel returns the command evacuate-cancel.
func EvacuateCancel(c *cli.CLI) *cobra.Command {
	var dry dryRun
	cmd := &cobra.Command{
		Use:   "evacuate-cancel vm|vmi (VM)|(VMI)",
		Short: "Cancel the evacuation of a virtual machine from its node.",
		Example: c.Examples(`
# Cancel the evacuation of a virtual machine:
virtctl evacuate-cancel vm myvm

# Cancel the evacuation of a virtual machine instance:
virtctl evacuate-cancel vmi myvmi`),
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: c.CompleteKindAndName,
		RunE: func(cmd *cobra.Command, args []string) error {
			resource, err := cli.Resource(args[0])
			if err != nil {
				return err
			}
			api, object, err := c.VM(args[1])
			if err != nil {
				return err
			}
			object.Resource = resource
			options := v1.EvacuateCancelOptions{DryRun: dry.options(c.Out)}
			if err := api.Put(cmd.Context(), object, "evacuate/cancel", options); err != nil {
				return fmt.Errorf("error canceling evacuation for %s %s/%s: %w", object.Kind(), object.Namespace, object.Name, err)
			}
			_, err = fmt.Fprintf(c.Out, "%s %s/%s was canceled evacuation\n", object.Kind(), object.Namespace, object.Name)
			return err
		},
	}
	dry.addTo(cmd)
	return cmd
}
