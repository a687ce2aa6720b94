// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package proxy forwards downloads from outside the cluster to the Pods of exports. It does not know the tokens: the
// exporters check them. It connects to nothing but the Services of exports that are ready, whose names it derives
// itself and whose certificates it verifies.
//
// The key of an exporter is in a Secret of a tenant, who can impersonate the exporter. So requests contain only the
// headers that a download needs, and no credentials of another site; and responses are sanitized, since all downloads
// have the same origin in a browser.
package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/limits"
)

const (
	// maxDownloads is how many downloads are forwarded at the same time, and maxOfNamespace how many of one namespace.
	// The same limits apply to requests whose token the exporter has not checked yet. Of these, an export has
	// maxUndecided; others wait up to maxWait.
	maxDownloads   = 256
	maxOfNamespace = 32
	maxUndecided   = 8
	maxWait        = 10 * time.Second
	// connectTimeout bounds connecting to an exporter, and headerTimeout the time until it starts to respond.
	connectTimeout = 10 * time.Second
	headerTimeout  = time.Minute
	// refusedWait is for how long a refused connection is repeated, and refusedPause the time between two: a node may
	// learn the address of a new exporter some time after the export is Ready.
	refusedWait  = 5 * time.Second
	refusedPause = 200 * time.Millisecond
	// copyBuffer is the size of the buffer of a download.
	copyBuffer = 32 << 10
	// readTimeout bounds the header of a request, and maxHeaderBytes its size. Requests have no body.
	readTimeout    = 15 * time.Second
	maxHeaderBytes = 16 << 10
	idle           = time.Minute
)

// Options are what a Proxy depends on.
type Options struct {
	// Exports reads VirtualMachineExports.
	Exports client.Reader
	// TLS returns the configuration of a connection to the server of an export, by the name in its certificate.
	TLS func(serverName string) (*tls.Config, error)
	// Dial replaces the connection to an address, in tests.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Log is the log. It never has the query of a request, which may have a token.
	Log logr.Logger
}

// Proxy forwards requests to exporters.
type Proxy struct {
	options Options
	speeds  speedLimits
	// slotWait is how long a request waits for the slot in which its token is checked.
	slotWait time.Duration
	// downloads are the requests to which an exporter has responded, and connecting those to which it has not.
	downloads, connecting *limits.Shares
	// undecided are those of connecting by export.
	undecided *queues
}

// newShares returns slots of which a namespace gets at most maxOfNamespace, and none if it has as many as are free.
func newShares() *limits.Shares { return limits.NewShares(maxDownloads, maxOfNamespace) }

// New returns a proxy.
func New(o Options) *Proxy {
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: connectTimeout, Control: onlyServices}).DialContext
	}
	return &Proxy{
		options: o, speeds: defaultLimits, slotWait: maxWait,
		downloads: newShares(), connecting: newShares(), undecided: newQueues(maxUndecided),
	}
}

// HTTP returns the server, without an address and certificates. Downloads protect their connections, if its listener is
// one of limits.Connections.
func (p *Proxy) HTTP() *http.Server {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true) // as KubeVirt's
	return &http.Server{
		Protocols: protocols,
		Handler:   p, ReadHeaderTimeout: readTimeout, IdleTimeout: idle, MaxHeaderBytes: maxHeaderBytes,
		ConnContext: limits.ConnContext,
		ErrorLog:    stdlog.New(io.Discard, "", 0), // anyone can cause its errors
	}
}

// onlyServices refuses addresses that no Service has. A tenant can change the address of the Service of an export.
func onlyServices(_, address string, _ syscall.RawConn) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	ip := net.ParseIP(host)
	if ip == nil || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() {
		return fmt.Errorf("%s is no address of a Service", host)
	}
	return nil
}

