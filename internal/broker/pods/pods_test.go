// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pods

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

func TestWaitForSocketFollowsTheKubelet(t *testing.T) {
	pods := t.TempDir()
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { done <- New(pods, nil).Wait(ctx, podUID, layout.LibvirtSocketName) }()
	dir := pods
	for step := range strings.SplitSeq(podUID+"/"+socketsDir, "/") {
		dir = filepath.Join(dir, step)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		// Another entry in the directory does not end the wait.
		if err := os.WriteFile(filepath.Join(dir, "other"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-done:
		t.Fatalf("ended without a socket: %v", err)
	default:
	}
	listen(t, filepath.Join(dir, layout.LibvirtSocketName))
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("the socket was not noticed")
	}
}

func TestWaitForSocketEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- New(t.TempDir(), nil).Wait(ctx, podUID, layout.LibvirtSocketName) }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestName(t *testing.T) {
	logs := t.TempDir()
	for _, dir := range []string{"team_vm_uid-1", "team_vm_uid-12", "uid-1", "team_uid-1", "a_b_c_uid-1"} {
		if err := os.Mkdir(filepath.Join(logs, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if namespace, name, err := Name(logs, "uid-1"); err != nil || namespace != "team" || name != "vm" {
		t.Errorf("got %s/%s, %v", namespace, name, err)
	}
	if _, _, err := Name(logs, "uid"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another UID: %v", err)
	}
	if _, _, err := Name(filepath.Join(logs, "nothing"), "uid-1"); err == nil {
		t.Error("no error without the directory")
	}
}

// FuzzCgroup checks that a process is in a Pod only if its cgroup names the Pod, whatever other hierarchies are listed.
func FuzzCgroup(f *testing.F) {
	const pod = "0b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11"
	f.Add("0::/kubepods/burstable/pod"+pod+"/8f0c\n", pod)
	f.Add("0::/kubepods.slice/kubepods-pod0b7a6b0e_6d53_4f0b_9a41_3a1d8f1f7a11.slice/x.scope\n", pod)
	f.Add("12:pids:/node2/kubepods/pod"+pod+"/8f0c\n1:name=systemd:/x\n", pod)
	f.Add("0::/user.slice/evil-pod0b7a6b0e_6d53_4f0b_9a41_3a1d8f1f7a11.slice\n", pod)
	f.Add("::pod"+pod+"\n:", pod)
	f.Fuzz(func(t *testing.T, file, pod string) {
		if err := CheckUID(pod); err != nil {
			return
		}
		in := checkCgroup(procDir(t, file), pod) == nil
		if in && !strings.Contains(strings.ReplaceAll(file, "_", "-"), "pod"+strings.ReplaceAll(pod, "_", "-")) {
			t.Errorf("%q is taken for one of Pod %q", file, pod)
		}
		if more := checkCgroup(procDir(t, "1:cpu:/\n"+file), pod) == nil; more != in {
			t.Errorf("%q: %t, and %t with another hierarchy before it", file, in, more)
		}
	})
}
