// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

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
