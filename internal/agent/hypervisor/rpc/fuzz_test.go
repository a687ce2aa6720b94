// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"net/netip"
	"testing"
	"unicode/utf8"
)

// FuzzGuestAgent checks that whatever a guest agent responds, the result is printable and limited, in number and in
// length.
func FuzzGuestAgent(f *testing.F) {
	f.Fuzz(func(t *testing.T, response []byte) {
		expectText := func(texts ...string) {
			for _, text := range texts {
				if !utf8.ValidString(text) || utf8.RuneCountInString(text) > maxStatusText {
					t.Errorf("%d bytes: %.40q", len(text), text)
				}
			}
		}
		if os, err := parseOSInfo(response); err == nil {
			expectText(os.ID, os.Name, os.PrettyName, os.Version, os.VersionID, os.KernelRelease, os.KernelVersion, os.Machine)
		}
		interfaces, _ := parseInterfaces(response)
		if len(interfaces.Items) > maxGuestInterfaces {
			t.Errorf("%d interfaces", len(interfaces.Items))
		}
		for _, i := range interfaces.Items {
			expectText(i.Name, i.MAC)
			if len(i.IPs) > maxGuestAddresses {
				t.Errorf("%d addresses", len(i.IPs))
			}
			for _, ip := range i.IPs {
				if parsed, err := netip.ParseAddr(ip); err != nil || parsed.String() != ip || parsed.Zone() != "" {
					t.Errorf("address %q", ip)
				}
			}
		}
		users, _ := parseUsers(response)
		if len(users.Items) > maxGuestUsers {
			t.Errorf("%d users", len(users.Items))
		}
		for _, u := range users.Items {
			expectText(u.Name, u.Domain)
		}
		filesystems, _ := parseFilesystems(response)
		if len(filesystems.Items) > maxGuestFilesystems {
			t.Errorf("%d file systems", len(filesystems.Items))
		}
		for _, fs := range filesystems.Items {
			expectText(fs.Name, fs.Mountpoint, fs.Type)
			if len(fs.Disks) > maxGuestDisks {
				t.Errorf("%d disks", len(fs.Disks))
			}
		}
	})
}