// ServeHTTP forwards a request, or refuses it.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTimeout))
		w.Header().Set("Connection", "close")
	}
	protect(w.Header())
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD are served", http.StatusMethodNotAllowed)
		return
	}
	t, ok := parse(r.URL.Path)
	if !ok {
		http.Error(w, "the path is not that of an export: "+content.ProxyPath("NAMESPACE", "NAME")+"/…",
			http.StatusBadRequest)
		return
	}
	uid, code, text := p.find(r.Context(), t)
	if code != 0 {
		http.Error(w, text, code)
		return
	}
	if !hasToken(r) {
		unauthorized(w)
		return
	}
	p.forward(w, r, t, uid)
}

// unauthorized responds as an exporter to a request without its token.
func unauthorized(w http.ResponseWriter) {
	http.Error(w, content.TokenNeeded, http.StatusUnauthorized)
}

// busy responds to a request for which there is no slot.
func busy(w http.ResponseWriter, text string) {
	w.Header().Set("Retry-After", "10")
	http.Error(w, text+" at the same time: try again later", http.StatusServiceUnavailable)
}

// find returns the UID of an export. If it cannot be downloaded, code and text are the response; otherwise code is 0.
func (p *Proxy) find(ctx context.Context, t target) (uid types.UID, code int, text string) {
	of := &exportv1.VirtualMachineExport{}
	err := p.options.Exports.Get(ctx, client.ObjectKey{Namespace: t.namespace, Name: t.name}, of)
	switch {
	case apierrors.IsNotFound(err):
		return "", http.StatusNotFound, "there is no such export"
	case err != nil:
		p.options.Log.Error(err, "Cannot read an export", "namespace", t.namespace, "name", t.name)
		return "", http.StatusServiceUnavailable, "the export cannot be read"
	case of.DeletionTimestamp != nil || of.Status == nil || of.Status.Phase != exportv1.Ready:
		return of.UID, http.StatusServiceUnavailable, "the export is not ready: its status has the reason"
	default:
		return of.UID, 0, ""
	}
}

// changed returns errGone if an export that was downloadable is gone or replaced by another one, and errNotReady if it
// cannot be downloaded now.
func (p *Proxy) changed(ctx context.Context, t target, uid types.UID) error {
	now, code, _ := p.find(ctx, t)
	switch {
	case code == http.StatusNotFound || now != "" && now != uid:
		return errGone
	case code != 0:
		return errNotReady
	default:
		return nil
	}
}

// dial connects to an exporter.
func (p *Proxy) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := p.options.Dial(ctx, network, address)
	for give := time.Now().Add(refusedWait); errors.Is(err, unix.ECONNREFUSED) && time.Now().Before(give); {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(refusedPause):
		}
		conn, err = p.options.Dial(ctx, network, address)
	}
	if err != nil {
		return nil, err
	}
	return promptConn{Conn: conn, stall: p.speeds.stall}, nil
}

// forward forwards a request, and the response if the exporter accepts the token. Only then does the request count as a
// download, because anyone can send requests.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, t target, uid types.UID) {
	log := p.options.Log.WithValues("namespace", t.namespace, "name", t.name, "path", t.rest)
	start, out := time.Now(), &response{ResponseWriter: w, stall: p.speeds.stall}
	defer func() {
		log.Info("Forwarded a request", "status", out.code, "bytes", out.sent, "duration", time.Since(start).String())
	}()
	received := p.request(out, r, t, log)
	if received == nil {
		return
	}
	defer func() { _ = received.Body.Close() }()
	if received.StatusCode == http.StatusUnauthorized {
		unauthorized(out) // the rest of the response may have no end
		return
	}
	if _, ok := p.downloads.Take(t.namespace, 1); !ok {
		busy(out, "too many downloads")
		return
	}
	defer p.downloads.Give(t.namespace, 1)
	defer limits.Protect(r.Context())()
	maps.Copy(out.Header(), responseHeader(received.Header))
	out.WriteHeader(received.StatusCode)
	to := newTransfer(out, p.speeds.of(t.rest), func() error { return p.changed(r.Context(), t, uid) })
	if _, err := io.CopyBuffer(to, received.Body, make([]byte, copyBuffer)); err != nil {
		log.Info("A download was cut off", "error", err.Error())
		panic(http.ErrAbortHandler) // so that the client does not regard the partial download as complete
	}
}

