// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package brokerapi is the protocol between virt-handler and the programs of virt-broker's Pod, the two halves of the
// node agent. virt-handler has a token for the API server and handles what guests, launchers and other nodes send, and
// has no privileges on the node. The programs have the privileges, each those that its verbs need, and neither a token
// nor a network. Of this module, both halves are built from this package, networkapi, launcherpod/layout and
// component/memorylimit only.
//
// Each program serves one unix socket, in a directory that both Pods mount. A client opens a connection for each
// request: it sends one Request and receives one Response, or several with a verb that watches. A connection that ends
// before the response cancels the request. A Response may come with a descriptor, which stays valid when the program
// ends. The programs receive no descriptors.
//
// A request about a Pod names it by its UID and nothing else. The program finds everything else itself: see package
// broker.
//
// # Deployment
//
// The programs are /usr/bin/virt-broker, virt-network-broker and virt-device-plugin, each in a container of that name.
// All have these flags:
//
//	--kubelet-root   root directory of the kubelet on the node, /var/lib/kubelet
//
// virt-broker and virt-device-plugin have
//
//	--pod-logs-dir   directory in which the kubelet creates a directory for the logs of each Pod, /var/log/pods
//	--dev-dir        path at which the node's /dev is mounted, /host-dev
//
// and virt-device-plugin
//
//	--max-devices        maximum number of VMIs on the node, 1000
//	--device-plugin-dir  directory of the kubelet's sockets for device plugins, /var/lib/kubelet/device-plugins
//
// virt-broker and virt-network-broker need the node's process namespace (hostPID). SECURITY.md lists the directories of
// the node that each mounts, at the same paths. Those of Pods and of published devices have the propagation
// HostToContainer. The directory of its own socket is writable for each program, and virt-broker mounts that of
// virt-device-plugin too, read-only; virt-handler mounts the one above them, read-only.
//
// The command "check" exits with 0 if the program responds. It is for probes, because the programs have no network.
//
// virt-handler finds the sockets by its flag --kubelet-root, and must run as user and group ClientUID. It mounts no
// other directory of the node.
package brokerapi

import (
	"encoding/json"
	"path/filepath"
	"time"
)

const (
	// ClientUID is the user and the group that virt-handler runs as. It is the only user whose requests the programs
	// accept, except those of Verb.OfPrograms from their own.
	ClientUID = 65527
	// socketDir is the directory of the sockets below the kubelet's root directory. The kubelet keeps data of plugins
	// there.
	socketDir = "plugins/kubevirt.io.broker"
	// socketName is the name of a program's socket in its own directory.
	socketName = "sock"
)

// SocketDir returns the directory with a directory for the socket of each program, given the kubelet's root directory.
func SocketDir(kubeletRoot string) string { return filepath.Join(kubeletRoot, socketDir) }

// Program is a program of virt-broker's Pod, which runs in the container of that name.
type Program string

// The programs. Each has the privileges that its own verbs need.
const (
	// Broker opens the sockets and files of launcher Pods, and changes what they have.
	Broker Program = "virt-broker"
	// NetworkBroker connects guests to the networks of their Pods.
	NetworkBroker Program = "virt-network-broker"
	// DevicePlugin advertises devices to the kubelet, and reads from it which CPUs it has assigned.
	DevicePlugin Program = "virt-device-plugin"
)

// Programs are all programs.
var Programs = []Program{Broker, NetworkBroker, DevicePlugin}

// Socket returns the path of the program's socket in the directory of the sockets. It is in a directory of its own, so
// that no program can replace the socket of another.
func (p Program) Socket(dir string) string { return filepath.Join(dir, string(p), socketName) }

// servers are the programs that serve verbs. virt-broker serves the others, except those of all programs.
var servers = map[Verb]Program{
	NetworkState: NetworkBroker, ChangeNetwork: NetworkBroker, OpenRouter: NetworkBroker,
	WatchDevices: DevicePlugin, CPUPolicy: DevicePlugin, ExclusiveCPUs: DevicePlugin,
}

// Program returns the program that serves a verb, or none for Ping and WatchProgram, which each of them serves.
func (v Verb) Program() Program {
	if v == Ping || v == WatchProgram {
		return ""
	}
	if program, found := servers[v]; found {
		return program
	}
	return Broker
}

// Verb is what a request wants.
type Verb string

