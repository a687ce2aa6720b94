// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package proxy

import (
	"mime"
	"net/http"
	"net/url"
	"regexp"
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
	"multipart/byteranges": true, "application/x-tar": true,
}

// fileName matches the names under which a client may be told to save a response: no path, no hidden file, nothing that looks like an option.
var fileName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

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

// requestQuery returns the query of a request for an exporter: the token, and the parameters of backups.
func requestQuery(from *url.URL) string {
	query := from.Query()
	out := content.BackupQuery(query)
	if token := query.Get(content.TokenHeader); token != "" {
		out.Set(content.TokenHeader, token)
	}
	return out.Encode()
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
	if disposition := attachment(from.Get("Content-Disposition")); disposition != "" {
		out.Set("Content-Disposition", disposition)
	}
	// The exporter redirects from a directory to itself with a slash.
	if location := from.Get("Location"); location != "" && !strings.HasPrefix(location, "/") && !strings.ContainsAny(location, ":\\?#") {
		out.Set("Location", location)
	}
	return out
}

// attachment returns a Content-Disposition by which a client saves a response, or nothing if it is another one or has another name than those
// of fileName. Other parameters are left out.
func attachment(disposition string) string {
	kind, parameters, err := mime.ParseMediaType(disposition)
	if err != nil || kind != "attachment" || !fileName.MatchString(parameters["filename"]) {
		return ""
	}
	return `attachment; filename="` + parameters["filename"] + `"`
}
