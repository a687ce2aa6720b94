// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl"
	"github.com/vireo-project/vireo/test/builder"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
)

// credentialsCluster returns a cluster with the VM demo, which owns a Secret with keys and one with passwords, and the
// VM bare without any.
func credentialsCluster(t *testing.T) *virtctltest.Server {
	t.Helper()
	s := virtctltest.NewServer(t)
	vm := builder.MakeVM("demo").Namespace(virtctltest.Namespace).UID("u-1").Obj()
	keys, passwords := &v1.SSHPublicKeyAccessCredential{}, &v1.UserPasswordAccessCredential{}
	keys.Source.Secret = &v1.AccessCredentialSecretSource{SecretName: "keys"}
	keys.PropagationMethod.QemuGuestAgent = &v1.QemuGuestAgentSSHPublicKeyAccessCredentialPropagation{
		Users: []string{"jdoe"}}
	passwords.Source.Secret = &v1.AccessCredentialSecretSource{SecretName: "passwords"}
	passwords.PropagationMethod.QemuGuestAgent = &v1.QemuGuestAgentUserPasswordAccessCredentialPropagation{}
	vm.Spec.Template.Spec.AccessCredentials = []v1.AccessCredential{{SSHPublicKey: keys}, {UserPassword: passwords}}
	s.Add(vm, builder.MakeVM("bare").Namespace(virtctltest.Namespace).UID("u-2").Obj())
	own := []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "demo", UID: "u-1"}}
	s.Add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: virtctltest.Namespace, Name: "keys",
		OwnerReferences: own}, Data: map[string][]byte{"a": []byte("ssh-ed25519 AAAA first\nssh-rsa BBBB\n")}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: virtctltest.Namespace, Name: "passwords"}})
	return s
}

func secretValues(t *testing.T, s *virtctltest.Server, name string) []string {
	t.Helper()
	secret := &corev1.Secret{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(s.Get("secrets", virtctltest.Namespace, name).Object,
		secret); err != nil {
		t.Fatal(err)
	}
	var values []string
	for _, key := range slices.Sorted(maps.Keys(secret.Data)) {
		values = append(values, string(secret.Data[key]))
	}
	return values
}

func TestCredentials(t *testing.T) {
	s := credentialsCluster(t)
	run := func(command string) virtctltest.Result {
		return s.Run(virtctl.Execute, append([]string{"credentials"}, strings.Split(command, "|")...)...)
	}
	for command, want := range map[string]string{
		"set-password|-ujdoe|--password=x|demo":                          "does not have an owner reference pointing to VM demo",
		"set-password|-ujdoe|--password=x|bare":                          "no secrets assigned to UserPassword",
		"set-password|-ujdoe|--force|demo":                               "there is no terminal",
		"add-ssh-key|-ujdoe|demo":                                        "at least one of the flags",
		"add-ssh-key|-ujdoe|--value=-----BEGIN OPENSSH PRIVATE KEY|demo": "this is a private key",
		"add-ssh-key|-ujdoe|--value=ssh-rsa C|--secret=x|demo":           "secret x is not one of the VM's",
		"add-ssh-key|-uroot|--update-secret|--value=ssh-rsa C|demo":      "no secrets specified for this user: root",
		"remove-ssh-key|-ujdoe|--value=ssh-rsa C|demo":                   "does not contain this SSH key",
	} {
		expectFailure(t, run(command), want)
	}
	if writes := s.Writes(); len(writes) > 0 {
		t.Fatalf("refused commands wrote: %v", writes)
	}
	for _, command := range []string{
		"set-password|-ujdoe|--password=sesame|--force|demo",
		"add-ssh-key|-ujdoe|--value=ssh-ed25519 AAAA other comment|demo", // exists already
		"add-ssh-key|-ujdoe|--value=ssh-rsa CCCC me|demo",
		"remove-ssh-key|-ujdoe|--value=ssh-rsa BBBB|demo",
		"add-ssh-key|-uroot|--value=ssh-rsa DDDD|bare",
	} {
		if got := run(command); got.Code != 0 {
			t.Fatalf("%s: %+v", command, got)
		}
	}
	if diff := cmp.Diff([]string{"sesame"}, secretValues(t, s, "passwords")); diff != "" {
		t.Errorf("passwords (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"ssh-ed25519 AAAA first\n", "ssh-rsa CCCC me"}, secretValues(t, s, "keys")); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	bare := &v1.VirtualMachine{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(
		s.Get("virtualmachines", virtctltest.Namespace, "bare").Object, bare); err != nil {
		t.Fatal(err)
	}
	credentials := bare.Spec.Template.Spec.AccessCredentials
	if len(credentials) != 1 || credentials[0].SSHPublicKey.PropagationMethod.QemuGuestAgent.Users[0] != "root" {
		t.Fatalf("the VM's credentials are %v", credentials)
	}
	if diff := cmp.Diff([]string{"ssh-rsa DDDD"}, secretValues(t, s, credentials[0].SecretName())); diff != "" {
		t.Errorf("new keys (-want +got):\n%s", diff)
	}
}

func TestCredentialsOfARunningVM(t *testing.T) {
	s := credentialsCluster(t)
	s.Add(builder.MakeVMI("bare").Namespace(virtctltest.Namespace).Obj())
	expectFailure(t, s.Run(virtctl.Execute, "credentials", "add-ssh-key", "-uroot", "--value=ssh-rsa D", "bare"),
		"is running. Use --force")
}

func TestLogVerbosity(t *testing.T) {
	s := virtctltest.NewServer(t)
	s.Add(&v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "kubevirt"}})
	run := func(flags ...string) virtctltest.Result {
		return s.Run(virtctl.Execute, append([]string{"adm", "log-verbosity"}, flags...)...)
	}
	for flags, want := range map[string]string{
		"":                              "no flag specified",
		"--all=10":                      "must be 0-9",
		"--all --virt-api=3":            "only show or set",
		"--all --reset":                 "only show or reset",
		"--virt-api=3 --virt-handler=x": "must be 0-9",
	} {
		expectFailure(t, run(strings.Fields(flags)...), want)
	}
	steps := []struct{ flags, out string }{
		{"--virt-api --virt-handler", "virt-api = 2\nvirt-handler = 2\n"},
		{"--all=3 --virt-handler=7", "successfully set the verbosity of the KubeVirt component(s)\n"},
		{"--all", "virt-api = 3\nvirt-controller = 3\nvirt-handler = 7\nvirt-launcher = 3\nvirt-operator = 3\n"},
		{"--reset --virt-api=5", "successfully reset the verbosity of all KubeVirt components to default (2)\nsuccessfully set the verbosity of the KubeVirt component(s)\n"},
		{"--virt-api --virt-handler", "virt-api = 5\nvirt-handler = 2\n"},
	}
	for _, step := range steps {
		if got := run(strings.Fields(step.flags)...); got != (virtctltest.Result{Out: step.out}) {
			t.Fatalf("%s: %+v, want %q", step.flags, got, step.out)
		}
	}
}

