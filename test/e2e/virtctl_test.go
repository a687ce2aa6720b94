// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
)

// virtctlProgram is the output of `make build`.
var virtctlProgram = valueOr("VIRTCTL", filepath.Join("..", "..", "bin", "virtctl"))

// kubectlProgram is the output of `make cluster-up`.
var kubectlProgram = valueOr("KUBECTL", filepath.Join("..", "..", "bin", "kubectl"))

// kubectl runs a command that must succeed, with an input, and returns what it prints to its two outputs.
func kubectl(ctx context.Context, input string, args ...string) string {
	GinkgoHelper()
	output, warnings := kubectlOutputs(ctx, input, args...)
	return output + warnings
}

// kubectlOutputs returns the outputs separately: to the second, kubectl also prints that an API service of another spec
// does not respond.
func kubectlOutputs(ctx context.Context, input string, args ...string) (output, warnings string) {
	GinkgoHelper()
	command := exec.CommandContext(ctx, kubectlProgram, args...)
	command.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	Expect(command.Run()).To(Succeed(), func() string { return fmt.Sprintf("kubectl %v: %s%s", args, &stdout, &stderr) })
	return stdout.String(), stderr.String()
}

// terminal is a running virtctl with its input and output.
type terminal struct {
	*gexec.Session
	keys io.WriteCloser
}

// startVirtctl starts a command that runs until the spec ends.
func startVirtctl(ctx context.Context, args ...string) *terminal {
	GinkgoHelper()
	command := exec.CommandContext(ctx, virtctlProgram, args...)
	keys, err := command.StdinPipe()
	Expect(err).NotTo(HaveOccurred())
	session, err := gexec.Start(command, GinkgoWriter, GinkgoWriter)
	Expect(err).NotTo(HaveOccurred(), "`make virtctl` builds it, and VIRTCTL names another one")
	DeferCleanup(func() {
		_ = keys.Close()
		session.Kill()
	})
	return &terminal{Session: session, keys: keys}
}

// runVirtctl runs a command until it exits, and returns its output and exit code.
func runVirtctl(ctx context.Context, args ...string) (output string, code int) {
	GinkgoHelper()
	t := startVirtctl(ctx, args...)
	_ = t.keys.Close()
	Eventually(t.Session).WithContext(ctx).WithTimeout(shortTimeout).Should(gexec.Exit())
	return string(t.Out.Contents()) + string(t.Err.Contents()), t.ExitCode()
}

// expectVirtctl runs a command that must succeed, and returns its output.
func expectVirtctl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	output, code := runVirtctl(ctx, args...)
	Expect(code).To(BeZero(), "virtctl %v: %s", args, output)
	return output
}

// expectRefused runs a command that must fail, and returns its output.
func expectRefused(ctx context.Context, args ...string) string {
	GinkgoHelper()
	output, code := runVirtctl(ctx, args...)
	Expect(code).NotTo(BeZero(), "virtctl %v: %s", args, output)
	return output
}

// press writes to the command's input.
func (t *terminal) press(keys string) {
	GinkgoHelper()
	_, err := io.WriteString(t.keys, keys)
	Expect(err).NotTo(HaveOccurred())
}

// expectOutput waits until one of the command's two outputs matches.
func expectOutput(ctx context.Context, output *gbytes.Buffer, pattern string) {
	GinkgoHelper()
	Eventually(output).WithContext(ctx).WithTimeout(shortTimeout).Should(gbytes.Say(pattern))
}

// openConsole connects to a guest's console and waits for its prompt.
func openConsole(ctx context.Context, namespace, name string) *terminal {
	GinkgoHelper()
	t := startVirtctl(ctx, "console", "-n", namespace, name)
	expectOutput(ctx, t.Err, "Successfully connected to "+name+" console")
	Eventually(func() *gbytes.Buffer {
		t.press("\n")
		return t.Out
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(2 * time.Second).Should(gbytes.Say("root@"))
	return t
}

var forwardedAt = regexp.MustCompile(`Forwarding from (\S+) `)

// forward opens a local port that forwards to a guest's port, such as ":80" or "udp/:53", and returns its address.
func forward(ctx context.Context, namespace, name, port string, options ...string) (address string, running *terminal) {
	GinkgoHelper()
	running = startVirtctl(ctx, append([]string{"port-forward", "-n", namespace, "vmi/" + name, port}, options...)...)
	Eventually(func() []byte { return running.Out.Contents() }).WithContext(ctx).WithTimeout(shortTimeout).
		Should(MatchRegexp(forwardedAt.String()))
	address = string(forwardedAt.FindSubmatch(running.Out.Contents())[1])
	_, _, err := net.SplitHostPort(address)
	Expect(err).NotTo(HaveOccurred())
	return address, running
}
