// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package masquerade_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vireo-project/vireo/internal/launcher/dhcp"
	"github.com/vireo-project/vireo/internal/launcherpod/masquerade"
)

func TestCIDRs(t *testing.T) {
	for name, tc := range map[string]struct {
		read       func(string) (netip.Prefix, error)
		text, want string
		fault      string
	}{
		"nothing":                {masquerade.IPv4, "", "10.0.2.0/24", ""},
		"no IPv6":                {masquerade.IPv6, "", "fd10:0:2::/120", ""},
		"an IPv4 network":        {masquerade.IPv4, "10.10.10.0/24", "10.10.10.0/24", ""},
		"leading zeros":          {masquerade.IPv4, "10.10.010.0/24", "10.10.10.0/24", ""},
		"leading zeros of bits":  {masquerade.IPv4, "10.10.10.0/024", "10.10.10.0/24", ""},
		"a host's address":       {masquerade.IPv4, "192.168.7.9/24", "192.168.7.0/24", ""},
		"IPv4 written as IPv6":   {masquerade.IPv4, "::ffff:10.1.0.0/112", "10.1.0.0/16", ""},
		"an IPv6 network":        {masquerade.IPv6, "FD00:0:0::1/64", "fd00::/64", ""},
		"the smallest":           {masquerade.IPv4, "10.1.1.4/30", "10.1.1.4/30", ""},
		"no room":                {masquerade.IPv4, "10.1.1.4/31", "", "at most 30 bits"},
		"no room for IPv6":       {masquerade.IPv6, "fd00::/127", "", "at most 126 bits"},
		"the other family":       {masquerade.IPv4, "fd00::/64", "", "must be an IPv4 network"},
		"the other family, IPv6": {masquerade.IPv6, "10.0.0.0/8", "", "must be an IPv6 network"},
		"no prefix":              {masquerade.IPv4, "10.0.2", "", "must be an IPv4 network"},
		"more after it":          {masquerade.IPv4, "10.0.2.0/24,bridge", "", "must be an IPv4 network"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tc.read(tc.text)
			if tc.fault != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fault) {
					t.Fatalf("got %s, %v, want an error with %q", got, err, tc.fault)
				}
				return
			}
			if err != nil || got.String() != tc.want {
				t.Fatalf("got %s, %v, want %s", got, err, tc.want)
			}
			// virt-launcher accepts the canonical form only.
			argument := "eth0,masquerade," + got.String()
			if got.Addr().Is6() {
				argument = "eth0,masquerade,," + got.String()
			}
			if _, err := dhcp.ParseInterface(argument); err != nil {
				t.Errorf("virt-launcher rejects it: %v", err)
			}
		})
	}
}
