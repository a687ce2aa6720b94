// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcherpod

import (
	"testing"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestMigration(t *testing.T) {
	if MigrationInterface != v1.MigrationInterfaceName {
		t.Errorf("got %s, want %s", MigrationInterface, v1.MigrationInterfaceName)
	}
}

func TestNames(t *testing.T) {
	cases := []struct{ pod, bridge, tap, displaced, placeholder string }{
		{"eth0", "k6t-eth0", "tap0", "eth0-nic", "eth0-pod"},
		{"net1", "k6t-net1", "tapnet1", "net1-nic", "net1-pod"},
		{SecondaryInterface("blue"), "k6t-16477688c0e", "tap16477688c0e", "16477688c0e-nic", "16477688c0e-pod"},
	}
	for _, c := range cases {
		got := [4]string{Bridge(c.pod), Tap(c.pod), Displaced(c.pod), Placeholder(c.pod)}
		if want := [4]string{c.bridge, c.tap, c.displaced, c.placeholder}; got != want {
			t.Errorf("%s: got %v, want %v", c.pod, got, want)
		}
		for _, name := range append(got[:], c.pod) {
			if len(name) > 15 {
				t.Errorf("%s is too long for Linux", name)
			}
		}
		known := func(name string) bool { return name == c.pod }
		if back, ok := InterfaceOfBridge(c.bridge, known); !ok || back != c.pod {
			t.Errorf("%s leads to %s", c.bridge, back)
		}
	}
	if _, ok := InterfaceOfBridge("br0", func(string) bool { return true }); ok {
		t.Error("another bridge was accepted")
	}
}

func TestIsSecondary(t *testing.T) {
	for name, want := range map[string]bool{
		SecondaryInterface("blue"): true, "eth0": false, "net1": false, "pod": false, "pod0123456789g": false,
		"pod0123456789ab": false, MigrationInterface: false,
	} {
		if got := IsSecondaryInterface(name); got != want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
