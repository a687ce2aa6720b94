// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fakeCapabilities is a fake libvirtd that returns texts or fails.
type fakeCapabilities struct {
	hostErr, domainErr error
}

func (f fakeCapabilities) Capabilities(context.Context) (string, error) {
	return "<capabilities/>", f.hostErr
}

func (f fakeCapabilities) DomainCapabilities(_ context.Context, machine string) (string, error) {
	return "<domainCapabilities><machine>" + machine + "</machine></domainCapabilities>", f.domainErr
}

func TestSaveCapabilities(t *testing.T) {
	refused := errors.New("refused")
	for name, tc := range map[string]struct {
		source  fakeCapabilities
		files   map[string]string
		message string
	}{
		"both responses": {fakeCapabilities{}, map[string]string{
			"capabilities.xml":    "<capabilities/>",
			"domcapabilities.xml": "<domainCapabilities><machine>q35</machine></domainCapabilities>",
		}, ""},
		"no response about the host": {fakeCapabilities{hostErr: refused}, nil, "host's capabilities"},
		"no response about guests":   {fakeCapabilities{domainErr: refused}, nil, "capabilities of q35"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			err := saveCapabilities(t.Context(), tc.source, dir)
			if tc.message == "" && err != nil || tc.message != "" && (!errors.Is(err, refused) || !strings.Contains(err.Error(), tc.message)) {
				t.Errorf("error %v, want one with %q", err, tc.message)
			}
			if diff := cmp.Diff(tc.files, filesIn(t, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The files are replaced if the node's kernel or firmware changed.
func TestSaveCapabilitiesReplaces(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "capabilities.xml")
	if err := os.WriteFile(file, []byte(strings.Repeat("old", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := saveCapabilities(t.Context(), fakeCapabilities{}, dir); err != nil {
		t.Fatal(err)
	}
	if got := filesIn(t, dir)["capabilities.xml"]; got != "<capabilities/>" {
		t.Errorf("the file has %q", got)
	}
	if err := saveCapabilities(t.Context(), fakeCapabilities{}, filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want one about the missing directory", err)
	}
}

func filesIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var files map[string]string
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if files == nil {
			files = map[string]string{}
		}
		files[entry.Name()] = string(content)
	}
	return files
}
