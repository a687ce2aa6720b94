// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/vireo-project/vireo/internal/virtctl"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
)

const (
	cdiGroup    = "cdi.kubevirt.io/v1beta1"
	uploadGroup = "upload.cdi.kubevirt.io/v1beta1"
	claims      = "persistentvolumeclaims"
	annUpload   = "cdi.kubevirt.io/storage.upload.target"
	annPhase    = "cdi.kubevirt.io/storage.pod.phase"
	annReady    = "cdi.kubevirt.io/storage.pod.ready"
)

// importer simulates CDI: its kinds, the requests for tokens, and the upload proxy, which has its own certificate.
type importer struct {
	t     *testing.T
	s     *virtctltest.Server
	proxy *httptest.Server
	// phase is the phase that DataVolumes get. If empty, volumes are not reconciled.
	phase string
	// noAsync simulates an older proxy without the asynchronous path.
	noAsync bool
	// refuseToken is the status code for requests for a token, 0 accepts them.
	refuseToken int

	mu sync.Mutex
	// responses are served to the next uploads instead of accepting them.
	responses []http.HandlerFunc
	tokens    []string
	// posts are the paths and tokens of uploads, and received the content of the accepted one.
	posts    []string
	received []byte
}

func newImporter(t *testing.T) *importer {
	t.Helper()
	i := &importer{t: t, s: virtctltest.NewServer(t), phase: "UploadReady"}
	i.s.AddKind(cdiGroup, "DataVolume", "datavolumes")
	i.s.AddKind(cdiGroup, "DataSource", "datasources")
	i.s.AddClusterKind(cdiGroup, "CDIConfig", "cdiconfigs")
	i.s.AddRequestKind(uploadGroup, "UploadTokenRequest", "uploadtokenrequests", i.token)
	i.proxy = httptest.NewTLSServer(http.HandlerFunc(i.upload))
	t.Cleanup(i.proxy.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.proxy.Certificate().Raw})
	i.configure(map[string]any{},
		map[string]any{"uploadProxyURL": i.proxy.Listener.Addr().String(), "uploadProxyCA": string(ca)})
	stop, stopped := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-stopped })
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				i.reconcile()
			}
		}
	}()
	return i
}

func (i *importer) configure(spec, status map[string]any) {
	config := &unstructured.Unstructured{Object: map[string]any{"apiVersion": cdiGroup, "kind": "CDIConfig", "spec": spec,
		"status": status}}
	config.SetName("config")
	i.s.Add(config)
}

// reconcile simulates CDI's controllers for the volume disk.
func (i *importer) reconcile() {
	i.mu.Lock()
	phase, done := i.phase, i.received != nil
	i.mu.Unlock()
	if phase == "" {
		return
	}
	claim := i.s.Get(claims, virtctltest.Namespace, "disk")
	if volume := i.s.Get("datavolumes", virtctltest.Namespace, "disk"); volume != nil {
		if now, _, _ := unstructured.NestedString(volume.Object, "status", "phase"); now == "" {
			volume = volume.DeepCopy()
			_ = unstructured.SetNestedField(volume.Object, phase, "status", "phase")
			i.s.Add(volume)
		}
		if claim == nil {
			i.addClaim(map[string]string{annUpload: ""})
			return
		}
	}
	if claim == nil {
		return
	}
	annotations := claim.GetAnnotations()
	_, isTarget := annotations[annUpload]
	switch {
	case done && annotations[annPhase] != "Succeeded":
		annotations[annPhase] = "Succeeded"
	case isTarget && annotations[annReady] == "":
		annotations[annReady] = "true"
	default:
		return
	}
	claim = claim.DeepCopy()
	claim.SetAnnotations(annotations)
	i.s.Add(claim)
}

func (i *importer) addClaim(annotations map[string]string) {
	i.s.Add(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: virtctltest.Namespace, Name: "disk",
		UID: "claim", Annotations: annotations}})
}

