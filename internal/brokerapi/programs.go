// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package brokerapi

import "path/filepath"

const (
	// ClientUID is the user and the group that virt-handler runs as. It is the only user whose requests the programs accept, except
	// those of Verb.OfPrograms from their own.
	ClientUID = 65527
	// socketDir is the directory of the sockets below the kubelet's root directory. The kubelet keeps data of plugins there.
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
	// DevicePlugin advertises devices to the kubelet, and asks it which CPUs it has assigned.
	DevicePlugin Program = "virt-device-plugin"
)

// Programs are all programs.
var Programs = []Program{Broker, NetworkBroker, DevicePlugin}

// Socket returns the path of the program's socket in the directory of the sockets. It is in a directory of its own, so that no program can
// replace the socket of another.
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
