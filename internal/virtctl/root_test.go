// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/vireo-project/vireo/internal/virtctl"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
)

func TestProgramName(t *testing.T) {
	for argv0, want := range map[string]string{
		"virtctl": "virtctl", "/usr/bin/virtctl": "virtctl", "./kubectl-virt": "kubectl virt", "/x/kubectl-virt.exe": "kubectl virt",
		"oc-virt": "oc virt", "/tmp/virtctl-v1.2.3": "virtctl",
	} {
		if got := cli.ProgramName(argv0); got != want {
			t.Errorf("%s calls itself %q, want %q", argv0, got, want)
		}
	}
}

// Every command has a description and an example, which as a plugin contain the plugin's name.
func TestHelp(t *testing.T) {
	c := cli.New("kubectl-virt", genericiooptions.IOStreams{})
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		_ = cmd.InheritedFlags() // Flags that clash with those of all commands panic.
		if cmd.Short == "" {
			t.Errorf("%s has no description", cmd.CommandPath())
		}
		if !cmd.HasParent() || cmd.HasSubCommands() || cmd.Name() == "options" || cmd.Name() == "help" {
			return
		}
		if !strings.Contains(cmd.Example, cmd.CommandPath()) {
			t.Errorf("%s has no example of itself:\n%s", cmd.CommandPath(), cmd.Example)
		}
		if text := cmd.Short + cmd.Long + cmd.Example + cmd.Flags().FlagUsages(); strings.Contains(text, "virtctl") {
			t.Errorf("the help of the plugin %s contains virtctl:\n%s", cmd.CommandPath(), text)
		}
	}
	walk(virtctl.Command(c))
}

func TestUsage(t *testing.T) {
	var out bytes.Buffer
	c := cli.New("/usr/local/bin/kubectl-virt", genericiooptions.IOStreams{Out: &out, ErrOut: &out})
	if code := virtctl.Execute(t.Context(), c, []string{"start", "--help"}); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	for _, want := range []string{"kubectl virt start (VM) [flags]", "kubectl virt start myvm --paused", `Use "kubectl virt options"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the help does not contain %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "--kubeconfig") {
		t.Errorf("the help has the flags of all commands:\n%s", out.String())
	}
}

// Warnings of the API server are printed once, as by kubectl.
func TestWarnings(t *testing.T) {
	s := virtctltest.NewServer(t)
	s.Subresource(http.MethodPut, vmPath+"start", func(w http.ResponseWriter, _ *http.Request) {
		for range 2 {
			w.Header().Add("Warning", `299 - "spec.running is deprecated"`)
		}
		w.WriteHeader(http.StatusAccepted)
	})
	if got := s.Run(virtctl.Execute, "start", "myvm"); got.Code != 0 ||
		got.ErrOut != "Warning: spec.running is deprecated\n" {
		t.Errorf("%+v", got)
	}
}

func TestVersion(t *testing.T) {
	s := virtctltest.NewServer(t)
	s.Record(http.MethodGet, "/version", http.StatusOK, `{"gitVersion":"v1.9.0","goVersion":"go1.26","platform":"linux/amd64"}`)
	got := s.Run(virtctl.Execute, "version")
	for _, want := range []string{"Client Version: version.Info{GitVersion:", `Server Version: version.Info{GitVersion:"v1.9.0"`} {
		if !strings.Contains(got.Out, want) {
			t.Errorf("version does not print %q:\n%s%s", want, got.Out, got.ErrOut)
		}
	}
	if got := s.Run(virtctl.Execute, "version", "-o", "yaml"); !strings.Contains(got.Out, "serverVersion:\n") {
		t.Errorf("version -o yaml: %+v", got)
	}
	requests := len(s.Requests())
	if got := s.Run(virtctl.Execute, "version", "--client"); got.Code != 0 || strings.Contains(got.Out, "Server") ||
		len(s.Requests()) != requests {
		t.Errorf("version --client sends a request: %+v", got)
	}
	expectFailure(t, s.Run(virtctl.Execute, "version", "-o", "toml"), `"toml" is not known`)
}
