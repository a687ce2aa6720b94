// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package memorydump is the command memory-dump, which dumps the memory of a guest to a claim, and downloads the dump.
package memorydump

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	plan "github.com/vireo-project/vireo/internal/decide/memorydump"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/vmexport"
)

// The functions of the command.
const (
	get      = "get"
	download = "download"
	remove   = "remove"
)

const (
	// patience is how long to wait for a dump. KubeVirt's.
	patience = 10 * time.Minute
	// poll is the time between two reads of its state.
	poll = 2 * time.Second
	// overheadPercent is how much of a claim its file system needs at most, if nothing else is configured. KubeVirt's
	// 5.5 %, rounded up.
	overheadPercent = 6
)

// options are the command's flags.
type options struct {
	claim, storageClass, accessMode string
	create                          bool
	download                        vmexport.ClaimDownload
}

// dump is one run of the command.
type dump struct {
	options
	cli     *cli.CLI
	objects client.Client
	key     client.ObjectKey
}

// Command returns the command memory-dump.
func Command(c *cli.CLI) *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:   "memory-dump (get|download|remove) (VM)",
		Short: "Dump the memory of a running VM to a PersistentVolumeClaim, and download it.",
		Long: "Dump the memory of a running VM to a PersistentVolumeClaim, download the dump, or end the association of the VM with the claim,\n" +
			"which keeps the dump. The guest is suspended while its memory is written. The dump is an ELF file, in an archive (tar.gz) when it\n" +
			"is downloaded.",
		Example: c.Examples(`
# Dump the memory of a VM to a new claim, and again to the same one:
virtctl memory-dump get myvm --claim-name=memory --create-claim
virtctl memory-dump get myvm

# Download the dump, by way of the API server, which needs no Ingress:
virtctl memory-dump download myvm --output=memory.tar.gz --port-forward

# Dump and download in one step:
virtctl memory-dump get myvm --claim-name=memory --create-claim --output=memory.tar.gz

# End the association with the claim, which keeps the dump:
virtctl memory-dump remove myvm`),
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			d := &dump{options: o, cli: c}
			return d.run(cmd, strings.ToLower(args[0]), args[1])
		},
		ValidArgsFunction: cli.CompleteFirst(c.CompleteVMs, get, download, remove),
	}
	flags := cmd.Flags()
	flags.StringVar(&o.claim, "claim-name", "",
		"The PersistentVolumeClaim for the dump; by default that of the last dump.")
	flags.BoolVar(&o.create, "create-claim", false, "Create the claim, with room for the memory of the VM.")
	flags.StringVar(&o.storageClass, "storage-class", "",
		"With --create-claim: its storage class; the default one by default.")
	flags.StringVar(&o.accessMode, "access-mode", "", "With --create-claim: its access mode; ReadWriteOnce by default.")
	flags.StringVar(&o.download.Output, "output", "",
		"The file to write; - is the standard output. With get: also download the dump.")
	flags.StringVar(&o.download.Format, "format", "",
		"The format of the file: gzip (the default), a compressed archive, or raw, an archive.")
	flags.BoolVar(&o.download.PortForward, "port-forward", false,
		"Download by way of the API server, which needs no Ingress or Route.")
	flags.Uint16Var(&o.download.LocalPort, "local-port", 0, "The local port for --port-forward; a free one by default.")
	return cmd
}

func (d *dump) run(cmd *cobra.Command, function, vm string) error {
	ctx := cmd.Context()
	if err := d.check(function); err != nil {
		return err
	}
	namespace, err := d.cli.Namespace()
	if err != nil {
		return err
	}
	if d.objects, err = d.cli.Objects(); err != nil {
		return err
	}
	d.key = client.ObjectKey{Namespace: namespace, Name: vm}
	switch function {
	case get:
		return d.get(ctx)
	case download:
		return d.save(ctx)
	default:
		return d.put(ctx, "removememorydump", struct{}{}, "memory dump of VM %s is being removed", vm)
	}
}

// check rejects flags that a function does not have, or lacks.
func (d *dump) check(function string) error {
	creates := d.create || d.storageClass != "" || d.accessMode != ""
	switch function {
	case get:
	case download, remove:
		if d.claim != "" || creates {
			return fmt.Errorf("the flags of a claim are only for the function %q", get)
		}
	default:
		return fmt.Errorf("invalid function '%s': use get, download or remove", function)
	}
	switch {
	case creates && !d.create:
		return errors.New("--storage-class and --access-mode need --create-claim")
	case d.create && d.claim == "":
		return errors.New("missing the name of the claim to create: set --claim-name")
	case function == download && d.download.Output == "":
		return errors.New("missing the file to write: set --output, with - for the standard output")
	case d.accessMode == string(corev1.ReadOnlyMany):
		return errors.New("a claim for a dump cannot have the access mode ReadOnlyMany")
	}
	return nil
}