// request sends the request to the exporter, over a new connection: exports do not share connections. It returns the
// response, or responds to the client itself and returns nil.
//
// httputil.ReverseProxy is not used, because it forwards what no download needs and a hostile exporter can misuse:
// informational responses and trailers with any headers, and the raw connection after 101 Switching Protocols.
func (p *Proxy) request(w http.ResponseWriter, r *http.Request, t target, log logr.Logger) *http.Response {
	name := content.ServerName(t.namespace, t.name)
	config, err := p.options.TLS(name)
	if err != nil {
		log.Error(err, "Cannot verify exporters")
		http.Error(w, "exporters cannot be verified yet: try again later", http.StatusServiceUnavailable)
		return nil
	}
	release := p.reserve(r.Context(), t)
	if release == nil {
		busy(w, "too many requests")
		return nil
	}
	defer release()
	transport := &http.Transport{
		DialContext: p.dial, TLSClientConfig: config, TLSHandshakeTimeout: connectTimeout,
		ResponseHeaderTimeout: headerTimeout,
		DisableKeepAlives:     true, DisableCompression: true, MaxResponseHeaderBytes: maxHeaderBytes,
	}
	received, err := transport.RoundTrip((&http.Request{
		Method: r.Method, Host: name, Header: requestHeader(r.Header), Body: http.NoBody,
		URL: &url.URL{Scheme: "https", Host: net.JoinHostPort(name, strconv.Itoa(content.ServicePort)), Path: t.rest,
			RawQuery: requestQuery(r.URL)},
	}).WithContext(r.Context()))
	if err == nil && !isFinal(received.StatusCode) {
		_ = received.Body.Close()
		err = fmt.Errorf("it responds with status %d", received.StatusCode)
	}
	if err != nil {
		if r.Context().Err() == nil {
			log.Info("An exporter does not respond", "error", err.Error())
		}
		http.Error(w, "the exporter does not respond: try again later", http.StatusBadGateway)
		return nil
	}
	return received
}

// reserve waits for the slots of a request whose token is not checked yet. It returns a function that releases them, or
// nil if there are too many requests.
func (p *Proxy) reserve(ctx context.Context, t target) (release func()) {
	ctx, cancel := context.WithTimeout(ctx, p.slotWait)
	defer cancel()
	export := key{t.namespace, t.name}
	if !p.undecided.acquire(ctx, export) {
		return nil
	}
	if _, ok := p.connecting.Take(t.namespace, 1); !ok {
		p.undecided.release(export)
		return nil
	}
	return func() {
		p.connecting.Give(t.namespace, 1)
		p.undecided.release(export)
	}
}

// isFinal reports whether a status is that of a final response. After 101, the exporter would be connected to the
// client directly.
func isFinal(status int) bool { return status >= http.StatusOK && status <= 599 }

// prefix is the beginning of all paths. KubeVirt's.
const prefix = "/api/export.kubevirt.io/"

// target is what the path of a request names.
type target struct {
	namespace, name string
	// rest is the path at the exporter.
	rest string
}

