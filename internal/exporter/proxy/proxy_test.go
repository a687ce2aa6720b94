// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/limits"
	"github.com/vireo-project/vireo/test/pki"
)

const (
	// connections is how many connections a proxy accepts.
	connections = 16
	// timeout is long enough for a loaded machine.
	timeout = time.Minute
	token   = "secret"
)

// world is a proxy and an exporter, and what the exporter got.
type world struct {
	t       *testing.T
	proxy   *httptest.Server
	exports client.Client

	mu     sync.Mutex
	got    *http.Request
	dialed string
	log    *bytes.Buffer
}

// start starts a proxy, and an exporter with a certificate for a name.
func start(t *testing.T, name string, exporter http.HandlerFunc, configure ...func(*Proxy)) *world {
	t.Helper()
	w := &world{t: t, log: &bytes.Buffer{}}
	scheme := runtime.NewScheme()
	if err := exportv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	export := func(name string, phase exportv1.VirtualMachineExportPhase) *exportv1.VirtualMachineExport {
		return &exportv1.VirtualMachineExport{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "1"},
			Status:     &exportv1.VirtualMachineExportStatus{Phase: phase},
		}
	}
	w.exports = fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		export("ready", exportv1.Ready), export("pending", exportv1.Pending),
		&exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "new"}},
	).Build()
	authority := pki.New(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.got = r.Clone(context.Background())
		w.mu.Unlock()
		exporter(rw, r)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{authority.Issue(name, x509.ExtKeyUsageServerAuth)}}
	server.StartTLS()
	t.Cleanup(server.Close)
	p := New(Options{
		Exports: w.exports, Log: funcr.New(func(prefix, args string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.log.WriteString(prefix + args + "\n")
		}, funcr.Options{}),
		TLS: func(serverName string) (*tls.Config, error) {
			return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: authority.Pool(), ServerName: serverName}, nil
		},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			w.mu.Lock()
			w.dialed = address
			w.mu.Unlock()
			return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
		},
	})
	for _, one := range configure {
		one(p)
	}
	w.proxy = httptest.NewUnstartedServer(p)
	w.proxy.Config, w.proxy.Listener = p.HTTP(), limits.Connections(w.proxy.Listener, connections)
	w.proxy.Start()
	t.Cleanup(w.proxy.Close)
	return w
}

// received is a response that a client received.
type received struct {
	code   int
	header http.Header
	body   string
}

// do sends a request. Headers are pairs of name and value; a token is sent unless there is one among them.
func (w *world) do(method, path string, headers ...string) (received, error) {
	w.t.Helper()
	request, err := http.NewRequestWithContext(w.t.Context(), method, w.proxy.URL+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	request.Header.Set(content.TokenHeader, token)
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return received{}, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return received{response.StatusCode, response.Header, string(body)}, err
}

func (w *world) get(path string, headers ...string) received {
	w.t.Helper()
	got, err := w.do(http.MethodGet, path, headers...)
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

// open starts a download, and returns its body.
func (w *world) open(path string) io.Reader {
	w.t.Helper()
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.proxy.URL+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	request.Header.Set(content.TokenHeader, token)
	response, err := (&http.Client{Timeout: timeout}).Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = response.Body.Close() })
	if response.StatusCode != http.StatusOK {
		w.t.Fatalf("got %d", response.StatusCode)
	}
	return response.Body
}

const (
	readyServer = "virt-export-ready.default.svc"
	readyPath   = "/api/export.kubevirt.io/v1/namespaces/default/virtualmachineexports/ready"
)

