// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package web serves a page with a guest's screen and serial console to a local browser.
//
// The page controls the guest, so access is restricted: the server listens on the loopback address only; its paths
// begin with a random token, which other local users do not know; it accepts only its own host name, so that other
// sites cannot reach it by DNS rebinding; and it opens streams only for its own page.
package web

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

const (
	// headerTimeout is how long a browser may take to send a request's headers.
	headerTimeout = 10 * time.Second
	// maxMessage is the largest message of the page: a clipboard or a paste.
	maxMessage = 1 << 20
	// statusRefused is the close code if the cluster rejects a stream. The page shows the reason, which has at most
	// maxReason bytes in a close frame.
	statusRefused = websocket.StatusCode(4000)
	maxReason     = 120
)

// Open opens a stream to the guest.
type Open func(context.Context) (*subresources.Stream, error)

// Server serves the page.
type Server struct {
	// Title names the guest.
	Title string
	// Assets are the page's files.
	Assets fs.FS
	// Screen and Console open the guest's streams.
	Screen, Console Open

	token string
	hosts []string
}

// Run serves the page until the context ends. Port 0 chooses a free port. It calls ready with the page's address.
func (s *Server) Run(ctx context.Context, port int, ready func(url string)) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("the local port cannot be opened: %w", err)
	}
	_, chosen, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return err
	}
	s.token = rand.Text()
	s.hosts = []string{net.JoinHostPort("127.0.0.1", chosen), net.JoinHostPort("localhost", chosen)}
	server := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: headerTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	ready(fmt.Sprintf("http://%s/%s/", s.hosts[0], s.token))
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.page)
	mux.Handle("GET /page/", http.FileServerFS(s.Assets))
	mux.Handle("GET /assets/", http.FileServerFS(s.Assets))
	mux.HandleFunc("GET /screen", func(w http.ResponseWriter, r *http.Request) { s.stream(w, r, s.Screen) })
	mux.HandleFunc("GET /console", func(w http.ResponseWriter, r *http.Request) { s.stream(w, r, s.Console) })
	return s.guarded(mux)
}

// guarded returns a handler that serves only requests with the server's host name, origin and token.
func (s *Server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy",
			"default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "+
				"connect-src 'self' ws://"+s.hosts[0]+" ws://"+s.hosts[1]+
				"; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		if r.Host != s.hosts[0] && r.Host != s.hosts[1] {
			http.Error(w, "this server is not called so", http.StatusMisdirectedRequest)
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host {
			http.Error(w, "only the page itself may send requests", http.StatusForbidden)
			return
		}
		token, rest, found := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		if !found || subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) != 1 {
			http.NotFound(w, r)
			return
		}
		inner := r.Clone(r.Context())
		inner.URL.Path, inner.URL.RawPath = "/"+rest, ""
		next.ServeHTTP(w, inner)
	})
}

// stream connects a websocket of the page with a stream of the guest.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, open Open) {
	if r.Header.Get("Origin") != "http://"+r.Host {
		http.Error(w, "only the page itself may send requests", http.StatusForbidden)
		return
	}
	socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"binary"}})
	if err != nil {
		return
	}
	socket.SetReadLimit(maxMessage)
	defer func() { _ = socket.CloseNow() }()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stream, err := open(ctx)
	if err != nil {
		// A page cannot read the response to a rejected websocket, but it can read a close frame.
		_ = socket.Close(statusRefused, reason(err))
		return
	}
	defer func() { _ = stream.Close() }()
	browser := websocket.NetConn(ctx, socket, websocket.MessageBinary)
	err = stream.Join(browser, browser)
	var closed *subresources.ClosedError
	switch {
	case errors.As(err, &closed):
		_ = socket.Close(statusRefused, reason(err))
	case err != nil:
		_ = socket.Close(websocket.StatusBadGateway, reason(err))
	default:
		_ = socket.Close(websocket.StatusNormalClosure, "")
	}
}

// reason returns an error's text for a close frame.
func reason(err error) string {
	text := strings.Join(strings.Fields(cli.Plain(err.Error())), " ")
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "")
	}
	return text
}

// embedded contains the page, and the libraries that hack/web-assets.sh copies to assets.
//
//go:embed page assets
var embedded embed.FS

// ErrNoAssets reports that virtctl was built without the page's libraries.
var ErrNoAssets = errors.New("this virtctl was built without noVNC and xterm.js, which --web shows.\n" +
	"Build it with them: apt-get install novnc node-xterm && make virtctl\n" +
	"Until then: vnc --proxy-only for a viewer of your own, and the command console")

// required contains files without which the page does not work.
var required = []string{"assets/novnc/core/rfb.js", "assets/xterm/xterm.js", "assets/xterm/xterm.css"}

// Assets returns the page's files.
func Assets() (fs.FS, error) {
	for _, name := range required {
		if _, err := fs.Stat(embedded, name); err != nil {
			return nil, ErrNoAssets
		}
	}
	return embedded, nil
}

// page serves the page with the guest's name.
func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	page, err := template.ParseFS(s.Assets, "page/index.html")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = page.Execute(w, struct{ Title string }{s.Title})
}
