// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"bytes"
	"compress/gzip"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/exporter/content"
)

// kubevirtctl is KubeVirt's own virtctl, with an API server that has one export.
type kubevirtctl struct {
	t          *testing.T
	program    string
	kubeconfig string
	// address is that of the exporter.
	address string
}

// newKubeVirtctl serves an export and its token by an API server that knows nothing else.
func newKubeVirtctl(t *testing.T, w *world, formats map[exportv1.ExportVolumeFormat]string, token string) *kubevirtctl {
	t.Helper()
	program := os.Getenv("KUBEVIRT_VIRTCTL")
	if program == "" {
		t.Skip("KUBEVIRT_VIRTCTL does not name KubeVirt's virtctl, which `hack/tools/build.sh kubevirt-virtctl` builds")
	}
	exporter := httptest.NewTLSServer(w.server.Config.Handler)
	t.Cleanup(exporter.Close)
	links := &exportv1.VirtualMachineExportLink{
		Cert: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: exporter.Certificate().Raw})),
	}
	volume := exportv1.VirtualMachineExportVolume{Name: "root"}
	for _, format := range []exportv1.ExportVolumeFormat{exportv1.KubeVirtRaw, exportv1.KubeVirtGz, exportv1.Dir,
		exportv1.ArchiveGz} {
		if path := formats[format]; path != "" {
			volume.Formats = append(volume.Formats,
				exportv1.VirtualMachineExportVolumeFormat{Format: format, Url: "https://virt-export-x.default.svc" + path})
		}
	}
	links.Volumes = []exportv1.VirtualMachineExportVolume{volume}
	for kind, path := range map[exportv1.ExportManifestType]string{exportv1.AllManifests: content.AllPath,
		exportv1.AuthHeader: content.SecretPath} {
		links.Manifests = append(links.Manifests,
			exportv1.VirtualMachineExportManifest{Type: kind,
				Url: "https://virt-export-x.default.svc" + content.InternalSide + path})
	}
	links.Manifests = append(links.Manifests,
		exportv1.VirtualMachineExportManifest{Type: exportv1.OCI, Url: "https://virt-export-x.default.svc" + content.OCIPath})
	export := &exportv1.VirtualMachineExport{Status: &exportv1.VirtualMachineExportStatus{
		Phase: exportv1.Ready, TokenSecretRef: ptr.To("token"), ServiceName: "virt-export-x",
		Links: &exportv1.VirtualMachineExportLinks{Internal: links},
	}}
	export.Spec.Source.Kind = "VirtualMachine"
	export.APIVersion, export.Kind, export.Name, export.Namespace = exportv1.GroupVersion.String(), "VirtualMachineExport",
		"x", "default"
	objects := map[string]any{
		"/apis/export.kubevirt.io/v1/namespaces/default/virtualmachineexports/x": export,
		"/api/v1/namespaces/default/secrets/token": map[string]any{
			"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "token"}, "data": map[string]any{content.TokenKey: []byte(token)},
		},
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		object, found := objects[r.URL.Path]
		if !found {
			http.NotFound(w, r)
			return
		}
		raw, err := yaml.Marshal(object)
		if err == nil {
			raw, err = yaml.YAMLToJSON(raw)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(raw)
	}))
	t.Cleanup(api.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("{apiVersion: v1, kind: Config, current-context: a, clusters: [{name: a, cluster: {server: %q}}], contexts: [{name: a, context: {cluster: a}}]}", api.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return &kubevirtctl{t, program, kubeconfig, strings.TrimPrefix(exporter.URL, "https://")}
}

// download downloads to a file and returns its content, and what was printed.
func (k *kubevirtctl) download(flags ...string) (data []byte, printed string, err error) {
	k.t.Helper()
	file := filepath.Join(k.t.TempDir(), "file")
	args := append([]string{"vmexport", "download", "x", "-n", "default", "--service-url=" + k.address,
		"--output=" + file}, flags...)
	command := exec.CommandContext(k.t.Context(), k.program, args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+k.kubeconfig)
	output, err := command.CombinedOutput()
	data, _ = os.ReadFile(file)
	return data, string(output), err
}

// must downloads without an error.
func (k *kubevirtctl) must(flags ...string) []byte {
	k.t.Helper()
	data, printed, err := k.download(flags...)
	if err != nil {
		k.t.Fatalf("vmexport download %v: %v: %s", flags, err, printed)
	}
	return data
}

func TestKubeVirtctlDownloadsADisk(t *testing.T) {
	c := diskVolume()
	c.Manifests = &content.Manifests{
		VirtualMachine: map[string]any{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
			"metadata": map[string]any{"name": "vm"}},
		Internal: &content.Side{Address: "virt-export-x.default.svc", CA: "CA"},
	}
	w := serve(t, c)
	disk := append(random(t, 1<<20), make([]byte, 1<<20)...)
	w.write("disk.img", disk)
	k := newKubeVirtctl(t, w, map[exportv1.ExportVolumeFormat]string{
		exportv1.KubeVirtRaw: "/volumes/root/disk.img", exportv1.KubeVirtGz: "/volumes/root/disk.img.gz",
	}, token)
	if !bytes.Equal(k.must("--format=raw"), disk) {
		t.Error("the disk differs")
	}
	packed, err := gzip.NewReader(bytes.NewReader(k.must("--volume=root", "--format=gzip")))
	if err != nil {
		t.Fatal(err)
	}
	if unpacked, err := io.ReadAll(packed); err != nil || !bytes.Equal(unpacked, disk) {
		t.Errorf("the compressed disk differs: %v", err)
	}
	manifests := string(k.must("--manifest", "--include-secret"))
	for _, want := range []string{"kind: VirtualMachine\n", "name: vm\n", "kind: Secret\n", content.TokenHeader} {
		if !strings.Contains(manifests, want) {
			t.Errorf("the manifests do not contain %q:\n%s", want, manifests)
		}
	}
	if text := k.must("--manifest", "--manifest-output-format=json"); !bytes.Contains(text, []byte(`"VirtualMachine"`)) {
		t.Errorf("the manifests are %s", text)
	}
}

func TestKubeVirtctlDownloadsAnImage(t *testing.T) {
	w, s := serveImage(t, imageContent())
	w.write("disk.img", random(t, 1<<20))
	s.Prepare(t.Context())
	k := newKubeVirtctl(t, w, nil, token)
	if files := unpack(t, k.must("--format=oci")); len(files) != 5 {
		t.Errorf("got %d files", len(files))
	}
}

func TestKubeVirtctlDownloadsFiles(t *testing.T) {
	w := serve(t, filesVolume())
	w.write("a/file", []byte("hello"))
	k := newKubeVirtctl(t, w, map[exportv1.ExportVolumeFormat]string{
		exportv1.Dir: "/volumes/data/dir", exportv1.ArchiveGz: "/volumes/data/disk.tar.gz",
	}, token)
	packed, err := gzip.NewReader(bytes.NewReader(k.must()))
	if err != nil {
		t.Fatal(err)
	}
	if archive, err := io.ReadAll(packed); err != nil || !bytes.Contains(archive, []byte("hello")) {
		t.Errorf("the archive lacks the file: %v", err)
	}
}

func TestKubeVirtctlNeedsTheToken(t *testing.T) {
	w := serve(t, diskVolume())
	w.write("disk.img", []byte("secret"))
	formats := map[exportv1.ExportVolumeFormat]string{exportv1.KubeVirtRaw: "/volumes/root/disk.img",
		exportv1.KubeVirtGz: "/volumes/root/disk.img.gz"}
	data, printed, err := newKubeVirtctl(t, w, formats, token[1:]+"x").download()
	if err == nil || len(data) > 0 || !strings.Contains(printed, "401") {
		t.Errorf("got %q, %v: %s", data, err, printed)
	}
}
