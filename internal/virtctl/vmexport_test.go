// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/virtctl"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
	"github.com/vireo-project/vireo/test/pki"
)

const exportHost = "virt-export-export.tenant.svc"

// exported is a cluster with an export, and the server of that.
type exported struct {
	t    *testing.T
	s    *virtctltest.Server
	disk []byte
	// failures is how many requests fail before one is served.
	failures int
	// image reports whether the export is also an OCI image, and source is the kind of its source.
	image   bool
	source  string
	address string
	ca      string
}

func newExported(t *testing.T) *exported {
	t.Helper()
	e := &exported{t: t, s: virtctltest.NewServer(t), disk: bytes.Repeat([]byte("disk"), 1<<18)}
	e.s.AddKind("export.kubevirt.io/v1", "VirtualMachineExport", "virtualmachineexports")
	authority := pki.New(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(e.serve))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{authority.Issue(exportHost, x509.ExtKeyUsageServerAuth)},
		MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	e.address, e.ca = server.Listener.Addr().String(), string(authority.PEM())
	return e
}

func (e *exported) serve(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("x-kubevirt-export-token") != "the-token" || r.URL.RawQuery != "" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if e.failures > 0 {
		e.failures--
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/disk.img.gz"):
		packed := gzip.NewWriter(w)
		_, _ = packed.Write(e.disk)
		_ = packed.Close()
	case strings.HasSuffix(r.URL.Path, "/cut/disk.img"):
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, "part")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	case r.URL.Path == "/export.oci.tar":
		_, _ = io.WriteString(w, "image")
	case strings.Contains(r.URL.Path, "/manifests/"):
		_, _ = io.WriteString(w, r.Header.Get("Accept")+" "+r.URL.Path+"\n")
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func volumeLink(name string, formats ...exportv1.ExportVolumeFormat) exportv1.VirtualMachineExportVolume {
	out := exportv1.VirtualMachineExportVolume{Name: name}
	for _, format := range formats {
		file := map[exportv1.ExportVolumeFormat]string{exportv1.KubeVirtRaw: "disk.img",
			exportv1.KubeVirtGz: "disk.img.gz"}[format]
		out.Formats = append(out.Formats,
			exportv1.VirtualMachineExportVolumeFormat{Format: format,
				Url: "https://" + exportHost + "/volumes/" + name + "/" + file})
	}
	return out
}

// add adds an export that is ready, and its token.
func (e *exported) add(volumes ...exportv1.VirtualMachineExportVolume) {
	e.t.Helper()
	link := &exportv1.VirtualMachineExportLink{Cert: e.ca, Volumes: volumes,
		Manifests: []exportv1.VirtualMachineExportManifest{
			{Type: exportv1.AllManifests, Url: "https://" + exportHost + "/internal/manifests/all"},
			{Type: exportv1.AuthHeader, Url: "https://" + exportHost + "/internal/manifests/secret"},
		}}
	if e.image {
		link.Manifests = append(link.Manifests,
			exportv1.VirtualMachineExportManifest{Type: exportv1.OCI, Url: "https://" + exportHost + "/export.oci.tar"})
	}
	e.s.Add(&exportv1.VirtualMachineExport{
		ObjectMeta: metav1.ObjectMeta{Namespace: virtctltest.Namespace, Name: "export"},
		Spec:       exportv1.VirtualMachineExportSpec{Source: corev1.TypedLocalObjectReference{Kind: e.source}},
		Status: &exportv1.VirtualMachineExportStatus{
			Phase: exportv1.Ready, TokenSecretRef: ptr.To("token"), Links: &exportv1.VirtualMachineExportLinks{Internal: link},
		},
	}, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: virtctltest.Namespace, Name: "token"},
		Data:       map[string][]byte{"token": []byte("the-token")},
	})
}

func (e *exported) run(arguments string) virtctltest.Result {
	e.t.Helper()
	return e.s.Run(virtctl.Execute,
		append([]string{"vmexport"}, strings.Fields(strings.ReplaceAll(arguments, "ADDRESS", e.address))...)...)
}

