// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package vmexport implements the command vmexport, which creates, deletes and downloads VirtualMachineExports.
// Functions, flags and errors are KubeVirt's.
package vmexport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// Functions of the command.
const (
	create   = "create"
	remove   = "delete"
	download = "download"
)

// Values of --format and --manifest-output-format.
const (
	formatGzip = "gzip"
	formatRaw  = "raw"
	formatOCI  = "oci"
	outputJSON = "json"
	outputYAML = "yaml"
)

// defaultReadiness is how long to wait until an export is ready. KubeVirt's.
const defaultReadiness = 2 * time.Minute

// Errors. KubeVirt's texts.
const (
	incompatibleFlag = "the '%s' flag is incompatible with '%s'"
	invalidValue     = "%s is not a valid value, acceptable values are %s"
)

// options are the command's flags.
type options struct {
	vm, snapshot, pvc          string
	output, volume, format     string
	insecure, keep, delete     bool
	ttl                        time.Duration
	manifest, includeSecret    bool
	manifestFormat, serviceURL string
	portForward                bool
	localPort                  uint16
	retries                    int
	labels, annotations        map[string]string
	readiness                  time.Duration
}

// export is one run of the command.
type export struct {
	options
	cli     *cli.CLI
	objects client.Client
	key     client.ObjectKey
}

// Command returns the command vmexport.
func Command(c *cli.CLI) *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:   "vmexport (create|delete|download) (NAME)",
		Short: "Export a VM volume.",
		Long: "Create or delete a VirtualMachineExport, or download what it exports: the volumes of a VM that does not run, of a snapshot, or a\n" +
			"claim. With the flag of a source, download creates the export, and deletes it after the download.",
		Example: c.Examples(`
# Export the volumes of a VM, and download one of them:
virtctl vmexport create vm1-export --vm=vm1
virtctl vmexport download vm1-export --volume=volume1 --output=disk.img.gz

# Both in one step, by way of the API server, which needs no Ingress:
virtctl vmexport download snap1-export --snapshot=snap1 --volume=volume1 --format=raw --output=disk.img --port-forward

# A VM and its disks as an OCI image in a tar archive, if the cluster has the feature gate OCIExport:
virtctl vmexport download vm1-export --vm=vm1 --format=oci --output=vm1.oci.tar --readiness-timeout=30m

# The manifests of a VM, with which another cluster imports it:
virtctl vmexport download vm1-export --vm=vm1 --manifest --include-secret

# Delete an export:
virtctl vmexport delete vm1-export`),
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			e := &export{options: o, cli: c}
			return e.run(cmd, strings.ToLower(args[0]), args[1])
		},
		ValidArgsFunction: cli.CompleteFirst(nil, create, remove, download),
	}
	o.addTo(cmd)
	return cmd
}

func (o *options) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.vm, "vm", "", "The VM to export.")
	flags.StringVar(&o.snapshot, "snapshot", "", "The VirtualMachineSnapshot to export.")
	flags.StringVar(&o.pvc, "pvc", "", "The PersistentVolumeClaim to export.")
	cmd.MarkFlagsMutuallyExclusive("vm", "snapshot", "pvc")
	flags.StringVar(&o.output, "output", "", "The file to write; - is the standard output.")
	flags.StringVar(&o.volume, "volume", "", "The volume to download; ignored if there is only one.")
	flags.StringVar(&o.format, "format", "",
		"The format of the file: gzip (the default), raw, or oci for a VM with all its disks.")
	flags.BoolVar(&o.insecure, "insecure", false, "Do not verify the certificate of the server.")
	flags.BoolVar(&o.keep, "keep-vme", false, "Keep the export after the download.")
	flags.BoolVar(&o.delete, "delete-vme", false,
		"Delete the export after the download, even if it fails or the export existed before; ignored with --manifest.")
	cmd.MarkFlagsMutuallyExclusive("keep-vme", "delete-vme")
	flags.DurationVar(&o.ttl, "ttl", 0, "How long the export lives from its creation; 2h by default.")
	flags.BoolVar(&o.manifest, "manifest", false, "Download the manifests of the VM instead of a volume.")
	flags.BoolVar(&o.includeSecret, "include-secret", false,
		"With --manifest: also the Secret with the token, which CDI needs for the import.")
	flags.StringVar(&o.manifestFormat, "manifest-output-format", "",
		"The format of manifests: yaml (the default) or json.")
	flags.StringVar(&o.serviceURL, "service-url", "",
		"HOST[:PORT] under which the export's Service can be reached, such as that of a NodePort.")
	flags.BoolVar(&o.portForward, "port-forward", false,
		"Download by way of the API server, which needs no Ingress or Route.")
	flags.Uint16Var(&o.localPort, "local-port", 0, "The local port for --port-forward; a free one by default.")
	flags.IntVar(&o.retries, "retry", 0, "How often to repeat a download that fails temporarily.")
	flags.StringToStringVar(&o.labels, "labels", nil, "Labels of the export, its Pod and its Service, as key=value.")
	flags.StringToStringVar(&o.annotations, "annotations", nil,
		"Annotations of the export, its Pod and its Service, as key=value.")
	flags.DurationVar(&o.readiness, "readiness-timeout", defaultReadiness, "How long to wait until the export is ready.")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{formatGzip, formatRaw, formatOCI},
		cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("manifest-output-format",
		cobra.FixedCompletions([]string{outputJSON, outputYAML}, cobra.ShellCompDirectiveNoFileComp))
}

