// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package imageupload implements the command image-upload, which copies a local file to a volume of the cluster by the
// Containerized Data Importer (CDI). CDI cannot resume uploads, so an upload that fails starts again from the
// beginning.
package imageupload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/api/cdi/v1beta1"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// Kinds of a default instance type or preference.
const (
	kindInstancetype        = "VirtualMachineInstancetype"
	kindClusterInstancetype = "VirtualMachineClusterInstancetype"
	kindPreference          = "VirtualMachinePreference"
	kindClusterPreference   = "VirtualMachineClusterPreference"
)

// Values of --volume-mode.
const (
	modeBlock      = "block"
	modeFilesystem = "filesystem"
)

// options are the command's flags.
type options struct {
	imagePath, archivePath                       string
	size, storageClass, accessMode, volumeMode   string
	defaultInstancetype, defaultInstancetypeKind string
	defaultPreference, defaultPreferenceKind     string
	proxyURL                                     string
	waitSeconds, retries                         uint
	insecure, noCreate, noWait, forceBind        bool
	dataSource                                   bool
	oldClaimName, oldClaimSize                   string
	oldBlockVolume                               bool
}

// upload is one run of the command.
type upload struct {
	options
	cli       *cli.CLI
	objects   client.Client
	namespace string
	// name is the name of the DataVolume and its claim.
	name string
	// claimOnly reports whether the target is a claim without a DataVolume.
	claimOnly bool
}

// Command returns the command image-upload.
func Command(c *cli.CLI) *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:   "image-upload (dv|pvc) (NAME)",
		Short: "Upload a VM image to a DataVolume/PersistentVolumeClaim.",
		Long: "Upload a disk image (raw, qcow2, vmdk, …, also compressed with gz or xz) or a tar archive to a volume. The DataVolume\n" +
			"or claim is created unless it exists. The cluster needs the Containerized Data Importer (CDI).",
		Example: c.Examples(`
# Upload an image to a new DataVolume:
virtctl image-upload dv fedora-dv --size=10Gi --image-path=/images/fedora.qcow2

# Upload it to a DataVolume that waits for an upload:
virtctl image-upload dv fedora-dv --no-create --image-path=/images/fedora.qcow2

# Upload it to a new claim, with storage that waits for a first consumer:
virtctl image-upload pvc fedora-pvc --size=10Gi --force-bind --image-path=/images/fedora.qcow2

# Upload it to a new DataVolume with a default instance type and preference, and create a DataSource for it:
virtctl image-upload dv fedora --size=10Gi --image-path=/images/fedora.qcow2 --default-instancetype=u1.medium --default-preference=fedora --datasource

# Upload it through a local port that is forwarded to the upload proxy:
virtctl image-upload dv fedora-dv --size=10Gi --image-path=/images/fedora.qcow2 --uploadproxy-url=https://localhost:8443 --insecure

# Upload the files of a tar archive:
virtctl image-upload dv files --size=1Gi --archive-path=/images/files.tar`),
		Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			u := &upload{options: o, cli: c}
			if err := u.parse(args); err != nil {
				return err
			}
			return u.run(cmd.Context())
		},
		ValidArgsFunction: cli.CompleteFirst(nil, "dv", "pvc"),
	}
	o.addTo(cmd)
	return cmd
}

