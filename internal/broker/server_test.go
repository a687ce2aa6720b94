// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/agent/brokerclient"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
	"github.com/vireo-project/vireo/test/kubelet"
)

func greeting(t *testing.T, conn net.Conn) string {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len("hello"))
	if _, err := io.ReadFull(conn, got); err != nil {
		t.Fatal(err)
	}
	return string(got)
}

func TestOpenSocket(t *testing.T) {
	w := newWorld(t, nil)
	ctx, client := t.Context(), w.client()
	_, err := client.OpenSocket(ctx, podUID, launcherpod.LibvirtSocketName, false)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a Pod: %v", err)
	}
	waited := make(chan *net.UnixConn, 1)
	go func() {
		conn, err := client.OpenSocket(ctx, podUID, launcherpod.LibvirtSocketName, true)
		if err != nil {
			t.Error(err)
		}
		waited <- conn
	}()
	w.addPod(podUID)
	// libvirtd's socket may exist a moment before anything listens on it. In this test it listens first.
	conn := <-waited
	if conn == nil {
		t.FailNow()
	}
	defer func() { _ = conn.Close() }()
	// The connection outlives the broker.
	w.stop()
	if got := greeting(t, conn); got != "hello" {
		t.Errorf("got %q", got)
	}
	_, err = client.OpenSocket(ctx, podUID, launcherpod.LibvirtSocketName, false)
	if !errors.Is(err, brokerapi.ErrUnreachable) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a broker: %v", err)
	}
}

// A wait ends with the client, with the broker, and not before.
func TestWaitEnds(t *testing.T) {
	w := newWorld(t, nil)
	client := w.client()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() {
		_, err := client.OpenSocket(ctx, podUID, launcherpod.LibvirtSocketName, true)
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	go func() {
		_, err := client.OpenSocket(t.Context(), podUID, launcherpod.LibvirtSocketName, true)
		done <- err
	}()
	w.stop()
	if err := <-done; !errors.Is(err, brokerapi.ErrUnreachable) {
		t.Errorf("got %v", err)
	}
}

func TestReadVolume(t *testing.T) {
	w := newWorld(t, nil)
	w.addPod(podUID)
	content := w.client().Content(podUID)
	volume := launcherpod.UserDataVolume("disk")
	if err := kubelet.WriteVolume(w.pods, podUID, string(media.SecretVolume), volume,
		map[string]string{"userdata": "#cloud-config", "other": "x"}); err != nil {
		t.Fatal(err)
	}
	if data, err := content.Secret(volume, "userData", "userdata"); err != nil || string(data) != "#cloud-config" {
		t.Errorf("got %q, %v", data, err)
	}
	if files, err := content.Files(media.SecretVolume, volume); err != nil || len(files) != 2 ||
		string(files["other"]) != "x" {
		t.Errorf("got %q, %v", files, err)
	}
	if _, err := content.Secret(volume, "nothing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	// A volume that is missing is not a missing key.
	if _, err := content.Secret(launcherpod.UserDataVolume("other"), "userdata"); err == nil ||
		errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing volume: %v", err)
	}
	large := launcherpod.FilesVolume("disk")
	if err := kubelet.WriteVolume(w.pods, podUID, string(media.ConfigMapVolume), large,
		map[string]string{"a": strings.Repeat("x", brokerapi.MaxFileBytes)}); err != nil {
		t.Fatal(err)
	}
	if files, err := content.Files(media.ConfigMapVolume, large); err != nil || len(files["a"]) != brokerapi.MaxFileBytes {
		t.Errorf("the largest volume: %v", err)
	}
	if err := kubelet.WriteVolume(w.pods, podUID, string(media.ConfigMapVolume), large,
		map[string]string{"a": strings.Repeat("x", brokerapi.MaxFileBytes+1)}); err != nil {
		t.Fatal(err)
	}
	if _, err := content.Files(media.ConfigMapVolume, large); !errors.Is(err, media.ErrTooMuch) {
		t.Errorf("a volume that is too large: %v", err)
	}
	// A Pod without a libvirtd is not known to be a launcher, and no key is missing.
	_, err := w.client().Content(otherUID).Secret(volume, "userdata")
	if expectCode(t, err, brokerapi.CodeNoLauncher); errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v means that a key is missing", err)
	}
}