// The verbs. All are idempotent. Those marked "node" have no Pod.
const (
	// Ping does nothing (node).
	Ping Verb = "ping"
	// WatchProgram responds now and no more, so that the connection ends with the program (node).
	WatchProgram Verb = "watch-program"
	// OpenSocket connects to one of a Pod's sockets, and checks that a process of the Pod serves it. It returns the
	// connection.
	OpenSocket Verb = "open-socket"
	// WatchGuest returns a pidfd of the Pod's QEMU, which becomes readable when the process has exited.
	WatchGuest Verb = "watch-guest"
	// ReadVolume returns files that the kubelet has written to a volume of the Pod.
	ReadVolume Verb = "read-volume"
	// OpenFile opens a regular file of an image or of the persistent state in the Pod, or an overlay, for reading, and
	// returns its descriptor.
	OpenFile Verb = "open-file"
	// SyncState returns when the Pod's persistent state is on the disk of its claim.
	SyncState Verb = "sync-state"
	// GiveHostDir makes QEMU's user the owner of a directory of the node, if the kubelet created it for the Pod.
	GiveHostDir Verb = "give-host-dir"
	// OwnDevices makes QEMU's user the owner of the Pod's device files.
	OwnDevices Verb = "own-devices"
	// Inspect describes a file of the Pod without reading it.
	Inspect Verb = "inspect"
	// CPUs returns the CPUs on which the Pod may run.
	CPUs Verb = "cpus"
	// SetRealtime sets the realtime priority of vCPUs of the Pod's guest.
	SetRealtime Verb = "set-realtime"
	// NetworkState describes the links of the Pod's network namespace.
	NetworkState Verb = "network-state"
	// ChangeNetwork changes the Pod's network step by step, to connect the guest to it.
	ChangeNetwork Verb = "change-network"
	// OpenRouter opens a socket for router advertisements to the guest, and returns its descriptor.
	OpenRouter Verb = "open-router"
	// AttachVolume gives the Pod the claim of an attachment Pod, for a disk of the guest or as a directory.
	AttachVolume Verb = "attach-volume"
	// DetachVolume takes it away again.
	DetachVolume Verb = "detach-volume"
	// WatchDevices returns the state of the node's devices now and after each change (node).
	WatchDevices Verb = "watch-devices"
	// CPUPolicy reports whether the kubelet assigns exclusive CPUs (node).
	CPUPolicy Verb = "cpu-policy"
	// ExclusiveCPUs returns the CPUs that the kubelet has assigned to the Pod's guest exclusively. virt-broker requests
	// it.
	ExclusiveCPUs Verb = "exclusive-cpus"
)

// OfNode reports whether a verb is about the node and not about a Pod.
func (v Verb) OfNode() bool {
	return v == Ping || v == WatchProgram || v == WatchDevices || v == CPUPolicy
}

// OfPrograms reports whether the programs request a verb of each other or, with the command check, of themselves.
func (v Verb) OfPrograms() bool { return v == Ping || v == ExclusiveCPUs }

// The limits of the protocol.
const (
	// MaxRequest is the limit for a request in bytes: a change of a network with thousands of forwarded ports is the
	// longest. Few are longer than SmallRequest.
	MaxRequest   = 256 << 10
	SmallRequest = 4 << 10
	// MaxResponse is the limit for a response in bytes: the files of a volume, of which MaxFileBytes are sent as base64.
	MaxResponse = 4 << 20
	// MaxFiles and MaxFileBytes are the limits for the files of a volume. A ConfigMap or a Secret cannot be larger;
	// downward API fields that repeat long annotations could.
	MaxFiles     = 1000
	MaxFileBytes = 2 << 20
	// RequestTimeout is how long a client may take to send its request, and to receive a response.
	RequestTimeout = 5 * time.Second
	// VerbTimeout is how long a verb that does not wait may take. The client waits a little longer.
	VerbTimeout = 30 * time.Second
)

// Request is what a client sends. A broker rejects a request with a verb or an argument that it does not know, so that
// nothing a newer client requests is ignored.
type Request struct {
	// Verb is what to do.
	Verb Verb `json:"verb"`
	// Pod is the Pod's UID; empty for a verb that is about the node.
	Pod string `json:"pod,omitempty"`
	// Arguments is the JSON of the verb's arguments, if it has some.
	Arguments json.RawMessage `json:"arguments,omitempty"`
}

// Response is what the broker sends.
type Response struct {
	// Error is why the request failed; nil after a success.
	Error *Error `json:"error,omitempty"`
	// Result is the JSON of the verb's result, if it has one.
	Result json.RawMessage `json:"result,omitempty"`
}

