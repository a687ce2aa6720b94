// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package create

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// vmOptions are the flags of create vm. Their names are KubeVirt's.
type vmOptions struct {
	name, runStrategy string
	gracePeriod       int64
	memory            string
	instancetype      inference
	preference        inference

	containerDisks, claims, imports     []string
	dataSources, clonedClaims, blanks   []string
	sysprep                             string
	user, passwordFile                  string
	sshKeys, credentials                []string
	manageSSH                           bool
	cloudInit, userData, networkData    string
	cloudInitChanged, manageSSHIsChosen bool

	output cli.Output
}

// builder builds a VM from the options.
type builder struct {
	*vmOptions
	cmd  *cobra.Command
	vm   *v1.VirtualMachine
	warn io.Writer
	// bootOrders maps a boot order to its volume.
	bootOrders map[uint]string
}

// strategies are the run strategies that a new VM may have.
var strategies = []v1.VirtualMachineRunStrategy{
	v1.RunStrategyAlways, v1.RunStrategyManual, v1.RunStrategyHalted, v1.RunStrategyOnce, v1.RunStrategyRerunOnFailure,
}

func vmCommand(c *cli.CLI) *cobra.Command {
	o := &vmOptions{
		instancetype: inference{flag: "instancetype", infer: true, kinds: []string{"virtualmachineinstancetype",
			"virtualmachineclusterinstancetype"}},
		preference: inference{flag: "preference", infer: true, kinds: []string{"virtualmachinepreference",
			"virtualmachineclusterpreference"}},
	}
	cmd := &cobra.Command{
		Use:   "vm",
		Short: "Create a VirtualMachine manifest.",
		Long: "Create a VirtualMachine manifest.\n\nIf no boot order is given, volumes boot in this order:\n" +
			"containerdisk, PVC, blank, clone of a PVC, DataSource, then imported volumes",
		Args: cobra.NoArgs,
		Example: c.Examples(`
# Create and start a VM that boots an image:
virtctl create vm --name=myvm --memory=1Gi --volume-containerdisk=src:quay.io/containerdisks/fedora:latest | kubectl apply -f -

# With a user that cloud-init creates and that may log in by SSH:
virtctl create vm --volume-containerdisk=src:quay.io/containerdisks/debian:12 --user=jdoe --ssh-key="$(cat ~/.ssh/id_ed25519.pub)"

# With an instance type and a preference:
virtctl create vm --instancetype=u1.small --preference=fedora --volume-pvc=src:my-pvc

# With a disk that CDI imports, and an empty one:
virtctl create vm --volume-import=type:http,url:https://example.com/disk.qcow2,size:20Gi --volume-import=type:blank,size:50Gi`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			namespace, err := explicitNamespace(c)
			if err != nil {
				return err
			}
			b := &builder{vmOptions: o, cmd: cmd, warn: c.ErrOut, bootOrders: map[uint]string{}}
			if err := b.build(namespace); err != nil {
				return err
			}
			return printManifest(c, &o.output, b.vm)
		},
	}
	o.addMachineFlags(cmd)
	o.addVolumeFlags(cmd)
	o.addGuestFlags(cmd)
	o.output.AddTo(cmd, "yaml")
	cmd.Flags().SortFlags = false
	return cmd
}

func (o *vmOptions) addMachineFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.name, "name", "", "The VM's name. By default a random one.")
	flags.StringVar(&o.runStrategy, "run-strategy", string(v1.RunStrategyAlways),
		"The run strategy: Always, Manual, Halted, Once or RerunOnFailure.")
	flags.Int64Var(&o.gracePeriod, "termination-grace-period", 180, "Seconds that the guest has to shut down.")
	flags.StringVar(&o.memory, "memory", "512Mi", "The guest's memory.")
	o.instancetype.addTo(cmd, "instance type")
	cmd.MarkFlagsMutuallyExclusive("memory", "instancetype", "infer-instancetype", "infer-instancetype-from")
	o.preference.addTo(cmd, "preference")
	cmd.MarkFlagsMutuallyExclusive("preference", "infer-preference", "infer-preference-from")
}

