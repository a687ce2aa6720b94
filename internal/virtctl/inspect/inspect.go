// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package inspect implements the commands expand, objectgraph and permitted-devices.
package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
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
			_, err = fmt.Fprintf(c.Out, "Permitted Devices: \nHost Devices: \n%s \nGPU Devices: \n%s\n",
				strings.Join(devices, ", "), strings.Join(gpus, ", "))
			return err
		},
	}
}

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
