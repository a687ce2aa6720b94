// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/klauspost/compress/zstd"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/vireo-project/vireo/internal/exporter/content"
)

// imageContent is a VM with a disk and a volume of files.
func imageContent() content.Content {
	return content.Content{
		OCI: true, Volumes: []content.Volume{{Name: "root", Disk: true}, {Name: "shared"}},
		Manifests: &content.Manifests{VirtualMachine: map[string]any{
			"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": map[string]any{"name": "vm", "namespace": "old"},
			"spec": map[string]any{
				"dataVolumeTemplates": []any{map[string]any{"metadata": map[string]any{"name": "root"}}},
				"template": map[string]any{"spec": map[string]any{"architecture": "arm64", "volumes": []any{
					map[string]any{"name": "disk", "dataVolume": map[string]any{"name": "root"}},
					map[string]any{"name": "seed", "cloudInitNoCloud": map[string]any{"userData": "x"}},
				}}},
			},
		}},
	}
}

// serveImage serves an export as an image. Its server has prepared nothing yet.
func serveImage(t *testing.T, c content.Content) (*world, *Server) {
	t.Helper()
	w := serve(t, c)
	s, ok := w.server.Config.Handler.(*Server)
	if !ok {
		t.Fatalf("the handler is a %T", w.server.Config.Handler)
	}
	return w, s
}

// unpack returns the files of an archive, whose names may not repeat.
func unpack(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	reader := tar.NewReader(bytes.NewReader(archive))
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, found := files[header.Name]; found {
			t.Errorf("%s is there twice", header.Name)
		}
		if files[header.Name], err = io.ReadAll(reader); err != nil {
			t.Fatal(err)
		}
	}
}

// read returns the blob of a descriptor, after it has compared it with that.
func read(t *testing.T, files map[string][]byte, d oci.Descriptor) []byte {
	t.Helper()
	data := files["blobs/sha256/"+d.Digest.Encoded()]
	sum := sha256.Sum256(data)
	if int64(len(data)) != d.Size || d.Digest.String() != "sha256:"+hex.EncodeToString(sum[:]) {
		t.Fatalf("the blob of %+v has %d bytes", d, len(data))
	}
	return data
}

func decode(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
}

