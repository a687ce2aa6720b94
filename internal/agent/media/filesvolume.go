// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const (
	// filesLabel is the default label of a medium.
	// Source: kubevirt/kubevirt pkg/util/disk, CreateIsoImage.
	filesLabel = "cfgdata"
	// sysprepLabel is the label of a medium for Windows Setup.
	// Source: kubevirt/kubevirt pkg/config/sysprep.go.
	sysprepLabel = "unattendCD"
)

// answerFiles are the files that Windows Setup reads at the root of a removable medium, regardless of case.
// Source: learn.microsoft.com, Windows Setup Automation Overview.
var answerFiles = []string{"autounattend.xml", "unattend.xml"}

// filesVolume is a volume that becomes a medium with the files of a Pod's volume.
type filesVolume struct {
	kind  VolumeKind
	label string
	// object is the source of the files, for messages.
	object string
	// check returns an error if the medium needs other files.
	check func(files map[string][]byte) error
}

// filesVolumeOf returns the filesVolume of a volume, nil if it is of another kind.
func filesVolumeOf(v *v1.Volume) *filesVolume {
	anything := func(map[string][]byte) error { return nil }
	switch {
	case v.ConfigMap != nil:
		return &filesVolume{ConfigMapVolume, v.ConfigMap.VolumeLabel, "ConfigMap " + v.ConfigMap.Name, anything}
	case v.Secret != nil:
		return &filesVolume{SecretVolume, v.Secret.VolumeLabel, "Secret " + v.Secret.SecretName, anything}
	case v.DownwardAPI != nil:
		return &filesVolume{DownwardAPIVolume, v.DownwardAPI.VolumeLabel, "downward API", anything}
	case v.ServiceAccount != nil:
		return &filesVolume{ProjectedVolume, "", "service account " + v.ServiceAccount.ServiceAccountName, anything}
	case v.Sysprep != nil && v.Sysprep.ConfigMap != nil:
		return &filesVolume{ConfigMapVolume, sysprepLabel, "ConfigMap " + v.Sysprep.ConfigMap.Name, hasAnswerFile}
	case v.Sysprep != nil && v.Sysprep.Secret != nil:
		return &filesVolume{SecretVolume, sysprepLabel, "Secret " + v.Sysprep.Secret.Name, hasAnswerFile}
	default:
		return nil
	}
}

func hasAnswerFile(files map[string][]byte) error {
	for name := range files {
		for _, file := range answerFiles {
			if strings.EqualFold(name, file) {
				return nil
			}
		}
	}
	return fmt.Errorf("has neither the key %s nor %s: add one of them", answerFiles[0], answerFiles[1])
}

// fileDisk creates a medium with the files of a volume. Errors in the files are retryable: the object can be corrected.
func (p *preparer) fileDisk(ctx context.Context, v *v1.Volume, m *filesVolume) (*domain.DiskFact, error) {
	files, err := p.content.Files(m.kind, launcherpod.FilesVolume(v.Name))
	if errors.Is(err, ErrTooMuch) {
		return nil, &InvalidError{Retryable: true, Err: fmt.Errorf("%s: %w", m.object, err)}
	}
	if err != nil {
		return nil, err
	}
	if err := m.check(files); err != nil {
		return nil, &InvalidError{Retryable: true, Err: fmt.Errorf("%s %w", m.object, err)}
	}
	for name := range files {
		if !isoName(name) {
			return nil, &InvalidError{Retryable: true,
				Err: fmt.Errorf("%s: a medium cannot have a file %.20s…, with a part of more than %d bytes",
					m.object, name, maxNameBytes)}
		}
	}
	label := m.label
	if label == "" {
		label = filesLabel
	}
	if len(label) > maxLabelBytes {
		return nil, invalid("volumeLabel %q has %d bytes, and a medium's label may have %d", label, len(label), maxLabelBytes)
	}
	return p.medium(ctx, v.Name, label, files)
}

// acpiHeader is the size of the header of an ACPI table; QEMU does not start with a smaller table.
// Source: ACPI Specification 6.5, 5.2.6.
const acpiHeader = 36

// acpi returns the paths of the ACPI tables in the volumes that the firmware names. QEMU reads them from the kubelet's
// files.
func (p *preparer) acpi() (domain.ACPIFact, error) {
	firmware := p.vmi.Spec.Domain.Firmware
	if firmware == nil || firmware.ACPI == nil {
		return domain.ACPIFact{}, nil
	}
	slic, err := p.acpiTable(firmware.ACPI.SlicNameRef, launcherpod.SLICTable)
	if err != nil {
		return domain.ACPIFact{}, err
	}
	msdm, err := p.acpiTable(firmware.ACPI.MsdmNameRef, launcherpod.MSDMTable)
	return domain.ACPIFact{SLIC: slic, MSDM: msdm}, err
}

// acpiTable returns the path of a table in the Pod, empty if the VMI has none. domain.Build reports volumes of other
// kinds, as it knows the field's path.
func (p *preparer) acpiTable(volume, file string) (string, error) {
	secret := secretOf(p.vmi, volume)
	if secret == "" {
		return "", nil
	}
	retryable := func(format string, args ...any) error {
		return &InvalidError{Volume: volume, Retryable: true, Err: fmt.Errorf(format, args...)}
	}
	data, err := p.content.Secret(launcherpod.FilesVolume(volume), file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", retryable("Secret %s has no key %s with an ACPI table: add it", secret, file)
	case err != nil:
		return "", fmt.Errorf("volume %q: read Secret %s: %w", volume, secret, err)
	case len(data) < acpiHeader || len(data) > corev1.MaxSecretSize:
		return "", retryable("%s of Secret %s has %d bytes, which is no ACPI table", file, secret, len(data))
	}
	return path.Join(launcherpod.VolumeFilesDir(volume), file), nil
}

// secretOf returns the name of a volume's Secret, empty if it has none.
func secretOf(vmi *v1.VirtualMachineInstance, volume string) string {
	for i := range vmi.Spec.Volumes {
		if v := &vmi.Spec.Volumes[i]; v.Name == volume && v.Secret != nil {
			return v.Secret.SecretName
		}
	}
	return ""
}