func (b *builder) build(namespace string) error {
	memory, err := resource.ParseQuantity(b.memory)
	if err != nil {
		return flagError("memory", "%w", err)
	}
	strategy, err := parseStrategy(b.runStrategy)
	if err != nil {
		return err
	}
	b.vm = &v1.VirtualMachine{}
	b.vm.SetGroupVersionKind(v1.GroupVersion.WithKind("VirtualMachine"))
	b.vm.Name, b.vm.Namespace = nameOr(b.name, "vm-"), namespace
	b.vm.Spec.RunStrategy = &strategy
	b.vm.Spec.Template = &v1.VirtualMachineInstanceTemplateSpec{}
	b.vm.Spec.Template.Spec.TerminationGracePeriodSeconds = &b.gracePeriod
	b.vm.Spec.Template.Spec.Domain.Memory = &v1.Memory{Guest: &memory}
	// Volumes are added in their boot order. Inference is last, because it reads the volumes.
	for _, step := range []func() error{
		b.useInstancetype, b.usePreference, b.addContainerDisks, b.addClaims, b.addImports, b.addSysprep,
		b.addCredentials, b.addCloudInit, b.inferInstancetype, b.inferPreference,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func parseStrategy(text string) (v1.VirtualMachineRunStrategy, error) {
	i := slices.IndexFunc(strategies,
		func(s v1.VirtualMachineRunStrategy) bool { return strings.EqualFold(string(s), text) })
	if i < 0 {
		names := strings.Trim(fmt.Sprint(strategies), "[]")
		return "", flagError("run-strategy", "invalid run strategy %q, supported values are: %s", text,
			strings.ReplaceAll(names, " ", ", "))
	}
	return strategies[i], nil
}

// addVolume adds a volume, and a disk if it has a boot order. If there is no disk, the cluster adds its default.
func (b *builder) addVolume(p params, name string, source v1.VolumeSource) error {
	if err := p.checkLabel(name); err != nil {
		return err
	}
	spec := &b.vm.Spec.Template.Spec
	if b.volume(name) != nil {
		return p.errorf("there is already a volume with name %q", name)
	}
	spec.Volumes = append(spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
	order, err := p.bootOrder()
	if err != nil || order == nil {
		return err
	}
	if b.bootOrders[*order] != "" {
		return p.errorf("bootorder %d was specified multiple times", *order)
	}
	b.bootOrders[*order] = name
	spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, v1.Disk{Name: name, BootOrder: order})
	return nil
}

func (b *builder) volume(name string) *v1.Volume {
	volumes := b.vm.Spec.Template.Spec.Volumes
	if i := slices.IndexFunc(volumes, func(v v1.Volume) bool { return v.Name == name }); i >= 0 {
		return &volumes[i]
	}
	return nil
}

// inference are the flags of an instance type or a preference: its name, or the volume from whose labels it is
// inferred.
type inference struct {
	flag  string
	kinds []string

	name  string
	infer bool
	from  string
}

func (i *inference) addTo(cmd *cobra.Command, what string) {
	flags := cmd.Flags()
	flags.StringVar(&i.name, i.flag, "", fmt.Sprintf("The %s, as NAME (cluster-wide) or KIND/NAME with kind %s.", what,
		strings.Join(i.kinds, " or ")))
	flags.BoolVar(&i.infer, "infer-"+i.flag, true,
		fmt.Sprintf("Infer the %s from the labels of the volume that boots first.", what))
	flags.StringVar(&i.from, "infer-"+i.flag+"-from", "", fmt.Sprintf("Infer the %s from the labels of this volume.",
		what))
}

// isExplicit reports whether the user requested inference. Otherwise it is optional.
func (i *inference) isExplicit(cmd *cobra.Command) bool {
	return cmd.Flags().Changed("infer-"+i.flag) || cmd.Flags().Changed("infer-"+i.flag+"-from")
}

// matcher parses the name. If it has no kind, the API's default applies.
func (i *inference) matcher() (kind, name string, err error) {
	if kind, name, err = splitPrefix(i.name); err != nil {
		return "", "", flagError(i.flag, "%w", err)
	}
	if kind = strings.ToLower(kind); kind != "" && !slices.Contains(i.kinds, kind) {
		return "", "", flagError(i.flag, "invalid %s kind %q, supported values are: %s", i.flag, kind,
			strings.Join(i.kinds, ", "))
	}
	return kind, name, nil
}

func (b *builder) useInstancetype() error {
	if b.instancetype.name == "" {
		return nil
	}
	kind, name, err := b.instancetype.matcher()
	b.vm.Spec.Template.Spec.Domain.Memory = nil
	b.vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: name, Kind: kind}
	return err
}

func (b *builder) usePreference() error {
	if b.preference.name == "" {
		return nil
	}
	kind, name, err := b.preference.matcher()
	b.vm.Spec.Preference = &v1.PreferenceMatcher{Name: name, Kind: kind}
	return err
}

func (b *builder) inferInstancetype() error {
	i := &b.instancetype
	if !i.infer || i.name != "" || b.cmd.Flags().Changed("memory") {
		return nil
	}
	volume, err := b.inferFrom(i)
	if err != nil {
		return b.unlessOptional(i, err)
	}
	b.vm.Spec.Instancetype = &v1.InstancetypeMatcher{InferFromVolume: volume}
	if i.isExplicit(b.cmd) {
		b.vm.Spec.Template.Spec.Domain.Memory = nil
		return nil
	}
	// The memory is used if the volume has no such labels.
	b.vm.Spec.Instancetype.InferFromVolumeFailurePolicy = ignore()
	return nil
}

func (b *builder) inferPreference() error {
	i := &b.preference
	if !i.infer || i.name != "" {
		return nil
	}
	volume, err := b.inferFrom(i)
	if err != nil {
		return b.unlessOptional(i, err)
	}
	b.vm.Spec.Preference = &v1.PreferenceMatcher{InferFromVolume: volume}
	if !i.isExplicit(b.cmd) {
		b.vm.Spec.Preference.InferFromVolumeFailurePolicy = ignore()
	}
	return nil
}

func ignore() *v1.InferFromVolumeFailurePolicy {
	policy := v1.IgnoreInferFromVolumeFailure
	return &policy
}

func (b *builder) unlessOptional(i *inference, err error) error {
	if i.isExplicit(b.cmd) {
		return err
	}
	return nil
}

// inferFrom returns the volume to infer from: that of the flag, or else the first in the boot order, or else the first
// one.
func (b *builder) inferFrom(i *inference) (string, error) {
	volumes := b.vm.Spec.Template.Spec.Volumes
	name := i.from
	switch {
	case name != "":
	case len(b.bootOrders) > 0:
		name = b.bootOrders[slices.Min(slices.Collect(maps.Keys(b.bootOrders)))]
	case len(volumes) > 0:
		name = volumes[0].Name
	default:
		return "", errors.New("at least one volume is needed to infer an instance type or preference")
	}
	volume := b.volume(name)
	if volume == nil {
		return "", fmt.Errorf("there is no volume with name %q", name)
	}
	return name, b.checkInferable(volume)
}

// checkInferable returns an error for a volume whose source has no labels to infer from.
func (b *builder) checkInferable(volume *v1.Volume) error {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return nil
	case volume.DataVolume == nil:
		return errors.New("inference of instancetype or preference works only with datasources, datavolumes or pvcs")
	}
	for _, template := range b.vm.Spec.DataVolumeTemplates {
		spec := template.Spec
		fromLabels := spec.SourceRef != nil || spec.Source != nil && (spec.Source.PVC != nil ||
			spec.Source.Registry != nil || spec.Source.Snapshot != nil)
		if template.Name == volume.DataVolume.Name && !fromLabels {
			return errors.New("this datavolume is not valid to infer an instancetype or preference from " +
				"(source needs to be PVC, Registry or Snapshot, sourceRef needs to be DataSource)")
		}
	}
	return nil
}
