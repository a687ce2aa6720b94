// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/vireo-project/vireo/internal/virtctl"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
)

const firstPost = "POST /v1beta1/upload-async token-1"

func TestImageUpload(t *testing.T) {
	for command, want := range map[string]struct{ resource, spec, labels string }{
		"dv disk --size=1Gi --image-path=IMAGE": {"datavolumes",
			"contentType: kubevirt\nsource:\n  upload: {}\nstorage:\n  resources:\n    requests:\n      storage: 1Gi\n",
			"null\n"},
		"DV disk --size=1Gi --archive-path=IMAGE --volume-mode=filesystem --access-mode=ReadWriteMany --storage-class=fast": {"datavolumes",
			"contentType: archive\nsource:\n  upload: {}\nstorage:\n  accessModes:\n  - ReadWriteMany\n  resources:\n    requests:\n      storage: 1Gi\n" +
				"  storageClassName: fast\n  volumeMode: Filesystem\n", "null\n"},
		"pvc disk --size=1Gi --image-path=IMAGE --default-instancetype=small --default-instancetype-kind=VirtualMachineInstancetype --default-preference=debian": {claims,
			"accessModes:\n- ReadWriteOnce\nresources:\n  requests:\n    storage: 1Gi\n",
			"instancetype.kubevirt.io/default-instancetype: small\ninstancetype.kubevirt.io/default-instancetype-kind: VirtualMachineInstancetype\n" +
				"instancetype.kubevirt.io/default-preference: debian\n"},
		"--pvc-name=disk --pvc-size=1Gi --image-path=IMAGE --block-volume --storage-class=fast": {claims,
			"accessModes:\n- ReadWriteOnce\nresources:\n  requests:\n    storage: 1Gi\nstorageClassName: fast\nvolumeMode: Block\n", "null\n"},
	} {
		t.Run(command, func(t *testing.T) {
			i := newImporter(t)
			class := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "storage.k8s.io/v1",
				"kind": "StorageClass"}}
			class.SetName("fast")
			i.s.Add(class)
			name, content := image(t)
			got := i.run(command, name)
			i.expectUploaded(got, content, firstPost)
			for _, line := range []string{" tenant/disk created\n", "Uploading data to https://127.0.0.1:",
				"3.0 MiB of 3.0 MiB, 100 %, ", "Processing completed successfully\n"} {
				if !strings.Contains(got.Out, line) {
					t.Errorf("the output does not contain %q:\n%s", line, got.Out)
				}
			}
			made := i.s.Get(want.resource, virtctltest.Namespace, "disk")
			spec, _ := yaml.Marshal(made.Object["spec"])
			labels, _ := yaml.Marshal(made.GetLabels())
			if diff := cmp.Diff(want.spec+want.labels, string(spec)+string(labels)); diff != "" {
				t.Errorf("created (-want +got):\n%s", diff)
			}
		})
	}
}

func TestImageUploadDataSource(t *testing.T) {
	i := newImporter(t)
	name, content := image(t)
	old := &unstructured.Unstructured{Object: map[string]any{"apiVersion": cdiGroup, "kind": "DataSource",
		"spec": map[string]any{"source": map[string]any{"snapshot": map[string]any{"name": "old", "namespace": "old"}}}}}
	old.SetNamespace(virtctltest.Namespace)
	old.SetName("disk")
	old.SetLabels(map[string]string{"mine": "kept"})
	i.s.Add(old)
	got := i.run("dv disk --size=1Gi --force-bind --datasource --default-preference=debian --image-path=IMAGE", name)
	i.expectUploaded(got, content, firstPost)
	source := i.s.Get("datasources", virtctltest.Namespace, "disk")
	spec, _ := yaml.Marshal(source.Object["spec"])
	if want := "source:\n  pvc:\n    name: disk\n    namespace: tenant\n"; string(spec) != want {
		t.Errorf("the DataSource's spec is\n%s", spec)
	}
	if want := map[string]string{"mine": "kept", "instancetype.kubevirt.io/default-preference": "debian"}; !cmp.Equal(want,
		source.GetLabels()) {
		t.Errorf("labels %v", source.GetLabels())
	}
	if _, found := i.s.Get("datavolumes", virtctltest.Namespace,
		"disk").GetAnnotations()["cdi.kubevirt.io/storage.bind.immediate.requested"]; !found {
		t.Error("--force-bind sets no annotation")
	}
}

