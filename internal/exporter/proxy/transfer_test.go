// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/limits"
)

const downloadPath = readyPath + "/volumes/data/disk.img"

// forever sends bytes until the connection is closed, one chunk per interval.
func forever(interval time.Duration) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		for {
			if _, err := io.WriteString(rw, strings.Repeat("x", 64<<10)); err != nil {
				return
			}
			select {
			case <-r.Context().Done():
				return
			case <-time.After(interval):
			}
		}
	}
}

// expectCut reads a download until it is cut off, and expects the reason in the log.
func (w *world) expectCut(download io.Reader, reason string) {
	w.t.Helper()
	if n, err := io.Copy(io.Discard, download); err == nil {
		w.t.Errorf("a download that was cut off looks complete: %d bytes", n)
	}
	w.proxy.Close() // the request has been logged
	if !strings.Contains(w.log.String(), reason) {
		w.t.Errorf("%q is not in the log: %s", reason, w.log)
	}
}

func TestSilentExporters(t *testing.T) {
	w := start(t, readyServer, forever(time.Hour), func(p *Proxy) { p.speeds.stall = 2 * time.Second })
	w.expectCut(w.open(downloadPath), "i/o timeout")
}

func TestDownloadsEndWithTheirExport(t *testing.T) {
	for name, tc := range map[string]struct {
		end    func(*world, *exportv1.VirtualMachineExport) error
		reason error
	}{
		"deleted": {func(w *world, of *exportv1.VirtualMachineExport) error { return w.exports.Delete(w.t.Context(), of) }, errGone},
		"replaced": {func(w *world, of *exportv1.VirtualMachineExport) error {
			if err := w.exports.Delete(w.t.Context(), of); err != nil {
				return err
			}
			of.UID, of.ResourceVersion = "2", ""
			return w.exports.Create(w.t.Context(), of)
		}, errGone},
		"not ready": {func(w *world, of *exportv1.VirtualMachineExport) error {
			of.Status.Phase = exportv1.Pending
			return w.exports.Update(w.t.Context(), of)
		}, errNotReady},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, readyServer, forever(time.Millisecond),
				func(p *Proxy) { p.speeds.check, p.speeds.absence = 0, 10*time.Millisecond })
			download := w.open(downloadPath)
			if _, err := io.CopyN(io.Discard, download, 1<<20); err != nil {
				t.Fatal(err)
			}
			of := &exportv1.VirtualMachineExport{}
			if err := w.exports.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "ready"}, of); err != nil {
				t.Fatal(err)
			}
			if err := tc.end(w, of); err != nil {
				t.Fatal(err)
			}
			w.expectCut(download, tc.reason.Error())
		})
	}
}

