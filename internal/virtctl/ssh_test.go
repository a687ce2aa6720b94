// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/virtctl"
	"github.com/vireo-project/vireo/internal/virtctl/virtctltest"
)

// sshGuest is a cluster with a guest that runs commands in a folder of this machine, and the flags to come in.
type sshGuest struct {
	*virtctltest.Server
	sshd   *virtctltest.SSHD
	folder string
	flags  []string
}

func newSSHGuest(t *testing.T) *sshGuest {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
	t.Setenv("SSH_AUTH_SOCK", "")
	key, user := virtctltest.NewKey(t)
	_, host := virtctltest.NewKey(t)
	g := &sshGuest{Server: virtctltest.NewServer(t), folder: t.TempDir()}
	g.sshd = &virtctltest.SSHD{User: "jdoe", Key: user.PublicKey(), Host: host, Exec: g.exec}
	g.Stream(vmPath+"portforward/22/tcp", g.sshd.Stream)
	g.flags = []string{"--identity-file=" + key, "--known-hosts=" + filepath.Join(t.TempDir(), "known_hosts")}
	return g
}

// exec runs a command with the machine's own shell and scp.
func (g *sshGuest) exec(command string, _ bool, channel io.ReadWriter) int {
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

func (g *sshGuest) run(t *testing.T, input string, arguments ...string) virtctltest.Result {
	t.Helper()
	return g.RunWith(t.Context(), virtctl.Execute, strings.NewReader(input), append(arguments, g.flags...)...)
}

func TestSSHCommand(t *testing.T) {
	g := newSSHGuest(t)
	got := g.run(t, "yes\n", "ssh", "jdoe@vm/demo", "--command=echo out; exit 7")
	if got.Code != 7 || got.Out != "out\n" || !strings.Contains(got.ErrOut, "The authenticity of host 'vm/demo.tenant:22' can't be established") {
		t.Fatalf("%+v", got)
	}
	// The host is known from now on, by KubeVirt's name for it.
	if got := g.run(t, "", "ssh", "vm/demo/tenant", "-l", "jdoe", "-c", "cat"); got != (virtctltest.Result{}) {
		t.Errorf("%+v", got)
	}
	if got := g.run(t, "typed", "ssh", "jdoe@vm/demo", "-c", "cat"); got.Out != "typed" {
		t.Errorf("the guest's command did not get the input: %+v", got)
	}
	known, _ := os.ReadFile(strings.TrimPrefix(g.flags[1], "--known-hosts="))
	if !strings.HasPrefix(string(known), "vm/demo.tenant ssh-ed25519 ") {
		t.Errorf("known hosts are %q", known)
	}
}

func TestSSHRefuses(t *testing.T) {
	g := newSSHGuest(t)
	expectFailure(t, g.run(t, "no\n", "ssh", "jdoe@vm/demo", "-c", "true"), "the host key was not accepted")
	expectFailure(t, g.run(t, "", "ssh", "jdoe@vm/demo", "-c", "true"), "nobody says whether it is right")
	if got := g.run(t, "yes\n", "ssh", "jdoe@vm/demo", "-c", "true"); got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	expectFailure(t, g.run(t, "", "ssh", "other@vm/demo", "-c", "true"), "does not let other in")
	_, g.sshd.Host = virtctltest.NewKey(t)
	expectFailure(t, g.run(t, "yes\n", "ssh", "jdoe@vm/demo", "-c", "true"), "the host key of vm/demo.tenant:22 has changed", "remove line 1")
	expectFailure(t, g.run(t, "", "ssh", "@vm/demo"), "expected username before '@'")
	expectFailure(t, g.run(t, "", "ssh", "jdoe@"), "expected target after '@'")
	expectFailure(t, g.run(t, "", "ssh", "-oProxyCommand=x@vm/demo"), "unknown shorthand flag")
	expectFailure(t, g.Run(virtctl.Execute, "ssh", "jdoe@vm/demo", "-i", "/no/such/key"), "/no/such/key")
}

func TestSSHShell(t *testing.T) {
	g := newSSHGuest(t)
	g.sshd.Key, g.sshd.Password = nil, "secret"
	g.sshd.Exec = func(command string, terminal bool, channel io.ReadWriter) int {
		if command != "" || !terminal {
			t.Errorf("got command %q, terminal %v", command, terminal)
		}
		_, _ = io.WriteString(channel, "$ ")
		typed := make([]byte, 1)
		for {
			if _, err := channel.Read(typed); err != nil || typed[0] == 4 {
				return 3
			}
			_, _ = channel.Write(bytes.ToUpper(typed))
		}
	}
	term := virtctltest.NewTerminal(t)
	term.Resize(101, 33)
	code := atTerminal(t.Context(), g.Server, term, append([]string{"ssh", "jdoe@vm/demo"}, g.flags...)...)
	term.Expect("(yes/no)? ")
	term.Type("yes\r")
	term.Expect("jdoe's password: ")
	term.Type("secret\r")
	term.Expect("terminal 101x33")
	term.Expect("$ ")
	if !term.IsRaw() {
		t.Error("the terminal is not raw")
	}
	term.Type("ls\x03")
	term.Expect("LS\x03")
	term.Type("\x04")
	expectCode(t, code, 3)
	if term.IsRaw() {
		t.Error("the terminal was left raw")
	}
	if strings.Contains(term.Screen(), "secret") {
		t.Error("the password was shown")
	}
}

// OpenSSH comes to the guest through this program.
func TestSSHLocal(t *testing.T) {
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
	}{
		"ssh": {
			[]string{"ssh", "jdoe@vm/demo", "--port=2222", "--local-ssh-opts=-oX=y", "--identity-file=key", "--command=ls -l"},
			[]string{"ssh", "-o", proxy, "-oX=y", "-i", "key", "jdoe@vm.demo.tenant", "ls -l"},
		},
		"scp up": {
			[]string{"scp", "--local-ssh", "-p", "2222", "-r", "--preserve", "a", "jdoe@vm/demo:b"},
			[]string{"scp", "-o", proxy, "-r", "-p", "a", "jdoe@vm.demo.tenant:b"},
		},
		"scp down": {
			[]string{"scp", "--local-ssh", "-p", "2222", "jdoe@vm/demo:b", "a"},
			[]string{"scp", "-o", proxy, "jdoe@vm.demo.tenant:b", "a"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := s.Run(virtctl.Execute, tt.arguments...)
			if want := strings.Join(tt.want, "\n") + "\n"; got.Code != 9 || got.Out != want {
				t.Errorf("got %d and\n%swant 9 and\n%s%s", got.Code, got.Out, want, got.ErrOut)
			}
		})
	}
}

