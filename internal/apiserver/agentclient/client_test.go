// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agentclient

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	fakeagent "github.com/vireo-project/vireo/test/fakes/agent"
)

const node = "node1"

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: name,
			Labels: map[string]string{"kubevirt.io": "virt-handler"}},
		Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: name,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func reader(pods ...client.Object) client.Reader {
	return fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(pods...).
		WithIndex(&corev1.Pod{}, "spec.nodeName",
			func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).Build()
}

func TestAddressOfTheReadyAgent(t *testing.T) {
	unready := func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }
	deleted := func(p *corev1.Pod) {
		p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: time.Now()}, []string{"kept"}
	}
	pending := func(p *corev1.Pod) { p.Status.Phase, p.Status.PodIP = corev1.PodPending, "" }
	for name, tc := range map[string]struct {
		pods []client.Object
		// want is the address, or empty if the error's reason contains why.
		want, why string
	}{
		"one":                {pods: []client.Object{pod("a")}, want: "a"},
		"one ready":          {pods: []client.Object{pod("a", unready), pod("b")}, want: "b"},
		"none ready":         {pods: []client.Object{pod("a", unready)}, want: "a"},
		"one being deleted":  {pods: []client.Object{pod("a", deleted), pod("b", unready)}, want: "b"},
		"only one that ends": {pods: []client.Object{pod("a", deleted), pod("b", pending)}, want: "a"},
		"one pending":        {pods: []client.Object{pod("a", pending)}, why: "Pod a"},
		"none":               {why: "no virt-handler Pod"},
		"another node's": {
			pods: []client.Object{pod("a", func(p *corev1.Pod) { p.Spec.NodeName = "node2" })}, why: "no virt-handler Pod",
		},
		"another namespace's": {
			pods: []client.Object{pod("a", func(p *corev1.Pod) { p.Namespace = "tenant" })}, why: "no virt-handler Pod",
		},
		"another component's": {
			pods: []client.Object{pod("a", func(p *corev1.Pod) { p.Labels["kubevirt.io"] = "virt-launcher" })},
			why:  "no virt-handler Pod",
		},
	} {
		got, err := finder{reader(tc.pods...), "kubevirt"}.address(t.Context(), node)
		var noAgent *noAgentError
		if got != tc.want || (tc.why != "") != errors.As(err, &noAgent) ||
			tc.why != "" && !strings.Contains(noAgent.reason, tc.why) {
			t.Errorf("%s: got %q %v, want %q %q", name, got, err, tc.want, tc.why)
		}
	}
}

func local(p *corev1.Pod) { p.Status.PodIP = "127.0.0.1" }

func newClient(a *fakeagent.Agent, tlsConfig func(string) (*tls.Config, error)) *Client {
	return New(Options{Pods: reader(pod("a", local)), Namespace: "kubevirt", Port: a.Port, TLS: tlsConfig})
}

func pause() Request {
	return Request{VMIRef: VMIRef{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "vm"}, UID: "1", Node: node},
		Verb: "pause"}
}

func TestBothSidesVerifyCertificates(t *testing.T) {
	a := fakeagent.Start(t, node)
	other := fakeagent.NewAuthority(t)
	right := a.Authority.Client(t)
	for name, tc := range map[string]struct {
		tls  func(string) (*tls.Config, error)
		want string
	}{
		"the right ones": {tls: right},
		"an agent of another authority": {
			tls: other.Client(t), want: "tls: failed to verify certificate",
		},
		"a configuration for another node": {
			tls:  func(string) (*tls.Config, error) { return right("node2") },
			want: `"node2.virt-handler"`,
		},
		"no certificate yet": {
			tls:  func(string) (*tls.Config, error) { return nil, errors.New("no certificate yet") },
			want: "no certificate yet",
		},
	} {
		err := newClient(a, tc.tls).Put(t.Context(), pause())
		if tc.want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), tc.want) ||
			!strings.Contains(err.Error(), "node node1") {
			t.Errorf("%s: got %v, want %s", name, err, tc.want)
		}
	}
}

// successiveReader returns the Pods of one reader after the other, and at the end those of the last.
type successiveReader struct {
	readers []client.Reader
	client.Reader
}

func (r *successiveReader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	next := r.readers[0]
	r.readers = r.readers[min(1, len(r.readers)-1):]
	return next.List(ctx, list, options...)
}

func TestAnAgentThatIsBeingReplacedIsWaitedFor(t *testing.T) {
	a := fakeagent.Start(t, node)
	deleted := func(p *corev1.Pod) {
		p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: time.Now()}, []string{"kept"}
	}
	notListening := func(p *corev1.Pod) { p.Status.PodIP = "127.0.0.2" }
	replacement := []client.Reader{
		reader(pod("a", notListening, deleted)), reader(), reader(pod("b", notListening)), reader(pod("b", local)),
	}
	c := New(Options{
		Pods: &successiveReader{readers: replacement}, Namespace: "kubevirt", Port: a.Port, TLS: a.Authority.Client(t),
	})
	if err := c.Put(t.Context(), pause()); err != nil {
		t.Error(err)
	}
	if calls := a.Calls(); len(calls) != 1 {
		t.Errorf("got %v, want one call", calls)
	}
}