func TestVMExportCreate(t *testing.T) {
	for flags, source := range map[string]string{
		"--vm=vm": "kubevirt.io/VirtualMachine/vm", "--snapshot=snap": "snapshot.kubevirt.io/VirtualMachineSnapshot/snap", "--pvc=data": "/PersistentVolumeClaim/data",
	} {
		e := newExported(t)
		got := e.run("create export --ttl=1h --labels=a=b,c=d " + flags)
		if got.Code != 0 || !strings.Contains(got.ErrOut+got.Out, "created succesfully") { //nolint:misspell // KubeVirt's text
			t.Fatalf("%s: %+v", flags, got)
		}
		spec, _ := e.s.Get("virtualmachineexports", virtctltest.Namespace, "export").Object["spec"].(map[string]any)
		of, _ := spec["source"].(map[string]any)
		group, _ := of["apiGroup"].(string)
		if name := group + "/" + of["kind"].(string) + "/" + of["name"].(string); name != source ||
			spec["tokenSecretRef"] != "secret-export" || spec["ttlDuration"] != "1h0m0s" {
			t.Errorf("%s: created %v", flags, spec)
		}
		secret := e.s.Get("secrets", virtctltest.Namespace, "secret-export")
		if data, _ := secret.Object["data"].(map[string]any); data["token"] == "" || len(secret.GetOwnerReferences()) != 1 {
			t.Errorf("%s: the Secret is %v", flags, secret)
		}
		if got := e.run("create export " + flags); got.Code == 0 || !strings.Contains(got.ErrOut, "already exists") {
			t.Errorf("%s again: %+v", flags, got)
		}
		if got := e.run("delete export"); got.Code != 0 || !strings.Contains(got.ErrOut+got.Out, "deleted succesfully") { //nolint:misspell // KubeVirt's text
			t.Errorf("delete: %+v", got)
		}
		if got := e.run("delete export"); got.Code != 0 || !strings.Contains(got.ErrOut+got.Out, "does not exist") {
			t.Errorf("delete again: %+v", got)
		}
	}
}

// TestVMExportAgain creates an export again before the garbage collector has removed the Secret of the one of the same
// name.
func TestVMExportAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		owner *metav1.OwnerReference
		kept  bool
	}{
		"an earlier export's": {&metav1.OwnerReference{APIVersion: "export.kubevirt.io/v1", Kind: "VirtualMachineExport", Name: "export", UID: "old",
			Controller: ptr.To(true)}, false},
		"the user's":     {nil, true},
		"another tool's": {&metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "tool", UID: "tool", Controller: ptr.To(true)}, true},
	} {
		e := newExported(t)
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: virtctltest.Namespace, Name: "secret-export",
				Labels: map[string]string{"was": "there"}},
			Data: map[string][]byte{"token": []byte("before")},
		}
		if tc.owner != nil {
			secret.OwnerReferences = []metav1.OwnerReference{*tc.owner}
		}
		e.s.Add(secret)
		if got := e.run("create export --pvc=data"); got.Code != 0 {
			t.Fatalf("%s: %+v", name, got)
		}
		after := e.s.Get("secrets", virtctltest.Namespace, "secret-export")
		if kept := after.GetLabels()["was"] == "there"; kept != tc.kept {
			t.Errorf("%s: the Secret is %v", name, after)
		}
	}
}

