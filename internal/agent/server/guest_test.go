// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/png"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/server"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

func guestAgent() *hypervisor.GuestAgent {
	return &hypervisor.GuestAgent{
		Version: "9.1", Commands: []hypervisor.GuestCommand{{Name: "guest-ping", Enabled: true}, {Name: "guest-exec"}},
		Timezone: "UTC, 0",
		Info:     hypervisor.GuestInfo{OS: hypervisor.GuestOS{ID: "debian", PrettyName: "Debian 13"}, Hostname: "db"},
		Users: hypervisor.List[hypervisor.GuestUser]{Items: []hypervisor.GuestUser{{Name: "anna", LoginTime: 1.5}},
			Omitted: 7},
		Filesystems: hypervisor.List[hypervisor.GuestFilesystem]{Items: []hypervisor.GuestFilesystem{{
			Name: "vda1", Mountpoint: "/", Type: "ext4", UsedBytes: 1, TotalBytes: 2,
			Disks: []hypervisor.GuestDisk{{Serial: "s", Bus: "virtio"}},
		}}},
	}
}

// get calls a verb and decodes the response.
func get[T any](n *node, verb string) T {
	n.t.Helper()
	code, body := n.do(http.MethodGet, n.url("", verb), "")
	var response T
	if err := json.Unmarshal(body, &response); err != nil || code != http.StatusOK {
		n.t.Fatalf("%d: %s (%v)", code, body, err)
	}
	return response
}

func TestGuestAgent(t *testing.T) {
	n := newNode(t, nil)
	n.launcher.SetAgent(guestAgent())
	info := get[v1.VirtualMachineInstanceGuestAgentInfo](n, agentapi.GuestOSInfo)
	filesystems := []v1.VirtualMachineInstanceFileSystem{{
		DiskName: "vda1", MountPoint: "/", FileSystemType: "ext4", UsedBytes: 1, TotalBytes: 2,
		Disk: []v1.VirtualMachineInstanceFileSystemDisk{{Serial: "s", BusType: "virtio"}},
	}}
	users := []v1.VirtualMachineInstanceGuestOSUser{{UserName: "anna", LoginTime: 1.5}}
	want := v1.VirtualMachineInstanceGuestAgentInfo{
		TypeMeta: info.TypeMeta, GAVersion: "9.1", Hostname: "db", Timezone: "UTC, 0",
		SupportedCommands: []v1.GuestAgentCommandInfo{{Name: "guest-ping", Enabled: true}, {Name: "guest-exec"}},
		OS:                v1.VirtualMachineInstanceGuestOSInfo{ID: "debian", PrettyName: "Debian 13"},
		UserList:          users, FSInfo: v1.VirtualMachineInstanceFileSystemInfo{Filesystems: filesystems},
	}
	if diff := cmp.Diff(want, info); diff != "" {
		t.Error(diff)
	}
	list := get[v1.VirtualMachineInstanceGuestOSUserList](n, agentapi.UserList)
	if diff := cmp.Diff(users, list.Items); diff != "" || list.RemainingItemCount == nil ||
		*list.RemainingItemCount != 7 || list.Kind == "" {
		t.Errorf("%+v %s", list, diff)
	}
	mounted := get[v1.VirtualMachineInstanceFileSystemList](n, agentapi.FilesystemList)
	if diff := cmp.Diff(filesystems, mounted.Items); diff != "" || mounted.RemainingItemCount != nil {
		t.Errorf("%+v %s", mounted, diff)
	}
}

func TestGuestWithoutAgent(t *testing.T) {
	n := newNode(t, nil)
	for _, verb := range []string{agentapi.GuestOSInfo, agentapi.UserList, agentapi.FilesystemList} {
		code, body := n.do(http.MethodGet, n.url("", verb), "")
		expectStatus(t, code, body, http.StatusInternalServerError, "the guest agent failed")
	}
	n.launcher.SetAgent(guestAgent())
	n.launcher.Fail("agent", fmt.Errorf("%w: %w", hypervisor.ErrGuestRefused, errors.New("guest-get-users is disabled")))
	code, body := n.do(http.MethodGet, n.url("", agentapi.UserList), "")
	expectStatus(t, code, body, http.StatusInternalServerError, "guest-get-users is disabled")
}

