// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
	"github.com/vireo-project/vireo/test/kubelet"
)

// FuzzRequest checks that whatever a client sends, a request that is accepted has a known verb and names a Pod that is
// one entry of a directory, and that the memory for it is in proportion to what was received.
func FuzzRequest(f *testing.F) {
	for verb, arguments := range valid {
		pod := podUID
		if verb.OfNode() {
			pod = ""
		}
		text, err := json.Marshal(requestOf(f, verb, pod, arguments))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, '{'})
	f.Add([]byte{0, 0, 0, 2, '{', '}'})
	w := newWorld(f, nil)
	f.Fuzz(func(t *testing.T, data []byte) {
		request, err := brokerapi.ReadRequest(bytes.NewReader(data), func(uint32) error { return nil })
		if err != nil {
			return
		}
		// A byte that is no UTF-8 becomes a character of three.
		if len(request.Pod)+len(request.Verb)+len(request.Arguments) > 3*len(data) {
			t.Errorf("%+v has more than %d bytes", request, len(data))
		}
		accepted, err := w.server.Task(request)
		if err != nil {
			if code := brokerapi.CodeOf(err); code != brokerapi.CodeInvalid && code != brokerapi.CodeRefused {
				t.Errorf("%+v: %v", request, err)
			}
			return
		}
		if (accepted.Limit == nil) != (accepted.Run == nil) || (accepted.Run == nil) == (accepted.Watch == nil) {
			t.Errorf("%+v has the task %+v", request, accepted)
		}
		if _, known := valid[request.Verb]; !known || request.Verb.OfNode() != (request.Pod == "") {
			t.Errorf("%+v was accepted", request)
		}
		if request.Pod != "" &&
			(pods.CheckUID(request.Pod) != nil || filepath.Join("/a", request.Pod) != "/a/"+request.Pod ||
				strings.ContainsAny(request.Pod, "/\x00")) {
			t.Errorf("Pod %q was accepted", request.Pod)
		}
	})
}

// fuzzVerb calls check with the arguments of requests that are accepted.
func fuzzVerb[A any](f *testing.F, verb brokerapi.Verb, more []A, check func(t *testing.T, a A, accepted server.Task)) {
	f.Helper()
	for _, seed := range append([]any{valid[verb]}, anyOf(more)...) {
		text, err := json.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	w := newWorld(f, nil)
	w.addPod(podUID)
	w.write("secret", "secret")
	w.write(filepath.Dir(launcherpod.StateDir)+"/secret", "secret")
	w.write(launcherpod.ContainerDiskDir("disk")+"/disk.img", "open")
	w.write(launcherpod.StateDir+"/nvram/vm_VARS.fd", "open")
	if err := kubelet.WriteVolume(w.pods, podUID, secrets, "disk-udata",
		map[string]string{"userdata": "its own"}); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		accepted, err := w.server.Task(&brokerapi.Request{Verb: verb, Pod: podUID, Arguments: text})
		if err != nil {
			return
		}
		var a A
		if err := json.Unmarshal(text, &a); err != nil {
			t.Fatalf("%q was accepted: %v", text, err)
		}
		check(t, a, accepted)
	})
}

func anyOf[A any](list []A) []any {
	var all []any
	for _, one := range list {
		all = append(all, one)
	}
	return all
}

// FuzzOpenSocket checks that only the sockets of libvirtd, of USB redirection and of backups are connected to.
func FuzzOpenSocket(f *testing.F) {
	more := []brokerapi.OpenSocketArguments{{Name: "../x"}, {Name: "virt-usbredir-0"}, {Name: "virt-usbredir-9"},
		{Name: "backup-a"}}
	fuzzVerb(f, brokerapi.OpenSocket, more, func(t *testing.T, a brokerapi.OpenSocketArguments, accepted server.Task) {
		if a.Wait {
			return
		}
		got, err := accepted.Run(t.Context())
		t.Cleanup(got.Close) // also with an error
		if err != nil {
			return
		}
		if a.Name != launcherpod.LibvirtSocketName {
			t.Errorf("connected to %q", a.Name)
		}
	})
}

// FuzzReadVolume checks that only files of the volume are read.
func FuzzReadVolume(f *testing.F) {
	more := []brokerapi.ReadVolumeArguments{
		{Kind: secrets, Volume: "disk-udata"}, {Kind: configMaps, Volume: "../disk-files"},
	}
	fuzzVerb(f, brokerapi.ReadVolume, more, func(t *testing.T, a brokerapi.ReadVolumeArguments, accepted server.Task) {
		got, err := accepted.Run(t.Context())
		t.Cleanup(got.Close) // also with an error
		if err != nil {
			return
		}
		result, ok := got.Result.(brokerapi.ReadVolumeResult)
		for name, data := range result.Files {
			if !ok || string(data) != "its own" || a.Volume != "disk-udata" || a.Kind != secrets {
				t.Errorf("%+v: read %q from %q", a, data, name)
			}
		}
	})
}

