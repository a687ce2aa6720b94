// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"image/color"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/vireo-project/vireo/internal/virtctl"
	"github.com/vireo-project/vireo/internal/virtctl/vnc/web"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
)

// quarters are the colors of the test screen's four quarters.
var quarters = [2][2]color.RGBA{
	{{R: 200, G: 30, B: 40, A: 255}, {R: 20, G: 180, B: 60, A: 255}},
	{{R: 10, G: 50, B: 220, A: 255}, {R: 240, G: 200, B: 0, A: 255}},
}

func testScreen(keys chan<- uint32) *virtctltest.Screen {
	return &virtctltest.Screen{
		Width: 320, Height: 200,
		Pixel: func(x, y int) color.RGBA { return quarters[y/100][x/160] },
		Key:   func(symbol uint32) { keys <- symbol },
	}
}

func serveScreen(screen *virtctltest.Screen) func(context.Context, *websocket.Conn, *http.Request) error {
	return func(ctx context.Context, socket *websocket.Conn, _ *http.Request) error {
		return screen.Serve(virtctltest.Conn(ctx, socket))
	}
}

// firstLine runs virtctl until the test ends and returns the first line that it prints.
func firstLine(t *testing.T, s *virtctltest.Server, arguments ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	code := make(chan int, 1)
	go func() {
		streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: writer, ErrOut: os.Stderr}
		code <- s.RunStreams(ctx, virtctl.Execute, streams, arguments...)
		_ = writer.Close()
	}()
	t.Cleanup(func() {
		cancel()
		expectCode(t, code, 0)
	})
	line, err := bufio.NewReader(reader).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func TestVNCProxyOnly(t *testing.T) {
	s := virtctltest.NewServer(t)
	s.Stream(vmiPath+"vnc", serveScreen(testScreen(nil)))
	var announced struct{ Port int }
	if err := json.Unmarshal([]byte(firstLine(t, s, "vnc", "demo", "--proxy-only")), &announced); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", announced.Port))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	version := make([]byte, 12)
	if _, err := io.ReadFull(conn, version); err != nil || string(version) != "RFB 003.008\n" {
		t.Errorf("the screen says %q, %v", version, err)
	}
}

func TestVNCViewer(t *testing.T) {
	s := virtctltest.NewServer(t)
	s.Stream(vmiPath+"vnc", func(ctx context.Context, socket *websocket.Conn, r *http.Request) error {
		if r.URL.Query().Get("preserveSession") != "true" {
			t.Error("the session of another client is not preserved")
		}
		return testScreen(nil).Serve(virtctltest.Conn(ctx, socket))
	})
	saw := filepath.Join(t.TempDir(), "saw")
	viewer := filepath.Join(t.TempDir(), "viewer")
	script := "#!/bin/bash\nexec 3<>/dev/tcp/${1%:*}/${1#*:} && head -c 12 <&3 >" + saw + "\n"
	if err := os.WriteFile(viewer, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := s.Run(virtctl.Execute, "vnc", "demo", "--vnc-type=tiger", "--vnc-path="+viewer,
		"--preserve-session"); got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	if content, _ := os.ReadFile(saw); string(content) != "RFB 003.008\n" {
		t.Errorf("the viewer saw %q", content)
	}
}

func TestVNCRefused(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	s := virtctltest.NewServer(t)
	s.Subresource(http.MethodGet, vmiPath+"vnc", func(w http.ResponseWriter, _ *http.Request) {
		virtctltest.Refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "No graphics devices are present.")
	})
	for command, want := range map[string]string{
		"vnc demo":                          "use --web for a browser",
		"vnc demo --proxy-only":             "can't access VMI demo: No graphics devices are present",
		"vnc demo --proxy-only --web":       "none of the others can be",
		"vnc demo --vnc-path=/bin/true":     "--vnc-path needs --vnc-type",
		"vnc demo --vnc-type=x":             `"x" is not known`,
		"vnc screenshot demo":               `required flag(s) "file" not set`,
		"vnc screenshot demo -f /dev/null/": "does not serve",
	} {
		t.Run(command, func(t *testing.T) { expectFailure(t, s.Run(virtctl.Execute, strings.Fields(command)...), want) })
	}
}

func TestVNCScreenshot(t *testing.T) {
	s := virtctltest.NewServer(t)
	s.Record(http.MethodGet, vmiPath+"vnc/screenshot", http.StatusOK, "\x89PNG and so on")
	file := filepath.Join(t.TempDir(), "screen.png")
	if got := s.Run(virtctl.Execute, "vnc", "screenshot", "demo", "--file="+file, "--move-cursor"); got.Code != 0 ||
		got.Out != "" {
		t.Fatalf("%+v", got)
	}
	if content, err := os.ReadFile(file); err != nil || string(content) != "\x89PNG and so on" {
		t.Errorf("the file has %q, %v", content, err)
	}
	if got := s.Requests()[0].Query; got != "moveCursor=true" {
		t.Errorf("requested with %q", got)
	}
	if got := s.Run(virtctl.Execute, "vnc", "screenshot", "demo", "-f", "-"); got.Out != "\x89PNG and so on" {
		t.Errorf("%+v", got)
	}
}

