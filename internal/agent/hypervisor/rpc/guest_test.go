// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// maxStatusText is the limit of hypervisor.Clean.
const maxStatusText = 256

func TestParseOSInfo(t *testing.T) {
	got, err := parseOSInfo([]byte(`{"return":{"id":"debian","name":"Debian GNU/Linux","pretty-name":"Debian GNU/Linux 13 (trixie)",
		"version":"13 (trixie)","version-id":"13","kernel-release":"6.12","kernel-version":"#1 SMP","machine":"x86_64","new":{}}}`))
	want := hypervisor.GuestOS{
		ID: "debian", Name: "Debian GNU/Linux", PrettyName: "Debian GNU/Linux 13 (trixie)", Version: "13 (trixie)",
		VersionID: "13", KernelRelease: "6.12", KernelVersion: "#1 SMP", Machine: "x86_64",
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestOSInfoOfAHostileGuestIsCapped(t *testing.T) {
	evil, err := json.Marshal("\x1b[31m\n\u202e" + strings.Repeat("x", 4000))
	if err != nil {
		t.Fatal(err)
	}
	fields := []string{"id", "name", "pretty-name", "version", "version-id", "kernel-release", "kernel-version", "machine"}
	members := make([]string, 0, len(fields))
	for _, name := range fields {
		members = append(members, fmt.Sprintf("%q:%s", name, evil))
	}
	got, err := parseOSInfo([]byte(`{"return":{` + strings.Join(members, ",") + `}}`))
	if err != nil {
		t.Fatal(err)
	}
	value := reflect.ValueOf(got)
	for i := range value.NumField() {
		text := value.Field(i).String()
		if len(text) != maxStatusText || strings.ContainsAny(text, "\x1b\n\u202e") {
			t.Errorf("%s has %d bytes: %.20q", value.Type().Field(i).Name, len(text), text)
		}
	}
}

func TestInvalidOSInfo(t *testing.T) {
	for name, response := range map[string]string{
		"no JSON":      "hello",
		"another type": `{"return":{"id":["debian"]}}`,
		"too long":     `{"return":{"id":"` + strings.Repeat("x", maxAgentResponse) + `"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := parseOSInfo([]byte(response)); err == nil || got != (hypervisor.GuestOS{}) {
				t.Errorf("got %+v (%v)", got, err)
			}
		})
	}
}

func TestGuestInterfaces(t *testing.T) {
	got, err := parseInterfaces([]byte(`{"return":[
		{"name":"lo","hardware-address":"00:00:00:00:00:00","ip-addresses":[{"ip-address":"127.0.0.1","prefix":8}]},
		{"name":"enp1s0\u000a","hardware-address":"02:AB:00:00:00:01","statistics":{},"ip-addresses":[
			{"ip-address":"10.0.2.2"},{"ip-address":"::1"},{"ip-address":"fe80::1%eth0"},{"ip-address":"https://example.com"},{"ip-address":"fd10:0:2::2"}]},
		{"name":"dummy"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []hypervisor.GuestInterface{{Name: "enp1s0", MAC: "02:ab:00:00:00:01",
		IPs: []string{"10.0.2.2", "fd10:0:2::2"}}, {Name: "dummy"}}
	if diff := cmp.Diff(want, got.Items); diff != "" {
		t.Error(diff)
	}
}

func TestUsersAndFilesystems(t *testing.T) {
	users, err := parseUsers([]byte(`{"return":[{"user":"anna","login-time":1700000000.5},{"user":"bob\u001b","domain":"corp","login-time":1}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]hypervisor.GuestUser{{Name: "anna", LoginTime: 1700000000.5},
		{Name: "bob", Domain: "corp", LoginTime: 1}}, users.Items); diff != "" {
		t.Error(diff)
	}
	filesystems, err := parseFilesystems([]byte(`{"return":[{"name":"vda1","mountpoint":"/","type":"ext4","used-bytes":5,"total-bytes":9007199254740993,
		"disk":[{"serial":"s1","bus-type":"virtio","pci-controller":{}}]},{"name":"tmp","mountpoint":"/tmp","type":"tmpfs"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []hypervisor.GuestFilesystem{
		{Name: "vda1", Mountpoint: "/", Type: "ext4", UsedBytes: 5, TotalBytes: 9007199254740993, Disks: []hypervisor.GuestDisk{{Serial: "s1", Bus: "virtio"}}},
		{Name: "tmp", Mountpoint: "/tmp", Type: "tmpfs"},
	}
	if diff := cmp.Diff(want, filesystems.Items); diff != "" {
		t.Error(diff)
	}
}

// responseOf returns a response with a list of many entries.
func responseOf(entry string, count int) []byte {
	return []byte(`{"return":[` + strings.TrimSuffix(strings.Repeat(entry+",", count), ",") + `]}`)
}

func TestListsOfAHostileGuestAreCapped(t *testing.T) {
	const many = 100_000
	long := strings.Repeat("x", 20000)
	users, err := parseUsers(responseOf(`{"user":"u","login-time":1.0}`, many))
	if err != nil || len(users.Items) != maxGuestUsers || users.Omitted != many-maxGuestUsers {
		t.Errorf("%d users and %d omitted (%v)", len(users.Items), users.Omitted, err)
	}
	interfaces, err := parseInterfaces(responseOf(`{"name":"eth0"}`, many))
	if err != nil || len(interfaces.Items) != maxGuestInterfaces || interfaces.Omitted != many-maxGuestInterfaces {
		t.Errorf("%d interfaces and %d omitted (%v)", len(interfaces.Items), interfaces.Omitted, err)
	}
	interfaces, err = parseInterfaces([]byte(`{"return":[{"name":"` + long + `","hardware-address":"` + long + `","ip-addresses":` +
		string(responseOf(`{"ip-address":"10.0.0.1"}`, many)[len(`{"return":`):]) + `]}`))
	if err != nil || len(interfaces.Items) != 1 || len(interfaces.Items[0].IPs) != maxGuestAddresses ||
		len(interfaces.Items[0].Name) != maxStatusText || len(interfaces.Items[0].MAC) != maxStatusText {
		t.Errorf("%.500v (%v)", interfaces, err)
	}
	filesystems, err := parseFilesystems([]byte(`{"return":[{"name":"` + long + `","mountpoint":"` + long + `","disk":` +
		string(responseOf(`{}`, many)[len(`{"return":`):]) + `]}`))
	if err != nil || len(filesystems.Items) != 1 || len(filesystems.Items[0].Disks) != maxGuestDisks ||
		len(filesystems.Items[0].Mountpoint) != maxStatusText {
		t.Errorf("%.500v (%v)", filesystems, err)
	}
}

// The memory for a response of libvirt's 4 MiB must be at most a small multiple of that.
func TestListsOfAHostileGuestTakeLittleMemory(t *testing.T) {
	response := responseOf(`{}`, 1_300_000)
	for name, parse := range map[string]func(){
		"users":       func() { _, _ = parseUsers(response) },
		"filesystems": func() { _, _ = parseFilesystems(response) },
		"interfaces":  func() { _, _ = parseInterfaces(response) },
		"disks": func() {
			_, _ = parseFilesystems([]byte(`{"return":[{"disk":` + string(response[len(`{"return":`):]) + `]}`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			parse()
			runtime.ReadMemStats(&after)
			t.Logf("%d KiB in all", (after.TotalAlloc-before.TotalAlloc)>>10)
			if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
				t.Errorf("%d MiB were allocated, much of it at a time", used>>20)
			}
		})
	}
}

func TestInvalidLists(t *testing.T) {
	for _, response := range []string{"", "hello", "[]", `{"error":{}}`, `{"return":{}}`, `{"return":7}`, `{"return":[7]}`, `{"return":[{"user":[]}]}`, `{"return":[{}`} {
		if list, err := parseUsers([]byte(response)); err == nil {
			t.Errorf("%q: %v", response, list)
		}
	}
}

// A guest that keeps opening and closing its agent's channel must not keep the node busy with polls.
func TestPollsAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &guestPoller{trigger: make(chan struct{}, 1)}
		done, polls := make(chan struct{}), 0
		go p.poll(done, func() (*hypervisor.GuestInfo, error) { polls++; return &hypervisor.GuestInfo{}, nil }, func() {})
		for range 6000 {
			select {
			case p.trigger <- struct{}{}:
			default:
			}
			time.Sleep(10 * time.Millisecond)
		}
		close(done)
		synctest.Wait()
		if want := guestPolls + int(time.Minute/guestPollPause); polls > want || polls < want-1 {
			t.Errorf("polled %d times in a minute, want about %d", polls, want)
		}
	})
}

func TestPollWhenAgentConnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &guestPoller{trigger: make(chan struct{}, 1)}
		done, notified, name := make(chan struct{}), 0, "a"
		go p.poll(done, func() (*hypervisor.GuestInfo, error) { return &hypervisor.GuestInfo{Hostname: name}, nil },
			func() { notified++ })
		time.Sleep(time.Hour)
		synctest.Wait()
		name = "b"
		p.trigger <- struct{}{}
		synctest.Wait()
		if got := p.info.Load(); notified != 2 || got.Hostname != "b" {
			t.Errorf("notified %d times, %+v is known", notified, got)
		}
		close(done)
	})
}
