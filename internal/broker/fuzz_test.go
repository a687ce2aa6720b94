// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/brokerapi"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
	"github.com/vireo-project/vireo/test/kubelet"
)

// FuzzRequest checks that whatever a client sends, a request that is accepted has a known verb and names a Pod that is one entry of a
// directory, and that the memory for it is in proportion to what was received.
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
		accepted, err := w.server.task(request)
		if err != nil {
			if code := brokerapi.CodeOf(err); code != brokerapi.CodeInvalid && code != brokerapi.CodeRefused {
				t.Errorf("%+v: %v", request, err)
			}
			return
		}
		if accepted.limit == nil || (accepted.run == nil) == (accepted.watch == nil) {
			t.Errorf("%+v has the task %+v", request, accepted)
		}
		if _, known := verbs[request.Verb]; !known || request.Verb.OfNode() != (request.Pod == "") {
			t.Errorf("%+v was accepted", request)
		}
		if request.Pod != "" && (pods.CheckUID(request.Pod) != nil || filepath.Join("/a", request.Pod) != "/a/"+request.Pod || strings.ContainsAny(request.Pod, "/\x00")) {
			t.Errorf("Pod %q was accepted", request.Pod)
		}
	})
}

// fuzzVerb calls check with the arguments of requests that are accepted.
func fuzzVerb[A any](f *testing.F, verb brokerapi.Verb, more []A, check func(t *testing.T, a A, accepted task)) {
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
	if err := kubelet.WriteVolume(w.pods, podUID, secrets, "disk-udata", map[string]string{"userdata": "its own"}); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		accepted, err := w.server.task(&brokerapi.Request{Verb: verb, Pod: podUID, Arguments: text})
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

// FuzzOpenSocket checks that only the sockets of libvirtd and of USB redirection are connected to.
func FuzzOpenSocket(f *testing.F) {
	more := []brokerapi.OpenSocketArguments{{Name: "../x"}, {Name: "virt-usbredir-0"}, {Name: "virt-usbredir-9"}}
	fuzzVerb(f, brokerapi.OpenSocket, more, func(t *testing.T, a brokerapi.OpenSocketArguments, accepted task) {
		if a.Wait {
			return
		}
		got, err := accepted.run(t.Context())
		defer got.close()
		if err == nil && a.Name != launcherpod.LibvirtSocketName {
			t.Errorf("connected to %q", a.Name)
		}
	})
}

// FuzzReadVolume checks that only files of the volume are read.
func FuzzReadVolume(f *testing.F) {
	more := []brokerapi.ReadVolumeArguments{
		{Kind: secrets, Volume: "disk-udata"}, {Kind: configMaps, Volume: "../disk-files"},
	}
	fuzzVerb(f, brokerapi.ReadVolume, more, func(t *testing.T, a brokerapi.ReadVolumeArguments, accepted task) {
		got, err := accepted.run(t.Context())
		if err != nil {
			return
		}
		result, ok := got.result.(brokerapi.ReadVolumeResult)
		for name, data := range result.Files {
			if !ok || string(data) != "its own" || a.Volume != "disk-udata" || a.Kind != secrets {
				t.Errorf("%+v: read %q from %q", a, data, name)
			}
		}
	})
}

// FuzzOpenFile checks that only files of images and of the persistent state are opened.
func FuzzOpenFile(f *testing.F) {
	more := []brokerapi.OpenFileArguments{
		{Mount: launcherpod.ContainerDiskDir("disk"), Name: "disk.img"}, {Mount: launcherpod.ContainerDisksDir + "/..", Name: "secret"},
		{Mount: launcherpod.StateDir, Name: "../secret"}, {Mount: launcherpod.KernelBootDir, Name: "vmlinuz"},
	}
	fuzzVerb(f, brokerapi.OpenFile, more, func(t *testing.T, a brokerapi.OpenFileArguments, accepted task) {
		got, err := accepted.run(t.Context())
		if err != nil {
			return
		}
		defer got.close()
		if content, err := io.ReadAll(got.file); err != nil || string(content) != "open" {
			t.Errorf("%+v: read %q, %v", a, content, err)
		}
	})
}

// FuzzGiveHostDir checks that only directories for disks are given away.
func FuzzGiveHostDir(f *testing.F) {
	fuzzVerb(f, brokerapi.GiveHostDir, nil, func(t *testing.T, a brokerapi.GiveHostDirArguments, _ task) {
		if path.Dir(a.Directory) != launcherpod.DisksDir || path.Clean(a.Directory) != a.Directory {
			t.Errorf("%q was accepted", a.Directory)
		}
	})
}

// FuzzInspect checks that nothing outside the Pod is described: its root directory has no device.
func FuzzInspect(f *testing.F) {
	more := []brokerapi.InspectArguments{{Path: "/../../dev/null"}, {Path: "/proc/self/root/dev/null", DirectIO: true}}
	fuzzVerb(f, brokerapi.Inspect, more, func(t *testing.T, a brokerapi.InspectArguments, accepted task) {
		got, err := accepted.run(t.Context())
		if result, ok := got.result.(brokerapi.InspectResult); err == nil && (!ok || result.Mode&unix.S_IFMT == unix.S_IFCHR) {
			t.Errorf("%q is %+v", a.Path, got.result)
		}
	})
}

// FuzzSetRealtime checks that the number of vCPUs is limited. A priority needs exclusive CPUs, which no Pod has here.
func FuzzSetRealtime(f *testing.F) {
	fuzzVerb(f, brokerapi.SetRealtime, nil, func(t *testing.T, a brokerapi.SetRealtimeArguments, accepted task) {
		if _, err := accepted.run(t.Context()); err == nil || len(a.VCPUs) > maxVCPUs {
			t.Errorf("%d vCPUs were accepted", len(a.VCPUs))
		}
	})
}

// FuzzChangeNetwork checks that the names of links in steps that are accepted are ones that the kernel accepts and that are in no other
// directory of its settings, and that they have no more rules than the kernel gets.
func FuzzChangeNetwork(f *testing.F) {
	more := []brokerapi.ChangeNetworkArguments{
		{Steps: []brokerapi.Step{{Do: brokerapi.Set, Setting: brokerapi.AcceptRA, Link: "../all"}, {Do: brokerapi.Rename, Link: "eth0", Other: "lo"}}},
		{Steps: []brokerapi.Step{{Do: brokerapi.Translate, Ports: []brokerapi.PortRange{{Protocol: "TCP", First: 1, Last: 2}}, Rules: []brokerapi.Rule{
			{Chain: brokerapi.Prerouting, In: "eth0", Listed: true, Do: brokerapi.To, Target: netip.MustParseAddr("10.0.2.2")},
		}}}},
	}
	fuzzVerb(f, brokerapi.ChangeNetwork, more, func(t *testing.T, a brokerapi.ChangeNetworkArguments, _ task) {
		for _, step := range a.Steps {
			if step.Do != brokerapi.Translate && (step.Do != brokerapi.Set || step.Link != "") {
				checkLink(t, step.Link)
			}
			if step.Do == brokerapi.Rename || step.Do == brokerapi.Attach {
				checkLink(t, step.Other)
			}
			for _, rule := range step.Rules {
				checkRule(t, rule)
			}
			for _, ports := range step.Ports {
				if ports.First == 0 || ports.Last < ports.First || !slices.Contains([]string{"TCP", "UDP"}, ports.Protocol) {
					t.Errorf("ports %+v", ports)
				}
			}
		}
	})
}

func checkRule(t *testing.T, rule brokerapi.Rule) {
	t.Helper()
	for _, name := range []string{rule.In, rule.Out} {
		if name != "" {
			checkLink(t, name)
		}
	}
	for _, network := range []netip.Prefix{rule.Source, rule.Destination} {
		if network.IsValid() && network.Addr().Is4() == rule.IPv6 {
			t.Errorf("the networks %+v", rule)
		}
	}
	if (rule.Do == brokerapi.To || rule.Do == brokerapi.From) && (!rule.Target.IsValid() || rule.Target.Is4() == rule.IPv6) {
		t.Errorf("the target of %+v", rule)
	}
}

func checkLink(t *testing.T, name string) {
	t.Helper()
	const longest = 15
	if len(name) > longest || strings.ContainsAny(name, "/. \x00\n") || slices.Contains([]string{"", "lo", "all", "default"}, name) {
		t.Errorf("the name %q", name)
	}
}

// FuzzOpenRouter checks the same for the verb that opens a socket.
func FuzzOpenRouter(f *testing.F) {
	fuzzVerb(f, brokerapi.OpenRouter, nil, func(t *testing.T, a brokerapi.OpenRouterArguments, _ task) { checkLink(t, a.Bridge) })
}

// FuzzAttachVolume checks that a volume that is accepted is one entry of a directory, and the attachment Pod another.
func FuzzAttachVolume(f *testing.F) {
	more := []brokerapi.VolumeArguments{{Volume: "../x", Attachment: otherUID}, {Volume: "data.img", Attachment: otherUID}, {Volume: "data", Attachment: "../" + otherUID}}
	fuzzVerb(f, brokerapi.AttachVolume, more, func(t *testing.T, a brokerapi.VolumeArguments, accepted task) {
		checkVolumeName(t, a)
		if pods.CheckUID(a.Attachment) != nil {
			t.Errorf("attachment Pod %q was accepted", a.Attachment)
		}
		if _, err := accepted.run(t.Context()); err == nil {
			t.Errorf("%+v: a Pod without claims was attached", a)
		}
	})
}

// FuzzDetachVolume is FuzzAttachVolume for the other verb.
func FuzzDetachVolume(f *testing.F) {
	more := []brokerapi.VolumeArguments{{Volume: ".."}, {Volume: "data", Attachment: "/"}}
	fuzzVerb(f, brokerapi.DetachVolume, more, func(t *testing.T, a brokerapi.VolumeArguments, _ task) { checkVolumeName(t, a) })
}

func checkVolumeName(t *testing.T, a brokerapi.VolumeArguments) {
	t.Helper()
	name := layout.HotplugDiskName(a.Volume, a.Block)
	if filepath.Join("/a", name) != "/a/"+name || strings.ContainsAny(name, "/\x00\n") || strings.Contains(a.Volume, ".") || name == "" {
		t.Errorf("volume %q was accepted", a.Volume)
	}
}