// requireAssets skips a test that needs noVNC if the build does not contain it.
func requireAssets(t *testing.T) {
	t.Helper()
	if _, err := web.Assets(); err != nil {
		if os.Getenv(virtctltest.BrowserVariable) != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func TestVNCWeb(t *testing.T) {
	requireAssets(t)
	s := virtctltest.NewServer(t)
	keys := make(chan uint32, 100)
	s.Stream(vmiPath+"vnc", serveScreen(testScreen(keys)))
	s.Stream(vmiPath+"console", shoutingGuest)
	page := virtctltest.Open(t, firstLine(t, s, "vnc", "demo", "--web"))

	page.Expect(`document.getElementById("status").textContent`, "Connected to the screen")
	page.Expect(`document.title`, "tenant/demo")
	for y, row := range quarters {
		for x, c := range row {
			pixel := fmt.Sprintf(`String(document.querySelector("#screen canvas").getContext("2d").getImageData(%d, %d, 1, 1).data)`, 80+160*x, 50+100*y)
			page.Expect(pixel, fmt.Sprintf("%d,%d,%d,255", c.R, c.G, c.B))
		}
	}
	page.Type("v")
	expectKey(t, keys, 'v')
	page.Evaluate(`document.getElementById("keys").click()`)
	for _, symbol := range []uint32{0xffe3, 0xffe9, 0xffff} { // Control, Alt, Delete
		expectKey(t, keys, symbol)
	}
	keep(page, "screen")

	page.Evaluate(`document.getElementById("tab-console").click()`)
	page.Expect(`document.getElementById("status").textContent`, "Connected to the serial console. Press Enter if it shows nothing.")
	const firstRow = `document.querySelector("#console .xterm-rows").textContent.trim()`
	page.Expect(firstRow, "login:")
	page.Type("root")
	page.Expect(firstRow, "login: ROOT")
	keep(page, "console")
	const elsewhere = `performance.getEntriesByType("resource").map((r) => r.name).filter((n) => !n.startsWith(document.baseURI)).join()`
	if got := page.Evaluate(elsewhere); got != "" {
		t.Errorf("the page sent requests to other hosts: %s", got)
	}
}

// keep stores a picture of the page in the directory VIREO_SCREENSHOTS.
func keep(page *virtctltest.Page, name string) {
	if folder := os.Getenv("VIREO_SCREENSHOTS"); folder != "" {
		page.Screenshot(filepath.Join(folder, name+".png"))
	}
}

func expectKey(t *testing.T, keys <-chan uint32, want uint32) {
	t.Helper()
	select {
	case got := <-keys:
		if got != want {
			t.Errorf("the guest got key %#x, want %#x", got, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("the guest did not get key %#x", want)
	}
}

func TestVNCWebSaysWhy(t *testing.T) {
	requireAssets(t)
	s := virtctltest.NewServer(t)
	s.Subresource(http.MethodGet, vmiPath+"vnc", func(w http.ResponseWriter, _ *http.Request) {
		virtctltest.Refuse(w, http.StatusConflict, metav1.StatusReasonConflict, "VMI is not running")
	})
	s.Stream(vmiPath+"console", func(context.Context, *websocket.Conn, *http.Request) error {
		return websocket.CloseError{Code: websocket.StatusPolicyViolation, Reason: "another client took the console"}
	})
	page := virtctltest.Open(t, firstLine(t, s, "vnc", "demo", "--web"))
	page.Expect(`document.getElementById("status").textContent`, "can't access VMI demo: VMI is not running")
	page.Expect(`document.getElementById("reconnect").hidden`, "false")
	page.Evaluate(`document.getElementById("tab-console").click()`)
	page.Expect(`document.getElementById("status").textContent`, "another client took the console")
}

// The page's server refuses requests of other sites and without the token.
func TestVNCWebIsItsOwn(t *testing.T) {
	requireAssets(t)
	s := virtctltest.NewServer(t)
	s.Stream(vmiPath+"vnc", serveScreen(testScreen(nil)))
	address := firstLine(t, s, "vnc", "demo", "--web")
	parts := strings.Split(address, "/")
	host, token := parts[2], parts[3]
	if len(token) < 26 {
		t.Fatalf("the token %q can be guessed", token)
	}
	tests := map[string]struct {
		path, host, origin string
		want               int
	}{
		"the page":                       {"/" + token + "/", host, "", 200},
		"by its other name":              {"/" + token + "/", strings.Replace(host, "127.0.0.1", "localhost", 1), "", 200},
		"no token":                       {"/", host, "", 404},
		"another token":                  {"/" + strings.Repeat("A", len(token)) + "/", host, "", 404},
		"assets without token":           {"/assets/xterm/xterm.js", host, "", 404},
		"rebound name":                   {"/" + token + "/", "evil.example.com", "", 421},
		"another port":                   {"/" + token + "/", "127.0.0.1:1", "", 421},
		"another origin":                 {"/" + token + "/", host, "http://evil.example.com", 403},
		"stream of no origin":            {"/" + token + "/screen", host, "", 403},
		"stream of another origin":       {"/" + token + "/screen", host, "http://evil.example.com", 403},
		"stream of https":                {"/" + token + "/screen", host, "https://" + host, 403},
		"stream of the page, no upgrade": {"/" + token + "/screen", host, "http://" + host, 426},
		"out of the page":                {"/" + token + "/../../etc/passwd", host, "", 307},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			request.URL.Path = tt.path
			request.Host = tt.host
			if tt.origin != "" {
				request.Header.Set("Origin", tt.origin)
			}
			client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
			response, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = response.Body.Close() }()
			if response.StatusCode != tt.want {
				t.Errorf("status %d, want %d", response.StatusCode, tt.want)
			}
			if csp := response.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") {
				t.Errorf("Content-Security-Policy %q", csp)
			}
		})
	}
}
