// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package lifecycle

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/diskbus"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// Values of the flag --disk-type.
const (
	typeDisk = diskbus.Disk
	typeLUN  = diskbus.LUN
)

// plugged has the flags of addvolume.
type plugged struct {
	volume, serial, cache, kind, bus string
	dry                              dryRun
}

// AddVolume returns the command addvolume.
func AddVolume(c *cli.CLI) *cobra.Command {
	p := &plugged{}
	cmd := &cobra.Command{
		Use:   "addvolume (VM) --volume-name=CLAIM",
		Short: "Plug a claim or a DataVolume into a virtual machine as a disk, while it runs or for the next start.",
		Example: c.Examples(`
# Plug the claim 'data' into the virtual machine 'myvm':
virtctl addvolume myvm --volume-name=data

# The guest sees the serial number, by default the name of the claim:
virtctl addvolume myvm --volume-name=data --serial=D23YZ9W6WA5DJ487 --bus=virtio

# Plug it in as a LUN:
virtctl addvolume myvm --volume-name=data --disk-type=lun`),
		Args:              c.OneArgument("VM"),
		ValidArgsFunction: c.CompleteVMs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.check(); err != nil {
				return err
			}
			_, vm, err := c.VM(args[0])
			if err != nil {
				return err
			}
			objects, err := c.Objects()
			if err != nil {
				return err
			}
			source, err := findSource(cmd.Context(), objects, client.ObjectKey{Namespace: vm.Namespace, Name: p.volume})
			if err != nil {
				return err
			}
			options := v1.AddVolumeOptions{Name: p.volume, Disk: p.disk(), VolumeSource: source, DryRun: p.dry.options(c.Out)}
			return putVolume(cmd.Context(), c, args[0], "addvolume", p.volume, options)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&p.volume, "volume-name", "",
		"Name of the DataVolume or PersistentVolumeClaim. It is also the name of the disk.")
	flags.StringVar(&p.serial, "serial", "",
		"Serial number of the disk. Default: the name of the volume, of which at most 36 characters fit on a SCSI disk.")
	flags.StringVar(&p.cache, "cache", "", "Cache mode of the disk: none, writethrough or writeback.")
	flags.StringVar(&p.kind, "disk-type", typeDisk, "Type of the disk: disk or lun.")
	flags.StringVar(&p.bus, "bus", string(diskbus.Plugged), "Bus of the disk: scsi or virtio. That of a lun is scsi.")
	p.dry.addTo(cmd)
	persist(cmd)
	_ = cmd.MarkFlagRequired("volume-name")
	return cmd
}

// RemoveVolume returns the command removevolume.
func RemoveVolume(c *cli.CLI) *cobra.Command {
	var volume string
	var dry dryRun
	cmd := &cobra.Command{
		Use:   "removevolume (VM) --volume-name=VOLUME",
		Short: "Unplug a volume from a virtual machine.",
		Example: c.Examples(`
# Unplug the volume 'data' from the virtual machine 'myvm':
virtctl removevolume myvm --volume-name=data`),
		Args:              c.OneArgument("VM"),
		ValidArgsFunction: c.CompleteVMs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return putVolume(cmd.Context(), c, args[0], "removevolume", volume, v1.RemoveVolumeOptions{Name: volume,
				DryRun: dry.options(c.Out)})
		},
	}
	cmd.Flags().StringVar(&volume, "volume-name", "", "Name of the volume.")
	dry.addTo(cmd)
	persist(cmd)
	_ = cmd.MarkFlagRequired("volume-name")
	return cmd
}

// persist adds KubeVirt's flag --persist, which has no effect there either: a change of a VM persists, one of an
// instance cannot.
func persist(cmd *cobra.Command) {
	cmd.Flags().Bool("persist", false, "Has no effect: a change of a VM always persists.")
	_ = cmd.Flags().MarkDeprecated("persist", "a change of a VM always persists")
}

func (p *plugged) check() error {
	switch v1.DriverCache(p.cache) {
	case "", v1.CacheNone, v1.CacheWriteThrough, v1.CacheWriteBack:
	default:
		return fmt.Errorf("--cache=%s is not supported: use none, writethrough or writeback", p.cache)
	}
	if p.kind != typeDisk && p.kind != typeLUN {
		return fmt.Errorf("--disk-type=%s is not supported: use disk or lun", p.kind)
	}
	switch bus := diskbus.Of(v1.DiskBus(p.bus)); {
	case !bus.Plugs(typeDisk):
		return fmt.Errorf("--bus=%s is not supported: use scsi or virtio", p.bus)
	case !bus.Plugs(p.kind):
		return fmt.Errorf("--bus=%s is not supported with --disk-type=lun: use scsi", p.bus)
	default:
		return nil
	}
}

func (p *plugged) disk() *v1.Disk {
	disk := &v1.Disk{Name: p.volume, Serial: p.serial, Cache: v1.DriverCache(p.cache)}
	if disk.Serial == "" {
		// KubeVirt's virtctl exceeds QEMU's limit for SCSI disks, and then the disk is never plugged.
		disk.Serial = p.volume[:min(len(p.volume), diskbus.Of(v1.DiskBusSCSI).MaxSerial)]
	}
	if p.kind == typeLUN {
		disk.LUN = &v1.LunTarget{Bus: v1.DiskBus(p.bus)}
	} else {
		disk.Disk = &v1.DiskTarget{Bus: v1.DiskBus(p.bus)}
	}
	return disk
}

// findSource returns the DataVolume of a name, or else the claim.
func findSource(ctx context.Context, objects client.Client, key client.ObjectKey) (*v1.HotplugVolumeSource, error) {
	err := objects.Get(ctx, key, &cdi.DataVolume{})
	switch {
	case err == nil:
		return &v1.HotplugVolumeSource{DataVolume: &v1.DataVolumeSource{Name: key.Name, Hotpluggable: true}}, nil
	case !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err):
		return nil, fmt.Errorf("error adding volume: the DataVolume %s cannot be read: %w", key.Name, err)
	}
	err = objects.Get(ctx, key, &corev1.PersistentVolumeClaim{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("error adding volume: volume %s is %w: create it, or name another one with --volume-name",
			key.Name, errNoVolume)
	}
	if err != nil {
		return nil, fmt.Errorf("error adding volume: the PersistentVolumeClaim %s cannot be read: %w", key.Name, err)
	}
	source := &v1.PersistentVolumeClaimVolumeSource{Hotpluggable: true}
	source.ClaimName = key.Name
	return &v1.HotplugVolumeSource{PersistentVolumeClaim: source}, nil
}

var errNoVolume = errors.New("not a DataVolume or PersistentVolumeClaim of the namespace")

// putVolume sends a request to a VM or, if there is none of the name, to an instance.
func putVolume(ctx context.Context, c *cli.CLI, argument, verb, volume string, options any) error {
	api, target, err := c.VM(argument)
	if err != nil {
		return err
	}
	doing := map[string]string{"addvolume": "adding", "removevolume": "removing"}[verb]
	if err = api.Put(ctx, target, verb, options); apierrors.IsNotFound(err) {
		target.Resource = subresources.VirtualMachineInstances
		err = api.Put(ctx, target, verb, options)
	}
	if err != nil {
		return fmt.Errorf("error %s volume: %w", doing, err)
	}
	// KubeVirt's sentence, because scripts match it.
	_, err = fmt.Fprintf(c.Out, "Successfully submitted %s volume request to VM %s for volume %s\n",
		verb[:len(verb)-len("volume")], target.Name, volume)
	return err
}
