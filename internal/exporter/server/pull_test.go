// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/wire/nbd"
	"github.com/vireo-project/vireo/test/nbdserver"
	"github.com/vireo-project/vireo/test/pki"
)

const (
	agentName = "blue.virt-handler-backup"
	changes   = "qemu:dirty-bitmap:changes"
	sector    = nbdserver.BlockSize
)

// pullWorld is an exporter of a backup, and the agent of the guest's node.
type pullWorld struct {
	*world
	exporter  *Server
	disk      *nbdserver.Disk
	authority *pki.Authority
	address   string
}

// newDisk returns a disk of 16 sectors. The sectors 2, 3 and 8 have data, and 3, 4 and 8 have changed.
func newDisk() *nbdserver.Disk {
	data := make([]byte, 16*sector)
	for _, i := range []int{2, 3, 8} {
		copy(data[i*sector:], bytes.Repeat([]byte{byte(i)}, sector))
	}
	return &nbdserver.Disk{Export: "root", Data: data, Bitmap: changes, Dirty: map[int]bool{3: true, 4: true, 8: true}}
}

func servePull(t *testing.T, context string) *pullWorld {
	t.Helper()
	w := &pullWorld{disk: newDisk(), authority: pki.New(t)}
	authority := string(w.authority.PEM())
	c := content.Content{Export: "e",
		Backup: &content.Backup{Volumes: []string{"root"}, Changes: context, Client: agentName, CA: authority}}
	exporter, err := New(Options{
		Content: func() (*content.Content, error) { return &c, nil }, Token: func() (string, error) { return token, nil },
		Log: logr.Discard(),
	})
	must(t, err)
	w.exporter = exporter
	w.world = &world{t: t, server: httptest.NewServer(exporter)}
	t.Cleanup(w.server.Close)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	w.address = listener.Addr().String()
	serving := w.authority.Issue("virt-export-e.ns.svc", x509.ExtKeyUsageServerAuth)
	go exporter.ServeAgent(t.Context(), listener, func() (*tls.Certificate, error) { return &serving, nil })
	return w
}

// dial connects to the exporter with a certificate for a name.
func (w *pullWorld) dial(ctx context.Context, name, protocol string) (*tls.Conn, error) {
	dialer := &tls.Dialer{Config: &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: w.authority.Pool(), ServerName: "virt-export-e.ns.svc",
		NextProtos: []string{protocol}, Certificates: []tls.Certificate{w.authority.Issue(name, x509.ExtKeyUsageClientAuth)},
	}}
	conn, err := dialer.DialContext(ctx, "tcp", w.address)
	if err != nil {
		return nil, err
	}
	return conn.(*tls.Conn), nil
}

// connect connects the agent, which serves the disk on each of its connections when the exporter uses it. It returns
// the connections.
func (w *pullWorld) connect(connections int) []net.Conn {
	w.t.Helper()
	var all []net.Conn
	for range connections {
		conn, err := w.dial(w.t.Context(), agentName, content.AgentProtocol)
		must(w.t, err)
		all = append(all, conn)
		go func() {
			defer func() { _ = conn.Close() }()
			first := make([]byte, 1)
			if _, err := conn.Read(first); err == nil {
				_ = w.disk.Serve(replayed{io.MultiReader(bytes.NewReader(first), conn), conn})
			}
		}()
	}
	for w.request(content.ReadinessPath).code != http.StatusOK {
		time.Sleep(5 * time.Millisecond)
	}
	return all
}

// replayed is a connection of which something was read already.
type replayed struct {
	io.Reader
	net.Conn
}

func (r replayed) Read(p []byte) (int, error) { return r.Reader.Read(p) }

// request sends a request with the token. Headers are pairs of name and value.
func (w *pullWorld) request(path string, headers ...string) received {
	w.t.Helper()
	got, err := w.do(http.MethodGet, path, headers...)
	must(w.t, err)
	return got
}

func (w *pullWorld) page(query string) page {
	w.t.Helper()
	got := w.request(content.MapPath("root") + query)
	if got.code != http.StatusOK {
		w.t.Fatalf("%s: status %d: %s", query, got.code, got.body)
	}
	var p page
	must(w.t, json.Unmarshal(got.body, &p))
	return p
}

// summary returns the blocks of a page in sectors.
func summary(p page) string {
	var out []string
	for _, b := range p.Extents {
		out = append(out, fmt.Sprintf("%d+%d %d %s", b.Offset/sector, b.Length/sector, b.Type, b.Description))
	}
	if p.NextOffset != nil {
		out = append(out, fmt.Sprintf("next %d", *p.NextOffset/sector))
	}
	return strings.Join(out, "; ")
}

