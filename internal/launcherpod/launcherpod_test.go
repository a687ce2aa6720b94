// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcherpod_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

func TestNamesOfSecretVolumes(t *testing.T) {
	if got := launcherpod.UserDataVolume("seed"); got != "seed-udata" {
		t.Errorf("got %q", got)
	}
	longest := strings.Repeat("v", validation.DNS1123LabelMaxLength)
	names := map[string]bool{}
	for _, volume := range []string{longest, longest[1:] + "w", longest[:58]} {
		for _, name := range []string{launcherpod.UserDataVolume(volume), launcherpod.NetworkDataVolume(volume)} {
			if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
				t.Errorf("%q: %v", name, problems)
			}
			names[name] = true
		}
	}
	if len(names) != 6 {
		t.Errorf("names clash: %v", names)
	}
}

func TestNamesOfCredentialVolumes(t *testing.T) {
	names := map[string]bool{}
	for secret, want := range map[string]string{
		"keys": "keys-access-cred", "my-keys": "my-keys-access-cred", "my.keys": "", strings.Repeat("s", 253): "", strings.Repeat("s", 252): "",
	} {
		name := launcherpod.CredentialsVolume(secret)
		if want != "" && name != want {
			t.Errorf("%s: got %q, want %q", secret, name, want)
		}
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			t.Errorf("%q: %v", name, problems)
		}
		names[name] = true
	}
	if len(names) != 5 {
		t.Errorf("names clash: %v", names)
	}
}