func TestVMExportRefusesFlags(t *testing.T) {
	e := newExported(t)
	for arguments, want := range map[string]string{
		"upload export": "invalid function 'upload'",
		"create export": "need to specify export kind", "create export --vm=a --output=x": "the '--output' flag is incompatible with 'create'",
		"create export --vm=a --pvc=b": "none of the others can be", "delete export --vm=a": "should not specify export kind",
		"delete export --ttl=1h": "the '--ttl' flag is incompatible with 'delete'", "download export": "Binary output can mess up your terminal",
		"download export --output=x --format=qcow2":               "--format is not a valid value, acceptable values are gzip/raw/oci",
		"download export --output=x --format=oci --volume=a":      "the '--volume' flag is incompatible with '--format=oci'",
		"download export --output=x --format=oci --pvc=a":         "the '--pvc' flag is incompatible with '--format=oci'",
		"download export --output=x --format=oci --manifest":      "the '--manifest' flag is incompatible with '--format=oci'",
		"download export --manifest --volume=a":                   "the '--volume' flag is incompatible with '--manifest'",
		"download export --manifest --pvc=a":                      "the '--pvc' flag is incompatible with '--manifest'",
		"download export --manifest --manifest-output-format=xml": "json/yaml", "download export --output=x --retry=-1": "positive integers",
		"download export --output=x --keep-vme --delete-vme": "none of the others can be",
	} {
		if got := e.run(arguments); got.Code == 0 || !strings.Contains(got.ErrOut, want) {
			t.Errorf("%s: %+v", arguments, got)
		}
	}
	if writes := e.s.Writes(); len(writes) > 0 {
		t.Errorf("the cluster was changed: %v", writes)
	}
}

func TestVMExportDownload(t *testing.T) {
	e := newExported(t)
	e.add(volumeLink("root", exportv1.KubeVirtRaw, exportv1.KubeVirtGz))
	name := filepath.Join(t.TempDir(), "disk.img")
	got := e.run("download export --format=raw --service-url=ADDRESS --output=" + name)
	if got.Code != 0 || !strings.Contains(got.Out, "Download finished succesfully") { //nolint:misspell // KubeVirt's text
		t.Fatalf("%+v", got)
	}
	if data, err := os.ReadFile(name); err != nil || !bytes.Equal(data, e.disk) {
		t.Errorf("got %d bytes, %v", len(data), err)
	}
	// To the standard output, compressed, after failures.
	e.failures = 2
	got = e.run("download export --service-url=ADDRESS --output=- --retry=2 --volume=another-name")
	unpacked, err := gzip.NewReader(strings.NewReader(got.Out))
	if err != nil || got.Code != 0 {
		t.Fatalf("%v, %d, %s", err, got.Code, got.ErrOut)
	}
	if data, err := io.ReadAll(unpacked); err != nil || !bytes.Equal(data, e.disk) ||
		strings.Count(got.ErrOut, "Retrying...") != 2 {
		t.Errorf("got %d bytes, %v: %s", len(data), err, got.ErrOut)
	}
	if writes := e.s.Writes(); len(writes) > 0 {
		t.Errorf("an export that existed before was changed: %v", writes)
	}
	got = e.run("download export --service-url=ADDRESS --output=- --delete-vme")
	if got.Code != 0 || len(e.s.Writes()) != 1 {
		t.Errorf("%d, %s, %v", got.Code, got.ErrOut, e.s.Writes())
	}
}

// The claims that are created from a snapshot have the name of the export before that of the VM's claim.
func TestVMExportDownloadsAVolumeOfASnapshot(t *testing.T) {
	for _, volume := range []string{"export-root", "root"} {
		e := newExported(t)
		e.add(volumeLink("export-other", exportv1.KubeVirtRaw), volumeLink("export-root", exportv1.KubeVirtGz))
		if got := e.run("download export --service-url=ADDRESS --output=- --volume=" + volume); got.Code != 0 {
			t.Errorf("%s: %+v", volume, got)
		}
	}
}