func unzstd(t *testing.T, data []byte) []byte {
	t.Helper()
	reader, err := zstd.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	out, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// As KubeVirt's, an exporter is not ready before the digests are known.
func TestImageIsPrepared(t *testing.T) {
	w, s := serveImage(t, imageContent())
	w.write("disk.img", []byte("data"))
	if body, _ := w.get(http.StatusServiceUnavailable, content.ReadinessPath); !strings.Contains(string(body),
		"OCI digest computation in progress") {
		t.Errorf("got %s", body)
	}
	if body, _ := w.get(http.StatusServiceUnavailable, content.OCIPath); !strings.Contains(string(body),
		"OCI export not ready") {
		t.Errorf("got %s", body)
	}
	s.Prepare(t.Context())
	w.get(http.StatusOK, content.ReadinessPath)
	w.get(http.StatusUnauthorized, content.OCIPath, content.TokenHeader, "wrong")
	w.get(http.StatusOK, content.OCIPath)
}

// indexOf returns the index of an unpacked image, which it checks.
func indexOf(t *testing.T, files map[string][]byte) oci.Index {
	t.Helper()
	var index oci.Index
	decode(t, files["index.json"], &index)
	if index.ArtifactType != "application/vnd.kubevirt.virtualmachine.v1" || len(index.Manifests) != 1 ||
		index.Annotations["org.opencontainers.image.created"] == "" ||
		index.Manifests[0].Platform.Architecture != "arm64" || index.Manifests[0].Platform.OS != "linux" {
		t.Fatalf("the index is %+v", index)
	}
	return index
}

func TestImage(t *testing.T) {
	w, s := serveImage(t, imageContent())
	disk := append(random(t, 1<<20), make([]byte, 3<<20)...)
	w.write("disk.img", disk)
	s.Prepare(t.Context())
	archive, header := w.get(http.StatusOK, content.OCIPath)
	if header.Get("Content-Type") != "application/x-tar" || header.Get("Content-Disposition") != `attachment; filename="export.oci.tar"` {
		t.Errorf("got %v", header)
	}
	if got, err := w.do(http.MethodHead, content.OCIPath); err != nil || got.length != int64(len(archive)) {
		t.Errorf("HEAD: got %d, %v, and an archive of %d bytes", got.length, err, len(archive))
	}
	files := unpack(t, archive)
	if string(files["oci-layout"]) != `{"imageLayoutVersion":"1.0.0"}` || len(files) != 5 {
		t.Errorf("got %d files, oci-layout is %s", len(files), files["oci-layout"])
	}
	index := indexOf(t, files)
	var manifest oci.Manifest
	decode(t, read(t, files, index.Manifests[0]), &manifest)
	if manifest.Config.MediaType != "application/vnd.kubevirt.virtualmachine.config.v1+json" || len(manifest.Layers) != 1 {
		t.Fatalf("the manifest is %+v", manifest)
	}
	layer := manifest.Layers[0]
	if layer.MediaType != "application/vnd.kubevirt.disk.raw+zstd" ||
		layer.Annotations["io.kubevirt.disk.name"] != "root" ||
		layer.Annotations["io.kubevirt.disk.size"] != "4Mi" ||
		layer.Annotations["org.opencontainers.image.title"] != "root.raw.zst" {
		t.Errorf("the layer is %+v", layer)
	}
	if packed := read(t, files, layer); !bytes.Equal(unzstd(t, packed), disk) || len(packed) > 2<<20 {
		t.Errorf("the disk differs, or has %d bytes", len(packed))
	}
	want := `{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachine","metadata":{"name":"vm"},"spec":{"template":{"spec":{"architecture":"arm64","volumes":[` +
		`{"name":"disk","persistentVolumeClaim":{"claimName":"root"}},{"cloudInitNoCloud":{"userData":"x"},"name":"seed"}]}}}}`
	if got := read(t, files, manifest.Config); string(got) != want {
		t.Errorf("the VM is %s", got)
	}
}

// A client must not regard a disk that has changed as the one whose digest it got.
func TestImageOfADiskThatChanges(t *testing.T) {
	w, s := serveImage(t, imageContent())
	w.write("disk.img", random(t, 1<<20))
	s.Prepare(t.Context())
	for name, size := range map[string]int{"as large": 1 << 20, "larger": 1<<20 + 1, "smaller": 1<<20 - 1, "gone": 0} {
		w.write("disk.img", random(t, size))
		if size == 0 {
			if err := os.Remove(filepath.Join(w.dir, "disk.img")); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := w.do(http.MethodGet, content.OCIPath); err == nil {
			t.Errorf("%s: the download has succeeded with %d bytes of %d", name, len(got.body), got.length)
		}
	}
}

// Disks with the same content have one blob.
func TestImageOfEqualDisks(t *testing.T) {
	c := imageContent()
	c.Volumes = append(c.Volumes, content.Volume{Name: "same", Disk: true})
	w, s := serveImage(t, c)
	w.write("disk.img", make([]byte, 1<<20))
	s.Prepare(t.Context())
	archive, header := w.get(http.StatusOK, content.OCIPath)
	if files := unpack(t, archive); len(files) != 5 || header.Get("Content-Length") == "" {
		t.Errorf("got %d files, %v", len(files), header)
	}
}

func TestExportsWithoutAnImage(t *testing.T) {
	plain := imageContent()
	plain.OCI = false
	w, s := serveImage(t, plain)
	s.Prepare(t.Context())
	w.get(http.StatusOK, content.ReadinessPath)
	if body, _ := w.get(http.StatusNotFound, content.OCIPath); !strings.Contains(string(body), "feature gate OCIExport") {
		t.Errorf("got %s", body)
	}

	// The other formats are available if a disk cannot be read.
	w, s = serveImage(t, imageContent())
	s.Prepare(t.Context())
	w.get(http.StatusOK, content.ReadinessPath)
	if body, _ := w.get(http.StatusNotFound, content.OCIPath); !strings.Contains(string(body),
		"volume root: the volume has no file disk.img") {
		t.Errorf("got %s", body)
	}
	w.get(http.StatusOK, "/volumes/shared/dir/")

	// It is stopped before it has read everything.
	w, s = serveImage(t, imageContent())
	w.write("disk.img", random(t, 1<<20))
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	s.Prepare(stopped)
	w.get(http.StatusInternalServerError, content.OCIPath)
}

// A failure to read a disk that passes does not last for the life of the exporter. It logs each disk, since reading
// them takes long.
func TestImageOfADiskThatCannotBeReadForAWhile(t *testing.T) {
	c := imageContent()
	c.Volumes = append(c.Volumes, content.Volume{Name: "late", Disk: true})
	dir := t.TempDir()
	var mu sync.Mutex
	var log strings.Builder
	s, err := New(Options{
		Content: func() (*content.Content, error) { return &c, nil }, Token: func() (string, error) { return token, nil },
		Mount: func(v content.Volume) string { return filepath.Join(dir, v.Name) },
		Log: funcr.New(func(_, args string) {
			mu.Lock()
			defer mu.Unlock()
			log.WriteString(args + "\n")
		}, funcr.Options{}),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.image.retry = time.Millisecond
	write := func(name string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "disk.img"), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	get := func(path string) int {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		request.Header.Set(content.TokenHeader, token)
		recorder := httptest.NewRecorder()
		s.ServeHTTP(recorder, request)
		return recorder.Code
	}
	await := func(path string, want int) {
		t.Helper()
		code := 0
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if code = get(path); code == want {
				return
			}
		}
		t.Fatalf("%s: got %d, want %d", path, code, want)
	}
	write("root")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Prepare(t.Context())
	}()
	await(content.ReadinessPath, http.StatusOK)
	if code := get(content.OCIPath); code != http.StatusInternalServerError {
		t.Errorf("without the disk: got %d", code)
	}
	// A volume without a disk is no failure that passes, so it gets its directory and its disk at once.
	write("whole")
	if err := os.Rename(filepath.Join(dir, "whole"), filepath.Join(dir, "late")); err != nil {
		t.Fatal(err)
	}
	await(content.OCIPath, http.StatusOK)
	<-ended
	mu.Lock()
	defer mu.Unlock()
	if text := log.String(); strings.Count(text, `"Computed the digest of a disk" "volume"="root" "disk"=1 "disks"=2`) != 1 ||
		!strings.Contains(text, `"volume"="late" "disk"=2`) || !strings.Contains(text, "cannot be read") {
		t.Errorf("the log is %s", text)
	}
}

// The VM in the image is the one of today, and its disks are those of the start.
func TestImageOfAVMThatChanges(t *testing.T) {
	c := imageContent()
	dir := t.TempDir()
	s, err := New(Options{
		Content: func() (*content.Content, error) { return &c, nil }, Token: func() (string, error) { return token, nil },
		Mount: func(content.Volume) string { return dir },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "disk.img"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Prepare(t.Context())
	c.Manifests.VirtualMachine["metadata"] = map[string]any{"name": "renamed"}
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, content.OCIPath, nil)
	request.Header.Set(content.TokenHeader, token)
	recorder := httptest.NewRecorder()
	s.ServeHTTP(recorder, request)
	if recorder.Code != http.StatusOK || !bytes.Contains(recorder.Body.Bytes(), []byte("renamed")) {
		t.Errorf("got %d", recorder.Code)
	}
	c.OCI = false
	recorder = httptest.NewRecorder()
	request.Header.Set(content.TokenHeader, token)
	s.ServeHTTP(recorder, request)
	if recorder.Code != http.StatusNotFound {
		t.Errorf("got %d", recorder.Code)
	}
}
