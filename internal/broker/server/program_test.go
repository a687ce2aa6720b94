// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"flag"
	"strings"
	"testing"

	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// A program that is started in a way that it does not know ends with an error, and so does the check of a process that
// does not run.
func TestArguments(t *testing.T) {
	var own int
	p := Program{Name: brokerapi.NetworkBroker,
		Flags: func(fs *flag.FlagSet) { fs.IntVar(&own, "own", 0, "a flag of the program") }}
	for _, tc := range []struct {
		want      string
		arguments []string
	}{
		{"unknown argument", []string{"serve"}},
		{"not defined", []string{"check", "--other"}},
		{"does not respond", []string{"check", "--kubelet-root", t.TempDir(), "--own", "7"}},
	} {
		if err := p.run(tc.arguments); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v", tc.arguments, err)
		}
	}
	if own != 7 {
		t.Errorf("its own flag is %d", own)
	}
}