func TestVMExportDownloadsThatFail(t *testing.T) {
	for arguments, want := range map[string]string{
		"--output=FILE":                                        "has no external links: the cluster has no Ingress or Route to virt-exportproxy; use --port-forward",
		"--output=FILE --service-url=ADDRESS":                  "detected more than one downloadable volume",
		"--output=FILE --service-url=ADDRESS --volume=other":   "unable to get a valid URL",
		"--output=FILE --service-url=ADDRESS --volume=cut":     "the download was cut off",
		"--output=FILE --service-url=127.0.0.1:1 --volume=cut": "the server of the export",
	} {
		e := newExported(t)
		e.add(volumeLink("cut", exportv1.KubeVirtRaw), volumeLink("root", exportv1.KubeVirtGz))
		dir := t.TempDir()
		got := e.run("download export " + strings.ReplaceAll(arguments, "FILE", filepath.Join(dir, "disk.img")))
		if got.Code == 0 || !strings.Contains(got.ErrOut, want) {
			t.Errorf("%s: %+v", arguments, got)
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
			t.Errorf("%s: a part is left: %v, %v", arguments, files, err)
		}
	}
	e := newExported(t)
	e.add(volumeLink("root", exportv1.KubeVirtGz))
	e.ca = string(pki.New(t).PEM())
	other := newExported(t)
	e.address = other.address
	if got := e.run("download export --service-url=ADDRESS --output=-"); got.Code == 0 ||
		!strings.Contains(got.ErrOut, "certificate of the server is not trusted") {
		t.Errorf("%+v", got)
	}
	if got := e.run("download export --service-url=ADDRESS --output=- --insecure"); got.Code != 0 {
		t.Errorf("%+v", got)
	}
}

// What was written to the standard output cannot be taken back.
func TestVMExportWritesToAPipeOnce(t *testing.T) {
	e := newExported(t)
	e.add(volumeLink("cut", exportv1.KubeVirtRaw))
	got := e.run("download export --service-url=ADDRESS --output=- --retry=3")
	if got.Code == 0 || got.Out != "part" || strings.Contains(got.ErrOut, "Retrying") ||
		!strings.Contains(got.ErrOut, "the download was cut off") {
		t.Errorf("%+v", got)
	}
}

func TestVMExportDownloadsAnImage(t *testing.T) {
	e := newExported(t)
	e.add(volumeLink("root", exportv1.KubeVirtRaw), volumeLink("data", exportv1.KubeVirtRaw))
	got := e.run("download export --format=oci --service-url=ADDRESS --output=-")
	if got.Code == 0 || !strings.Contains(got.ErrOut, `OCI export is not supported for "" sources`) {
		t.Errorf("of a claim: %+v", got)
	}
	for image, want := range map[bool]string{false: "OCI export format not available for 'tenant/export'", true: "image"} {
		e := newExported(t)
		e.image, e.source = image, "VirtualMachine"
		e.add(volumeLink("root", exportv1.KubeVirtRaw), volumeLink("data", exportv1.KubeVirtRaw))
		got := e.run("download export --format=oci --service-url=ADDRESS --output=-")
		if text := map[bool]string{false: got.ErrOut, true: got.Out}[image]; (got.Code == 0) != image ||
			!strings.Contains(text, want) {
			t.Errorf("%t: %+v", image, got)
		}
	}
}

// An export that is not ready in time is kept if it was just created, and the reason is printed.
func TestVMExportThatIsNotReady(t *testing.T) {
	e := newExported(t)
	got := e.run("download export --vm=vm --readiness-timeout=1s --output=-")
	if got.Code == 0 || !strings.Contains(got.ErrOut, "was not ready within 1s") ||
		!strings.Contains(got.ErrOut, "is kept") {
		t.Errorf("%+v", got)
	}
	e.s.Get("virtualmachineexports", virtctltest.Namespace, "export")
}

func TestVMExportManifests(t *testing.T) {
	e := newExported(t)
	e.add()
	got := e.run("download export --manifest --include-secret --service-url=ADDRESS")
	if want := "application/yaml /internal/manifests/all\napplication/yaml /internal/manifests/secret\n"; got.Code != 0 ||
		got.Out != want {
		t.Errorf("%+v", got)
	}
	name := filepath.Join(t.TempDir(), "vm.json")
	got = e.run("download export --manifest --manifest-output-format=json --service-url=ADDRESS --output=" + name)
	if data, err := os.ReadFile(name); got.Code != 0 || err != nil ||
		string(data) != "application/json /internal/manifests/all\n" {
		t.Errorf("%+v, %q, %v", got, data, err)
	}
	// The cluster in which they are applied imports from the export.
	got = e.run("download export --manifest --delete-vme --service-url=ADDRESS")
	if writes := e.s.Writes(); got.Code != 0 || len(writes) > 0 {
		t.Errorf("%+v, %v", got, writes)
	}
}
