// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package inspect implements the commands expand, objectgraph and permitted-devices.
package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// maxManifest limits the size of a manifest.
const maxManifest = 4 << 20

// Expand returns the command expand.
func Expand(c *cli.CLI) *cobra.Command {
	var vm, file string
	var output cli.Output
	cmd := &cobra.Command{
		Use:   "expand (--vm NAME | --file FILE)",
		Short: "Return the VirtualMachine object with expanded instancetype and preference.",
		Example: c.Examples(`
# Expand a virtual machine called 'myvm':
virtctl expand --vm myvm

# Expand one from a file, or from the standard input:
virtctl expand --file myvm.yaml
virtctl expand --file - --output json`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if vm == "" && file == "" {
				return errors.New("error invalid arguments - VirtualMachine name or file must be provided")
			}
			var expanded json.RawMessage
			if vm != "" {
				api, object, err := c.VM(vm)
				if err != nil {
					return err
				}
				if err := api.Get(cmd.Context(), object, "expand-spec", nil, &expanded); err != nil {
					return fmt.Errorf("error expanding VirtualMachine - %s in namespace - %s: %w", object.Name, object.Namespace, err)
				}
				return output.PrintJSON(c.Out, expanded)
			}
			manifest, err := readManifest(c, file)
			if err != nil {
				return err
			}
			api, err := c.Subresources()
			if err != nil {
				return err
			}
			namespace, err := c.Namespace()
			if err != nil {
				return err
			}
			if err := api.PutNamespace(cmd.Context(), namespace, "expand-vm-spec", manifest, &expanded); err != nil {
				return fmt.Errorf("error expanding VirtualMachine of %s in namespace - %s: %w", file, namespace, err)
			}
			return output.PrintJSON(c.Out, expanded)
		},
	}
	cmd.Flags().StringVar(&vm, "vm", "", "The VM's name.")
	cmd.Flags().StringVarP(&file, "file", "f", "", "A file with the VM's manifest; - is the standard input.")
	cmd.MarkFlagsMutuallyExclusive("file", "vm")
	output.AddTo(cmd, "yaml")
	return cmd
}

func readManifest(c *cli.CLI, file string) (json.RawMessage, error) {
	in := c.In
	if file != "-" {
		f, err := os.Open(file) //nolint:gosec // the user's file
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	content, err := io.ReadAll(io.LimitReader(in, maxManifest))
	if err != nil {
		return nil, err
	}
	manifest, err := yaml.YAMLToJSON(content)
	if err != nil {
		return nil, fmt.Errorf("%s is not a manifest: %w", file, err)
	}
	return manifest, nil
}
