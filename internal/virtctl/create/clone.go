// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package create

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

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
		"template-label-filter": &o.spec.Template.LabelFilters, "template-annotation-filter": &o.spec.Template.AnnotationFilters,
	} {
		flags.StringArrayVar(list, flag, nil, "The keys to clone (repeatable), such as '*' and '!some/key'.")
	}
	flags.StringArrayVar(&o.macs, "new-mac-address", nil, "A new MAC address (repeatable): INTERFACE:ADDRESS, with dashes in the address.")
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
			return nil, fmt.Errorf("newMacAddress parameter %s is invalid: exactly one ':' is expected. For example: 'interface0:02-00-00-00-00-01'", text)
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
