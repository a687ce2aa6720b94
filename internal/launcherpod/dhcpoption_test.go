// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcherpod

import (
	"strings"
	"testing"
)

func TestDHCPOptionGoesThroughAFlag(t *testing.T) {
	for _, want := range []DHCPOption{
		{"eth0", BootFileNameOption, "boot/pxelinux.0"},
		{"eth0", TFTPServerNameOption, "tftp.example.com, port 69"},
		{"eth0", NTPServersOption, "192.0.2.1 192.0.2.2"},
		{"pod16477688c0e", 240, "$(HOME) $$ 100% a+b\x00\nä"},
		{"eth0", 254, ""},
	} {
		flag := want.String()
		if strings.ContainsAny(flag, "$ \x00\n") {
			t.Errorf("%q is not safe as an argument of a container", flag)
		}
		got, err := ParseDHCPOption(flag)
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", flag, got, err, want)
		}
	}
}

func TestDHCPOptionRefused(t *testing.T) {
	for flag, want := range map[string]string{
		"":           "want INTERFACE",
		"eth0,67":    "want INTERFACE",
		",67,x":      "want INTERFACE",
		"eth0,x,y":   "number",
		"eth0,300,y": "number",
		// What the guest depends on is not to be replaced.
		"eth0,3,10.0.0.1": "cannot be added",
		"eth0,223,x":      "cannot be added",
		"eth0,255,x":      "cannot be added",
		"eth0,67,%zz":     "option 67",
	} {
		if got, err := ParseDHCPOption(flag); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %+v, %v, want an error with %q", flag, got, err, want)
		}
	}
}
