// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package claimusers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/test/builder"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return epoch.Add(time.Duration(seconds * float64(time.Second))) }

// pods is an API server that returns Pods in pages of at most the requested size.
type pods struct {
	client.Reader
	all []corev1.Pod
	// onPage is called before each page; nil does nothing.
	onPage func() error

	mu sync.Mutex
	// reading is how many requests are answered now, most how many were at a time, and largest the longest page.
	pages, reading, most, largest int
}

func (p *pods) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	out, ok := list.(*corev1.PodList)
	if !ok {
		return fmt.Errorf("a list of %T", list)
	}
	p.count(1)
	defer p.count(-1)
	if p.onPage != nil {
		if err := p.onPage(); err != nil {
			return err
		}
	}
	options := (&client.ListOptions{}).ApplyOptions(opts)
	from, _ := strconv.Atoi(options.Continue)
	to := min(from+int(options.Limit), len(p.all))
	if options.Limit == 0 {
		to = len(p.all)
	}
	out.Items = p.all[from:to]
	if to < len(p.all) {
		out.Continue = strconv.Itoa(to)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.largest = max(p.largest, to-from)
	return nil
}

func (p *pods) count(change int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reading += change
	p.pages += max(change, 0)
	p.most = max(p.most, p.reading)
}

// take returns how many pages were read since the last call.
func (p *pods) take() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	pages := p.pages
	p.pages = 0
	return pages
}

func using(name string, claims ...string) corev1.Pod {
	return builder.MakePodWithClaims("a", name, claims...)
}

// hostile returns Pods with claims that do not exist.
func hostile(count int) []corev1.Pod {
	out := make([]corev1.Pod, count)
	for i := range out {
		out[i] = using(fmt.Sprintf("hostile-%d", i), fmt.Sprintf("none-%d", i), "nothing")
	}
	return out
}

func scannerOf(api client.Reader, claims ...string) Scanner {
	objects := make([]client.Object, 0, len(claims))
	for _, claim := range claims {
		objects = append(objects, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: claim}})
	}
	return Scanner{
		Cached: fake.NewClientBuilder().WithObjects(objects...).Build(), API: api, Selector: podstate.NotTerminal,
		Recent: &Recent{},
	}
}

func expectUsed(t *testing.T, s Scanner, now time.Time, maxAge time.Duration, claims []string, want map[string]string) {
	t.Helper()
	if used, err := s.Used(t.Context(), "a", claims, now, maxAge); err != nil || !maps.Equal(used, want) {
		t.Errorf("got %v, %v for %v; want %v", used, err, claims, want)
	}
}

func expectPages(t *testing.T, api *pods, want int) {
	t.Helper()
	if got := api.take(); got != want {
		t.Errorf("%d pages were read, want %d", got, want)
	}
}

// A tenant decides how many Pods there are and how large. Neither a response nor what is kept may grow with them.
func TestManyPods(t *testing.T) {
	api := &pods{all: slices.Concat(hostile(3*page+1), []corev1.Pod{using("user", "data"), using("other", "data", "more")},
		hostile(2*page))}
	s := scannerOf(api, "data", "more", "unused")
	expectUsed(t, s, at(0), MaxProofAge, []string{"data", "unused"}, map[string]string{"data": "user"})
	expectPages(t, api, 4)
	if kept := s.Recent.results["a"].users; !maps.Equal(kept,
		map[string]string{"data": "user", "more": "other", "unused": ""}) {
		t.Errorf("kept %v", kept)
	}
	expectUsed(t, s, at(0), MaxProofAge, []string{"unused"}, map[string]string{})
	expectPages(t, api, 6)
	if api.largest != page {
		t.Errorf("a response had %d Pods", api.largest)
	}
}

