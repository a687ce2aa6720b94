// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/vireo-project/vireo/internal/subresource"
)

// onePiece is what net/http sends in one piece by HTTP/1.1, of which the least is kept back.
// Source: net/http server.go, bufferBeforeChunkingSize.
const onePiece = 2048

func TestDiscoveryFitsIntoOnePiece(t *testing.T) {
	mux := http.NewServeMux()
	if err := addDiscovery(mux, (&subresource.API{}).Verbs(nil)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/apis", "/apis/subresources.kubevirt.io", "/apis/subresources.kubevirt.io/v1", "/apis/subresources.kubevirt.io/v1/"} {
		get := func(encoding string) *httptest.ResponseRecorder {
			t.Helper()
			request := httptest.NewRequest(http.MethodGet, path, nil)
			request.Header.Set("Accept-Encoding", encoding)
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, request)
			if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
				t.Fatalf("%s: %d %v", path, w.Code, w.Header())
			}
			return w
		}
		plain, packed := get(""), get("deflate, gzip")
		if n := packed.Body.Len(); n > onePiece {
			t.Errorf("%s: %d bytes", path, n)
		}
		z, err := gzip.NewReader(packed.Body)
		if err != nil {
			t.Fatal(err)
		}
		unpacked, err := io.ReadAll(z)
		if err != nil || string(unpacked) != plain.Body.String() || plain.Header().Get("Content-Encoding") != "" {
			t.Errorf("%s: compressed it is something else: %v", path, err)
		}
	}
}