// A failed upload starts again from the beginning, with a new token.
func TestImageUploadRetries(t *testing.T) {
	for why, handler := range map[string]http.HandlerFunc{
		"503":     respondWith(http.StatusServiceUnavailable, "not ready yet"),
		"the cut": cutAfter(1 << 20),
	} {
		t.Run(why, func(t *testing.T) {
			t.Parallel()
			i := newImporter(t)
			i.prepare(func() { i.responses = []http.HandlerFunc{handler} })
			name, content := image(t)
			got := i.run("dv disk --size=1Gi --image-path=IMAGE", name)
			i.expectUploaded(got, content, firstPost, "POST /v1beta1/upload-async token-2")
			if !strings.Contains(got.Out, "The upload failed and starts again: ") {
				t.Errorf("the failure is not printed:\n%s", got.Out)
			}
		})
	}
	t.Run("only as often as requested", func(t *testing.T) {
		t.Parallel()
		i := newImporter(t)
		busy := respondWith(http.StatusServiceUnavailable, "not\x1b[2J ready")
		i.prepare(func() { i.responses = []http.HandlerFunc{busy, busy, busy} })
		name, _ := image(t)
		got := i.run("dv disk --size=1Gi --retry=1 --image-path=IMAGE", name)
		i.expectRefused(got, "error uploading image after 1 retries: unexpected return value 503, not[2J ready")
		if posts, _ := i.uploads(); len(posts) != 2 || strings.Contains(got.Out, "\x1b") {
			t.Errorf("%d attempts:\n%q", len(posts), got.Out)
		}
	})
}

// Permanent errors are not retried.
func TestImageUploadProxyRefuses(t *testing.T) {
	for want, prepare := range map[string]func(*importer) string{
		"unexpected return value 401,  (the upload proxy rejects the token": func(i *importer) string {
			i.responses = []http.HandlerFunc{respondWith(http.StatusUnauthorized, "")}
			return ""
		},
		"unexpected return value 400, no image": func(i *importer) string {
			i.responses = []http.HandlerFunc{respondWith(http.StatusBadRequest, "no image")}
			return ""
		},
		"try --uploadproxy-url=https://elsewhere.example": func(i *importer) string {
			i.responses = []http.HandlerFunc{func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "https://elsewhere.example", http.StatusTemporaryRedirect)
			}}
			return ""
		},
		"CDI refused the token for an upload to PVC disk: uploadtokenrequests is refused": func(i *importer) string {
			i.refuseToken = http.StatusForbidden
			return ""
		},
		"CDI's API server, which issues tokens for uploads, does not respond": func(i *importer) string {
			i.refuseToken = http.StatusServiceUnavailable
			return ""
		},
		"use --insecure to skip its verification": func(i *importer) string {
			return " --uploadproxy-url=" + i.proxy.URL
		},
		"the URL of the upload proxy is not an http or https URL": func(*importer) string {
			return " --uploadproxy-url=ftp://somewhere"
		},
		"kubectl port-forward --namespace cdi service/cdi-uploadproxy": func(i *importer) string {
			i.configure(map[string]any{}, map[string]any{})
			return ""
		},
		"has no certificate in it": func(i *importer) string {
			i.configure(map[string]any{"uploadProxyURLOverride": i.proxy.URL}, map[string]any{"uploadProxyCA": "?"})
			return ""
		},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			i := newImporter(t)
			var flags string
			i.prepare(func() { flags = prepare(i) })
			name, _ := image(t)
			got := i.run("dv disk --size=1Gi --image-path=IMAGE"+flags, name)
			i.expectRefused(got, want)
			if posts, _ := i.uploads(); len(posts) > 1 || strings.Contains(got.ErrOut, "cluster cannot be reached") {
				t.Errorf("%d attempts: %s", len(posts), got.ErrOut)
			}
		})
	}
}

// The flag chooses the proxy, which may lack the asynchronous path.
func TestImageUploadProxyURL(t *testing.T) {
	for _, where := range []string{"HOST", "https://HOST/v1beta1/upload", "https://HOST/v1beta1/upload-async",
		"https://HOST/behind/"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			i := newImporter(t)
			i.prepare(func() { i.noAsync = true })
			i.configure(map[string]any{}, map[string]any{})
			name, content := image(t)
			address := strings.ReplaceAll(where, "HOST", i.proxy.Listener.Addr().String())
			got := i.run("pvc disk --size=1Gi --insecure --image-path=IMAGE --uploadproxy-url="+address, name)
			prefix := ""
			if strings.HasSuffix(where, "behind/") {
				prefix = "/behind"
			}
			i.expectUploaded(got, content, "POST "+prefix+"/v1beta1/upload token-1")
		})
	}
}

