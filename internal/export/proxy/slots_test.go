// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package proxy

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/export/content"
)

func TestLimits(t *testing.T) {
	s := newSlots()
	for range maxOfNamespace {
		if !s.acquire("a") {
			t.Fatal("refused")
		}
	}
	if s.acquire("a") || !s.acquire("b") {
		t.Error("the limit of a namespace is not its own")
	}
	s.release("a")
	if !s.acquire("a") {
		t.Error("a slot is lost")
	}
	s.total = maxDownloads
	if s.acquire("c") {
		t.Error("there is no limit")
	}
}

func TestAFewNamespacesDoNotTakeAll(t *testing.T) {
	s := newSlots()
	for i := range maxDownloads / maxOfNamespace {
		taken := 0
		for s.acquire(strconv.Itoa(i)) {
			taken++
		}
		if taken == 0 {
			t.Errorf("namespace %d is refused", i)
		}
	}
	for range 4 {
		if !s.acquire("another") {
			t.Errorf("another namespace is refused: %d downloads are forwarded", s.total)
		}
	}
}

func TestQueuesOfExports(t *testing.T) {
	q, a, b := newQueues(2), key{"default", "a"}, key{"default", "b"}
	ended, end := context.WithCancel(t.Context())
	end()
	for _, of := range []key{a, a, b} {
		if !q.acquire(t.Context(), of) {
			t.Fatal("refused")
		}
	}
	if q.acquire(ended, a) {
		t.Error("there is no limit")
	}
	acquired := make(chan bool)
	go func() { acquired <- q.acquire(t.Context(), a) }()
	q.release(a)
	if !<-acquired {
		t.Error("a request that waited is refused")
	}
	for _, of := range []key{a, a, b} {
		q.release(of)
	}
	if len(q.of) != 0 {
		t.Errorf("queues are left: %v", q.of)
	}
}

func TestRequestsWithoutATokenAreNotForwarded(t *testing.T) {
	w := start(t, readyServer, func(http.ResponseWriter, *http.Request) {})
	for _, path := range []string{readyPath + "/x", readyPath + "/x?x-kubevirt-export-token=", readyPath + "/x?other=1"} {
		if got := w.get(path, content.TokenHeader, ""); got.code != http.StatusUnauthorized {
			t.Errorf("%s: got %d", path, got.code)
		}
	}
	if w.dialed != "" {
		t.Errorf("it connected to %s", w.dialed)
	}
}

// untilTheTokenIsRight refuses requests without the right token, as an exporter does, but those with a slow one only after a signal.
func untilTheTokenIsRight(arrived chan<- struct{}, refuse <-chan struct{}) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Query().Get(content.TokenHeader) {
		case "right":
			_, _ = io.WriteString(rw, strings.Repeat("x", 1<<20))
		case "slow":
			arrived <- struct{}{}
			select {
			case <-refuse:
			case <-r.Context().Done():
			}
			http.Error(rw, "from the exporter", http.StatusUnauthorized)
		default:
			http.Error(rw, "from the exporter", http.StatusUnauthorized)
		}
	}
}

func TestRequestsThatTheExporterRefusesTakeNoSlot(t *testing.T) {
	arrived, refuse := make(chan struct{}, 2*maxUndecided), make(chan struct{})
	var p *Proxy
	w := start(t, readyServer, untilTheTokenIsRight(arrived, refuse), func(made *Proxy) { p = made })
	codes := make(chan int, 2*maxUndecided)
	for range maxUndecided {
		go func() {
			got, err := w.do(http.MethodGet, readyPath+"/x?x-kubevirt-export-token=slow")
			if err != nil {
				t.Error(err)
			}
			if strings.Contains(got.body, "from the exporter") {
				t.Errorf("the client gets %q", got.body)
			}
			codes <- got.code
		}()
	}
	for range maxUndecided {
		<-arrived
	}
	if p.downloads.total != 0 {
		t.Errorf("%d requests are counted as downloads", p.downloads.total)
	}
	// The next request waits, and is served when the exporter has refused one of those.
	served := make(chan received)
	go func() {
		got, err := w.do(http.MethodGet, readyPath+"/x?x-kubevirt-export-token=right")
		if err != nil {
			t.Error(err)
		}
		served <- got
	}()
	select {
	case got := <-served:
		t.Fatalf("got %d while all slots of the export are taken", got.code)
	case <-time.After(100 * time.Millisecond):
	}
	close(refuse)
	if got := <-served; got.code != http.StatusOK || len(got.body) != 1<<20 {
		t.Errorf("got %d, %d bytes", got.code, len(got.body))
	}
	for range maxUndecided {
		if code := <-codes; code != http.StatusUnauthorized {
			t.Errorf("got %d", code)
		}
	}
	w.proxy.Close() // all requests have ended
	if len(p.undecided.of) != 0 || p.connecting.total != 0 || p.downloads.total != 0 {
		t.Errorf("slots are lost: %v, %d, %d", p.undecided.of, p.connecting.total, p.downloads.total)
	}
}

func TestTooManyDownloads(t *testing.T) {
	w := start(t, readyServer, func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "data") }, func(p *Proxy) {
		for range maxOfNamespace {
			p.downloads.acquire("default")
		}
	})
	got := w.get(readyPath + "/x?x-kubevirt-export-token=right")
	if got.code != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" || strings.Contains(got.body, "data") {
		t.Errorf("got %+v", got)
	}
}

func TestTooManyRequestsOfAnExport(t *testing.T) {
	w := start(t, readyServer, func(http.ResponseWriter, *http.Request) {}, func(p *Proxy) {
		p.slotWait = time.Millisecond
		for range maxUndecided {
			p.undecided.acquire(t.Context(), key{"default", "ready"})
		}
	})
	if got := w.get(readyPath + "/x?x-kubevirt-export-token=right"); got.code != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" {
		t.Errorf("got %+v", got)
	}
}