// gone is an address to which no connection can be opened, as that of a Pod that is gone.
func gone(p *corev1.Pod) { p.Status.PodIP = "127.255.255.255" }

func TestAnAgentWhoseAddressIsGone(t *testing.T) {
	a := fakeagent.Start(t, node)
	for name, tc := range map[string]struct {
		pods client.Reader
		want string
	}{
		"it has been replaced":      {&successiveReader{readers: []client.Reader{reader(pod("a", gone)), reader(pod("b", local))}}, ""},
		"it is being replaced":      {&successiveReader{readers: []client.Reader{reader(pod("a", gone)), reader(), reader(pod("b", local))}}, ""},
		"it is the one of the node": {reader(pod("a", gone)), "network is unreachable"},
	} {
		c := New(Options{Pods: tc.pods, Namespace: "kubevirt", Port: a.Port, TLS: a.Authority.Client(t)})
		err := c.Put(t.Context(), pause())
		if tc.want == "" && err != nil ||
			tc.want != "" && (!apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: got %v, want %s", name, err, tc.want)
		}
	}
}

func TestTheWaitForAnAgentEnds(t *testing.T) {
	a := fakeagent.Start(t, node)
	for name, tc := range map[string]struct {
		pods client.Reader
		want string
	}{
		"no Pod":        {reader(), "node node1 has no running agent: there is no virt-handler Pod"},
		"not listening": {reader(pod("a", func(p *corev1.Pod) { p.Status.PodIP = "127.0.0.2" })), "connection refused"},
	} {
		c := New(Options{Pods: tc.pods, Namespace: "kubevirt", Port: a.Port, ReplaceTimeout: time.Millisecond,
			TLS: a.Authority.Client(t)})
		if err := c.Put(t.Context(), pause()); !apierrors.IsServiceUnavailable(err) ||
			!strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %s", name, err, tc.want)
		}
	}
}

func TestTimeout(t *testing.T) {
	a := fakeagent.Start(t, node)
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	err := newClient(a, a.Authority.Client(t)).Put(ctx, pause())
	if !apierrors.IsTimeout(err) || !strings.Contains(err.Error(), "node node1") {
		t.Errorf("got %v", err)
	}
}

func TestErrorResponsesAreSanitized(t *testing.T) {
	for name, tc := range map[string]struct {
		code       int
		body       string
		wantCode   int32
		wantReason metav1.StatusReason
		wantText   string
	}{
		"a Status": {409, `{"kind":"Status","code":200,"reason":"Gone","message":"not now","details":{"causes":[{"message":"do evil"}]}}`,
			409, metav1.StatusReasonConflict, "not now"},
		"something else":     {404, `<html>`, 404, metav1.StatusReasonNotFound, "node node1 responded 404 Not Found"},
		"long":               {500, `{"kind":"Status","message":"` + strings.Repeat("x", 1000) + `"}`, 500, metav1.StatusReasonInternalError, strings.Repeat("x", maxMessage) + "…"},
		"a redirection":      {307, "", 500, metav1.StatusReasonInternalError, "code 307."},
		"control characters": {503, `{"kind":"Status","message":"a\u0007b\nc"}`, 503, metav1.StatusReasonServiceUnavailable, "ab c"},
		"not authorized":     {401, `{"kind":"Status","message":"who?"}`, 500, metav1.StatusReasonInternalError, "code 401. who?"},
	} {
		err := responseError(&http.Response{StatusCode: tc.code, Body: io.NopCloser(strings.NewReader(tc.body))}, node)
		var status *apierrors.StatusError
		if !errors.As(err, &status) {
			t.Fatalf("%s: %v", name, err)
		}
		got := status.ErrStatus
		if got.Code != tc.wantCode || got.Reason != tc.wantReason || !strings.HasSuffix(got.Message, tc.wantText) ||
			got.Details != nil {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

func TestRetryAfterIsForwarded(t *testing.T) {
	for header, want := range map[string]int32{"5": 5, "86400": maxRetryAfter, "-1": 0, "Mon, 02 Jan 2006 15:04:05 GMT": 0,
		"": 0} {
		response := &http.Response{
			StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {header}},
			Body: io.NopCloser(strings.NewReader("")),
		}
		var status *apierrors.StatusError
		if err := responseError(response, node); !errors.As(err, &status) {
			t.Fatal(err)
		}
		if seconds, _ := apierrors.SuggestsClientDelay(status); int32(seconds) != want {
			t.Errorf("%q: got %d, want %d", header, seconds, want)
		}
	}
}