func TestResultsAreKept(t *testing.T) {
	api := &pods{all: []corev1.Pod{using("user", "data"), using("gone", "ended"), using("exporter", "unused")}}
	api.all[1].Status.Phase = corev1.PodSucceeded
	s := scannerOf(api, "data", "unused", "ended")
	s.Ignore = func(pod *corev1.Pod) bool { return pod.Name == "exporter" }
	data, none := map[string]string{"data": "user"}, map[string]string{}
	for _, c := range []struct {
		what   string
		now    time.Time
		maxAge time.Duration
		claim  string
		want   map[string]string
		pages  int
	}{
		{"nothing is known", at(0), MaxProofAge, "unused", none, 1},
		{"the same", at(0.9), MaxProofAge, "unused", none, 0},
		{"another claim", at(0.9), MaxProofAge, "ended", none, 0},
		{"a use", at(4.9), MaxProofAge, "data", data, 0},
		{"not fresh enough", at(1), MaxProofAge, "unused", none, 1},
		{"of another worker, which began later", at(0.9), MaxProofAge, "unused", none, 0},
		{"a claim that did not exist", at(1), ResultTTL, "new", none, 1},
		{"a poll", at(5.9), ResultTTL, "unused", none, 0},
		{"too old", at(6), ResultTTL, "data", data, 1},
		{"before the clock was put back", at(-100), ResultTTL, "data", data, 1},
	} {
		expectUsed(t, s, c.now, c.maxAge, []string{c.claim}, c.want)
		if got := api.take(); got != c.pages {
			t.Errorf("%s: %d pages were read, want %d", c.what, got, c.pages)
		}
	}
	s.Recent.keep("b", result{began: at(100)})
	if len(s.Recent.results) != 1 {
		t.Errorf("old results are kept: %v", s.Recent.results)
	}
}

// A scan that found a use early does not prove that other claims are not used.
func TestIncompleteScan(t *testing.T) {
	api := &pods{all: slices.Concat([]corev1.Pod{using("first", "data")}, hostile(page),
		[]corev1.Pod{using("last", "more")})}
	s := scannerOf(api, "data", "more")
	expectUsed(t, s, at(0), ResultTTL, []string{"data"}, map[string]string{"data": "first"})
	expectPages(t, api, 1)
	expectUsed(t, s, at(0), ResultTTL, []string{"more"}, map[string]string{"more": "last"})
	expectPages(t, api, 2)
}

func TestOneScanOfANamespace(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	api := &pods{all: hostile(1)}
	api.onPage = func() error {
		entered <- struct{}{}
		<-leave
		return nil
	}
	s := scannerOf(api, "data")
	scans := sync.WaitGroup{}
	used := func(namespace string) {
		if _, err := s.Used(t.Context(), namespace, []string{"data"}, at(0), MaxProofAge); err != nil {
			t.Error(err)
		}
	}
	scans.Go(func() { used("a") })
	<-entered
	if _, err := s.Used(t.Context(), "a", []string{"data"}, at(0), MaxProofAge); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v for a second scan, want %v", err, ErrBusy)
	}
	// Other namespaces are scanned meanwhile, but only some at a time.
	for _, other := range []string{"b", "c", "d"} {
		scans.Go(func() { used(other) })
	}
	<-entered
	close(leave)
	<-entered
	<-entered
	scans.Wait()
	if api.most != maxPages {
		t.Errorf("%d pages were read at a time, want %d", api.most, maxPages)
	}
	api.onPage = nil
	api.take()
	expectUsed(t, s, at(0), MaxProofAge, []string{"data"}, map[string]string{})
	expectPages(t, api, 0)
}

func TestFailedScan(t *testing.T) {
	api := &pods{all: hostile(1), onPage: func() error { return errors.New("not now") }}
	s := scannerOf(api, "data")
	if _, err := s.Used(t.Context(), "a", []string{"data"}, at(0), MaxProofAge); err == nil || errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	api.onPage = nil
	expectUsed(t, s, at(0), MaxProofAge, []string{"data"}, map[string]string{})
}
