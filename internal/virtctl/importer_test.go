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
	"github.com/vireo-project/vireo/internal/virtctl/virtctltest"
)

const (
	cdiGroup    = "cdi.kubevirt.io/v1beta1"
	uploadGroup = "upload.cdi.kubevirt.io/v1beta1"
	claims      = "persistentvolumeclaims"
	annUpload   = "cdi.kubevirt.io/storage.upload.target"
	annPhase    = "cdi.kubevirt.io/storage.pod.phase"
	annReady    = "cdi.kubevirt.io/storage.pod.ready"
)

// importer is what CDI is to a client: its kinds, the requests for tokens, and the upload proxy, which has a certificate of its own.
type importer struct {
	t     *testing.T
	s     *virtctltest.Server
	proxy *httptest.Server
	// phase is what a DataVolume comes to. Without one nothing happens to volumes.
	phase string
	// noAsync is a proxy of before there was the asynchronous path.
	noAsync bool
	// refuseToken is the code with which requests for a token are answered.
	refuseToken int

	mu sync.Mutex
	// answers are for the next uploads, in place of taking them.
	answers []http.HandlerFunc
	tokens  []string
	// posts are the paths and tokens of uploads, and taken what was taken.
	posts []string
	taken []byte
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
	i.configure(map[string]any{}, map[string]any{"uploadProxyURL": i.proxy.Listener.Addr().String(), "uploadProxyCA": string(ca)})
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
	config := &unstructured.Unstructured{Object: map[string]any{"apiVersion": cdiGroup, "kind": "CDIConfig", "spec": spec, "status": status}}
	config.SetName("config")
	i.s.Add(config)
}

// reconcile does CDI's part for the volume disk.
func (i *importer) reconcile() {
	i.mu.Lock()
	phase, done := i.phase, i.taken != nil
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
	_, wanted := annotations[annUpload]
	switch {
	case done && annotations[annPhase] != "Succeeded":
		annotations[annPhase] = "Succeeded"
	case wanted && annotations[annReady] == "":
		annotations[annReady] = "true"
	default:
		return
	}
	claim = claim.DeepCopy()
	claim.SetAnnotations(annotations)
	i.s.Add(claim)
}

func (i *importer) addClaim(annotations map[string]string) {
	i.s.Add(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: virtctltest.Namespace, Name: "disk", UID: "claim", Annotations: annotations}})
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
		reason := map[int]metav1.StatusReason{http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable}
		virtctltest.Refuse(w, i.refuseToken, reason[i.refuseToken], "uploadtokenrequests is refused")
		return
	}
	var request map[string]any
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		i.t.Error(err)
	}
	if name, _, _ := unstructured.NestedString(request, "spec", "pvcName"); name != "disk" {
		i.t.Errorf("a token for %q was asked for", name)
	}
	i.tokens = append(i.tokens, fmt.Sprintf("token-%d", len(i.tokens)+1))
	request["status"] = map[string]any{"token": i.tokens[len(i.tokens)-1]}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(request)
}

// upload is the upload proxy. A token is good for the attempt that it was asked for.
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
	if len(i.answers) > 0 {
		next := i.answers[0]
		i.answers = i.answers[1:]
		next(w, r)
		return
	}
	content, err := io.ReadAll(r.Body)
	if err != nil || int64(len(content)) != r.ContentLength {
		i.t.Errorf("got %d of %d bytes: %v", len(content), r.ContentLength, err)
	}
	i.taken = content
}

// prepare changes what CDI does. It serves already.
func (i *importer) prepare(change func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change()
}

func (i *importer) uploads() ([]string, []byte) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.posts, i.taken
}

func answerWith(code int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, code) }
}

// cutAfter takes some bytes and breaks the connection.
func cutAfter(n int64) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.CopyN(io.Discard, r.Body, n)
		panic(http.ErrAbortHandler)
	}
}

// image is a file with something in it.
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

// expectUploaded expects that a file came to CDI as it is, at last.
func (i *importer) expectUploaded(got virtctltest.Result, content []byte, posts ...string) {
	i.t.Helper()
	made, taken := i.uploads()
	if got.Code != 0 || !strings.HasSuffix(got.Out, "completed successfully\n") {
		i.t.Errorf("exit code %d:\n%s%s", got.Code, got.Out, got.ErrOut)
	}
	if !bytes.Equal(taken, content) {
		i.t.Errorf("CDI has %d bytes that are not the file's %d", len(taken), len(content))
	}
	if strings.Join(made, "\n") != strings.Join(posts, "\n") {
		i.t.Errorf("the proxy got %q, want %q", made, posts)
	}
}

// expectRefused expects an error, and that nothing was uploaded.
func (i *importer) expectRefused(got virtctltest.Result, says ...string) {
	i.t.Helper()
	if _, taken := i.uploads(); got.Code != 1 || taken != nil {
		i.t.Errorf("exit code %d with %d bytes uploaded:\n%s", got.Code, len(taken), got.Out)
	}
	for _, text := range says {
		if !strings.Contains(got.ErrOut, text) {
			i.t.Errorf("the error does not say %q:\n%s", text, got.ErrOut)
		}
	}
}
