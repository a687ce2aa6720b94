// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmstate

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	ownUUID   = "5d307ca9-b3ef-428c-8861-06e72d69f223"
	oldUUID   = "30f5be7b-0000-4000-8000-000000000000"
	otherUUID = "691cd0e3-0000-4000-8000-000000000000"
)

// claimWith returns a claim with files, each written a minute after the one before. A name that ends in a slash is a
// directory.
func claimWith(t *testing.T, files ...string) string {
	t.Helper()
	claim := t.TempDir()
	for i, file := range files {
		name, content, _ := strings.Cut(file, "=")
		path := filepath.Join(claim, name)
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(path, 0o700); err != nil {
				t.Fatal(err)
			}
			continue
		}
		at := time.Unix(int64(1700000000+60*i), 0)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600),
			os.Chtimes(path, at, at))
		if err != nil {
			t.Fatal(err)
		}
	}
	return claim
}

// contents returns the files of a claim with their contents.
func contents(t *testing.T, claim string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(claim, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(name)
		out = append(out, strings.TrimPrefix(name, claim+"/")+"="+string(content))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

func tpm(uuid, content string) string { return "swtpm/" + uuid + "/tpm2/tpm2-00.permall=" + content }

func TestAdopt(t *testing.T) {
	for name, c := range map[string]struct{ before, after, adopted []string }{
		"an empty claim":         {[]string{"swtpm/", "nvram/"}, nil, nil},
		"a claim of KubeVirt":    {[]string{"lost+found/"}, nil, nil},
		"its own state":          {[]string{tpm(ownUUID, "own"), "nvram/vm_VARS.fd=own"}, []string{"nvram/vm_VARS.fd=own", tpm(ownUUID, "own")}, nil},
		"of another UUID":        {[]string{tpm(oldUUID, "keys")}, []string{tpm(ownUUID, "keys")}, []string{"swtpm/" + oldUUID}},
		"beside an unused TPM's": {[]string{tpm(oldUUID, "keys"), "swtpm/" + ownUUID + "/tpm2/.lock="}, []string{tpm(ownUUID, "keys")}, []string{"swtpm/" + oldUUID}},
		"of a VM of another name": {
			[]string{tpm(oldUUID, "keys"), "nvram/source_VARS.fd=vars"}, []string{"nvram/vm_VARS.fd=vars", tpm(ownUUID, "keys")},
			[]string{"swtpm/" + oldUUID, "nvram/source_VARS.fd"},
		},
		"the one that was written last": {
			[]string{tpm(oldUUID, "old"), tpm(otherUUID, "last")}, []string{tpm(oldUUID, "old"), tpm(ownUUID, "last")},
			[]string{"swtpm/" + otherUUID},
		},
		"its own is never replaced": {
			[]string{tpm(ownUUID, "own"), tpm(otherUUID, "later")}, []string{tpm(ownUUID, "own"), tpm(otherUUID, "later")}, nil,
		},
		"its own is damaged": {[]string{tpm(ownUUID, ""), tpm(oldUUID, "old")}, []string{tpm(oldUUID, "old"), tpm(ownUUID, "")}, nil},
		"other files":        {[]string{"nvram/notes.txt=x", "swtpm/file=x"}, []string{"nvram/notes.txt=x", "swtpm/file=x"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			claim := claimWith(t, c.before...)
			for i, want := range [][]string{c.adopted, nil} { // A second start adopts nothing.
				adopted, err := Adopt(claim, "vm", ownUUID)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, adopted); diff != "" {
					t.Errorf("start %d: adopted (-want +got):\n%s", i+1, diff)
				}
				slices.Sort(c.after)
				if diff := cmp.Diff(c.after, contents(t, claim)); diff != "" {
					t.Errorf("start %d (-want +got):\n%s", i+1, diff)
				}
			}
		})
	}
	t.Run("a UUID that is a path", func(t *testing.T) {
		claim := claimWith(t, tpm(oldUUID, "keys"))
		if adopted, err := Adopt(claim, "vm", "../../x"); err != nil || adopted != nil {
			t.Errorf("%v, %v", adopted, err)
		}
	})
}

func TestRemoveTornAuthority(t *testing.T) {
	whole := []string{"swtpm-localca/.lock=", "swtpm-localca/issuercert.pem=x", "swtpm-localca/signkey.pem=x"}
	claim := claimWith(t, whole...)
	if empty, err := RemoveTornAuthority(claim); err != nil || empty != nil {
		t.Errorf("%v, %v", empty, err)
	}
	if diff := cmp.Diff(whole, contents(t, claim)); diff != "" {
		t.Error(diff)
	}
	claim = claimWith(t, "swtpm-localca/.lock=", "swtpm-localca/issuercert.pem=x", "swtpm-localca/signkey.pem=")
	empty, err := RemoveTornAuthority(claim)
	if diff := cmp.Diff([]string{"swtpm-localca/signkey.pem"}, empty); diff != "" || err != nil {
		t.Error(err, diff)
	}
	if diff := cmp.Diff([]string{"swtpm-localca/.lock="}, contents(t, claim)); diff != "" {
		t.Error(diff)
	}
	if empty, err := RemoveTornAuthority(t.TempDir()); err != nil || empty != nil {
		t.Errorf("without an authority: %v, %v", empty, err)
	}
}

func TestSync(t *testing.T) {
	claim := claimWith(t, tpm(ownUUID, "keys"), "nvram/vm_VARS.fd=x")
	if err := os.Symlink("/proc/self/mem", filepath.Join(claim, "link")); err != nil {
		t.Fatal(err)
	}
	if err := Sync(claim); err != nil {
		t.Error(err)
	}
	if err := Sync(filepath.Join(claim, "missing")); err != nil {
		t.Errorf("without a claim: %v", err)
	}
}

// TestKeeper observes what the Keeper watches, because no test can observe what is on a disk.
func TestKeeper(t *testing.T) {
	claim := claimWith(t, "swtpm/", "nvram/vm_VARS.fd=x")
	keeper, err := NewKeeper(claim)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		keeper.Run(ctx, claim)
	}()
	dir := filepath.Join(claim, "swtpm", ownUUID, "tpm2")
	if err := errors.Join(os.MkdirAll(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "tpm2-00.permall"), []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); !slices.Contains(keeper.watcher.WatchList(),
		dir); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the directory of the new TPM is not watched")
		}
	}
	cancel()
	<-ended
}