// FuzzOpenFile checks that only files of images and of the persistent state, and overlays, are opened.
func FuzzOpenFile(f *testing.F) {
	more := []brokerapi.OpenFileArguments{
		{Mount: launcherpod.ContainerDiskDir("disk"), Name: "disk.img"}, {Mount: launcherpod.ContainerDisksDir + "/..", Name: "secret"},
		{Mount: launcherpod.StateDir, Name: "../secret"}, {Mount: launcherpod.KernelBootDir, Name: "vmlinuz"},
		{Mount: launcherpod.TrackedDisksDir, Name: "../secret"},
	}
	fuzzVerb(f, brokerapi.OpenFile, more, func(t *testing.T, a brokerapi.OpenFileArguments, accepted server.Task) {
		got, err := accepted.Run(t.Context())
		t.Cleanup(got.Close) // also with an error
		if err != nil {
			return
		}
		if content, err := io.ReadAll(got.File); err != nil || string(content) != "open" {
			t.Errorf("%+v: read %q, %v", a, content, err)
		}
	})
}

// FuzzGiveHostDir checks that only directories for disks are given away.
func FuzzGiveHostDir(f *testing.F) {
	fuzzVerb(f, brokerapi.GiveHostDir, nil, func(t *testing.T, a brokerapi.GiveHostDirArguments, _ server.Task) {
		if path.Dir(a.Directory) != launcherpod.DisksDir || path.Clean(a.Directory) != a.Directory {
			t.Errorf("%q was accepted", a.Directory)
		}
	})
}

// FuzzInspect checks that nothing outside the Pod is described: its root directory has no device.
func FuzzInspect(f *testing.F) {
	more := []brokerapi.InspectArguments{{Path: "/../../dev/null"}, {Path: "/proc/self/root/dev/null", DirectIO: true}}
	fuzzVerb(f, brokerapi.Inspect, more, func(t *testing.T, a brokerapi.InspectArguments, accepted server.Task) {
		got, err := accepted.Run(t.Context())
		if result, ok := got.Result.(brokerapi.InspectResult); err == nil &&
			(!ok || result.Mode&unix.S_IFMT == unix.S_IFCHR) {
			t.Errorf("%q is %+v", a.Path, got.Result)
		}
	})
}

// FuzzSetRealtime checks that the number of vCPUs is limited. A priority needs exclusive CPUs, which no Pod has here.
func FuzzSetRealtime(f *testing.F) {
	fuzzVerb(f, brokerapi.SetRealtime, nil, func(t *testing.T, a brokerapi.SetRealtimeArguments, accepted server.Task) {
		if _, err := accepted.Run(t.Context()); err == nil || len(a.VCPUs) > maxVCPUs {
			t.Errorf("%d vCPUs were accepted", len(a.VCPUs))
		}
	})
}

// FuzzAttachVolume checks that a volume that is accepted is one entry of a directory, and the attachment Pod another.
func FuzzAttachVolume(f *testing.F) {
	more := []brokerapi.VolumeArguments{{Volume: "../x", Attachment: otherUID}, {Volume: "data.img", Attachment: otherUID},
		{Volume: "data", Attachment: "../" + otherUID}}
	fuzzVerb(f, brokerapi.AttachVolume, more, func(t *testing.T, a brokerapi.VolumeArguments, accepted server.Task) {
		checkVolumeName(t, a)
		if pods.CheckUID(a.Attachment) != nil {
			t.Errorf("attachment Pod %q was accepted", a.Attachment)
		}
		if _, err := accepted.Run(t.Context()); err == nil {
			t.Errorf("%+v: a Pod without claims was attached", a)
		}
	})
}

// FuzzDetachVolume is FuzzAttachVolume for the other verb.
func FuzzDetachVolume(f *testing.F) {
	more := []brokerapi.VolumeArguments{{Volume: ".."}, {Volume: "data", Attachment: "/"}}
	fuzzVerb(f, brokerapi.DetachVolume, more,
		func(t *testing.T, a brokerapi.VolumeArguments, _ server.Task) { checkVolumeName(t, a) })
}

func checkVolumeName(t *testing.T, a brokerapi.VolumeArguments) {
	t.Helper()
	name := layout.HotplugDiskName(a.Volume, a.Block)
	if filepath.Join("/a", name) != "/a/"+name || strings.ContainsAny(name, "/\x00\n") ||
		strings.Contains(a.Volume, ".") || name == "" {
		t.Errorf("volume %q was accepted", a.Volume)
	}
}