func TestMap(t *testing.T) {
	for name, tc := range map[string]struct{ changes, query, want string }{
		"all data":         {"", "", "0+2 3 hole,zero; 2+2 0 data; 4+4 3 hole,zero; 8+1 0 data; 9+7 3 hole,zero"},
		"a page":           {"", "?page_size=2", "0+2 3 hole,zero; 2+2 0 data; next 4"},
		"the next page":    {"", "?page_size=2&offset=2048", "4+4 3 hole,zero; 8+1 0 data; next 9"},
		"a part":           {"", "?offset=1536&length=1024", "3+1 0 data; 4+1 3 hole,zero"},
		"more than all":    {"", "?offset=4608&length=9999999", "9+7 3 hole,zero"},
		"what has changed": {changes, "", "0+2 2 zero; 2+1 0 clean; 3+1 1 dirty; 4+1 3 dirty,zero; 5+3 2 zero; 8+1 1 dirty; 9+7 2 zero"},
		"a page of them":   {changes, "?page_size=3", "0+2 2 zero; 2+1 0 clean; 3+1 1 dirty; next 4"},
	} {
		for _, limit := range []int{0, 1} {
			w := servePull(t, tc.changes)
			w.disk.MaxExtents = limit
			w.connect(1)
			if got := summary(w.page(tc.query)); got != tc.want {
				t.Errorf("%s: got %s", name, got)
			}
		}
	}
	w := servePull(t, "")
	w.connect(1)
	if got := w.request(content.MapPath("root") + "?offset=100&length=10&page_size=1"); string(got.body) !=
		`{"extents":[{"offset":100,"length":10,"type":3,"description":"hole,zero"}],"next_offset":null}` {
		t.Errorf("the page is %s", got.body)
	}
}

func TestData(t *testing.T) {
	w := servePull(t, "")
	w.connect(2)
	all := w.disk.Data
	for query, want := range map[string][]byte{
		"": all, "?offset=1024": all[1024:], "?offset=1025&length=700": all[1025:1725], "?length=1": all[:1], "?offset=8000&length=500": all[8000:],
		"?offset=0&length=99999999999": all,
	} {
		got := w.request(content.DataPath("root") + query)
		if got.code != http.StatusOK || !bytes.Equal(got.body, want) || got.length != int64(len(want)) {
			t.Errorf("%s: status %d, %d bytes", query, got.code, len(got.body))
		}
	}
	got := w.request(content.DataPath("root")+"?offset=512", "Range", "bytes=1000-1099")
	if got.code != http.StatusPartialContent || !bytes.Equal(got.body, all[1512:1612]) {
		t.Errorf("a range: status %d, %d bytes", got.code, len(got.body))
	}
	if sessions := w.disk.Sessions.Load(); sessions > 2 {
		t.Errorf("%d sessions were opened: they are not used again", sessions)
	}
}

func TestRefusedRequests(t *testing.T) {
	w := servePull(t, "")
	w.connect(2)
	for path, want := range map[string]int{
		content.DataPath("root") + "?offset=x":            http.StatusBadRequest,
		content.DataPath("root") + "?offset=-1":           http.StatusBadRequest,
		content.DataPath("root") + "?length=1.5":          http.StatusBadRequest,
		content.MapPath("root") + "?page_size=0":          http.StatusBadRequest,
		content.MapPath("root") + "?page_size=-5":         http.StatusBadRequest,
		content.DataPath("root") + "?offset=8192":         http.StatusRequestedRangeNotSatisfiable,
		content.MapPath("root") + "?offset=8192":          http.StatusRequestedRangeNotSatisfiable,
		content.MapPath("other"):                          http.StatusNotFound,
		"/volumes/root/disk.img":                          http.StatusNotFound,
		content.MapPath("root") + "?page_size=1000000000": http.StatusOK,
	} {
		if got := w.request(path); got.code != want {
			t.Errorf("%s: status %d: %s", path, got.code, got.body)
		}
	}
	if got := w.request(content.DataPath("root"), content.TokenHeader, ""); got.code != http.StatusUnauthorized {
		t.Errorf("without a token: status %d", got.code)
	}
	w.disk.Fails.Store(true)
	if got := w.request(content.MapPath("root")); got.code != http.StatusInternalServerError {
		t.Errorf("QEMU cannot read: status %d", got.code)
	}
}

