// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package record

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChangeIsOnDiskAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "record.json")
	f, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if !f.Empty() {
		t.Error("a record that does not exist is not empty")
	}
	err = f.Change(func(r *Record) {
		r.Cgroup, r.BootID = "/ours", "boot1"
		r.AddLink("br0")
		r.AddLink("br0")
		r.Processes["etcd"] = Process{PID: 7, Start: 99}
	})
	if err != nil {
		t.Fatal(err)
	}
	again, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(f.Record, again.Record); diff != "" {
		t.Errorf("read back (-written +read):\n%s", diff)
	}
	if len(again.Links) != 1 {
		t.Errorf("links %v, want one", again.Links)
	}
	if again.Empty() {
		t.Error("a record of something is empty")
	}
}

func TestChangeThatCannotBeWrittenIsNotMade(t *testing.T) {
	directory := t.TempDir()
	// A directory in the file's place: not even root can write it.
	f, err := Load(filepath.Join(directory, "record.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(directory, "record.json.new"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := f.Change(func(r *Record) { r.AddLink("br0") }); err == nil {
		t.Fatal("a change was accepted that is not on disk")
	}
	if len(f.Links) != 0 {
		t.Errorf("links are %v after a change that failed", f.Links)
	}
}

func TestForgetBoot(t *testing.T) {
	f, err := Load(filepath.Join(t.TempDir(), "record.json"))
	if err != nil {
		t.Fatal(err)
	}
	fill := func(r *Record) {
		r.BootID, r.Cgroup, r.Clone, r.Shape = "boot1", "/ours", "/clone", "shape"
		r.AddLink("br0")
		r.AddDirectory("/var/lib/kubelet")
		r.Processes["etcd"] = Process{PID: 7, Start: 99}
		r.Sysctls["kernel/panic"] = "1"
		r.Namespaces["node1"] = []string{"net:[1]"}
	}
	if err := f.Change(fill); err != nil {
		t.Fatal(err)
	}
	if err := f.ForgetBoot("boot1"); err != nil || len(f.Links) != 1 {
		t.Fatalf("the same boot: links %v, error %v", f.Links, err)
	}
	if err := f.ForgetBoot("boot2"); err != nil {
		t.Fatal(err)
	}
	want := Record{
		BootID: "boot2", Clone: "/clone", Directories: []string{"/var/lib/kubelet"},
		Processes: map[string]Process{}, Sysctls: map[string]string{}, Namespaces: map[string][]string{},
	}
	if diff := cmp.Diff(want, f.Record); diff != "" {
		t.Errorf("after a reboot only what is on disk is left (-want +got):\n%s", diff)
	}
}

func TestLoadRefusesDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record.json")
	if err := os.WriteFile(path, []byte(`{"links": [`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil {
		t.Error("half a record was read")
	}
}
