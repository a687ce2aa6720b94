// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package proxy

import (
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/vireo-project/vireo/internal/export/content"
)

// forwarded are the headers of a request that an exporter gets. Others may be credentials for the host of the proxy.
var forwarded = []string{
	content.TokenHeader, "Accept", "Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "User-Agent",
}

// returned are the headers of a response that a client gets. Others, such as cookies, would affect the host of the proxy.
var returned = []string{
	"Content-Length", "Content-Range", "Accept-Ranges", "Etag", "Last-Modified", "Retry-After", "Allow", "Cache-Control",
}

// returnedTypes are the types of content that are returned. Others become application/octet-stream.
var returnedTypes = map[string]bool{
	"application/octet-stream": true, "application/gzip": true, "application/json": true, "application/yaml": true, "text/html": true, "text/plain": true,
	"multipart/byteranges": true,
}

// protect sets the headers that keep a browser from running a response and from guessing its type.
func protect(header http.Header) {
	header.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer") // the address may have the token
}

func pick(from http.Header, names []string) http.Header {
	out := http.Header{}
	for _, name := range names {
		if values := from.Values(name); len(values) > 0 {
			out.Set(name, values[0])
		}
	}
	return out
}

// requestHeader returns the headers of a request for an exporter.
func requestHeader(from http.Header) http.Header {
	out := pick(from, forwarded)
	if out.Get("User-Agent") == "" {
		out.Set("User-Agent", "virt-exportproxy")
	}
	return out
}

// tokenQuery returns the query of a request for an exporter: the token and nothing else.
func tokenQuery(from *url.URL) string {
	token := from.Query().Get(content.TokenHeader)
	if token == "" {
		return ""
	}
	return url.Values{content.TokenHeader: {token}}.Encode()
}

// hasToken reports whether a request has a token. Only the exporter knows if it is the right one.
func hasToken(r *http.Request) bool {
	return r.Header.Get(content.TokenHeader) != "" || r.URL.Query().Get(content.TokenHeader) != ""
}

// responseHeader returns the headers of a response for a client. The proxy has set those of protect already.
func responseHeader(from http.Header) http.Header {
	out := pick(from, returned)
	kind, _, err := mime.ParseMediaType(from.Get("Content-Type"))
	switch {
	case err != nil || !returnedTypes[kind]:
		out.Set("Content-Type", "application/octet-stream")
	default:
		out.Set("Content-Type", from.Get("Content-Type"))
	}
	// The exporter redirects from a directory to itself with a slash.
	if location := from.Get("Location"); location != "" && !strings.HasPrefix(location, "/") && !strings.ContainsAny(location, ":\\?#") {
		out.Set("Location", location)
	}
	return out
}
