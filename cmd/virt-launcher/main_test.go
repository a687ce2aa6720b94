// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

func TestInvalidCommandLineWritesAnOutcome(t *testing.T) {
	for name, tc := range map[string]struct {
		arguments []string
		want      string
	}{
		"an invalid CIDR": {[]string{"--name", "vm", "--namespace", "ns", "--interface", "eth0,masquerade,10.10.010.0/24"}, "10.10.010.0/24"},
		"an unknown flag": {[]string{"--name", "vm", "--unknown"}, "--unknown"},
		"no name":         {[]string{"--namespace", "ns"}, "--name is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "termination-log")
			if code := run(append([]string{"--" + terminationLogFlag, log}, tc.arguments...)); code != usageError {
				t.Errorf("exit code %d", code)
			}
			text, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			var outcome launcherpod.Outcome
			if err := json.Unmarshal(text, &outcome); err != nil || outcome.Reason != launcherpod.OutcomeInternal ||
				!strings.Contains(outcome.Message, tc.want) {
				t.Errorf("got %q, %v, want an outcome with %q", text, err, tc.want)
			}
		})
	}
}

// A probe runs in the launcher's container, whose outcome it must not write.
func TestSubcommandWritesNoOutcome(t *testing.T) {
	const log = "/dev/termination-log"
	if _, err := os.Stat(log); err == nil {
		t.Skip("the tests run in a container that has one")
	}
	if code := run([]string{"probe"}); code != usageError {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Stat(log); err == nil {
		t.Errorf("%s was written", log)
	}
}
