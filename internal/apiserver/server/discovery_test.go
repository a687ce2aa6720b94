// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/vireo-project/vireo/internal/apiserver/subresource"
)

// oneChunk is the size up to which net/http sends a response in one chunk.
// Source: net/http server.go, bufferBeforeChunkingSize.
const oneChunk = 2048

func TestDiscoveryFitsIntoOneChunk(t *testing.T) {
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
		plain, compressed := get(""), get("deflate, gzip")
		if n := compressed.Body.Len(); n > oneChunk {
			t.Errorf("%s: %d bytes", path, n)
		}
		z, err := gzip.NewReader(compressed.Body)
		if err != nil {
			t.Fatal(err)
		}
		uncompressed, err := io.ReadAll(z)
		if err != nil || string(uncompressed) != plain.Body.String() || plain.Header().Get("Content-Encoding") != "" {
			t.Errorf("%s: the compressed document differs: %v", path, err)
		}
	}
}
