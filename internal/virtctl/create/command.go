// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package create implements the commands that print manifests of virtual machines, instance types, preferences and
// clones.
package create

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/rand"

	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// randomLength is the length of the random part of a name.
const randomLength = 5

// Command returns the command create.
func Command(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a manifest for the specified Kind.",
		Long:  "Print the manifest of an object, for kubectl apply. Nothing is changed in the cluster.",
		Example: c.Examples(`
# Create a virtual machine from an image and start it:
virtctl create vm --name=myvm --volume-containerdisk=src:quay.io/containerdisks/fedora:latest | kubectl apply -f -`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(vmCommand(c), instancetypeCommand(c), preferenceCommand(c), cloneCommand(c))
	return cmd
}

// nameOr returns the name, or a random one if it is empty.
func nameOr(name, prefix string) string {
	if name == "" {
		return prefix + rand.String(randomLength)
	}
	return name
}

// explicitNamespace returns the namespace if the user specified one, and "" otherwise, so that the manifest can be
// applied to any namespace.
func explicitNamespace(c *cli.CLI) (string, error) {
	namespace, overridden, err := c.Flags.ToRawKubeConfigLoader().Namespace()
	if err != nil || !overridden {
		return "", err
	}
	return namespace, nil
}

// printManifest prints an object without its status and empty fields.
func printManifest(c *cli.CLI, output *cli.Output, object any) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	delete(content, "status")
	prune(content)
	return output.Print(c.Out, content)
}

// prune removes null values and empty metadata, which are never omitted from KubeVirt's types.
func prune(content map[string]any) {
	for key, value := range content {
		switch v := value.(type) {
		case nil:
			delete(content, key)
		case map[string]any:
			prune(v)
			if key == "metadata" && len(v) == 0 {
				delete(content, key)
			}
		case []any:
			for _, item := range v {
				if m, ok := item.(map[string]any); ok {
					prune(m)
				}
			}
		}
	}
}

// cloneOptions are the flags of create clone. Their names are KubeVirt's.
type cloneOptions struct {
	name, source, target, sourceType, targetType string
	spec                                         clonev1beta1.VirtualMachineCloneSpec
	macs                                         []string
	serial                                       string
	output                                       cli.Output
}

func cloneCommand(c *cli.CLI) *cobra.Command {
	o := &cloneOptions{}
	cmd := &cobra.Command{
		Use:   "clone",
		Short: "Create a clone object manifest",
		Example: c.Examples(`
# Clone a VM to a new one with a random name:
virtctl create clone --source-name=myvm | kubectl create -f -

# Create a VM from a snapshot, with another MAC address:
virtctl create clone --source-name=mysnapshot --source-type=snapshot --target-name=copy --new-mac-address=default:02-00-00-00-00-01`),
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			clone, err := o.build(c)
			if err != nil {
				return err
			}
			return printManifest(c, &o.output, clone)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.name, "name", "", "The clone object's name. By default a random one.")
	flags.StringVar(&o.source, "source-name", "", "The name of the source.")
	flags.StringVar(&o.target, "target-name", "", "The new VM's name. By default a random one.")
	flags.StringVar(&o.sourceType, "source-type", "vm", "vm or snapshot.")
	flags.StringVar(&o.targetType, "target-type", "vm", "vm.")
	for flag, list := range map[string]*[]string{
		"label-filter": &o.spec.LabelFilters, "annotation-filter": &o.spec.AnnotationFilters,
		"template-label-filter":      &o.spec.Template.LabelFilters,
		"template-annotation-filter": &o.spec.Template.AnnotationFilters,
	} {
		flags.StringArrayVar(list, flag, nil, "The keys to clone (repeatable), such as '*' and '!some/key'.")
	}
	flags.StringArrayVar(&o.macs, "new-mac-address", nil,
		"A new MAC address (repeatable): INTERFACE:ADDRESS, with dashes in the address.")
	flags.StringVar(&o.serial, "new-smbios-serial", "", "The new serial number.")
	_ = cmd.MarkFlagRequired("source-name")
	o.output.AddTo(cmd, "yaml")
	return cmd
}

func (o *cloneOptions) build(c *cli.CLI) (*clonev1beta1.VirtualMachineClone, error) {
	clone := &clonev1beta1.VirtualMachineClone{Spec: o.spec}
	clone.SetGroupVersionKind(clonev1beta1.GroupVersion.WithKind("VirtualMachineClone"))
	var err error
	if clone.Namespace, err = explicitNamespace(c); err != nil {
		return nil, err
	}
	clone.Name = nameOr(o.name, "clone-")
	if clone.Spec.Source, err = reference("source", o.sourceType, o.source); err != nil {
		return nil, err
	}
	if clone.Spec.Target, err = reference("target", o.targetType, o.target); err != nil {
		return nil, err
	}
	if o.serial != "" {
		clone.Spec.NewSMBiosSerial = &o.serial
	}
	for _, text := range o.macs {
		name, address, found := strings.Cut(text, ":")
		if !found || name == "" || address == "" || strings.Contains(address, ":") {
			return nil, fmt.Errorf(
				"newMacAddress parameter %s is invalid: exactly one ':' is expected. For example: 'interface0:02-00-00-00-00-01'",
				text)
		}
		if clone.Spec.NewMacAddresses == nil {
			clone.Spec.NewMacAddresses = map[string]string{}
		}
		clone.Spec.NewMacAddresses[name] = address
	}
	return clone, nil
}

// reference returns the source or the target of a clone.
func reference(role, kind, name string) (*corev1.TypedLocalObjectReference, error) {
	group := "kubevirt.io"
	switch strings.ToLower(kind) {
	case "vm", "virtualmachine":
		return &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VirtualMachine", Name: name}, nil
	case "snapshot", "vmsnapshot", "virtualmachinesnapshot":
		if role == "source" {
			group = "snapshot.kubevirt.io"
			return &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VirtualMachineSnapshot", Name: name}, nil
		}
	}
	return nil, fmt.Errorf("%s type %s is not supported. Supported types: vm, and snapshot as a source", role, kind)
}
