// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// unprivilegedEnv makes the test binary call SetNoNewPrivs and start a program.
const unprivilegedEnv = "VIREO_TEST_UNPRIVILEGED"

func TestNoNewPrivsIsInherited(t *testing.T) {
	if os.Getenv(unprivilegedEnv) != "" {
		if err := SetNoNewPrivs(); err != nil {
			t.Fatal(err)
		}
		child := exec.Command("cat", "/proc/self/status")
		child.Stdout = os.Stdout
		if err := child.Run(); err != nil {
			t.Fatal(err)
		}
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	probe := exec.Command(self, "-test.run", "^"+t.Name()+"$")
	probe.Env = append(os.Environ(), unprivilegedEnv+"=1")
	out, err := probe.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if name, value, _ := strings.Cut(line, ":"); name == "NoNewPrivs" {
			if value = strings.TrimSpace(value); value != "1" {
				t.Errorf("NoNewPrivs is %s", value)
			}
			return
		}
	}
	t.Errorf("no status in %s", out)
}