// A frozen guest refuses to list its file systems.
func TestFilesystemsOfAFrozenGuest(t *testing.T) {
	for name, tc := range map[string]struct {
		frozen string
		usage  *hypervisor.GuestUsage
		code   int
	}{
		"with a list":    {"frozen", &hypervisor.GuestUsage{At: time.Now().Add(-time.Hour), Filesystems: guestAgent().Filesystems.Items}, http.StatusOK},
		"without a list": {"frozen", nil, http.StatusInternalServerError},
		"not frozen":     {"", &hypervisor.GuestUsage{At: time.Now()}, http.StatusInternalServerError},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := instance()
			vmi.Status.FSFreezeStatus = tc.frozen
			n := newNode(t, nil, vmi, launcherPod())
			n.launcher.SetAgent(guestAgent())
			n.launcher.SetUsage(tc.usage)
			n.launcher.Fail("agent",
				fmt.Errorf("%w: guest-get-fsinfo is disabled: the agent is in frozen state", hypervisor.ErrGuestRefused))
			response, err := n.client.Get(n.url("", agentapi.FilesystemList))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = response.Body.Close() }()
			var list v1.VirtualMachineInstanceFileSystemList
			warning := response.Header.Get(agentapi.WarningHeader)
			if err := json.NewDecoder(response.Body).Decode(&list); err != nil || response.StatusCode != tc.code {
				t.Fatalf("%d, %v", response.StatusCode, err)
			}
			if ok := tc.code == http.StatusOK; ok != strings.Contains(warning, "those of 1h0m0s ago") ||
				ok != (len(list.Items) > 0) {
				t.Errorf("%+v, warning %q", list, warning)
			}
		})
	}
}

// Clients search for KubeVirt's words.
func TestFreezeWithoutAgent(t *testing.T) {
	n := newNode(t, nil)
	n.launcher.Fail("freeze", fmt.Errorf("%w: QEMU guest agent is not connected", hypervisor.ErrGuestSilent))
	n.launcher.Fail("thaw", fmt.Errorf("%w: QEMU guest agent is not connected", hypervisor.ErrGuestSilent))
	for verb, words := range map[string]string{agentapi.Freeze: "command Freeze failed: ",
		agentapi.Unfreeze: "command Unfreeze failed: "} {
		code, body := n.do(http.MethodPut, n.url("", verb), "")
		expectStatus(t, code, body, http.StatusInternalServerError, "Internal error occurred: "+words)
		expectStatus(t, code, body, http.StatusInternalServerError, "QEMU guest agent is not connected")
	}
}

func TestFreeze(t *testing.T) {
	for name, c := range map[string]struct {
		body    string
		for_    time.Duration
		code    int
		message string
	}{
		"with a timeout":     {`{"unfreezeTimeout":"90s"}`, 90 * time.Second, http.StatusAccepted, ""},
		"without a body":     {"", 5 * time.Minute, http.StatusAccepted, ""},
		"without a timeout":  {`{"unfreezeTimeout":null}`, 5 * time.Minute, http.StatusAccepted, ""},
		"until it is thawed": {`{"unfreezeTimeout":"0s"}`, 0, http.StatusAccepted, ""},
		"a negative timeout": {`{"unfreezeTimeout":"-1s"}`, 0, http.StatusBadRequest, "negative"},
		"a malformed body":   {`{"unfreezeTimeout":`, 0, http.StatusBadRequest, "FreezeUnfreezeTimeout"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil)
			n.launcher.SetAgent(guestAgent())
			before := time.Now().Add(-time.Second)
			code, body := n.do(http.MethodPut, n.url("", agentapi.Freeze), c.body)
			freeze := n.launcher.Snapshot().Freeze()
			if c.code != http.StatusAccepted {
				expectStatus(t, code, body, c.code, c.message)
				if freeze != nil {
					t.Error("the guest is frozen")
				}
				return
			}
			if code != c.code || freeze == nil {
				t.Fatalf("%d %s: %v", code, body, freeze)
			}
			switch {
			case c.for_ == 0 && !freeze.Thaw.IsZero():
				t.Errorf("thaws at %s", freeze.Thaw)
			case c.for_ != 0 && (freeze.Thaw.Before(before.Add(c.for_)) || freeze.Thaw.After(time.Now().Add(c.for_))):
				t.Errorf("thaws in %s, not %s", time.Until(freeze.Thaw), c.for_)
			}
			if info := get[v1.VirtualMachineInstanceGuestAgentInfo](n, agentapi.GuestOSInfo); info.FSFreezeStatus != "frozen" {
				t.Errorf("the status of the freeze is %q", info.FSFreezeStatus)
			}
			if code, body := n.do(http.MethodPut, n.url("", agentapi.Unfreeze), ""); code != http.StatusAccepted ||
				n.launcher.Snapshot().Freeze() != nil {
				t.Errorf("not thawed: %d %s", code, body)
			}
		})
	}
}