// OpenSocketArguments are the arguments of OpenSocket.
type OpenSocketArguments struct {
	// Name is the name of a socket in the Pod's volume for sockets.
	Name string `json:"name"`
	// Wait means to wait until the socket exists, until the client closes its connection.
	Wait bool `json:"wait,omitempty"`
}

// ReadVolumeArguments are the arguments of ReadVolume. Only volumes that virt-controller adds for files of a guest can
// be read.
type ReadVolumeArguments struct {
	// Kind is the kubelet's name of the kind of volume.
	Kind string `json:"kind"`
	// Volume is its name in the Pod.
	Volume string `json:"volume"`
}

// ReadVolumeResult is the result of ReadVolume.
type ReadVolumeResult struct {
	// Files are the files' contents by their path in the volume.
	Files map[string][]byte `json:"files"`
}

// OpenFileArguments are the arguments of OpenFile.
type OpenFileArguments struct {
	// Mount is where an image or the persistent state is mounted in the Pod, or the directory of the overlays.
	Mount string `json:"mount"`
	// Name is the file's path in it.
	Name string `json:"name"`
}

// GiveHostDirArguments are the arguments of GiveHostDir.
type GiveHostDirArguments struct {
	// Directory is where a directory of the node is mounted in the Pod.
	Directory string `json:"directory"`
}

// InspectArguments are the arguments of Inspect.
type InspectArguments struct {
	// Path is the file's path in the Pod.
	Path string `json:"path"`
	// DirectIO means to try whether the file can be opened with O_DIRECT.
	DirectIO bool `json:"directIO,omitempty"`
	// SELinux means to return the file's SELinux context.
	SELinux bool `json:"selinux,omitempty"`
}

// InspectResult is the result of Inspect.
type InspectResult struct {
	// Mode is the type and the permissions of the file, as stat returns them.
	Mode uint32 `json:"mode"`
	// Major and Minor are the number of a block device.
	Major uint32 `json:"major,omitempty"`
	Minor uint32 `json:"minor,omitempty"`
	// BlockSize is the block size of the file system in bytes; 0 if not known.
	BlockSize uint `json:"blockSize,omitempty"`
	// DirectIO reports whether it is a regular file that can be opened with O_DIRECT.
	DirectIO bool `json:"directIO,omitempty"`
	// SELinuxContext is the file's SELinux context, NoSELinux on a node without SELinux, or empty if it is not known.
	SELinuxContext string `json:"selinuxContext,omitempty"`
}

// NoSELinux is the SELinux context of a launcher on a node without SELinux.
// Source: kubevirt/kubevirt pkg/virt-handler/vm.go.
const NoSELinux = "none"

// CPUsResult is the result of CPUs and of ExclusiveCPUs.
type CPUsResult struct {
	// CPUs are in ascending order. There are none if they are not known, or if the Pod has none.
	CPUs []uint `json:"cpus,omitempty"`
}

// SetRealtimeArguments are the arguments of SetRealtime.
type SetRealtimeArguments struct {
	// VCPUs are the numbers of the vCPUs.
	VCPUs []uint `json:"vcpus"`
}

// VolumeArguments are the arguments of AttachVolume and DetachVolume.
type VolumeArguments struct {
	// Volume is the name of the volume.
	Volume string `json:"volume"`
	// Attachment is the UID of the attachment Pod, whose only claim is the volume's. DetachVolume does without it.
	Attachment string `json:"attachment,omitempty"`
	// Block reports whether the claim has volumeMode Block.
	Block bool `json:"block,omitempty"`
	// Directory means to mount all of the claim's file system and not its image. DetachVolume finds either.
	Directory bool `json:"directory,omitempty"`
	// Wait means that AttachVolume waits until the container of the attachment Pod is started, until the client closes
	// its connection.
	Wait bool `json:"wait,omitempty"`
}

// DevicesResult is a result of WatchDevices.
type DevicesResult struct {
	// Known reports whether the other fields are known: whether the kubelet has accepted the devices.
	Known bool `json:"known"`
	// Usable reports whether the devices that every guest needs are available, and KVM whether KVM is.
	Usable bool `json:"usable"`
	KVM    bool `json:"kvm"`
}

// CPUPolicyResult is the result of CPUPolicy.
type CPUPolicyResult struct {
	// Static reports whether the kubelet assigns exclusive CPUs.
	Static bool `json:"static"`
}