// fakeUSBRedirect connects as usbredirect does and prints what it receives.
const fakeUSBRedirect = `#!/bin/bash
exec 3<>/dev/tcp/${4%:*}/${4##*:}
read -r -n 5 heard <&3
echo "$1 $2 hears $heard" >&2
`

func TestUSBRedir(t *testing.T) {
	s := virtctltest.NewServer(t)
	s.Stream(vmiPath+"usbredir", func(ctx context.Context, socket *websocket.Conn, _ *http.Request) error {
		_, err := io.WriteString(virtctltest.Conn(ctx, socket), "hello")
		return err
	})
	line := firstLine(t, s, "usbredir", "--no-launch", "demo")
	conn, err := net.Dial("tcp", line[strings.LastIndex(line, " ")+1:])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if got, err := io.ReadAll(conn); string(got) != "hello" {
		t.Errorf("got %q, %v", got, err)
	}
	t.Setenv("PATH", t.TempDir())
	program := filepath.Join(os.Getenv("PATH"), "usbredirect")
	if err := os.WriteFile(program, []byte(fakeUSBRedirect), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := s.Run(virtctl.Execute, "usbredir", "0951:1666", "demo"); got.Code != 0 ||
		got.ErrOut != "--device 0951:1666 hears hello\n" {
		t.Errorf("got %+v", got)
	}
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	expectFailure(t, s.Run(virtctl.Execute, "usbredir", "0951:1666", "demo"), "usbredirect is not installed")
	expectFailure(t, s.Run(virtctl.Execute, "usbredir", "--device", "demo"), "unknown flag")
	expectFailure(t, s.Run(virtctl.Execute, "usbredir", "stick", "demo"), "is not a device")
	expectFailure(t, s.Run(virtctl.Execute, "usbredir", "demo"), "a device and a VMI are needed")
}
