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
	"github.com/vireo-project/vireo/internal/handler/hypervisor/fake"
)

// filesOf is the volume of the VMI's volume v.
func filesOf(kind VolumeKind, files map[string]string) content {
	return content{kind: {"v-files": files}}
}

func configMap(label string) v1.VolumeSource {
	source := &v1.ConfigMapVolumeSource{VolumeLabel: label}
	source.Name = "c"
	return v1.VolumeSource{ConfigMap: source}
}

func TestFileMedia(t *testing.T) {
	ref := &corev1.LocalObjectReference{Name: "s"}
	hello := map[string]string{"hello": "world"}
	for _, tc := range []struct {
		name    string
		source  v1.VolumeSource
		content content
		label   string
		holds   []string
		// refusal is what the error says instead; for good says that no change of the object mends it.
		refusal string
		forGood bool
	}{
		{name: "configMap", source: configMap(""), content: filesOf(ConfigMapVolume, hello), label: "cfgdata", holds: []string{"world"}},
		{name: "configMap with a label", source: configMap("config"), content: filesOf(ConfigMapVolume, hello), label: "config"},
		{name: "optional configMap that is missing", source: configMap(""), content: filesOf(ConfigMapVolume, nil), label: "cfgdata"},
		{name: "secret", source: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", VolumeLabel: "key"}},
			content: filesOf(SecretVolume, hello), label: "key", holds: []string{"world"}},
		{name: "downwardAPI", source: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{VolumeLabel: "down"}},
			content: filesOf(DownwardAPIVolume, map[string]string{"labels": "a=b", "deep/er": "c"}), label: "down", holds: []string{"a=b", "c"}},
		{name: "serviceAccount", source: v1.VolumeSource{ServiceAccount: &v1.ServiceAccountVolumeSource{ServiceAccountName: "a"}},
			content: filesOf(ProjectedVolume, map[string]string{"token": "ey", "ca.crt": "PEM", "namespace": "ns"}),
			label:   "cfgdata", holds: []string{"ey", "PEM", "ns"}},
		{name: "sysprep of a ConfigMap", source: v1.VolumeSource{Sysprep: &v1.SysprepSource{ConfigMap: ref}},
			content: filesOf(ConfigMapVolume, map[string]string{"Autounattend.xml": "<unattend/>"}), label: "unattendCD", holds: []string{"<unattend/>"}},
		{name: "sysprep of a Secret", source: v1.VolumeSource{Sysprep: &v1.SysprepSource{Secret: ref}},
			content: filesOf(SecretVolume, map[string]string{"unattend.xml": "<unattend/>"}), label: "unattendCD", holds: []string{"<unattend/>"}},
		{name: "sysprep without an answer", source: v1.VolumeSource{Sysprep: &v1.SysprepSource{Secret: ref}},
			content: filesOf(SecretVolume, hello), refusal: "Secret s has neither the key autounattend.xml nor unattend.xml"},
		{name: "too much", source: configMap(""), content: filesOf(ConfigMapVolume, map[string]string{"a": strings.Repeat("x", maxFileBytes+1)}),
			refusal: "ConfigMap c: read volume"},
		{name: "long name", source: configMap(""), content: filesOf(ConfigMapVolume, map[string]string{strings.Repeat("n", maxNameBytes+1): ""}),
			refusal: "has 104 bytes"},
		{name: "long label", source: configMap(strings.Repeat("l", maxLabelBytes+1)), content: filesOf(ConfigMapVolume, hello),
			refusal: "volumeLabel", forGood: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			launcher := fake.NewNode().Launcher("pod")
			got, err := Prepare(context.Background(), launcher, tc.content.write(t), limits, vmiWith(tc.source))
			if tc.refusal != "" {
				expectRefusal(t, err, true, false, tc.refusal)
				if invalid := (*InvalidError)(nil); errors.As(err, &invalid) && invalid.Passing == tc.forGood {
					t.Errorf("passing is %v", invalid.Passing)
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
			// The label's place in the primary volume descriptor. Source: ECMA-119, 8.4.
			if label := string(bytes.Trim(medium[16*isoBlock+40:16*isoBlock+72], "\x00 ")); label != tc.label {
				t.Errorf("the label is %q, want %q", label, tc.label)
			}
			for _, text := range tc.holds {
				if !bytes.Contains(medium, []byte(text)) {
					t.Errorf("the medium does not hold %q", text)
				}
			}
		})
	}
}

func TestFilesOfAVolumeThatIsNotThere(t *testing.T) {
	_, err := Prepare(context.Background(), fake.NewNode().Launcher("pod"), content{}.write(t), limits, vmiWith(configMap("")))
	var invalid *InvalidError
	if err == nil || errors.As(err, &invalid) {
		t.Errorf("got %v, want an error that is tried again at once", err)
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
		refusal string
	}{
		{name: "both", source: secret, acpi: v1.ACPI{SlicNameRef: "v", MsdmNameRef: "v"}, files: map[string]string{"slic.bin": table, "msdm.bin": table},
			want: domain.ACPIFact{SLIC: path + "slic.bin", MSDM: path + "msdm.bin"}},
		{name: "one", source: secret, acpi: v1.ACPI{MsdmNameRef: "v"}, files: map[string]string{"msdm.bin": table},
			want: domain.ACPIFact{MSDM: path + "msdm.bin"}},
		{name: "missing", source: secret, acpi: v1.ACPI{SlicNameRef: "v"}, files: map[string]string{"msdm.bin": table},
			refusal: "Secret s has no key slic.bin"},
		{name: "no table", source: secret, acpi: v1.ACPI{SlicNameRef: "v"}, files: map[string]string{"slic.bin": "?"},
			refusal: "slic.bin of Secret s has 1 bytes"},
		{name: "of another volume", source: v1.VolumeSource{Secret: secret.Secret}, acpi: v1.ACPI{SlicNameRef: "w"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			vmi := vmiWith(tc.source, func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Domain.Firmware.ACPI = &tc.acpi
			})
			got, err := Prepare(context.Background(), fake.NewNode().Launcher("pod"), filesOf(SecretVolume, tc.files).write(t), limits, vmi)
			if tc.refusal != "" {
				expectRefusal(t, err, true, false, tc.refusal)
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
