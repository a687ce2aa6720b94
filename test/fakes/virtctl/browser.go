// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"
)

// BrowserVariable is the environment variable with the browser's path. `make test` sets it; if it is not set, tests
// with a browser are skipped.
const BrowserVariable = "VIREO_BROWSER"

// Page is a page in a headless Chromium, driven over the DevTools protocol.
type Page struct {
	t      testing.TB
	socket *websocket.Conn
	number int
}

// Open opens an address in a browser, which stops with the test.
func Open(t testing.TB, address string) *Page {
	t.Helper()
	program := os.Getenv(BrowserVariable)
	if program == "" {
		t.Skip(BrowserVariable + " names no browser")
	}
	cmd := exec.CommandContext(t.Context(), program, "--headless=new", "--no-sandbox", "--disable-gpu",
		"--disable-dev-shm-usage",
		"--no-first-run", "--no-proxy-server", "--window-size=1000,700", "--remote-debugging-port=0",
		"--user-data-dir="+profile(t), address)
	cmd.WaitDelay = 5 * time.Second
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	devtools := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			if m := regexp.MustCompile(`DevTools listening on ws://([^/]+)/`).FindStringSubmatch(lines.Text()); m != nil {
				devtools <- m[1]
			}
		}
	}()
	select {
	case host := <-devtools:
		return connect(t, host, address)
	case <-time.After(60 * time.Second):
		t.Fatal("the browser does not start")
		return nil
	}
}

// profile returns a directory for the browser. It is removed with retries, because child processes of the browser may
// still write to it.
func profile(t testing.TB) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "virtctl-browser-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		deadline := time.Now().Add(20 * time.Second)
		for err := os.RemoveAll(folder); err != nil; err = os.RemoveAll(folder) {
			if time.Now().After(deadline) {
				t.Errorf("the browser's folder cannot be removed: %v", err)
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	return folder
}

// connect finds the page among the browser's targets.
func connect(t testing.TB, host, address string) *Page {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for time.Now().Before(deadline) {
		var targets []struct{ Type, URL, WebSocketDebuggerURL string }
		if err := getJSON(t.Context(), "http://"+host+"/json/list", &targets); err != nil {
			t.Fatal(err)
		}
		for _, target := range targets {
			if target.Type != "page" || target.URL != address {
				continue
			}
			socket, _, err := websocket.Dial(t.Context(), target.WebSocketDebuggerURL, nil) //nolint:bodyclose // the library closes it
			if err != nil {
				t.Fatal(err)
			}
			socket.SetReadLimit(64 << 20)
			t.Cleanup(func() { _ = socket.CloseNow() })
			return &Page{t: t, socket: socket}
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("the browser did not open %s", address)
	return nil
}

func getJSON(ctx context.Context, address string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	return json.NewDecoder(response.Body).Decode(into)
}

// call calls a method of the browser and fails the test on an error.
func (p *Page) call(method string, parameters, result any) {
	p.t.Helper()
	if err := p.try(method, parameters, result); err != nil {
		p.t.Fatal(err)
	}
}

// try calls a method of the browser and waits for the response.
func (p *Page) try(method string, parameters, result any) error {
	p.number++
	ctx, cancel := context.WithTimeout(p.t.Context(), 30*time.Second)
	defer cancel()
	if err := wsjson.Write(ctx, p.socket,
		map[string]any{"id": p.number, "method": method, "params": parameters}); err != nil {
		return err
	}
	for {
		var response struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err := wsjson.Read(ctx, p.socket, &response); err != nil {
			return err
		}
		if response.ID != p.number {
			continue // an event
		}
		if response.Error != nil {
			return fmt.Errorf("%s: %s", method, response.Error.Message)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(response.Result, result)
	}
}

// Evaluate returns the value of a JavaScript expression as text.
func (p *Page) Evaluate(expression string) string {
	p.t.Helper()
	var response struct {
		Result           struct{ Value any }
		ExceptionDetails *struct{ Exception struct{ Description string } }
	}
	// A page that is loading has no context in which the expression could be evaluated.
	if err := p.try("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true},
		&response); err != nil {
		return err.Error()
	}
	if response.ExceptionDetails != nil {
		return "exception: " + response.ExceptionDetails.Exception.Description
	}
	return fmt.Sprint(response.Result.Value)
}

// Expect waits until an expression has a value.
func (p *Page) Expect(expression, want string) {
	p.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	got := ""
	for time.Now().Before(deadline) {
		if got = p.Evaluate(expression); got == want {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	p.t.Fatalf("%s is %q, want %q", expression, got, want)
}

// Type presses keys, one for each character.
func (p *Page) Type(text string) {
	p.t.Helper()
	for _, r := range text {
		key, code := string(r), int(unicode.ToUpper(r))
		event := map[string]any{"type": "keyDown", "key": key, "text": key, "windowsVirtualKeyCode": code,
			"code": "Key" + strings.ToUpper(key)}
		if r == '\n' {
			event["key"], event["text"], event["code"], event["windowsVirtualKeyCode"] = "Enter", "\r", "Enter", 13
		}
		p.call("Input.dispatchKeyEvent", event, nil)
		event["type"] = "keyUp"
		delete(event, "text")
		p.call("Input.dispatchKeyEvent", event, nil)
	}
}

// Screenshot stores a picture of the page.
func (p *Page) Screenshot(file string) {
	p.t.Helper()
	var response struct{ Data []byte }
	p.call("Page.captureScreenshot", map[string]any{"format": "png"}, &response)
	if err := os.WriteFile(file, response.Data, 0o600); err != nil {
		p.t.Fatal(err)
	}
}