// Errors that can be detected beforehand are reported before an object is created.
func TestImageUploadRefuses(t *testing.T) {
	i := newImporter(t)
	name, _ := image(t)
	for command, want := range map[string]string{
		"dv disk --size=1Gi":                                                            "at least one of the flags in the group [image-path archive-path] is required",
		"dv disk --size=1Gi --image-path=IMAGE.absent":                                  "failed to open image file: open ",
		"dv disk --size=1Gi --image-path=" + filepath.Dir(name):                         "it is a directory",
		"dv disk --size=1Gi --image-path=/dev/null":                                     "it is empty",
		"dv disk --image-path=IMAGE":                                                    "when creating a resource, the size must be specified",
		"dv disk --image-path=IMAGE --size=big":                                         "validation failed for size=big",
		"dv disk --image-path=IMAGE --size=-1":                                          "validation failed for size=-1",
		"dv disk --image-path=IMAGE --size=1 --access-mode=ReadOnlyMany":                "cannot upload to a readonly volume",
		"dv disk --image-path=IMAGE --size=1 --storage-class=absent":                    `storage class absent: storageclasses.storage.k8s.io "absent" not found`,
		"dv disk --image-path=IMAGE --no-create":                                        "without --no-create it is created",
		"dv --image-path=IMAGE":                                                         "expecting two args",
		"vm disk --image-path=IMAGE":                                                    "invalid resource type vm",
		"dv disk --image-path=IMAGE --pvc-name=disk":                                    "cannot use --pvc-name and args",
		"dv disk --image-path=IMAGE --volume-mode=disk":                                 "invalid volume mode 'disk'",
		"dv disk --image-path=IMAGE --volume-mode=filesystem --block-volume":            "incompatible --volume-mode 'filesystem'",
		"dv disk --archive-path=IMAGE --block-volume":                                   "should always be filesystem",
		"dv disk --image-path=IMAGE --default-preference-kind=x":                        "--default-preference must be provided with --default-preference-kind",
		"dv disk --image-path=IMAGE --default-preference=a --no-create":                 "cannot be used with --no-create",
		"dv disk --image-path=IMAGE --default-preference=a --default-preference-kind=x": "invalid --default-preference-kind: x",
	} {
		t.Run(command, func(*testing.T) { i.expectRefused(i.run(command, name), want) })
	}
	if len(i.s.Writes()) > 0 {
		t.Errorf("the cluster was changed: %v", i.s.Writes())
	}
	bare := virtctltest.NewServer(t)
	expectFailure(t, bare.Run(virtctl.Execute, "image-upload", "pvc", "disk", "--size=1Gi", "--image-path="+name),
		"the cluster does not serve cdi.kubevirt.io/v1beta1: the Containerized Data Importer (CDI), which receives uploads, is not installed or not running")
	if len(bare.Writes()) > 0 {
		t.Errorf("a cluster without CDI was changed: %v", bare.Writes())
	}
}

// An existing claim is used only if it was created for an upload, or with --no-create.
func TestImageUploadExisting(t *testing.T) {
	const use = " --image-path=IMAGE"
	for _, test := range []struct {
		command, refusal   string
		annotations        map[string]string
		volume             bool
		volumesAnnotations map[string]string
	}{
		{command: "pvc disk --size=1Gi", refusal: "PVC disk not available for upload"},
		{command: "pvc disk --no-create"},
		{command: "pvc disk --size=1Gi", annotations: map[string]string{annUpload: ""}},
		{command: "pvc disk --no-create", annotations: map[string]string{annPhase: "Succeeded"}, refusal: "already successfully imported/cloned/updated"},
		{command: "dv disk --no-create", refusal: "no DataVolume is associated with the existing PVC tenant/disk"},
		{command: "dv disk --no-create", annotations: map[string]string{annUpload: ""}, volume: true},
		{command: "dv disk --no-create", volume: true, volumesAnnotations: map[string]string{"cdi.kubevirt.io/storage.usePopulator": "true"}, refusal: "unable to get PVC Prime name"},
		{command: "dv disk --no-create", volume: true, volumesAnnotations: map[string]string{"cdi.kubevirt.io/storage.usePopulator": "true"},
			annotations: map[string]string{"cdi.kubevirt.io/storage.populator.pvcPrime": "prime", annUpload: ""}},
	} {
		t.Run(test.command+test.refusal, func(t *testing.T) {
			t.Parallel()
			i := newImporter(t)
			i.addClaim(test.annotations)
			i.s.Add(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: virtctltest.Namespace, Name: "prime",
				Annotations: map[string]string{annUpload: ""}}})
			if test.volume {
				i.addVolume(test.volumesAnnotations)
			}
			name, content := image(t)
			got := i.run(test.command+use, name)
			if test.refusal != "" {
				i.expectRefused(got, test.refusal)
				if len(i.s.Writes()) > 0 {
					t.Errorf("the cluster was changed: %v", i.s.Writes())
				}
				return
			}
			i.expectUploaded(got, content, firstPost)
			if !strings.Contains(got.Out, "Using existing PVC tenant/") {
				t.Errorf("the claim in use is not printed:\n%s", got.Out)
			}
		})
	}
	i := newImporter(t)
	i.addClaim(map[string]string{annUpload: ""})
	name, _ := image(t)
	i.expectRefused(i.run("pvc disk --no-create --archive-path=IMAGE", name),
		"PVC disk doesn't have archive contentType annotation")
}