func TestScreenshot(t *testing.T) {
	pixels := func(count int) string { return string(bytes.Repeat([]byte{0x10, 0x20, 0x30}, count)) }
	for name, c := range map[string]struct {
		image   string
		message string
	}{
		"a screen":            {"P6\n3 2\n255\n" + pixels(6), ""},
		"nothing":             {"", "no image"},
		"another format":      {"P5\n3 2\n255\n" + pixels(6), "no image"},
		"16 bits for a color": {"P6\n3 2\n65535\n" + pixels(12), "no image"},
		"no size":             {"P6\n0 2\n255\n", "no image"},
		"a negative size":     {"P6\n-3 -2\n255\n" + pixels(6), "no image"},
		"too few pixels":      {"P6\n3 2\n255\n" + pixels(5), "ends too soon"},
		"a large screen":      {"P6\n8192 8192\n255\n", "too large"},
		"a very large screen": {"P6\n999999999 1\n255\n", "too large"},
		"an endless number":   {"P6\n" + string(bytes.Repeat([]byte("9"), 100000)), "no image"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil)
			n.launcher.SetScreen([]byte(c.image))
			code, body := n.do(http.MethodGet, n.url("", agentapi.Screenshot), "")
			if c.message != "" {
				expectStatus(t, code, body, http.StatusInternalServerError, c.message)
				return
			}
			got, err := png.Decode(bytes.NewReader(body))
			if err != nil || code != http.StatusOK {
				t.Fatalf("%d: %v", code, err)
			}
			if size := got.Bounds().Size(); size.X != 3 || size.Y != 2 {
				t.Errorf("%v", size)
			}
			if pixel := color.RGBAModel.Convert(got.At(2, 1)); pixel != (color.RGBA{0x10, 0x20, 0x30, 0xff}) {
				t.Errorf("%v", pixel)
			}
		})
	}
}

// libvirt returns PNG if QEMU supports it.
func TestScreenshotOfPNG(t *testing.T) {
	encode := func(width, height int) []byte {
		screen := image.NewRGBA(image.Rect(0, 0, width, height))
		for i := range screen.Pix {
			screen.Pix[i] = 0xa0
		}
		var encoded bytes.Buffer
		if err := png.Encode(&encoded, screen); err != nil {
			t.Fatal(err)
		}
		return encoded.Bytes()
	}
	// A header with a width of 65536 pixels and a valid checksum.
	large := encode(1, 1)
	binary.BigEndian.PutUint32(large[16:], 1<<16)
	binary.BigEndian.PutUint32(large[29:], crc32.ChecksumIEEE(large[12:29]))
	// Images that take more memory: 16 bits for a color, and interlaced.
	var deep bytes.Buffer
	if err := png.Encode(&deep, image.NewRGBA64(image.Rect(0, 0, 2, 2))); err != nil {
		t.Fatal(err)
	}
	interlaced := encode(2, 2)
	interlaced[28] = 1
	binary.BigEndian.PutUint32(interlaced[29:], crc32.ChecksumIEEE(interlaced[12:29]))
	whole := encode(720, 400)
	for name, c := range map[string]struct {
		image   []byte
		message string
	}{
		"a screen":       {whole, ""},
		"half a screen":  {whole[:len(whole)/2], "no image"},
		"only magic":     {whole[:8], "no image"},
		"a large screen": {large, "too large"},
		"a deep one":     {deep.Bytes(), "16 bits for a color"},
		"an interlaced":  {interlaced, "interlaced by method 1"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil)
			n.launcher.SetScreen(c.image)
			code, body := n.do(http.MethodGet, n.url("", agentapi.Screenshot), "")
			if c.message != "" {
				expectStatus(t, code, body, http.StatusInternalServerError, c.message)
				return
			}
			got, err := png.Decode(bytes.NewReader(body))
			if err != nil || code != http.StatusOK || got.Bounds().Dx() != 720 {
				t.Fatalf("%d: %v", code, err)
			}
		})
	}
}

func TestScreenshotReservesAndReleasesMemory(t *testing.T) {
	responses := hypervisor.NewResponseBudget()
	n := newNode(t, func(o *server.Options) { o.Responses = responses })
	n.launcher.SetScreen([]byte("P6 1 1 255 abc"))
	release, err := responses.Acquire(t.Context(), vmiKey.Namespace, hypervisor.ResponseBudgetPerNamespace)
	if err != nil {
		t.Fatal(err)
	}
	codes := make(chan int, 1)
	go func() {
		code, _ := n.do(http.MethodGet, n.url("", agentapi.Screenshot), "")
		codes <- code
	}()
	// Memory for another namespace is available meanwhile.
	other, err := responses.Acquire(t.Context(), "other", hypervisor.ConversationBytes)
	if err != nil {
		t.Fatal(err)
	}
	other()
	if len(codes) > 0 {
		t.Error("the screenshot did not wait for memory")
	}
	release()
	if code := <-codes; code != http.StatusOK {
		t.Errorf("got %d", code)
	}
	if release, err = responses.Acquire(t.Context(), vmiKey.Namespace, hypervisor.ResponseBudgetPerNamespace); err != nil {
		t.Fatal(err)
	}
	release()
}

func TestScreenshotMovesThePointer(t *testing.T) {
	n := newNode(t, nil)
	n.launcher.SetScreen([]byte("P6 1 1 255 abc"))
	if code, body := n.do(http.MethodGet, n.url("moveCursor=true", agentapi.Screenshot), ""); code != http.StatusOK {
		t.Errorf("%d: %s", code, body)
	}
	n.launcher.Fail("graphics", hypervisor.ErrNotRunning)
	code, body := n.do(http.MethodGet, n.url("moveCursor=true", agentapi.Screenshot), "")
	expectStatus(t, code, body, http.StatusConflict, "not running")
}