func (o *options) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.imagePath, "image-path", "", "The file with the image.")
	flags.StringVar(&o.archivePath, "archive-path", "", "The file with the tar archive.")
	flags.StringVar(&o.size, "size", "", "The size of a new volume, such as 10Gi.")
	flags.StringVar(&o.storageClass, "storage-class", "",
		"The storage class of a new volume. By default the cluster chooses.")
	flags.StringVar(&o.accessMode, "access-mode", "", "The access mode of a new volume, such as ReadWriteMany.")
	flags.StringVar(&o.volumeMode, "volume-mode", "", "The mode of a new volume: block or filesystem.")
	flags.BoolVar(&o.noCreate, "no-create", false,
		"Use an existing DataVolume or claim. The content of the claim is overwritten.")
	flags.BoolVar(&o.forceBind, "force-bind", false,
		"Bind the claim immediately, even if its storage class waits for a first consumer.")
	flags.BoolVar(&o.dataSource, "datasource", false, "Create or update a DataSource of the same name for the volume.")
	flags.StringVar(&o.defaultInstancetype, "default-instancetype", "", "The default instance type of VMs with the image.")
	flags.StringVar(&o.defaultInstancetypeKind, "default-instancetype-kind", "",
		fmt.Sprintf("The kind of that instance type: %s or %s (the default).", kindInstancetype, kindClusterInstancetype))
	flags.StringVar(&o.defaultPreference, "default-preference", "", "The default preference of VMs with the image.")
	flags.StringVar(&o.defaultPreferenceKind, "default-preference-kind", "",
		fmt.Sprintf("The kind of that preference: %s or %s (the default).", kindPreference, kindClusterPreference))
	flags.StringVar(&o.proxyURL, "uploadproxy-url", "",
		"The URL of CDI's upload proxy. By default that of CDI's configuration.")
	flags.BoolVar(&o.insecure, "insecure", false, "Do not verify the upload proxy's certificate.")
	flags.UintVar(&o.waitSeconds, "wait-secs", 300, "Seconds to wait until the volume is ready for the upload.")
	flags.UintVar(&o.retries, "retry", 5, "How often to repeat the upload after a temporary error.")
	flags.BoolVar(&o.noWait, "no-wait", false, "Do not wait until CDI has written the upload to the volume.")
	flags.StringVar(&o.oldClaimName, "pvc-name", "", "DEPRECATED: the name of the claim. Use: pvc NAME.")
	flags.StringVar(&o.oldClaimSize, "pvc-size", "", "DEPRECATED: the size. Use --size.")
	flags.BoolVar(&o.oldBlockVolume, "block-volume", false, "DEPRECATED: a block volume. Use --volume-mode=block.")
	cmd.MarkFlagsMutuallyExclusive("image-path", "archive-path")
	cmd.MarkFlagsOneRequired("image-path", "archive-path")
	cmd.MarkFlagsMutuallyExclusive("size", "pvc-size")
	_ = cmd.RegisterFlagCompletionFunc("volume-mode", cobra.FixedCompletions([]string{modeBlock, modeFilesystem},
		cobra.ShellCompDirectiveNoFileComp))
}

// parse validates arguments and flags.
func (u *upload) parse(args []string) error {
	switch {
	case u.oldClaimName != "" && len(args) > 0:
		return errors.New("cannot use --pvc-name and args")
	case u.oldClaimName != "":
		u.claimOnly, u.name = true, u.oldClaimName
	case len(args) != 2:
		return errors.New("expecting two args: dv or pvc, and a name")
	default:
		switch strings.ToLower(args[0]) {
		case "dv":
		case "pvc":
			u.claimOnly = true
		default:
			return fmt.Errorf("invalid resource type %s: it is dv or pvc", args[0])
		}
		u.name = args[1]
	}
	if u.oldClaimSize != "" {
		u.size = u.oldClaimSize
	}
	if err := u.parseVolumeMode(); err != nil {
		return err
	}
	return u.parseDefaults()
}

func (u *upload) parseVolumeMode() error {
	if u.oldBlockVolume {
		if u.volumeMode != "" && u.volumeMode != modeBlock {
			return fmt.Errorf("incompatible --volume-mode '%s' and --block-volume", u.volumeMode)
		}
		u.volumeMode = modeBlock
	}
	switch {
	case u.volumeMode != "" && u.volumeMode != modeBlock && u.volumeMode != modeFilesystem:
		return fmt.Errorf("invalid volume mode '%s'. Valid values are 'block' and 'filesystem'", u.volumeMode)
	case u.archivePath != "" && u.volumeMode == modeBlock:
		return errors.New("in archive upload the volume mode should always be filesystem: a block volume has no files")
	}
	return nil
}

