// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/vireo-project/vireo/internal/virtctl"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
)

// asVirtctl in the environment makes the test binary behave as virtctl: OpenSSH runs it as its ProxyCommand.
const asVirtctl = "VIREO_TEST_AS_VIRTCTL"

func TestMain(m *testing.M) {
	if os.Getenv(asVirtctl) != "" {
		os.Exit(virtctl.Run(context.Background(), os.Args))
	}
	os.Exit(m.Run())
}

// sshGuest is a guest with an SSH server that runs commands of this machine in a folder.
type sshGuest struct {
	*virtctltest.Server
	sshd   *virtctltest.SSHD
	folder string
	key    string
}

func newSSHGuest(t *testing.T) *sshGuest {
	t.Helper()
	for _, program := range []string{"ssh", "scp"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("the OpenSSH client is not installed")
		}
	}
	t.Setenv(asVirtctl, "true")
	t.Setenv("SSH_AUTH_SOCK", "")
	key, user := virtctltest.NewSSHKey(t)
	_, host := virtctltest.NewSSHKey(t)
	g := &sshGuest{Server: virtctltest.NewServer(t), folder: t.TempDir(), key: key}
	g.sshd = &virtctltest.SSHD{User: "jdoe", Key: user.PublicKey(), Host: host, Exec: g.exec}
	g.Stream(vmPath+"portforward/22/tcp", g.sshd.Stream)
	return g
}