func TestSCP(t *testing.T) {
	if _, err := exec.LookPath("scp"); err != nil {
		t.Skip("the guest's side of a copy is OpenSSH's scp, which this machine does not have")
	}
	g := newSSHGuest(t)
	here := t.TempDir()
	content := bytes.Repeat([]byte("0123456789abcde\n"), 20000)
	modified := time.Unix(1700000000, 0)
	for name, mode := range map[string]os.FileMode{"dir/sub/deep": 0o640, "dir/empty": 0o600, "single": 0o755} {
		file := filepath.Join(here, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if name == "dir/empty" {
			content = nil
		}
		if err := os.WriteFile(file, content, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, modified, modified); err != nil {
			t.Fatal(err)
		}
		content = bytes.Repeat([]byte("0123456789abcde\n"), 20000)
	}
	expectCopied := func(got virtctltest.Result) {
		t.Helper()
		if got.Code != 0 {
			t.Fatalf("%+v", got)
		}
	}
	expectCopied(g.run(t, "yes\n", "scp", filepath.Join(here, "single"), "jdoe@vm/demo:it's here"))
	expectCopied(g.run(t, "", "scp", "-r", "--preserve", filepath.Join(here, "dir"), "jdoe@vm/demo/tenant:copy"))
	expectCopied(g.run(t, "", "scp", "-r", "--preserve", "jdoe@vm/demo:copy", filepath.Join(here, "back")))
	expectCopied(g.run(t, "", "scp", "jdoe@vm/demo:it's here", here))
	for _, name := range []string{"back/sub/deep", "it's here"} {
		if got, err := os.ReadFile(filepath.Join(here, name)); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s has %d bytes and %v, want %d", name, len(got), err, len(content))
		}
	}
	info, err := os.Stat(filepath.Join(here, "back/sub/deep"))
	if err != nil || info.Mode() != 0o640 || !info.ModTime().Equal(modified) {
		t.Errorf("mode and time were not kept: %v %v", info, err)
	}
	expectFailure(t, g.run(t, "", "scp", filepath.Join(here, "dir"), "jdoe@vm/demo:x"), "use --recursive")
	expectFailure(t, g.run(t, "", "scp", "jdoe@vm/demo:absent", here), "the guest says:", "No such file")
	expectFailure(t, g.run(t, "", "scp", "a", "b"), "none of the two provided locations seems to be a remote location")
	expectFailure(t, g.run(t, "", "scp", "a@vm/b:c", "d@vm/e:f"), "another remote location is not supported")
}

// A guest that sends files to where nobody wants them is refused.
func TestSCPFromAHostileGuest(t *testing.T) {
	for name, says := range map[string]string{
		"parent":       "C0644 1 ../evil\nx\x00",
		"absolute":     "C0644 1 /tmp/evil\nx\x00",
		"dots":         "D0755 0 ..\nC0644 1 evil\nx\x00E\n",
		"a directory":  "D0755 0 d\nC0644 1 evil\nx\x00E\n",
		"in directory": "C0644 1 a/b\nx\x00",
		"size":         "C0644 -1 f\n",
		"unknown":      "X\n",
		"escape":       "\x01\x1b[2Jgone\n",
	} {
		t.Run(name, func(t *testing.T) {
			g := newSSHGuest(t)
			g.sshd.Exec = func(_ string, _ bool, channel io.ReadWriter) int {
				go func() { _, _ = io.Copy(io.Discard, channel) }()
				_, _ = io.WriteString(channel, says)
				return 0
			}
			outer := t.TempDir()
			inner := filepath.Join(outer, "inner")
			if err := os.Mkdir(inner, 0o700); err != nil {
				t.Fatal(err)
			}
			got := g.run(t, "yes\n", "scp", "jdoe@vm/demo:f", inner)
			expectFailure(t, got)
			if strings.Contains(got.ErrOut, "\x1b") {
				t.Errorf("a terminal would take this for a command: %q", got.ErrOut)
			}
			if found, _ := filepath.Glob(filepath.Join(outer, "*", "*")); len(found) > 0 {
				t.Errorf("the guest wrote %v", found)
			}
			if found, _ := filepath.Glob(filepath.Join(outer, "*")); len(found) != 1 {
				t.Errorf("the guest wrote %v", found)
			}
		})
	}
}