func TestForwards(t *testing.T) {
	w := start(t, readyServer, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Etag", `"1"`)
		rw.Header().Set("Content-Type", "application/octet-stream")
		rw.Header().Set("Set-Cookie", "a=b")
		rw.Header().Set("Content-Security-Policy", "none")
		rw.Header().Set("Strict-Transport-Security", "max-age=1")
		rw.WriteHeader(http.StatusPartialContent)
		_, _ = io.WriteString(rw, "data")
	})
	got := w.get(readyPath+"/volumes/data/disk.img?x-kubevirt-export-token=secret&other=1", "Range", "bytes=1-4", "Cookie",
		"session=1", "Authorization", "Bearer x",
		"X-Forwarded-For", "1.2.3.4", "Accept-Encoding", "gzip")
	if got.code != http.StatusPartialContent || got.body != "data" || got.header.Get("Etag") != `"1"` {
		t.Errorf("got %+v", got)
	}
	if got.header.Get("Set-Cookie") != "" || got.header.Get("Strict-Transport-Security") != "" ||
		got.header.Get("Content-Security-Policy") != "sandbox; default-src 'none'" {
		t.Errorf("the client gets %v", got.header)
	}
	if w.dialed != readyServer+":443" || w.got.Host != readyServer ||
		w.got.URL.RequestURI() != "/volumes/data/disk.img?x-kubevirt-export-token=secret" {
		t.Errorf("forwarded to %s: %s, %s", w.dialed, w.got.Host, w.got.URL)
	}
	if w.got.Header.Get("Range") != "bytes=1-4" {
		t.Errorf("the exporter gets %v", w.got.Header)
	}
	for _, name := range []string{"Cookie", "Authorization", "X-Forwarded-For", "Accept-Encoding"} {
		if w.got.Header.Get(name) != "" {
			t.Errorf("the exporter gets %s", name)
		}
	}
	if log := w.log.String(); strings.Contains(log, "secret") || !strings.Contains(log, "/volumes/data/disk.img") {
		t.Errorf("the log is %q", log)
	}
	w.get(strings.Replace(readyPath, "/v1/", "/v1beta1/", 1) + "/internal/manifests/all")
	if w.got.Header.Get(content.TokenHeader) != token {
		t.Errorf("the exporter gets %v", w.got.Header)
	}
}

// TestWaitsForTheAddress has a node that does not know yet which Pod has the address of an exporter.
func TestWaitsForTheAddress(t *testing.T) {
	w := start(t, readyServer, func(http.ResponseWriter, *http.Request) {}, func(p *Proxy) {
		known, dial := false, p.options.Dial
		p.options.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if !known {
				known = true
				return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", unix.ECONNREFUSED)}
			}
			return dial(ctx, network, address)
		}
	})
	if got := w.get(readyPath + "/volumes/data/disk.img"); got.code != http.StatusOK {
		t.Errorf("got %+v", got)
	}
}

func TestRefuses(t *testing.T) {
	w := start(t, readyServer, func(http.ResponseWriter, *http.Request) {})
	base := "/api/export.kubevirt.io/v1/namespaces/default/virtualmachineexports/"
	for path, code := range map[string]int{
		"/": http.StatusBadRequest, "/healthy": http.StatusBadRequest, "/api/export.kubevirt.io/v2/namespaces/default/virtualmachineexports/ready/x": http.StatusBadRequest,
		base + "ready": http.StatusBadRequest, base + "ready/../pending/x": http.StatusBadRequest,
		base + "ready/a/../b": http.StatusBadRequest,
		base + "ready//a":     http.StatusBadRequest, base + "ready/%2e%2e/a": http.StatusBadRequest,
		base + "READY/a": http.StatusBadRequest, base + "ready:8443/a": http.StatusBadRequest,
		base + "ready@host/a": http.StatusBadRequest,
		"/api/export.kubevirt.io/v1/namespaces/a.b/virtualmachineexports/ready/x":         http.StatusBadRequest,
		"/api/export.kubevirt.io/v1/namespaces/kube-system/virtualmachineexports/ready/x": http.StatusNotFound,
		"/api/export.kubevirt.io/v1/namespaces/default/virtualmachineinstances/ready/x":   http.StatusBadRequest,
		base + "absent/x": http.StatusNotFound, base + "pending/x": http.StatusServiceUnavailable,
		base + "new/x": http.StatusServiceUnavailable,
	} {
		if got := w.get(path); got.code != code {
			t.Errorf("%s: got %d, want %d", path, got.code, code)
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions} {
		if got, err := w.do(method, readyPath+"/x"); err != nil || got.code != http.StatusMethodNotAllowed {
			t.Errorf("%s: got %+v, %v", method, got, err)
		}
	}
	if w.dialed != "" {
		t.Errorf("it connected to %s", w.dialed)
	}
}

// The Service of an export may lead elsewhere: a tenant can change it.
func TestOnlyTheExporterIsBelieved(t *testing.T) {
	w := start(t, "virt-export-other.default.svc",
		func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "of another") })
	got := w.get(readyPath + "/x")
	if got.code != http.StatusBadGateway || strings.Contains(got.body, "another") || w.got != nil {
		t.Errorf("got %+v", got)
	}
	if strings.Contains(w.log.String(), "secret") {
		t.Errorf("the log is %q", w.log)
	}
	for address, refused := range map[string]bool{
		"127.0.0.1:443": true, "[::1]:443": true, "169.254.169.254:443": true, "[fe80::1]:443": true, "0.0.0.0:443": true, "10.96.0.10:443": false, "[fd00::1]:443": false,
	} {
		if err := onlyServices("tcp", address, nil); (err != nil) != refused {
			t.Errorf("%s: got %v", address, err)
		}
	}
}

