// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package create

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	instancetypev1beta1 "github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// instancetypeOptions are the flags of create instancetype. Their names are KubeVirt's.
type instancetypeOptions struct {
	name, memory, ioThreads string
	namespaced              bool
	cpu                     uint32
	gpus, devices           []string
	output                  cli.Output
}

func instancetypeCommand(c *cli.CLI) *cobra.Command {
	o := &instancetypeOptions{}
	cmd := &cobra.Command{
		Use:   "instancetype",
		Short: "Create a VirtualMachineInstancetype or VirtualMachineClusterInstancetype manifest.",
		Example: c.Examples(`
# Create an instance type for the whole cluster:
virtctl create instancetype --name=small --cpu=2 --memory=4Gi | kubectl apply -f -

# Create one for a namespace, with a GPU:
virtctl create instancetype --namespaced --cpu=8 --memory=32Gi --gpu=name:gpu1,devicename:nvidia.com/TU104`),
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			spec, err := o.spec()
			if err != nil {
				return err
			}
			scope := scoped{namespaced: o.namespaced, kind: "Instancetype", name: o.name}
			return scope.print(c, &o.output, &spec)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.name, "name", "", "The instance type's name. By default a random one.")
	flags.BoolVar(&o.namespaced, "namespaced", false,
		"Create a namespaced object instead of a cluster-wide one. Implied by --namespace.")
	flags.Uint32Var(&o.cpu, "cpu", 0, "The number of the guest's vCPUs.")
	flags.StringVar(&o.memory, "memory", "", "The guest's memory.")
	flags.StringArrayVar(&o.gpus, "gpu", nil, "A GPU (repeatable): name:NAME,devicename:RESOURCE.")
	flags.StringArrayVar(&o.devices, "hostdevice", nil,
		"A device of the node (repeatable): name:NAME,devicename:RESOURCE.")
	flags.StringVar(&o.ioThreads, "iothreadspolicy", "", "shared, auto or supplementalPool.")
	_ = cmd.MarkFlagRequired("cpu")
	_ = cmd.MarkFlagRequired("memory")
	o.output.AddTo(cmd, "yaml")
	return cmd
}

func (o *instancetypeOptions) spec() (instancetypev1beta1.VirtualMachineInstancetypeSpec, error) {
	spec := instancetypev1beta1.VirtualMachineInstancetypeSpec{CPU: instancetypev1beta1.CPUInstancetype{Guest: o.cpu}}
	if o.cpu == 0 {
		return spec, flagError("cpu", "cpu value must be greater than zero")
	}
	memory, err := resource.ParseQuantity(o.memory)
	if err != nil {
		return spec, flagError("memory", "%w", err)
	}
	spec.Memory.Guest = memory
	for _, text := range o.gpus {
		p, err := parseKnown("gpu", text, "name", "devicename")
		if err == nil {
			err = p.needAll("name", "devicename")
		}
		if err != nil {
			return spec, err
		}
		spec.GPUs = append(spec.GPUs, v1.GPU{Name: p.get("name"), DeviceName: p.get("devicename")})
	}
	for _, text := range o.devices {
		p, err := parseKnown("hostdevice", text, "name", "devicename")
		if err == nil {
			err = p.needAll("name", "devicename")
		}
		if err != nil {
			return spec, err
		}
		spec.HostDevices = append(spec.HostDevices, v1.HostDevice{Name: p.get("name"), DeviceName: p.get("devicename")})
	}
	if o.ioThreads != "" {
		policies := []v1.IOThreadsPolicy{v1.IOThreadsPolicyShared, v1.IOThreadsPolicyAuto, v1.IOThreadsPolicySupplementalPool}
		policy := v1.IOThreadsPolicy(o.ioThreads)
		if !slices.Contains(policies, policy) {
			return spec, flagError("iothreadspolicy", "invalid policy %q, supported values are: %s, %s, %s",
				o.ioThreads, policies[0], policies[1], policies[2])
		}
		spec.IOThreadsPolicy = &policy
	}
	return spec, nil
}

// scoped is an object of a kind that exists namespaced and cluster-wide.
type scoped struct {
	// namespaced selects the namespaced kind. As in KubeVirt, a namespace does so too.
	namespaced bool
	// kind is the kind without the prefix VirtualMachine or VirtualMachineCluster.
	kind, name string
}

func (s scoped) print(c *cli.CLI, output *cli.Output, spec any) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec)
	if err != nil {
		return err
	}
	namespace, err := explicitNamespace(c)
	if err != nil {
		return err
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": content}}
	kind, prefix := "VirtualMachineCluster"+s.kind, "cluster"
	if s.namespaced || namespace != "" {
		kind, prefix = "VirtualMachine"+s.kind, ""
	}
	if namespace != "" {
		object.SetNamespace(namespace)
	}
	object.SetGroupVersionKind(instancetypev1beta1.GroupVersion.WithKind(kind))
	object.SetName(nameOr(s.name, prefix+strings.ToLower(s.kind)+"-"))
	return printManifest(c, output, object)
}

// preferenceOptions are the flags of create preference. Their names are KubeVirt's.
type preferenceOptions struct {
	name, storageClass, machine, topology string
	namespaced                            bool
	output                                cli.Output
}

func preferenceCommand(c *cli.CLI) *cobra.Command {
	o := &preferenceOptions{}
	cmd := &cobra.Command{
		Use:   "preference",
		Short: "Create a VirtualMachinePreference or VirtualMachineClusterPreference manifest.",
		Example: c.Examples(`
# Create a preference for the whole cluster:
virtctl create preference --name=fast --volume-storage-class=fast --cpu-topology=preferCores | kubectl apply -f -

# Create one for a namespace:
virtctl create preference --namespaced --machine-type=pc-q35-9.2`),
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			spec, err := o.spec()
			if err != nil {
				return err
			}
			scope := scoped{namespaced: o.namespaced, kind: "Preference", name: o.name}
			return scope.print(c, &o.output, &spec)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.name, "name", "", "The preference's name. By default a random one.")
	flags.BoolVar(&o.namespaced, "namespaced", false,
		"Create a namespaced object instead of a cluster-wide one. Implied by --namespace.")
	flags.StringVar(&o.storageClass, "volume-storage-class", "", "The preferred storage class of disks.")
	flags.StringVar(&o.machine, "machine-type", "", "The preferred machine type.")
	flags.StringVar(&o.topology, "cpu-topology", "", "The preferred CPU topology: sockets, cores, threads, spread or any.")
	o.output.AddTo(cmd, "yaml")
	return cmd
}

func (o *preferenceOptions) spec() (instancetypev1beta1.VirtualMachinePreferenceSpec, error) {
	var spec instancetypev1beta1.VirtualMachinePreferenceSpec
	if o.storageClass != "" {
		spec.Volumes = &instancetypev1beta1.VolumePreferences{PreferredStorageClassName: o.storageClass}
	}
	if o.machine != "" {
		spec.Machine = &instancetypev1beta1.MachinePreferences{PreferredMachineType: o.machine}
	}
	if o.topology != "" {
		known := []string{"sockets", "cores", "threads", "spread", "any", "preferSockets", "preferCores",
			"preferThreads", "preferSpread", "preferAny"}
		if !slices.Contains(known, o.topology) {
			return spec, flagError("cpu-topology", "invalid topology %q, supported values are: %s", o.topology,
				strings.Join(known, ", "))
		}
		topology := instancetypev1beta1.PreferredCPUTopology(o.topology)
		spec.CPU = &instancetypev1beta1.CPUPreferences{PreferredCPUTopology: &topology}
	}
	return spec, nil
}