// The command stops waiting when that is pointless, and reports the reason.
func TestImageUploadWaits(t *testing.T) {
	event := func(uid, kind, reason, message string) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: virtctltest.Namespace, Name: reason + uid},
			Reason: reason, Message: message,
			InvolvedObject: corev1.ObjectReference{Kind: kind, Name: "disk", UID: "claim"}}
	}
	for want, prepare := range map[string]func(*importer) string{
		"cannot upload to DataVolume in WaitForFirstConsumer phase, make sure the PVC is Bound, or use force-bind flag": func(i *importer) string {
			i.phase = "WaitForFirstConsumer"
			return ""
		},
		`PVC disk was not ready for the upload within 1 seconds (--wait-secs): the DataVolume is in phase "WaitForFirstConsumer"`: func(i *importer) string {
			i.phase = "WaitForFirstConsumer"
			return " --force-bind --wait-secs=1"
		},
		`the DataVolume is in phase "Failed"`: func(i *importer) string {
			i.phase = "Failed"
			return ""
		},
		"provisioning failed: no space": func(i *importer) string {
			i.phase = "UploadScheduled"
			i.s.Add(event("a", "PersistentVolumeClaim", "Other", "nothing"),
				event("b", "PersistentVolumeClaim", "ProvisioningFailed",
					"x: the object has been modified; please apply your changes to the latest version and try again"),
				event("c", "PersistentVolumeClaim", "ProvisioningFailed", "no space"))
			return ""
		},
		"claim not valid: no mode": func(i *importer) string {
			i.phase = "UploadScheduled"
			i.s.Add(event("a", "DataVolume", "ErrClaimNotValid", "no mode"))
			return ""
		},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			i := newImporter(t)
			var flags string
			i.prepare(func() { flags = prepare(i) })
			name, _ := image(t)
			i.expectRefused(i.run("dv disk --size=1Gi --image-path=IMAGE"+flags, name), want)
		})
	}
}

// Ctrl+C cancels an upload immediately, without a retry.
func TestImageUploadInterrupted(t *testing.T) {
	i := newImporter(t)
	ctx, cancel := context.WithCancel(t.Context())
	i.prepare(func() {
		i.responses = []http.HandlerFunc{func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.CopyN(io.Discard, r.Body, 1<<20)
			cancel()
			// The rest may have been sent already. There is no response, so that only Ctrl+C ends the upload.
			if _, err := io.Copy(io.Discard, r.Body); err == nil {
				<-r.Context().Done()
			}
		}}
	})
	name, _ := image(t)
	got := i.s.RunWith(ctx, virtctl.Execute, nil, "image-upload", "pvc", "disk", "--size=1Gi", "--image-path="+name)
	i.expectRefused(got, "the upload was interrupted")
	if posts, _ := i.uploads(); len(posts) != 1 {
		t.Errorf("%d attempts", len(posts))
	}
}

func TestImageUploadNoWait(t *testing.T) {
	i := newImporter(t)
	name, content := image(t)
	got := i.run("dv disk --size=1Gi --no-wait --image-path=IMAGE", name)
	if _, taken := i.uploads(); got.Code != 0 || len(taken) != len(content) ||
		!strings.HasSuffix(got.Out, "processing continues in the cluster\n") {
		t.Errorf("%+v", got)
	}
}
