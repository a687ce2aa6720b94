// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestGuestfsInfo(t *testing.T) {
	for image, want := range map[string]v1.GuestfsInfo{
		"localhost/vireo/libguestfs-tools:dev": {Registry: "localhost/vireo", Tag: "dev"},
		"example.org:5000/libguestfs-tools:v1": {Registry: "example.org:5000", Tag: "v1"},
		"r/kv-libguestfs-tools@sha256:ab":      {Registry: "r", Digest: "sha256:ab", ImagePrefix: "kv-"},
		"libguestfs-tools:v1@sha256:ab":        {Tag: "v1", Digest: "sha256:ab"},
		"example.org:5000/libguestfs-tools":    {GsImage: "example.org:5000/libguestfs-tools"},
		"example.org/my/tools:v1":              {GsImage: "example.org/my/tools:v1"},
	} {
		if diff := cmp.Diff(want, guestfsInfo(image)); diff != "" {
			t.Errorf("%s: %s", image, diff)
		}
	}
}

func TestGuestfs(t *testing.T) {
	w := newWorld(t)
	w.expect(http.MethodGet, root+"guestfs", "", http.StatusInternalServerError,
		"the cluster has no libguestfs-tools image")
	w.restart(func(a *API) { a.GuestfsImage = "localhost/vireo/libguestfs-tools:dev" })
	if code, text := w.do(http.MethodGet, root+"guestfs", ""); code != http.StatusOK || !strings.Contains(text, `"registry": "localhost/vireo"`) {
		t.Errorf("got %d %s", code, text)
	}
}