func (u *upload) parseDefaults() error {
	for _, d := range []struct{ flag, name, kind, one, other string }{
		{"--default-instancetype", u.defaultInstancetype, u.defaultInstancetypeKind, kindInstancetype,
			kindClusterInstancetype},
		{"--default-preference", u.defaultPreference, u.defaultPreferenceKind, kindPreference, kindClusterPreference},
	} {
		switch {
		case d.name == "" && d.kind != "":
			return fmt.Errorf("%s must be provided with %s-kind", d.flag, d.flag)
		case d.kind != "" && d.kind != d.one && d.kind != d.other:
			return fmt.Errorf("invalid %s-kind: %s. Allowed values are: %s, %s", d.flag, d.kind, d.one, d.other)
		case d.name != "" && u.noCreate:
			return errors.New("--default-instancetype and --default-preference cannot be used with --no-create")
		}
	}
	return nil
}

func (u *upload) isArchive() bool { return u.archivePath != "" }

func (u *upload) path() string {
	if u.isArchive() {
		return u.archivePath
	}
	return u.imagePath
}

func (u *upload) run(ctx context.Context) error {
	// The file is opened first, so that nothing is created in the cluster if it cannot be read.
	source, err := openSource(u.path())
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	if u.namespace, err = u.cli.Namespace(); err != nil {
		return err
	}
	if u.objects, err = u.cli.Objects(); err != nil {
		return err
	}
	if err := u.checkCDI(); err != nil {
		return err
	}
	if err := u.ensureTarget(ctx); err != nil {
		return err
	}
	if err := u.waitReady(ctx); err != nil {
		return err
	}
	proxy, err := u.findProxy(ctx)
	if err != nil {
		return err
	}
	u.printf("Uploading data to %s", proxy.url.Redacted())
	if err := u.send(ctx, proxy, source); err != nil {
		return err
	}
	if u.dataSource {
		if err := u.ensureDataSource(ctx); err != nil {
			return err
		}
	}
	return u.finish(ctx)
}

// finish waits until CDI has written the data to the volume.
func (u *upload) finish(ctx context.Context) error {
	if u.noWait {
		u.printf("Uploading data completed successfully, processing continues in the cluster")
		return nil
	}
	u.printf("Uploading data completed successfully, waiting for processing to complete, you can hit ctrl-c without interrupting the progress")
	if err := u.waitProcessed(ctx); err != nil {
		return err
	}
	u.printf("Processing completed successfully")
	u.printf("Uploading %s completed successfully", u.path())
	return nil
}

// printf prints a line without control characters, because values may be other users' texts.
func (u *upload) printf(format string, values ...any) {
	_, _ = fmt.Fprintln(u.cli.Out, cli.Plain(fmt.Sprintf(format, values...)))
}

func (u *upload) key() client.ObjectKey {
	return client.ObjectKey{Namespace: u.namespace, Name: u.name}
}

// ensureDataSource creates or updates the DataSource with the volume's name.
func (u *upload) ensureDataSource(ctx context.Context) error {
	target := cdi.DataSourceSource{PVC: &v1beta1.DataVolumeSourcePVC{Namespace: u.namespace, Name: u.name}}
	source := &cdi.DataSource{}
	err := u.objects.Get(ctx, u.key(), source)
	if apierrors.IsNotFound(err) {
		source = &cdi.DataSource{
			ObjectMeta: metav1.ObjectMeta{Namespace: u.namespace, Name: u.name, Labels: u.labels()},
			Spec:       cdi.DataSourceSpec{Source: target},
		}
		if err := u.objects.Create(ctx, source); err != nil {
			return fmt.Errorf("DataSource %s/%s was not created: %w", u.namespace, u.name, err)
		}
		u.printf("Created a new DataSource %s/%s", u.namespace, u.name)
		return nil
	}
	if err != nil {
		return err
	}
	before := source.DeepCopy()
	if source.Labels == nil {
		source.Labels = map[string]string{}
	}
	maps.Copy(source.Labels, u.labels())
	source.Spec.Source = target
	if err := u.objects.Patch(ctx, source, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("DataSource %s/%s was not updated: %w", u.namespace, u.name, err)
	}
	u.printf("Updated an existing DataSource %s/%s", u.namespace, u.name)
	return nil
}
