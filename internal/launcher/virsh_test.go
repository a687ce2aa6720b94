// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// imageEnvironment returns the environment of a container of the launcher image.
func imageEnvironment(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	_, target, _ := strings.Cut(string(text), " AS virt-launcher\n")
	target, _, _ = strings.Cut(target, "\nFROM ")
	for line := range strings.Lines(target) {
		if environment, found := strings.CutPrefix(line, "ENV "); found {
			return strings.Fields(environment)
		}
	}
	t.Fatal("the launcher image sets no environment")
	return nil
}

// run runs a program in the Pod, as kubectl exec does.
func (p *pod) run(environment []string, program string, arguments ...string) string {
	p.t.Helper()
	command := exec.Command(program, arguments...)
	command.Env, command.Dir = environment, "/"
	command.SysProcAttr = &syscall.SysProcAttr{
		Chroot:     fmt.Sprintf("/proc/%d/root", p.cmd.Process.Pid),
		Credential: &syscall.Credential{Uid: launcherpod.QEMUUser, Gid: launcherpod.QEMUUser},
	}
	output, err := command.CombinedOutput()
	if err != nil {
		p.t.Errorf("%s %q: %v: %s", program, arguments, err, output)
	}
	return strings.TrimSpace(string(output))
}

// People, and scripts for KubeVirt, run virsh in the Pod.
func TestVirshInThePodHasItsDomain(t *testing.T) {
	p := startPod(t)
	startDomain(t, p)
	environment := imageEnvironment(t)
	for name, arguments := range map[string][]string{
		"by default":     {"list", "--name"},
		"KubeVirt's URI": {"-c", "qemu+unix:///session?socket=/var/run/libvirt/virtqemud-sock", "list", "--name"},
	} {
		if got := p.run(environment, "/usr/bin/virsh", arguments...); got != "default_test" {
			t.Errorf("%s: virsh has the domains %q", name, got)
		}
	}
}