func TestReport(t *testing.T) {
	unread := content.Report{Volumes: 1, Unread: 1, Names: []string{"root"}}
	for name, tc := range map[string]struct {
		changes  string
		requests []string
		complete bool
	}{
		"nothing":                     {"", nil, false},
		"all data":                    {"", []string{content.DataPath("root")}, true},
		"its beginning":               {"", []string{content.DataPath("root") + "?length=8191"}, false},
		"only the map":                {"", []string{content.MapPath("root")}, false},
		"the map and what it names":   {"", []string{content.MapPath("root"), content.DataPath("root") + "?offset=1024&length=1024", content.DataPath("root") + "?offset=4096&length=512"}, true},
		"in another order":            {"", []string{content.DataPath("root") + "?offset=1024&length=1024", content.DataPath("root") + "?offset=4096&length=512", content.MapPath("root")}, true},
		"without the map":             {"", []string{content.DataPath("root") + "?offset=1024&length=1024", content.DataPath("root") + "?offset=4096&length=512"}, false},
		"a page of the map":           {"", []string{content.MapPath("root") + "?page_size=3", content.DataPath("root") + "?offset=1024&length=4096"}, false},
		"what has changed":            {changes, []string{content.MapPath("root"), content.DataPath("root") + "?offset=1536&length=512", content.DataPath("root") + "?offset=4096&length=512"}, true},
		"a part of what has changed":  {changes, []string{content.MapPath("root"), content.DataPath("root") + "?offset=1536&length=512"}, false},
		"all, although less changed":  {changes, []string{content.DataPath("root")}, true},
		"all in parts that intersect": {"", []string{content.DataPath("root") + "?length=5000", content.DataPath("root") + "?offset=4000"}, true},
	} {
		w := servePull(t, tc.changes)
		w.connect(2)
		for _, path := range tc.requests {
			if got := w.request(path); got.code != http.StatusOK {
				t.Fatalf("%s: status %d", path, got.code)
			}
		}
		w.server.Close() // which waits until all requests are counted
		want := unread
		if tc.complete {
			want = content.Report{Volumes: 1}
		}
		if diff := cmp.Diff(want, w.exporter.Report()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestWhatIsCutOffDoesNotCount(t *testing.T) {
	w := servePull(t, "")
	w.disk.Data = bytes.Repeat([]byte{1}, 64<<20) // more than the buffers of a connection
	w.connect(2)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.server.URL+content.DataPath("root"), nil)
	must(t, err)
	request.Header.Set(content.TokenHeader, token)
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	if _, err := io.CopyN(io.Discard, response.Body, 1<<20); err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if got := w.request(content.DataPath("root") + "?offset=33554432"); got.code != http.StatusOK {
		t.Fatalf("status %d", got.code)
	}
	if w.exporter.Report().Unread != 1 {
		t.Error("a download that was cut off counts")
	}
	got := w.request(content.DataPath("root") + "?length=33554432")
	if w.server.Close(); got.code != http.StatusOK || w.exporter.Report().Unread != 0 {
		t.Errorf("status %d, and %+v", got.code, w.exporter.Report())
	}
}

func TestConnectionsThatHaveDied(t *testing.T) {
	w := servePull(t, "")
	for range 3 {
		conn, err := w.dial(t.Context(), agentName, content.AgentProtocol)
		must(t, err)
		must(t, conn.Close())
	}
	w.connect(1)
	if got := w.request(content.DataPath("root")); got.code != http.StatusOK {
		t.Errorf("status %d: %s", got.code, got.body)
	}
}

// TestAgentIsRestarted expects that requests wait for the new process of the agent, however many sessions its old one
// has served.
func TestAgentIsRestarted(t *testing.T) {
	w := servePull(t, "")
	old, s := w.connect(maxSessions), w.exporter.pull.sessions
	var open func(int) error
	open = func(more int) error {
		return s.with(t.Context(), "root", func(*nbd.Client) error {
			if more == 0 {
				return nil
			}
			return open(more - 1)
		})
	}
	must(t, open(maxSessions-1))
	if len(s.kept) != maxSessions {
		t.Fatalf("%d sessions are kept", len(s.kept))
	}
	for _, conn := range old {
		must(t, conn.Close())
	}
	connected := make(chan []net.Conn)
	go func() {
		time.Sleep(50 * time.Millisecond)
		connected <- w.connect(1)
	}()
	if got := w.request(content.DataPath("root")); got.code != http.StatusOK || !bytes.Equal(got.body, w.disk.Data) {
		t.Errorf("status %d: %s", got.code, got.body)
	}
	for _, conn := range <-connected {
		must(t, conn.Close())
	}
	s.wait = 50 * time.Millisecond
	if got := w.request(content.MapPath("root")); got.code != http.StatusServiceUnavailable {
		t.Errorf("status %d without an agent", got.code)
	}
}

func TestOnlyTheAgentIsServed(t *testing.T) {
	w := servePull(t, "")
	for who, tc := range map[string]struct{ name, protocol string }{
		"the agent of another node": {"red.virt-handler-backup", content.AgentProtocol},
		"another protocol":          {agentName, "http/1.1"},
	} {
		conn, err := w.dial(t.Context(), tc.name, tc.protocol)
		if err == nil { // the server verifies after the client has finished its handshake
			_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
			_, err = conn.Read(make([]byte, 1))
			_ = conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "tls:") {
			t.Errorf("%s is served: %v", who, err)
		}
	}
	if w.request(content.ReadinessPath).code != http.StatusServiceUnavailable {
		t.Error("it is ready without the agent")
	}
}