// exec runs a command by the shell of this machine.
func (g *sshGuest) exec(command string, channel io.ReadWriter) int {
	cmd := exec.Command("sh", "-c", command)
	cmd.Dir, cmd.Stdout, cmd.Stderr = g.folder, channel, channel
	in, err := cmd.StdinPipe()
	if err != nil {
		return 255
	}
	go func() {
		_, _ = io.Copy(in, channel)
		_ = in.Close()
	}()
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

// knownHosts writes a file with the guest's host key. Its name has characters that OpenSSH interprets.
func (g *sshGuest) knownHosts(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "known 100% hosts")
	line := knownhosts.Line([]string{"vm.demo.tenant"}, g.sshd.Host.PublicKey()) + "\n"
	if err := os.WriteFile(file, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// run runs virtctl with the local OpenSSH client, which reads no configuration of this machine.
func (g *sshGuest) run(t *testing.T, input, knownHosts string, arguments ...string) virtctltest.Result {
	t.Helper()
	arguments = append(arguments, "--identity-file="+g.key, "--known-hosts="+knownHosts,
		"--local-ssh-opts=-F"+os.DevNull, "--local-ssh-opts=-oBatchMode=yes", "--local-ssh-opts=-oLogLevel=ERROR")
	return g.RunWith(t.Context(), virtctl.Execute, strings.NewReader(input), arguments...)
}

func TestSSHWithOpenSSH(t *testing.T) {
	g := newSSHGuest(t)
	known := g.knownHosts(t)
	if got := g.run(t, "", known, "ssh", "jdoe@vm/demo",
		"--command=echo out; exit 7"); got != (virtctltest.Result{Code: 7, Out: "out\n"}) {
		t.Errorf("%+v", got)
	}
	if got := g.run(t, "typed", known, "ssh", "vm/demo/tenant", "-l", "jdoe", "-c",
		"cat"); got != (virtctltest.Result{Out: "typed"}) {
		t.Errorf("%+v", got)
	}
	if got := g.run(t, "", known, "ssh", "other@vm/demo", "-c", "true"); got.Code != 255 ||
		!strings.Contains(got.ErrOut, "Permission denied") {
		t.Errorf("%+v", got)
	}
	other := newSSHGuest(t)
	if got := other.run(t, "", known, "ssh", "jdoe@vm/demo", "-c", "true"); got.Code != 255 ||
		!strings.Contains(got.ErrOut, "Host key verification failed") {
		t.Errorf("%+v", got)
	}
	if got := other.run(t, "", "", "ssh", "jdoe@vm/demo", "-c", "true"); got != (virtctltest.Result{}) {
		t.Errorf("host keys are checked with an empty --known-hosts: %+v", got)
	}
}

func TestSCPWithOpenSSH(t *testing.T) {
	g := newSSHGuest(t)
	known, here := g.knownHosts(t), t.TempDir()
	content := bytes.Repeat([]byte("0123456789abcde\n"), 20000)
	if err := os.MkdirAll(filepath.Join(here, "dir/sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(here, "dir/sub/deep"), content, 0o640); err != nil {
		t.Fatal(err)
	}
	// -O: SSHD has no sftp.
	for _, arguments := range [][]string{
		{"scp", "-r", "--preserve", filepath.Join(here, "dir"), "jdoe@vm/demo:copy", "--local-ssh-opts=-O"},
		{"scp", "-r", "--preserve", "jdoe@vm/demo/tenant:copy", filepath.Join(here, "back"), "--local-ssh-opts=-O"},
	} {
		if got := g.run(t, "", known, arguments...); got.Code != 0 {
			t.Fatalf("%q: %+v", arguments, got)
		}
	}
	back := filepath.Join(here, "back/sub/deep")
	if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, content) {
		t.Errorf("got %d bytes and %v, want %d", len(got), err, len(content))
	}
	if info, err := os.Stat(back); err != nil || info.Mode() != 0o640 {
		t.Errorf("the mode was not preserved: %v %v", info, err)
	}
}

func TestSSHRefuses(t *testing.T) {
	s := virtctltest.NewServer(t)
	t.Setenv("PATH", t.TempDir())
	for command, want := range map[string]string{
		"ssh @vm/demo":                         "expected username before '@'",
		"ssh jdoe@":                            "expected target after '@'",
		"ssh -oProxyCommand=x@vm/demo":         "unknown shorthand flag",
		"ssh vm/demo -l -oProxyCommand=x":      `username "-oProxyCommand=x" begins with a dash`,
		"ssh jdoe@vm/demo --local-ssh=false":   "--local-ssh=false is not supported",
		"scp a jdoe@vm/demo:b --local-ssh=0":   "--local-ssh=false is not supported",
		"scp a b":                              "none of the two provided locations seems to be a remote location",
		"scp a@vm/b:c d@vm/e:f":                "another remote location is not supported",
		"ssh jdoe@vm/demo":                     "virtctl ssh runs the local OpenSSH client, which must be installed",
		"scp --local-ssh a jdoe@vm/demo:/b -r": "virtctl scp runs the local OpenSSH client, which must be installed",
	} {
		t.Run(command, func(t *testing.T) {
			expectFailure(t, s.Run(virtctl.Execute, strings.Fields(command)...), want)
		})
	}
}

func TestSSHArgumentsForOpenSSH(t *testing.T) {
	s := virtctltest.NewServer(t)
	bin := t.TempDir()
	for _, name := range []string{"ssh", "scp"} {
		script := "#!/bin/sh\nprintf '%s\\n' " + name + " \"$@\"\nexit 9\n"
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	proxy := "ProxyCommand=" + self + " port-forward --stdio=true --kubeconfig=" + s.Kubeconfig() + " vm/demo/tenant 2222"
	tests := map[string]struct {
		arguments []string
		want      []string
		warning   string
	}{
		"ssh": {
			arguments: []string{"ssh", "jdoe@vm/demo", "--port=2222", "--local-ssh-opts=-oX=y", "--identity-file=key",
				"--command=ls -l"},
			want: []string{"ssh", "-o", proxy, "-oX=y", "-i", "key", "jdoe@vm.demo.tenant", "ls -l"},
		},
		"known hosts": {
			arguments: []string{"ssh", "jdoe@vm/demo", "--port=2222", "--known-hosts=~/100%"},
			want:      []string{"ssh", "-o", proxy, "-o", `UserKnownHostsFile="~/100%%"`, "jdoe@vm.demo.tenant"},
		},
		"no known hosts": {
			arguments: []string{"ssh", "jdoe@vm/demo", "--port=2222", "--known-hosts="},
			want: []string{"ssh", "-o", proxy, "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
				"jdoe@vm.demo.tenant"},
		},
		"scp up": {
			arguments: []string{"scp", "-p", "2222", "-r", "--preserve", "a", "jdoe@vm/demo:b"},
			want:      []string{"scp", "-o", proxy, "-r", "-p", "a", "jdoe@vm.demo.tenant:b"},
		},
		"scp down": {
			arguments: []string{"scp", "--local-ssh", "-p", "2222", "jdoe@vm/demo:b", "a"},
			want:      []string{"scp", "-o", proxy, "jdoe@vm.demo.tenant:b", "a"},
			warning:   "Flag --local-ssh has been deprecated, the local OpenSSH client is always used\n",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := s.Run(virtctl.Execute, tt.arguments...)
			if want := (virtctltest.Result{Code: 9, Out: strings.Join(tt.want, "\n") + "\n", ErrOut: tt.warning}); got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}
