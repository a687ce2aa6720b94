// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

// filesOf returns the content of the Pod's volume for the VMI's volume v.
func filesOf(kind VolumeKind, files map[string]string) content {
	return content{kind: {"v-files": files}}
}

func configMap(label string) v1.VolumeSource {
	source := &v1.ConfigMapVolumeSource{VolumeLabel: label}
	source.Name = "c"
	return v1.VolumeSource{ConfigMap: source}
}

func TestFilesVolumes(t *testing.T) {
	ref := &corev1.LocalObjectReference{Name: "s"}
	hello := map[string]string{"hello": "world"}
	for _, tc := range []struct {
		name     string
		source   v1.VolumeSource
		content  content
		label    string
		contains []string
		// message is part of the expected error. It is permanent if no change of the object can correct it.
		message   string
		permanent bool
	}{
		{name: "configMap", source: configMap(""), content: filesOf(ConfigMapVolume, hello), label: "cfgdata", contains: []string{"world"}},
		{name: "configMap with a label", source: configMap("config"), content: filesOf(ConfigMapVolume, hello), label: "config"},
		{name: "optional configMap that is missing", source: configMap(""), content: filesOf(ConfigMapVolume, nil), label: "cfgdata"},
		{name: "secret", source: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", VolumeLabel: "key"}},
			content: filesOf(SecretVolume, hello), label: "key", contains: []string{"world"}},
		{name: "downwardAPI", source: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{VolumeLabel: "down"}},
			content: filesOf(DownwardAPIVolume, map[string]string{"labels": "a=b", "deep/er": "c"}), label: "down",
			contains: []string{"a=b", "c"}},
		{name: "serviceAccount", source: v1.VolumeSource{ServiceAccount: &v1.ServiceAccountVolumeSource{ServiceAccountName: "a"}},
			content: filesOf(ProjectedVolume, map[string]string{"token": "ey", "ca.crt": "PEM", "namespace": "ns"}),
			label:   "cfgdata", contains: []string{"ey", "PEM", "ns"}},
		{name: "sysprep of a ConfigMap", source: v1.VolumeSource{Sysprep: &v1.SysprepSource{ConfigMap: ref}},
			content: filesOf(ConfigMapVolume, map[string]string{"Autounattend.xml": "<unattend/>"}), label: "unattendCD",
			contains: []string{"<unattend/>"}},
		{name: "sysprep of a Secret", source: v1.VolumeSource{Sysprep: &v1.SysprepSource{Secret: ref}},
			content: filesOf(SecretVolume, map[string]string{"unattend.xml": "<unattend/>"}), label: "unattendCD",
			contains: []string{"<unattend/>"}},
		{name: "sysprep without an answer", source: v1.VolumeSource{Sysprep: &v1.SysprepSource{Secret: ref}},
			content: filesOf(SecretVolume, hello), message: "Secret s has neither the key"},
		{name: "too much", source: configMap(""), content: filesOf(ConfigMapVolume, map[string]string{"a": strings.Repeat("x", maxFileBytes+1)}),
			message: "ConfigMap c: too much"},
		{name: "long name", source: configMap(""), content: filesOf(ConfigMapVolume, map[string]string{strings.Repeat("n", maxNameBytes+1): ""}),
			message: "more than 253 bytes"},
		{name: "the longest key", source: configMap(""), content: filesOf(ConfigMapVolume, map[string]string{strings.Repeat("n", 253): "long"}),
			label: filesLabel, contains: []string{"long"}},
		{name: "long label", source: configMap(strings.Repeat("l", maxLabelBytes+1)), content: filesOf(ConfigMapVolume, hello),
			message: "volumeLabel", permanent: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			launcher := libvirt.NewNode().Launcher("pod")
			got, err := Prepare(context.Background(), launcher, tc.content.write(t), limits, vmiWith(tc.source))
			if tc.message != "" {
				expectError(t, err, true, false, tc.message)
				if invalid := (*InvalidError)(nil); errors.As(err, &invalid) && invalid.Retryable == tc.permanent {
					t.Errorf("retryable is %v", invalid.Retryable)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			medium := launcher.Content("v.iso")
			want := domain.DiskFact{Path: ephemeralDir + "v.iso", Format: "raw", CapacityBytes: int64(len(medium))}
			if diff := cmp.Diff(want, got.Disks["v"]); diff != "" {
				t.Error(diff)
			}
			// The label's field in the primary volume descriptor. Source: ECMA-119, 8.4.
			if label := string(bytes.Trim(medium[16*isoBlock+40:16*isoBlock+72], "\x00 ")); label != tc.label {
				t.Errorf("the label is %q, want %q", label, tc.label)
			}
			for _, text := range tc.contains {
				if !bytes.Contains(medium, []byte(text)) {
					t.Errorf("the medium does not contain %q", text)
				}
			}
		})
	}
}

func TestFilesOfAMissingVolume(t *testing.T) {
	_, err := Prepare(context.Background(), libvirt.NewNode().Launcher("pod"), content{}.write(t), limits,
		vmiWith(configMap("")))
	var invalid *InvalidError
	if err == nil || errors.As(err, &invalid) {
		t.Errorf("got %v, want an error that is retried", err)
	}
}

func TestACPITables(t *testing.T) {
	table := strings.Repeat("t", acpiHeader)
	secret := v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}
	const path = "/var/run/kubevirt-private/files/v/"
	for _, tc := range []struct {
		name    string
		source  v1.VolumeSource
		acpi    v1.ACPI
		files   map[string]string
		want    domain.ACPIFact
		message string
	}{
		{name: "both", source: secret, acpi: v1.ACPI{SlicNameRef: "v", MsdmNameRef: "v"}, files: map[string]string{"slic.bin": table, "msdm.bin": table},
			want: domain.ACPIFact{SLIC: path + "slic.bin", MSDM: path + "msdm.bin"}},
		{name: "one", source: secret, acpi: v1.ACPI{MsdmNameRef: "v"}, files: map[string]string{"msdm.bin": table},
			want: domain.ACPIFact{MSDM: path + "msdm.bin"}},
		{name: "missing", source: secret, acpi: v1.ACPI{SlicNameRef: "v"}, files: map[string]string{"msdm.bin": table},
			message: "Secret s has no key slic.bin"},
		{name: "no table", source: secret, acpi: v1.ACPI{SlicNameRef: "v"}, files: map[string]string{"slic.bin": "?"},
			message: "slic.bin of Secret s has 1 bytes"},
		{name: "of another volume", source: v1.VolumeSource{Secret: secret.Secret}, acpi: v1.ACPI{SlicNameRef: "w"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			vmi := vmiWith(tc.source, func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Domain.Firmware.ACPI = &tc.acpi
			})
			got, err := Prepare(context.Background(), libvirt.NewNode().Launcher("pod"),
				filesOf(SecretVolume, tc.files).write(t), limits, vmi)
			if tc.message != "" {
				expectError(t, err, true, false, tc.message)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got.ACPI); diff != "" {
				t.Error(diff)
			}
		})
	}
}