// onlyFor are the flags that only some functions have.
var onlyFor = map[string][]string{
	create: {"vm", "snapshot", "pvc", "ttl", "labels", "annotations", "readiness-timeout"},
	remove: {},
	download: {
		"vm", "snapshot", "pvc", "output", "volume", "format", "insecure", "keep-vme", "delete-vme", "ttl",
		"manifest", "include-secret",
		"manifest-output-format", "service-url", "port-forward", "local-port", "retry", "labels",
		"annotations", "readiness-timeout",
	},
}

func (e *export) run(cmd *cobra.Command, function, name string) error {
	if err := e.check(cmd, function); err != nil {
		return err
	}
	namespace, err := e.cli.Namespace()
	if err != nil {
		return err
	}
	if e.objects, err = e.cli.Objects(); err != nil {
		return err
	}
	e.key = client.ObjectKey{Namespace: namespace, Name: name}
	switch function {
	case create:
		return e.create(cmd.Context())
	case remove:
		return e.remove(cmd.Context())
	default:
		return e.download(cmd.Context())
	}
}

// check rejects flags that a function does not have, and unknown values.
func (e *export) check(cmd *cobra.Command, function string) error {
	allowed, known := onlyFor[function]
	if !known {
		return fmt.Errorf("invalid function '%s'", function)
	}
	allowedFlags := map[string]bool{}
	for _, flag := range allowed {
		allowedFlags[flag] = true
	}
	for _, flag := range onlyFor[download] {
		if !cmd.Flags().Changed(flag) || allowedFlags[flag] {
			continue
		}
		if flag == "vm" || flag == "snapshot" || flag == "pvc" {
			return errors.New("should not specify export kind")
		}
		return fmt.Errorf(incompatibleFlag, "--"+flag, function)
	}
	switch {
	case function == create && e.source() == nil:
		return errors.New("need to specify export kind when attempting to create a VirtualMachineExport [--pvc|--vm|--snapshot]")
	case function != download:
		return nil
	case !slices.Contains([]string{"", formatGzip, formatRaw, formatOCI}, e.format):
		return fmt.Errorf(invalidValue, "--format", "gzip/raw/oci")
	case e.retries < 0:
		return fmt.Errorf(invalidValue, "--retry", "positive integers")
	case e.format == formatOCI && e.noImageFlag() != "":
		return fmt.Errorf(incompatibleFlag, e.noImageFlag(), "--format=oci")
	case e.manifest:
		return e.checkManifest()
	case e.output == "":
		return errors.New("warning: Binary output can mess up your terminal. Use '--output -' to output into stdout anyway or consider '--output <FILE>' to save to a file")
	}
	return nil
}

// noImageFlag returns a flag that was given and that a download of an OCI image does not have, or nothing.
func (e *export) noImageFlag() string {
	switch {
	case e.volume != "":
		return "--volume"
	case e.manifest:
		return "--manifest"
	case e.pvc != "":
		return "--pvc"
	default:
		return ""
	}
}

func (e *export) checkManifest() error {
	e.manifestFormat = strings.ToLower(e.manifestFormat)
	switch {
	case e.volume != "":
		return fmt.Errorf(incompatibleFlag, "--volume", "--manifest")
	case e.manifestFormat != "" && e.manifestFormat != outputJSON && e.manifestFormat != outputYAML:
		return fmt.Errorf(invalidValue, "--manifest-output-format", "json/yaml")
	case e.pvc != "":
		return fmt.Errorf(incompatibleFlag, "--pvc", "--manifest")
	}
	return nil
}

// source returns the source that the flags specify, or nil.
func (o *options) source() *corev1.TypedLocalObjectReference {
	switch {
	case o.vm != "":
		return &corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine", Name: o.vm}
	case o.snapshot != "":
		return &corev1.TypedLocalObjectReference{APIGroup: ptr.To("snapshot.kubevirt.io"),
			Kind: "VirtualMachineSnapshot", Name: o.snapshot}
	case o.pvc != "":
		return &corev1.TypedLocalObjectReference{APIGroup: ptr.To(""), Kind: "PersistentVolumeClaim", Name: o.pvc}
	default:
		return nil
	}
}

// printf prints a line without control characters, because values may be other users' texts. It prints to the standard
// error if the standard output is used for the download.
func (e *export) printf(format string, values ...any) {
	out := e.cli.Out
	if e.output == "" || e.output == "-" {
		out = e.cli.ErrOut
	}
	_, _ = fmt.Fprintln(out, cli.Plain(fmt.Sprintf(format, values...)))
}

// sleep waits, unless the context ends.
func sleep(ctx context.Context, duration time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(duration):
		return nil
	}
}
