// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/onsi/gomega/gbytes"

	"github.com/vireo-project/vireo/internal/exporter/content"
)

const token = "abcdefghij0123456789"

// world is a server of one volume, of a directory.
type world struct {
	t      *testing.T
	server *httptest.Server
	dir    string
	log    *gbytes.Buffer
}

func serve(t *testing.T, c content.Content) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), log: gbytes.NewBuffer()}
	c.Export = "export"
	s, err := New(Options{
		Content: func() (*content.Content, error) { return &c, nil },
		Token:   func() (string, error) { return token, nil },
		Mount:   func(content.Volume) string { return w.dir },
		Log: logr.New(funcr.New(func(prefix, args string) { _, _ = io.WriteString(w.log, prefix+args+"\n") },
			funcr.Options{}).GetSink()),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.server = httptest.NewServer(s)
	t.Cleanup(w.server.Close)
	return w
}

func diskVolume() content.Content {
	return content.Content{Volumes: []content.Volume{{Name: "root", Disk: true}}}
}

func filesVolume() content.Content { return content.Content{Volumes: []content.Volume{{Name: "data"}}} }

// write writes a file of the volume.
func (w *world) write(name string, data []byte) {
	w.t.Helper()
	full := filepath.Join(w.dir, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o750); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(full, data, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// received is a response that a client received.
type received struct {
	code   int
	header http.Header
	length int64
	body   []byte
}

// do sends a request. Headers are pairs of name and value; the token is sent unless there is one among them.
func (w *world) do(method, path string, headers ...string) (received, error) {
	w.t.Helper()
	request, err := http.NewRequestWithContext(context.Background(), method, w.server.URL+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	request.Header.Set(content.TokenHeader, token)
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return received{}, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return received{response.StatusCode, response.Header, response.ContentLength, body}, err
}

// get sends a request whose response has to have a code, and returns the body.
func (w *world) get(code int, path string, headers ...string) ([]byte, http.Header) {
	w.t.Helper()
	got, err := w.do(http.MethodGet, path, headers...)
	if err != nil || got.code != code {
		w.t.Fatalf("GET %s: got %d, %v, want %d: %.200s", path, got.code, err, code, got.body)
	}
	return got.body, got.header
}

func random(t *testing.T, size int) []byte {
	t.Helper()
	out := make([]byte, size)
	if _, err := rand.Read(out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestOnlyTheTokenOpensTheExport(t *testing.T) {
	w := serve(t, diskVolume())
	w.write("disk.img", []byte("secret"))
	for name, header := range map[string]string{"none": "", "another": "abcdefghij0123456788", "a prefix": token[:10],
		"longer": token + "0"} {
		for _, path := range []string{"/volumes/root/disk.img", "/volumes/root/disk.img.gz"} {
			if body, _ := w.get(http.StatusUnauthorized, path, content.TokenHeader, header); bytes.Contains(body,
				[]byte("secret")) {
				t.Errorf("%s: got the volume", name)
			}
		}
	}
	w.get(http.StatusUnauthorized, "/volumes/root/disk.img?x-kubevirt-export-token=wrong", content.TokenHeader, "")
	if body, _ := w.get(http.StatusOK, "/volumes/root/disk.img?x-kubevirt-export-token="+token, content.TokenHeader,
		""); string(body) != "secret" {
		t.Errorf("got %q", body)
	}
	w.get(http.StatusOK, "/volumes/root/disk.img")
	w.get(http.StatusOK, content.ReadinessPath, content.TokenHeader, "")
	if log := string(w.log.Contents()); strings.Contains(log, token) || !strings.Contains(log, "/volumes/root/disk.img") {
		t.Errorf("the log is %q", log)
	}
}

func TestWithoutATokenNothingIsServed(t *testing.T) {
	for name, source := range map[string]func() (string, error){
		"empty":      func() (string, error) { return "", nil },
		"unreadable": func() (string, error) { return "", errors.New("no file") },
	} {
		c := diskVolume()
		s, err := New(Options{Content: func() (*content.Content, error) { return &c, nil }, Token: source,
			Mount: func(content.Volume) string { return "/" }})
		if err != nil {
			t.Fatal(err)
		}
		recorder := httptest.NewRecorder()
		s.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/volumes/root/disk.img", nil))
		if recorder.Code != http.StatusInternalServerError {
			t.Errorf("%s: got %d", name, recorder.Code)
		}
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	w := serve(t, diskVolume())
	w.write("disk.img", []byte("data"))
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions,
		http.MethodTrace} {
		if got, err := w.do(method, "/volumes/root/disk.img"); err != nil || got.code != http.StatusMethodNotAllowed {
			t.Errorf("%s: got %d, %v", method, got.code, err)
		}
	}
	for _, path := range []string{
		"/", "/volumes/", "/volumes/root", "/volumes/root/", "/volumes/other/disk.img", "/volumes/root/dir/",
		"/volumes/root/disk.tar.gz",
		"//volumes/root/disk.img", "/volumes/root/../root/disk.img", "/internal/manifests/all", "/metrics", "/debug/pprof/",
	} {
		w.get(http.StatusNotFound, path)
	}
}

func TestRawDisk(t *testing.T) {
	w := serve(t, diskVolume())
	data := random(t, 3<<20+17)
	w.write("disk.img", data)
	body, header := w.get(http.StatusOK, "/volumes/root/disk.img")
	if !bytes.Equal(body, data) || header.Get("Content-Length") != "3145745" || header.Get("Accept-Ranges") != "bytes" {
		t.Fatalf("got %d bytes, %v", len(body), header)
	}
	if got, err := w.do(http.MethodHead, "/volumes/root/disk.img"); err != nil || got.length != int64(len(data)) ||
		len(got.body) != 0 {
		t.Errorf("HEAD: got %+v, %v", got, err)
	}
	// A download that was cut off goes on where it was, as long as the disk is the same.
	tag := header.Get("Etag")
	rest, header := w.get(http.StatusPartialContent, "/volumes/root/disk.img", "Range", "bytes=1000000-", "If-Range", tag)
	if !bytes.Equal(rest, data[1000000:]) || header.Get("Content-Range") != "bytes 1000000-3145744/3145745" {
		t.Errorf("got %d bytes, %v", len(rest), header)
	}
	if part, _ := w.get(http.StatusPartialContent, "/volumes/root/disk.img", "Range", "bytes=-17"); !bytes.Equal(part,
		data[3<<20:]) {
		t.Errorf("got %d bytes", len(part))
	}
	w.get(http.StatusRequestedRangeNotSatisfiable, "/volumes/root/disk.img", "Range", "bytes=4000000-")
	w.write("disk.img", data[1:])
	if body, _ := w.get(http.StatusOK, "/volumes/root/disk.img", "Range", "bytes=1000000-", "If-Range",
		tag); !bytes.Equal(body, data[1:]) {
		t.Errorf("a changed disk: got %d bytes", len(body))
	}
}

func TestCompressedDisk(t *testing.T) {
	w := serve(t, diskVolume())
	data := append(random(t, 1<<20), make([]byte, 8<<20)...)
	w.write("disk.img", data)
	body, header := w.get(http.StatusOK, "/volumes/root/disk.img.gz", "Accept-Encoding", "identity")
	if header.Get("Content-Encoding") != "" || len(body) > 2<<20 {
		t.Errorf("got %d bytes, %v", len(body), header)
	}
	if got := gunzip(t, body); !bytes.Equal(got, data) {
		t.Errorf("got %d bytes", len(got))
	}
	if got, err := w.do(http.MethodHead, "/volumes/root/disk.img.gz"); err != nil || got.code != http.StatusOK {
		t.Errorf("HEAD: got %+v, %v", got, err)
	}
}

func gunzip(t *testing.T, data []byte) []byte {
	t.Helper()
	reader, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestBrowse(t *testing.T) {
	w := serve(t, filesVolume())
	w.write("a.txt", []byte("alpha"))
	w.write("sub/<b>.html", []byte("<script>"))
	w.write("index.html", []byte("index"))
	w.write("lost+found/1", []byte("lost"))
	page, header := w.get(http.StatusOK, "/volumes/data/dir/")
	if bytes.Contains(page, []byte("lost")) {
		t.Errorf("lost+found is not left out: %s", page)
	}
	for _, want := range []string{`<a href="./a.txt">a.txt</a>`, `<a href="./sub/">sub/</a>`, `<a href="./index.html">`} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("%q is not in %s", want, page)
		}
	}
	if header.Get("Content-Security-Policy") == "" {
		t.Error("the page has no policy")
	}
	if page, _ := w.get(http.StatusOK, "/volumes/data/dir/sub/"); !bytes.Contains(page, []byte(`<a href="./%3Cb%3E.html">&lt;b&gt;.html</a>`)) {
		t.Errorf("got %s", page)
	}
	body, header := w.get(http.StatusOK, "/volumes/data/dir/sub/%3Cb%3E.html")
	if string(body) != "<script>" || header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("got %q, %v", body, header)
	}
	if part, _ := w.get(http.StatusPartialContent, "/volumes/data/dir/a.txt", "Range", "bytes=2-"); string(part) != "pha" {
		t.Errorf("got %q", part)
	}
	w.get(http.StatusUnauthorized, "/volumes/data/dir", content.TokenHeader, "")
	// relative to the parent directory
	for path, want := range map[string]string{"": "./dir/a.txt", "/sub": "./sub/%3Cb%3E.html"} {
		if page, _ := w.get(http.StatusOK, "/volumes/data/dir"+path); !bytes.Contains(page, []byte(`<a href="`+want+`">`)) {
			t.Errorf("%q is not in %s", want, page)
		}
	}
	for _, path := range []string{"nothing", "a.txt/", "sub/nothing/else"} {
		w.get(http.StatusNotFound, "/volumes/data/dir/"+path)
	}
	for _, path := range []string{"../x", "sub/../a.txt", "sub//b", "./a.txt", "%2e%2e/%2e%2e/etc/passwd", "a%00b"} {
		w.get(http.StatusBadRequest, "/volumes/data/dir/"+path)
	}
}

// contents returns the files of an archive, with the targets of links and "dir" for directories. All names have to
// begin with "./", and the first one is the root directory.
func contents(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	out, root := map[string]string{}, ""
	reader := tar.NewReader(bytes.NewReader(gunzip(t, archive)))
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		name, found := strings.CutPrefix(header.Name, "./")
		if !found || (name == "") != (root == "") {
			t.Errorf("%q is in the archive", header.Name)
		}
		if root == "" {
			root = header.Name
			continue
		}
		header.Name = name
		switch header.Typeflag {
		case tar.TypeSymlink:
			out[header.Name] = "-> " + header.Linkname
		case tar.TypeDir:
			out[header.Name] = "dir"
		default:
			out[header.Name] = string(data)
		}
	}
}

func TestArchive(t *testing.T) {
	w := serve(t, filesVolume())
	w.write("a.txt", []byte("alpha"))
	w.write("sub/deep/b", []byte("beta"))
	w.write("lost+found/1", []byte("gamma"))
	w.write("sub/lost+found", []byte("delta"))
	body, _ := w.get(http.StatusOK, "/volumes/data/disk.tar.gz")
	got := contents(t, body)
	want := map[string]string{"a.txt": "alpha", "sub/": "dir", "sub/deep/": "dir", "sub/deep/b": "beta",
		"sub/lost+found": "delta"}
	if len(got) != len(want) {
		t.Errorf("got %v", got)
	}
	for name, data := range want {
		if got[name] != data {
			t.Errorf("%s is %q", name, got[name])
		}
	}
}

func vmContent() content.Content {
	c := diskVolume()
	c.Volumes = append(c.Volumes, content.Volume{Name: "more", Disk: true}, content.Volume{Name: "files"})
	c.Manifests = &content.Manifests{
		VirtualMachine: map[string]any{
			"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": map[string]any{"name": "vm"},
			"spec": map[string]any{"dataVolumeTemplates": []any{
				map[string]any{"metadata": map[string]any{"name": "of-template"},
					"spec": map[string]any{"sourceRef": map[string]any{}}},
			}},
		},
		Templates: map[string]string{"of-template": "root"},
		DataVolumes: []content.DataVolume{{Name: "more", Volume: "more", Size: "1Gi", VolumeMode: "Block"},
			{Name: "files", Volume: "files", Size: "2Gi"}},
		Internal: &content.Side{Address: "virt-export-export.default.svc", CA: "INTERNAL"},
	}
	return c
}

func TestManifests(t *testing.T) {
	w := serve(t, vmContent())
	body, header := w.get(http.StatusOK, "/internal/manifests/all")
	var list struct {
		Kind  string
		Items []map[string]any
	}
	if err := json.Unmarshal(body, &list); err != nil || list.Kind != "List" || len(list.Items) != 4 ||
		header.Get("Content-Type") != "application/json" {
		t.Fatalf("got %s, %v", body, err)
	}
	if data, _ := list.Items[0]["data"].(map[string]any); data["ca.pem"] != "INTERNAL" {
		t.Errorf("the ConfigMap is %v", list.Items[0])
	}
	for _, want := range []string{
		`"url": "https://virt-export-export.default.svc/volumes/root/disk.img.gz"`, `"url": "https://virt-export-export.default.svc/volumes/more/disk.img.gz"`,
		`"url": "https://virt-export-export.default.svc/volumes/files/disk.tar.gz"`, `"contentType": "archive"`,
		`"certConfigMap": "export-ca-cm-export"`, `"header-secret-export"`,
	} {
		if !bytes.Contains(body, []byte(want)) {
			t.Errorf("%s is not in %s", want, body)
		}
	}
	if bytes.Contains(body, []byte("sourceRef")) || bytes.Contains(body, []byte(token)) {
		t.Errorf("got %s", body)
	}
	body, header = w.get(http.StatusOK, "/internal/manifests/all", "Accept", "application/yaml")
	if bytes.Count(body, []byte("---\n")) != 4 || header.Get("Content-Type") != "application/yaml" {
		t.Errorf("got %s", body)
	}
	w.get(http.StatusNotFound, "/external/manifests/all")
	w.get(http.StatusUnauthorized, "/internal/manifests/secret", content.TokenHeader, "")
	if body, _ := w.get(http.StatusOK, "/external/manifests/secret"); !bytes.Contains(body, []byte(`"token": "x-kubevirt-export-token:`+token+`"`)) {
		t.Errorf("got %s", body)
	}
}

func TestTooManyDownloads(t *testing.T) {
	c := diskVolume()
	s, err := New(Options{
		Content: func() (*content.Content, error) { return &c, nil }, Token: func() (string, error) { return token, nil },
		Mount: func(content.Volume) string { return "/nothing" },
	})
	if err != nil {
		t.Fatal(err)
	}
	for range maxRequests {
		s.slots <- struct{}{}
	}
	recorder := httptest.NewRecorder()
	s.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet,
		"/volumes/root/disk.img?x-kubevirt-export-token="+token, nil))
	if recorder.Code != http.StatusServiceUnavailable || recorder.Header().Get("Retry-After") == "" {
		t.Errorf("got %d", recorder.Code)
	}
}