func TestHostileResponses(t *testing.T) {
	for name, tc := range map[string]struct{ header, value, wantType, wantLocation string }{
		"a script":            {"Content-Type", "text/javascript", "application/octet-stream", ""},
		"an image":            {"Content-Type", "image/svg+xml", "application/octet-stream", ""},
		"a page":              {"Content-Type", "text/html; charset=utf-8", "text/html; charset=utf-8", ""},
		"a redirect":          {"Location", "sub/", "application/octet-stream", "sub/"},
		"a redirect away":     {"Location", "https://elsewhere/", "application/octet-stream", ""},
		"a redirect to root":  {"Location", "//elsewhere/", "application/octet-stream", ""},
		"a redirect to path":  {"Location", "/api/export.kubevirt.io/v1/", "application/octet-stream", ""},
		"a redirect to login": {"Location", `\\elsewhere`, "application/octet-stream", ""},
	} {
		w := start(t, readyServer, func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "")
			rw.Header().Set(tc.header, tc.value)
			rw.WriteHeader(http.StatusMovedPermanently)
		})
		got := w.get(readyPath + "/x")
		if got.header.Get("Content-Type") != tc.wantType || got.header.Get("Location") != tc.wantLocation ||
			got.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: got %v", name, got.header)
		}
	}
}

// An exporter names the file of an image. A hostile one must not choose where a client saves a response.
func TestNamesOfDownloads(t *testing.T) {
	const image = `attachment; filename="export.oci.tar"`
	for sent, want := range map[string]string{
		image:                                 image,
		"Attachment; FileName=export.oci.tar": image,
		image + `; size=1; creation-date="today"`: image,
		"attachment; filename*=UTF-8''export.tar": `attachment; filename="export.tar"`,
		"":                                     "",
		"attachment":                           "",
		"inline":                               "",
		`inline; filename="export.oci.tar"`:    "",
		`form-data; filename="export.oci.tar"`: "",
		`attachment; filename=""`:              "",
		`attachment; filename=".bashrc"`:       "",
		`attachment; filename="-rf"`:           "",
		`attachment; filename="../export.oci.tar"`:         "",
		`attachment; filename="a/b"`:                       "",
		`attachment; filename="a\\b"`:                      "",
		`attachment; filename="a b"`:                       "",
		`attachment; filename="a\"; filename=b"`:           "",
		"attachment; filename*=UTF-8''a%0D%0AX:y":          "",
		"attachment; filename*=UTF-8''%E2%80%AEtar":        "",
		`attachment; filename="a"; filename="b"`:           "",
		"attachment; filename=" + strings.Repeat("a", 129): "",
	} {
		w := start(t, readyServer, func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "application/x-tar")
			rw.Header().Set("Content-Disposition", sent)
		})
		got := w.get(readyPath + "/export.oci.tar").header
		if values := strings.Join(got.Values("Content-Disposition"), ","); values != want ||
			got.Get("Content-Type") != "application/x-tar" {
			t.Errorf("%q: got %q and the type %s, want %q", sent, values, got.Get("Content-Type"), want)
		}
	}
}

