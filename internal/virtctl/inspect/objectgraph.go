// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package inspect

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// ObjectGraph returns the command objectgraph.
func ObjectGraph(c *cli.CLI) *cobra.Command {
	var isInstance, excludeOptional bool
	var selector string
	var output cli.Output
	cmd := &cobra.Command{
		Use:   "objectgraph (VM)",
		Short: "Show the objects that a virtual machine needs, such as for a backup.",
		Example: c.Examples(`
# List the objects that 'myvm' needs:
virtctl objectgraph myvm

# List the required objects of an instance that have a label:
virtctl objectgraph myvmi --vmi --exclude-optional --selector=kubevirt.io/dependency-type=storage`),
		Args:              c.OneArgument("VM"),
		ValidArgsFunction: c.CompleteVMs,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, object, err := c.VM(args[0])
			if err != nil {
				return err
			}
			if isInstance {
				object.Resource = subresources.VirtualMachineInstances
			}
			parameters := url.Values{"includeOptionalNodes": {strconv.FormatBool(!excludeOptional)}}
			if selector != "" {
				parsed, err := metav1.ParseToLabelSelector(selector)
				if err != nil {
					return fmt.Errorf("--selector: %w", err)
				}
				content, err := json.Marshal(parsed)
				if err != nil {
					return err
				}
				parameters.Set("labelSelector", string(content))
			}
			var graph json.RawMessage
			if err := api.Get(cmd.Context(), object, "objectgraph", parameters, &graph); err != nil {
				return fmt.Errorf("error getting the object graph of %s %s: %w", object.Kind(), object.Name, err)
			}
			return output.PrintJSON(c.Out, graph)
		},
	}
	cmd.Flags().BoolVar(&isInstance, "vmi", false, "The argument is the name of an instance.")
	cmd.Flags().BoolVar(&excludeOptional, "exclude-optional", false, "Omit optional objects.")
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "Only objects with these labels.")
	output.AddTo(cmd, "json")
	return cmd
}