func TestOpenFile(t *testing.T) {
	w := newWorld(t, nil)
	w.addPod(podUID)
	w.write(launcherpod.ContainerDiskDir("disk")+"/disk/disk.img", "image")
	w.write(launcherpod.NVRAMStateFile("vm"), "variables")
	w.write(launcherpod.TrackedDisksDir+"/data-1.qcow2", "overlay")
	w.write("secret", "of the Pod")
	for name, c := range map[string]struct{ mount, file, want string }{
		"an image":      {launcherpod.ContainerDiskDir("disk"), "disk/disk.img", "image"},
		"EFI variables": {launcherpod.StateDir, "nvram/vm_VARS.fd", "variables"},
		"an overlay":    {launcherpod.TrackedDisksDir, "data-1.qcow2", "overlay"},
	} {
		f, err := w.client().OpenFile(t.Context(), podUID, c.mount, c.file)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := io.ReadAll(f)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
		if _, err := f.WriteString("x"); err == nil {
			t.Errorf("%s can be written to", name)
		}
		_ = f.Close()
	}
}

func TestSyncState(t *testing.T) {
	w := newWorld(t, nil)
	w.addPod(podUID)
	w.write(launcherpod.NVRAMStateFile("vm"), "variables")
	tpm := launcherpod.TPMStateDir("uuid")
	for _, c := range []struct {
		tpm, state string
		complete   bool
	}{{"", "", true}, {tpm, "", false}, {tpm, "state", true}} {
		w.write(tpm+"/tpm2-00.permall", c.state)
		if err := w.client().SyncState(t.Context(), podUID, c.tpm); (err == nil) != c.complete {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if err := w.client().SyncState(t.Context(), podUID, launcherpod.TPMStateDir("other")); !errors.Is(err,
		fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestInspectAFile(t *testing.T) {
	w := newWorld(t, nil)
	w.addPod(podUID)
	w.write("disk.img", "x")
	files := w.client().Files(podUID)
	if sizes, err := files.BlockSizes(t.Context(), "/disk.img"); err != nil || sizes.Logical == 0 {
		t.Errorf("got %+v, %v", sizes, err)
	}
	for _, path := range []string{"/disk.img", "/nothing"} {
		if has, err := files.HasDevice(t.Context(), path); has || err != nil {
			t.Errorf("%s: got %t, %v", path, has, err)
		}
	}
	if _, err := w.client().Files(otherUID).HasDevice(t.Context(), "/disk.img"); err == nil {
		t.Error("no error about a Pod that does not exist")
	}
	w.stop()
	if _, err := files.DirectIO(t.Context(), "/disk.img"); !errors.Is(err, brokerapi.ErrUnreachable) {
		t.Errorf("without a broker: %v", err)
	}
}

func TestDevicesAreFollowed(t *testing.T) {
	w := newWorld(t, nil)
	connected := make(chan struct{}, 10)
	followed := brokerclient.NewDevices(w.client(), func() { connected <- struct{}{} })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- followed.Start(ctx) }()
	await := func(want bool) {
		t.Helper()
		for deadline := time.After(patience); ; {
			if usable, _, known := followed.Usable(); known && usable == want {
				return
			}
			select {
			case <-followed.Changed():
			case <-deadline:
				t.Fatalf("the devices are not usable=%t", want)
			}
		}
	}
	await(false)
	w.devices.set(true)
	await(true)
	<-connected
	// While the broker is restarted, the last result remains.
	w.stop()
	if usable, _, known := followed.Usable(); !usable || !known {
		t.Errorf("without a broker: usable %t, known %t", usable, known)
	}
	w.start(nil)
	<-connected
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