// get requests a dump, and waits until it is complete.
func (d *dump) get(ctx context.Context) error {
	if d.create {
		if err := d.createClaim(ctx); err != nil {
			return err
		}
	}
	body := v1.VirtualMachineMemoryDumpRequest{ClaimName: d.claim}
	if err := d.put(ctx, "memorydump", body, "Successfully submitted memory dump request of VM %s",
		d.key.Name); err != nil {
		return err
	}
	request, err := d.await(ctx)
	if err != nil {
		return err
	}
	if request.FileName != nil {
		d.printf("The memory of VM %s is in the file %s of the claim %s", d.key.Name, *request.FileName, request.ClaimName)
	}
	if d.download.Output == "" {
		return nil
	}
	return d.export(ctx, request.ClaimName)
}

// save downloads the dump that there is, or is being made.
func (d *dump) save(ctx context.Context) error {
	request, err := d.await(ctx)
	if err != nil {
		return err
	}
	return d.export(ctx, request.ClaimName)
}

func (d *dump) put(ctx context.Context, verb string, body any, done string, values ...any) error {
	api, vm, err := d.cli.VM(d.key.Name)
	if err != nil {
		return err
	}
	if err := api.Put(ctx, vm, verb, body); err != nil {
		return fmt.Errorf("error requesting %s of VirtualMachine: %w", verb, err)
	}
	d.printf(done, values...)
	return nil
}

func (d *dump) printf(format string, values ...any) {
	_, _ = fmt.Fprintln(d.cli.ErrOut, cli.Plain(fmt.Sprintf(format, values...)))
}

// await waits until the dump is complete, or has failed.
func (d *dump) await(ctx context.Context) (*v1.VirtualMachineMemoryDumpRequest, error) {
	var request *v1.VirtualMachineMemoryDumpRequest
	err := wait.PollUntilContextTimeout(ctx, poll, patience, true, func(ctx context.Context) (bool, error) {
		vm := &v1.VirtualMachine{}
		if err := d.objects.Get(ctx, d.key, vm); err != nil {
			return false, err
		}
		request = vm.Status.MemoryDumpRequest
		switch {
		case request == nil || request.Remove:
			return false, fmt.Errorf("VM %s has no memory dump: use memory-dump get", d.key.Name)
		case request.Phase == v1.MemoryDumpFailed:
			return false, fmt.Errorf("the memory dump of VM %s has failed: %s", d.key.Name, request.Message)
		}
		return request.Phase == v1.MemoryDumpCompleted, nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil && request != nil {
		return nil, fmt.Errorf("the memory dump of VM %s is still %s after %s: %s", d.key.Name, request.Phase,
			patience, request.Message)
	}
	return request, err
}

// createClaim creates a claim with room for the memory of the VM.
func (d *dump) createClaim(ctx context.Context) error {
	vmi := &v1.VirtualMachineInstance{}
	if err := d.objects.Get(ctx, d.key, vmi); err != nil {
		return fmt.Errorf("find out how much memory VM %s has: %w", d.key.Name, err)
	}
	memory := vmi.Spec.Domain.Memory
	var guest *resource.Quantity
	switch {
	case vmi.Status.Memory != nil && vmi.Status.Memory.GuestCurrent != nil:
		guest = vmi.Status.Memory.GuestCurrent
	case memory != nil && memory.Guest != nil:
		guest = memory.Guest
	default:
		return fmt.Errorf("the memory of VM %s is not known: create the claim without --create-claim", d.key.Name)
	}
	bytes := (guest.Value() + plan.Overhead) * 100 / (100 - overheadPercent)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: d.key.Namespace, Name: d.claim}}
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	if d.accessMode != "" {
		claim.Spec.AccessModes[0] = corev1.PersistentVolumeAccessMode(d.accessMode)
	}
	if d.storageClass != "" {
		claim.Spec.StorageClassName = &d.storageClass
	}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes,
		resource.BinarySI)}
	if err := d.objects.Create(ctx, claim); err != nil {
		return fmt.Errorf("create the claim %s: %w", d.claim, err)
	}
	d.printf("PVC %s created", client.ObjectKeyFromObject(claim))
	return nil
}

// export downloads a claim by way of an export, which is deleted afterwards.
func (d *dump) export(ctx context.Context, claim string) error {
	request := d.download
	request.Key, request.Claim = client.ObjectKey{Namespace: d.key.Namespace,
		Name: "export-" + d.key.Name + "-" + claim}, claim
	return vmexport.DownloadClaim(ctx, d.cli, d.objects, request)
}
