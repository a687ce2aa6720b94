// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestGuestInfo(t *testing.T) {
	w := newWorld(t, running("vm").With(with(v1.VirtualMachineInstanceAgentConnected)).Obj(), running("silent").Obj(),
		running("ended").With(phase(v1.Succeeded)).Obj())
	for _, verb := range []string{"guestosinfo", "userlist", "filesystemlist"} {
		w.expect(http.MethodGet, vmiPath+"none/"+verb, "", 404, "not found")
		w.expect(http.MethodGet, vmiPath+"ended/"+verb, "", 409, "VMI is not running")
		w.expect(http.MethodGet, vmiPath+"silent/"+verb, "", 409, "VMI does not have guest agent connected")
	}
	w.expectCalls()
	w.agent.SetResponse("guestosinfo", map[string]any{"hostname": "guest", "evil": "<script>"})
	code, text := w.do(http.MethodGet, vmiPath+"vm/guestosinfo", "")
	info := v1.VirtualMachineInstanceGuestAgentInfo{}
	if err := json.Unmarshal([]byte(text), &info); code != http.StatusOK || err != nil || info.Hostname != "guest" ||
		strings.Contains(text, "evil") {
		t.Errorf("got %d %s", code, text)
	}
	w.agent.SetResponse("userlist",
		v1.VirtualMachineInstanceGuestOSUserList{Items: []v1.VirtualMachineInstanceGuestOSUser{{UserName: "root"}}})
	if code, text := w.do(http.MethodGet, vmiPath+"vm/userlist", ""); code != http.StatusOK || !strings.Contains(text, `"userName": "root"`) {
		t.Errorf("got %d %s", code, text)
	}
	w.agent.SetResponse("filesystemlist", v1.VirtualMachineInstanceFileSystemList{})
	for header, want := range map[string]string{
		`299 - "the guest is frozen"`: `299 - "the guest is frozen"`, "": "", "nonsense": "",
	} {
		w.agent.SetWarning(header)
		response, err := http.Get(w.url + vmiPath + "vm/filesystemlist")
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if got := response.Header.Get("Warning"); got != want {
			t.Errorf("the agent's warning %q became %q", header, got)
		}
	}
	w.agent.SetWarning("")
	w.agent.SetResponse("filesystemlist", []byte(`"no list"`))
	w.expect(http.MethodGet, vmiPath+"vm/filesystemlist", "", 500, "the agent of node node1 returned something other than")
	w.agent.SetResponse("filesystemlist", bytes.Repeat([]byte(" "), 2<<20))
	w.expect(http.MethodGet, vmiPath+"vm/filesystemlist", "", 500, "responded with more than 1048576 bytes")
}

func TestScreenshot(t *testing.T) {
	w := newWorld(t, running("vm").Obj())
	picture := append([]byte("\x89PNG\r\n\x1a\n"), bytes.Repeat([]byte("x"), 3<<20)...)
	w.agent.SetResponse("vnc/screenshot", picture)
	response, err := http.Get(w.url + vmiPath + "vm/vnc/screenshot?moveCursor=true")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var got bytes.Buffer
	if _, err := got.ReadFrom(response.Body); err != nil || !bytes.Equal(got.Bytes(), picture) {
		t.Errorf("got %d bytes, %v", got.Len(), err)
	}
	if kind := response.Header.Get("Content-Type"); kind != "image/png" {
		t.Errorf("got %s", kind)
	}
	if calls := w.expectCalls("GET vnc/screenshot"); calls[0].Query.Get("moveCursor") != "true" {
		t.Errorf("got %v", calls)
	}
	w.agent.SetResponse("vnc/screenshot", []byte("<html><script>"))
	w.expect(http.MethodGet, vmiPath+"vm/vnc/screenshot", "", 500, "the node agent sent no PNG image")
	w.expect(http.MethodGet, vmiPath+"vm/vnc/screenshot?moveCursor=7", "", 400, "moveCursor")
}
