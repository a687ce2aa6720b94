// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package profile

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/profiler"
	"github.com/vireo-project/vireo/test/pki"
)

const namespace = "kubevirt"

// world has components that respond as a test says.
type world struct {
	t    *testing.T
	ca   *pki.Authority
	pods []client.Object

	mu    sync.Mutex
	calls []string
}

func newWorld(t *testing.T) *world { return &world{t: t, ca: pki.New(t)} }

// pod adds a ready Pod of a component, whose server has a certificate with the component's name.
func (w *world) pod(component, name string, respond http.HandlerFunc, change ...func(*corev1.Pod)) {
	w.t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.calls = append(w.calls, name+r.URL.Path)
		w.mu.Unlock()
		respond(rw, r)
	}))
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{w.ca.Issue(component, x509.ExtKeyUsageServerAuth)}, ClientCAs: w.ca.Pool(),
		ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	}
	server.StartTLS()
	w.t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		w.t.Fatal(err)
	}
	port, err := strconv.Atoi(address.Port())
	if err != nil {
		w.t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{v1.AppLabel: component}},
		Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{
			Name: component, Ports: []corev1.ContainerPort{{Name: "health", ContainerPort: 1},
				{Name: ports[component], ContainerPort: int32(port)}},
		}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "127.0.0.1",
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, c := range change {
		c(pod)
	}
	w.pods = append(w.pods, pod)
}

func (w *world) client() *Client {
	own := w.ca.Issue("virt-api", x509.ExtKeyUsageClientAuth)
	return &Client{
		Pods: fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(w.pods...).Build(), Namespace: namespace,
		TLS: func(component, _ string) (*tls.Config, error) {
			return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: w.ca.Pool(), Certificates: []tls.Certificate{own},
				ServerName: component}, nil
		},
	}
}

func (w *world) expectCalls(want ...string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.Sort(w.calls)
	if !slices.Equal(w.calls, want) {
		w.t.Errorf("got requests %v, want %v", w.calls, want)
	}
	w.calls = nil
}

// profiles responds with profiles.
func profiles(content map[string][]byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(v1.ProfilerResult{PprofData: content})
	}
}

func ok(http.ResponseWriter, *http.Request) {}

func TestEveryReadyComponentIsRequested(t *testing.T) {
	w := newWorld(t)
	w.pod(API, "api", ok)
	w.pod(Controller, "controller", ok)
	w.pod(Handler, "handler", ok)
	w.pod(Handler, "unready", ok, func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })
	w.pod(Handler, "ended", ok, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	w.pod(Handler, "deleted", ok, func(p *corev1.Pod) {
		p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: metav1.Now().Time}, []string{"kept"}
	})
	w.pod(Handler, "elsewhere", ok, func(p *corev1.Pod) { p.Namespace = "tenant" })
	w.pod("virt-launcher", "launcher", ok)
	c := w.client()
	if err := c.Start(t.Context()); err != nil {
		t.Error(err)
	}
	w.expectCalls("api/start-profiler", "controller/start-profiler", "handler/start-profiler")
	if err := c.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	w.expectCalls("api/stop-profiler", "controller/stop-profiler", "handler/stop-profiler")
}

func TestOneFailureDoesNotKeepOthersFromStarting(t *testing.T) {
	w := newWorld(t)
	w.pod(API, "api", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no\x1b[31m time", http.StatusInternalServerError)
	})
	w.pod(Controller, "controller", ok)
	err := w.client().Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "pod api responded with 500: no[31m time") {
		t.Errorf("got %v", err)
	}
	w.expectCalls("api/start-profiler", "controller/start-profiler")
}

func TestNoPods(t *testing.T) {
	c := newWorld(t).client()
	if err := c.Start(t.Context()); err == nil || err.Error() != "no component pods found" {
		t.Errorf("start: %v", err)
	}
	if got, err := dump(t, c, v1.ClusterProfilerRequest{}); err != nil || len(got.ComponentResults) != 0 {
		t.Errorf("dump: %v %v", got, err)
	}
}

func dump(t *testing.T, c *Client, request v1.ClusterProfilerRequest) (got *v1.ClusterProfilerResults, err error) {
	t.Helper()
	err = c.Dump(t.Context(), request, func(results *v1.ClusterProfilerResults) {
		got = results
		// One request at a time: the profiles are in memory until they are sent.
		if err := c.Dump(t.Context(), request, nil); !apierrors.IsTooManyRequests(err) {
			t.Errorf("a second request: %v", err)
		}
	})
	return got, err
}

func TestDump(t *testing.T) {
	w := newWorld(t)
	w.pod(API, "api", profiles(map[string][]byte{"cpu.pprof": []byte("cpu"), "heap.pprof": []byte("heap")}))
	w.pod(Handler, "handler", profiles(map[string][]byte{"heap.pprof": []byte("heap"), "../../evil": []byte("file")}))
	c := w.client()
	got, err := dump(t, c, v1.ClusterProfilerRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.ComponentResults["api"].PprofData) != 2 ||
		string(got.ComponentResults["api"].PprofData["cpu.pprof"]) != "cpu" {
		t.Errorf("api: %v", got.ComponentResults["api"])
	}
	if data := got.ComponentResults["handler"].PprofData; len(data) != 1 || string(data["heap.pprof"]) != "heap" {
		t.Errorf("handler: %v", data)
	}
	w.expectCalls("api/dump-profiler", "handler/dump-profiler")
	got, err = dump(t, c, v1.ClusterProfilerRequest{LabelSelector: "kubevirt.io=virt-handler"})
	if err != nil || len(got.ComponentResults) != 1 {
		t.Errorf("by label: %v %v", got, err)
	}
	w.expectCalls("handler/dump-profiler")
	if _, err := dump(t, c, v1.ClusterProfilerRequest{LabelSelector: "a=b=c"}); !apierrors.IsBadRequest(err) {
		t.Errorf("an invalid selector: %v", err)
	}
}

func TestHostileResponses(t *testing.T) {
	for name, tc := range map[string]struct {
		respond http.HandlerFunc
		want    string
	}{
		"no profiles":   {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }, "something other than profiles"},
		"redirected":    {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, "responded with 302"},
		"without end":   {func(w http.ResponseWriter, _ *http.Request) { endless(w) }, "more than " + strconv.Itoa(profiler.MaxResponse)},
		"large headers": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("A", strings.Repeat("a", 2*maxHeader)) }, "headers exceeded"},
	} {
		w := newWorld(t)
		w.pod(Handler, "handler", tc.respond)
		if _, err := dump(t, w.client(), v1.ClusterProfilerRequest{}); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %s", name, err, tc.want)
		}
	}
}

// endless writes until the client is gone.
func endless(w http.ResponseWriter) {
	for piece := make([]byte, 1<<20); ; {
		if _, err := w.Write(piece); err != nil {
			return
		}
	}
}

func TestAnotherComponentsCertificateIsRejected(t *testing.T) {
	w := newWorld(t)
	w.pod(Handler, "handler", ok, func(p *corev1.Pod) {
		p.Labels[v1.AppLabel], p.Spec.Containers[0].Ports[1].Name = Controller, ports[Controller]
	})
	if err := w.client().Start(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "certificate is valid for virt-handler, not virt-controller") {
		t.Errorf("got %v", err)
	}
	w.expectCalls()
}