func TestCutDownloadsLookCut(t *testing.T) {
	w := start(t, readyServer, func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(rw, strings.Repeat("x", 1<<20))
		panic(http.ErrAbortHandler)
	})
	if got, err := w.do(http.MethodGet, readyPath+"/volumes/data/disk.img.gz"); err == nil {
		t.Errorf("a download that was cut looks complete: %d, %d bytes", got.code, len(got.body))
	}
}

// Anyone can open connections.
func TestNewConnectionsDoNotEndDownloads(t *testing.T) {
	const half = 1 << 20
	rest := make(chan struct{})
	w := start(t, readyServer, func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, strings.Repeat("x", half))
		select {
		case <-rest:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(rw, strings.Repeat("x", half))
	})
	download := w.open(readyPath + "/volumes/data/disk.img.gz")
	var others []net.Conn
	for range 3 * connections {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", w.proxy.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		others = append(others, conn)
	}
	for _, conn := range others[:2*connections] {
		_, _ = io.Copy(io.Discard, conn) // until it is closed for a newer one
	}
	close(rest)
	if got, err := io.ReadAll(download); err != nil || len(got) != 2*half {
		t.Errorf("the download was cut off after %d bytes: %v", len(got), err)
	}
}

// A hostile exporter can send more than one response: headers of all are for the host of the proxy.
func TestOnlyTheResponseIsForwarded(t *testing.T) {
	w := start(t, readyServer, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Set-Cookie", "a=b")
		rw.Header().Set("Link", "<https://elsewhere/script>; rel=preload")
		rw.WriteHeader(http.StatusEarlyHints)
		rw.Header().Set("Trailer", "Set-Cookie")
		_, _ = io.WriteString(rw, "data")
		rw.Header().Set("Set-Cookie", "c=d")
	})
	ctx := httptrace.WithClientTrace(t.Context(),
		&httptrace.ClientTrace{Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
			t.Errorf("the client gets %d: %v", code, header)
			return nil
		}})
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.proxy.URL+readyPath+"/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(content.TokenHeader, token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil || string(body) != "data" || response.Header.Get("Set-Cookie") != "" || len(response.Trailer) > 0 {
		t.Errorf("got %q, %v, %v, %v", body, response.Header, response.Trailer, err)
	}
	if response.Header.Get("Content-Security-Policy") != "sandbox; default-src 'none'" {
		t.Errorf("the client gets %v", response.Header)
	}
}

// After 101 the connection of the client would be the exporter's.
func TestProtocolsAreNotSwitched(t *testing.T) {
	w := start(t, readyServer, func(rw http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"+
			"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 4\r\n\r\ndata")
	})
	if got := w.get(readyPath + "/x"); got.code != http.StatusBadGateway || strings.Contains(got.body, "data") {
		t.Errorf("got %+v", got)
	}
}

func TestUnreadableExports(t *testing.T) {
	p := New(Options{Exports: failing{}})
	recorder := httptest.NewRecorder()
	p.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, readyPath+"/x", nil))
	if recorder.Code != http.StatusServiceUnavailable {
		t.Errorf("got %d", recorder.Code)
	}
}

type failing struct{ client.Reader }

func (failing) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("injected by the test")
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{readyPath + "/volumes/a/disk.img", readyPath + "/", readyPath + "/../x",
		"/api/export.kubevirt.io/v1/namespaces/../virtualmachineexports/x/y"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, requested string) {
		got, ok := parse(requested)
		if !ok {
			return
		}
		if strings.ContainsAny(got.namespace+got.name, "/:@%?# \x00") || !strings.HasPrefix(got.rest, "/") ||
			strings.Contains(got.rest, "/../") || strings.HasSuffix(got.rest, "/..") {
			t.Errorf("%q is forwarded to %+v", requested, got)
		}
	})
}

func TestRequestQuery(t *testing.T) {
	for query, want := range map[string]string{
		"":                           "",
		"x-kubevirt-export-token=t":  "x-kubevirt-export-token=t",
		"offset=1&length=2&other=3":  "length=2&offset=1",
		"page_size=1&page_size=2&a":  "page_size=1",
		"offset=%0d%0aX:+y&token=no": "offset=%0D%0AX%3A+y",
	} {
		if got := requestQuery(&url.URL{RawQuery: query}); got != want {
			t.Errorf("%s: got %s", query, got)
		}
	}
}