// parse returns the target of a path, which is decoded. Paths with other spellings of a file, as with "..", are
// refused.
func parse(requested string) (target, bool) {
	rest, found := strings.CutPrefix(requested, prefix)
	if !found {
		return target{}, false
	}
	parts := strings.SplitN(rest, "/", 6)
	if len(parts) != 6 || parts[0] != "v1" && parts[0] != "v1beta1" || parts[1] != "namespaces" ||
		parts[3] != "virtualmachineexports" {
		return target{}, false
	}
	t := target{namespace: parts[2], name: parts[4], rest: "/" + parts[5]}
	if len(validation.IsDNS1123Label(t.namespace)) > 0 || len(validation.IsDNS1123Subdomain(t.name)) > 0 {
		return target{}, false
	}
	clean := path.Clean(t.rest)
	if clean != "/" && strings.HasSuffix(t.rest, "/") {
		clean += "/"
	}
	return t, clean == t.rest && !strings.ContainsRune(t.rest, 0)
}

// forwarded are the headers of a request that an exporter gets. Others may be credentials for the host of the proxy.
var forwarded = []string{
	content.TokenHeader, "Accept", "Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since",
	"If-Unmodified-Since", "User-Agent",
}

// returned are the headers of a response that a client gets. Others, such as cookies, would affect the host of the
// proxy.
var returned = []string{
	"Content-Length", "Content-Range", "Accept-Ranges", "Etag", "Last-Modified", "Retry-After", "Allow", "Cache-Control",
}

// returnedTypes are the types of content that are returned. Others become application/octet-stream.
var returnedTypes = map[string]bool{
	"application/octet-stream": true, "application/gzip": true, "application/json": true, "application/yaml": true,
	"text/html": true, "text/plain": true,
	"multipart/byteranges": true, "application/x-tar": true,
}

// fileName matches the names under which a response may make a client save it: no path, no hidden file, nothing that
// looks like an option.
var fileName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

// protect sets the headers that keep a browser from running a response and from guessing its type.
func protect(header http.Header) {
	header.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer") // the address may have the token
}

func pick(from http.Header, names []string) http.Header {
	out := http.Header{}
	for _, name := range names {
		if values := from.Values(name); len(values) > 0 {
			out.Set(name, values[0])
		}
	}
	return out
}

// requestHeader returns the headers of a request for an exporter.
func requestHeader(from http.Header) http.Header {
	out := pick(from, forwarded)
	if out.Get("User-Agent") == "" {
		out.Set("User-Agent", "virt-exportproxy")
	}
	return out
}

// requestQuery returns the query of a request for an exporter: the token, and the parameters of backups.
func requestQuery(from *url.URL) string {
	query := from.Query()
	out := content.BackupQuery(query)
	if token := query.Get(content.TokenHeader); token != "" {
		out.Set(content.TokenHeader, token)
	}
	return out.Encode()
}

// hasToken reports whether a request has a token. Only the exporter knows if it is the right one.
func hasToken(r *http.Request) bool {
	return r.Header.Get(content.TokenHeader) != "" || r.URL.Query().Get(content.TokenHeader) != ""
}

// responseHeader returns the headers of a response for a client. The proxy has set those of protect already.
func responseHeader(from http.Header) http.Header {
	out := pick(from, returned)
	kind, _, err := mime.ParseMediaType(from.Get("Content-Type"))
	switch {
	case err != nil || !returnedTypes[kind]:
		out.Set("Content-Type", "application/octet-stream")
	default:
		out.Set("Content-Type", from.Get("Content-Type"))
	}
	if disposition := attachment(from.Get("Content-Disposition")); disposition != "" {
		out.Set("Content-Disposition", disposition)
	}
	// The exporter redirects from a directory to itself with a slash.
	if location := from.Get("Location"); location != "" && !strings.HasPrefix(location, "/") &&
		!strings.ContainsAny(location, ":\\?#") {
		out.Set("Location", location)
	}
	return out
}

// attachment returns a Content-Disposition by which a client saves a response, or nothing if it is another one or has
// another name than those of fileName. Other parameters are left out.
func attachment(disposition string) string {
	kind, parameters, err := mime.ParseMediaType(disposition)
	if err != nil || kind != "attachment" || !fileName.MatchString(parameters["filename"]) {
		return ""
	}
	return `attachment; filename="` + parameters["filename"] + `"`
}
