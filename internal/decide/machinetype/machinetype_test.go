// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package machinetype_test

import (
	"strings"
	"testing"

	"github.com/vireo-project/vireo/internal/decide/machinetype"
)

func TestForStart(t *testing.T) {
	for spec, want := range map[string]string{
		"":                "",
		"q35":             "q35",
		"pc-q35":          "pc-q35",
		"pc-q35-10.0":     "pc-q35-10.0",
		"virt-9.2":        "virt-9.2",
		"s390-ccw-virtio": "s390-ccw-virtio",

		"pc-q35-rhel7.3.0":  "pc-q35-2.6",
		"pc-q35-rhel7.4.0":  "pc-q35-2.9",
		"pc-q35-rhel7.5.0":  "pc-q35-2.11",
		"pc-q35-rhel7.6.0":  "pc-q35-2.12",
		"pc-q35-rhel8.0.0":  "pc-q35-3.1",
		"pc-q35-rhel8.1.0":  "pc-q35-4.1",
		"pc-q35-rhel8.2.0":  "pc-q35-4.2",
		"pc-q35-rhel8.3.0":  "pc-q35-5.1",
		"pc-q35-rhel8.4.0":  "pc-q35-5.2",
		"pc-q35-rhel8.5.0":  "pc-q35-6.0",
		"pc-q35-rhel8.6.0":  "pc-q35-6.2",
		"pc-q35-rhel9.0.0":  "pc-q35-6.2",
		"pc-q35-rhel9.2.0":  "pc-q35-7.2",
		"pc-q35-rhel9.4.0":  "pc-q35-8.2",
		"pc-q35-rhel9.6.0":  "pc-q35-9.1",
		"pc-q35-rhel9.8.0":  "pc-q35-10.0",
		"pc-q35-rhel10.0.0": "pc-q35-9.1",
		"pc-q35-rhel10.2.0": "pc-q35-10.0",
		// Releases before, between and after those that are known.
		"pc-q35-rhel7.0.0":  "pc-q35-2.6",
		"pc-q35-rhel9.3.0":  "pc-q35-7.2",
		"pc-q35-rhel11.0.0": "pc-q35-10.0",

		"virt-rhel8.2.0":             "virt-4.2",
		"virt-rhel9.2.0":             "virt-7.2",
		"s390-ccw-virtio-rhel8.6.0":  "s390-ccw-virtio-6.2",
		"s390-ccw-virtio-rhel10.0.0": "s390-ccw-virtio-9.1",

		// What is no release stays, and QEMU refuses it.
		"pc-q35-rhel":         "pc-q35-rhel",
		"pc-q35-rhel9":        "pc-q35-rhel9",
		"pc-q35-rhel9.2.0-hw": "pc-q35-rhel9.2.0-hw",
		"pc-q35-rhel-9.2.0":   "pc-q35-rhel-9.2.0",
	} {
		got := machinetype.ForStart(spec)
		if got != want {
			t.Errorf("%q starts as %q, want %q", spec, got, want)
		}
		if text := machinetype.Replaced(spec); (text != "") != (spec != want) || text != "" && !strings.Contains(text, want) {
			t.Errorf("%q: %q", spec, text)
		}
	}
}