func TestPace(t *testing.T) {
	const grace = 5 * time.Minute
	for name, tc := range map[string]struct {
		sent               int64
		elapsed, accepting time.Duration
		want               error
	}{
		"a slow client":                     {18 << 20, 10 * time.Minute, grace + time.Second, errSlowClient},
		"a client that is fast enough":      {19 << 20, 10 * time.Minute, grace + time.Second, nil},
		"a slow client at first":            {1, grace, grace, nil},
		"an exporter that compresses":       {700 << 10, 11 * time.Minute, time.Second, nil},
		"a slow exporter":                   {600 << 10, 11 * time.Minute, time.Second, errSlowExporter},
		"an exporter that sends nothing":    {0, grace + time.Second, 0, errSlowExporter},
		"an exporter that is slow at first": {0, grace, 0, nil},
	} {
		now := time.Now()
		to := &transfer{out: &response{sent: tc.sent}, speeds: defaultLimits, start: now.Add(-tc.elapsed),
			accepting: tc.accepting, checked: now}
		if err := to.verify(now); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
}

// An exporter may send an empty disk in an OCI image more slowly than others, since it compresses better.
func TestPaceOfImages(t *testing.T) {
	slow := func(w http.ResponseWriter, _ *http.Request) {
		for range 8 {
			_, _ = io.WriteString(w, strings.Repeat("x", 4<<10))
			_ = http.NewResponseController(w).Flush()
			time.Sleep(50 * time.Millisecond)
		}
	}
	w := start(t, readyServer, slow,
		func(p *Proxy) { p.speeds.grace, p.speeds.client, p.speeds.exporter = 100*time.Millisecond, 1, 1<<20 })
	if n, err := io.Copy(io.Discard, w.open(readyPath+content.OCIPath)); n != 8*4<<10 || err != nil {
		t.Errorf("got %d bytes of the image, %v", n, err)
	}
	w.expectCut(w.open(downloadPath), errSlowExporter.Error())
	if image := defaultLimits.of(content.OCIPath); image.exporter != 32 ||
		defaultLimits.of("/volumes/data/disk.img").exporter != 1<<10 {
		t.Errorf("the limits of an image are %+v", image)
	}
}

func TestTheTimeOfTheClientIsMeasured(t *testing.T) {
	const takes = 20 * time.Millisecond
	to := newTransfer(&response{ResponseWriter: slowWriter{httptest.NewRecorder(), takes}}, defaultLimits, nil)
	for range 2 {
		if n, err := to.Write(make([]byte, 100)); n != 100 || err != nil {
			t.Fatalf("got %d, %v", n, err)
		}
	}
	if to.accepting < 2*takes || to.out.sent != 200 {
		t.Errorf("the client accepted %d bytes in %s", to.out.sent, to.accepting)
	}
}

// slowWriter takes some time for each write.
type slowWriter struct {
	*httptest.ResponseRecorder
	takes time.Duration
}

func (w slowWriter) Write(p []byte) (int, error) {
	time.Sleep(w.takes)
	return w.ResponseRecorder.Write(p)
}

func TestAnExportMayBeNotReadyForAWhile(t *testing.T) {
	now := time.Now()
	var is error
	to := newTransfer(&response{}, speedLimits{grace: time.Hour, check: time.Second, absence: time.Minute},
		func() error { return is })
	after := func(d time.Duration, export, want error) {
		t.Helper()
		is = export
		if err := to.verify(now.Add(d)); !errors.Is(err, want) {
			t.Errorf("after %s: got %v, want %v", d, err, want)
		}
	}
	after(50*time.Second, errNotReady, nil)
	after(100*time.Second, nil, nil)
	after(150*time.Second, errNotReady, nil)
	after(155*time.Second, nil, nil)
	after(200*time.Second, errNotReady, nil)
	after(220*time.Second, errNotReady, errNotReady)
	after(230*time.Second, errGone, errGone)
	after(230*time.Second+time.Millisecond, errGone, nil) // not checked again yet
}

func TestAFewNamespacesDoNotTakeAll(t *testing.T) {
	s := newShares()
	for i := range maxDownloads / maxOfNamespace {
		taken := 0
		for has, ok := s.Take(strconv.Itoa(i), 1); ok; has, ok = s.Take(strconv.Itoa(i), 1) {
			taken = int(has)
		}
		if taken == 0 || taken > maxOfNamespace {
			t.Errorf("namespace %d gets %d", i, taken)
		}
	}
	for i := range 4 {
		if _, ok := s.Take("another", 1); !ok {
			t.Errorf("another namespace is refused after %d", i)
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

// untilTheTokenIsRight refuses requests without the right token, as an exporter does, but those with a slow one only
// after a signal.
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
	if got := taken(p.downloads); got != 0 {
		t.Errorf("%d requests are counted as downloads", got)
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
	if len(p.undecided.of) != 0 || taken(p.connecting) != 0 || taken(p.downloads) != 0 {
		t.Errorf("slots are lost: %v, %d, %d", p.undecided.of, taken(p.connecting), taken(p.downloads))
	}
}

// taken returns how many slots the namespace of the tests has.
func taken(s *limits.Shares) int64 {
	has, _ := s.Take("default", 0)
	return has
}

func TestTooManyDownloads(t *testing.T) {
	w := start(t, readyServer, func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "data") },
		func(p *Proxy) {
			for range maxOfNamespace {
				p.downloads.Take("default", 1)
			}
		})
	got := w.get(readyPath + "/x?x-kubevirt-export-token=right")
	if got.code != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" ||
		strings.Contains(got.body, "data") {
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
	if got := w.get(readyPath + "/x?x-kubevirt-export-token=right"); got.code != http.StatusServiceUnavailable ||
		got.header.Get("Retry-After") == "" {
		t.Errorf("got %+v", got)
	}
}