func (i *importer) addVolume(annotations map[string]string) {
	volume := &unstructured.Unstructured{Object: map[string]any{"apiVersion": cdiGroup, "kind": "DataVolume"}}
	volume.SetNamespace(virtctltest.Namespace)
	volume.SetName("disk")
	volume.SetAnnotations(annotations)
	i.s.Add(volume)
}

func (i *importer) token(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.refuseToken != 0 {
		reason := map[int]metav1.StatusReason{http.StatusForbidden: metav1.StatusReasonForbidden,
			http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable}
		virtctltest.Refuse(w, i.refuseToken, reason[i.refuseToken], "uploadtokenrequests is refused")
		return
	}
	var request map[string]any
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		i.t.Error(err)
	}
	if name, _, _ := unstructured.NestedString(request, "spec", "pvcName"); name != "disk" {
		i.t.Errorf("a token for %q was requested", name)
	}
	i.tokens = append(i.tokens, fmt.Sprintf("token-%d", len(i.tokens)+1))
	request["status"] = map[string]any{"token": i.tokens[len(i.tokens)-1]}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(request)
}

// upload is the upload proxy. It accepts only the latest token.
func (i *importer) upload(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	async := strings.HasSuffix(r.URL.Path, "/v1beta1/upload-async")
	if async && i.noAsync || !async && !strings.HasSuffix(r.URL.Path, "/v1beta1/upload") {
		http.NotFound(w, r)
		return
	}
	if len(i.tokens) == 0 || r.Header.Get("Authorization") != "Bearer "+i.tokens[len(i.tokens)-1] {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if r.Method == http.MethodHead {
		return
	}
	i.posts = append(i.posts, r.Method+" "+r.URL.Path+" "+i.tokens[len(i.tokens)-1])
	if len(i.responses) > 0 {
		next := i.responses[0]
		i.responses = i.responses[1:]
		next(w, r)
		return
	}
	content, err := io.ReadAll(r.Body)
	if err != nil || int64(len(content)) != r.ContentLength {
		i.t.Errorf("got %d of %d bytes: %v", len(content), r.ContentLength, err)
	}
	i.received = content
}

// prepare changes the fields of the importer, which is already in use.
func (i *importer) prepare(change func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change()
}

func (i *importer) uploads() ([]string, []byte) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.posts, i.received
}

func respondWith(code int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, code) }
}

// cutAfter reads some bytes and breaks the connection.
func cutAfter(n int64) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.CopyN(io.Discard, r.Body, n)
		panic(http.ErrAbortHandler)
	}
}

// image creates a file with random content.
func image(t *testing.T) (string, []byte) {
	t.Helper()
	content := make([]byte, 3<<20+17)
	_, _ = rand.Read(content)
	name := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return name, content
}

func (i *importer) run(command, name string) virtctltest.Result {
	i.t.Helper()
	words := strings.Fields("image-upload " + strings.ReplaceAll(command, "IMAGE", name))
	return i.s.Run(virtctl.Execute, words...)
}

// expectUploaded expects that CDI received the file, with these requests.
func (i *importer) expectUploaded(got virtctltest.Result, content []byte, posts ...string) {
	i.t.Helper()
	sent, received := i.uploads()
	if got.Code != 0 || !strings.HasSuffix(got.Out, "completed successfully\n") {
		i.t.Errorf("exit code %d:\n%s%s", got.Code, got.Out, got.ErrOut)
	}
	if !bytes.Equal(received, content) {
		i.t.Errorf("CDI received %d bytes, which are not the file's %d", len(received), len(content))
	}
	if strings.Join(sent, "\n") != strings.Join(posts, "\n") {
		i.t.Errorf("the proxy got %q, want %q", sent, posts)
	}
}

// expectRefused expects an error, and that nothing was uploaded.
func (i *importer) expectRefused(got virtctltest.Result, says ...string) {
	i.t.Helper()
	if _, received := i.uploads(); got.Code != 1 || received != nil {
		i.t.Errorf("exit code %d with %d bytes uploaded:\n%s", got.Code, len(received), got.Out)
	}
	for _, text := range says {
		if !strings.Contains(got.ErrOut, text) {
			i.t.Errorf("the error does not contain %q:\n%s", text, got.ErrOut)
		}
	}
}
