// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package proxy

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/export/content"
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
	w := start(t, readyServer, forever(time.Hour), func(p *Proxy) { p.limits.stall = 2 * time.Second })
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
			w := start(t, readyServer, forever(time.Millisecond), func(p *Proxy) { p.limits.check, p.limits.absence = 0, 10*time.Millisecond })
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
		to := &transfer{out: &response{sent: tc.sent}, limits: defaultLimits, start: now.Add(-tc.elapsed), accepting: tc.accepting, checked: now}
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
	w := start(t, readyServer, slow, func(p *Proxy) { p.limits.grace, p.limits.client, p.limits.exporter = 100*time.Millisecond, 1, 1<<20 })
	if n, err := io.Copy(io.Discard, w.open(readyPath+content.OCIPath)); n != 8*4<<10 || err != nil {
		t.Errorf("got %d bytes of the image, %v", n, err)
	}
	w.expectCut(w.open(downloadPath), errSlowExporter.Error())
	if image := defaultLimits.of(content.OCIPath); image.exporter != 32 || defaultLimits.of("/volumes/data/disk.img").exporter != 1<<10 {
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
	to := newTransfer(&response{}, limits{grace: time.Hour, check: time.Second, absence: time.Minute}, func() error { return is })
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
