// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package brokerapi is the protocol between virt-handler and the programs of virt-broker's Pod, the two halves of the node agent. virt-handler
// has a token for the API server and handles what guests, launchers and other nodes send, and has no privileges on the node. The programs
// have the privileges, each those that its verbs need, and neither a token nor a network. Of this module, both halves are built from this
// package, networkapi, launcherpod/layout and component/memorylimit only.
//
// Each program serves one unix socket, in a directory that both Pods mount. A client opens a connection for each request: it sends one
// Request and receives one Response, or several with a verb that watches. A connection that ends before the response cancels the request.
// A Response may come with a descriptor, which stays valid when the program ends. The programs receive no descriptors.
//
// A request about a Pod names it by its UID and nothing else. The program finds everything else itself: see package broker.
//
// # Deployment
//
// The programs are /usr/bin/virt-broker, virt-network-broker and virt-device-plugin, each in a container of that name. All have these flags:
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
// virt-broker and virt-network-broker need the node's process namespace (hostPID). SECURITY.md lists the directories of the node that each
// mounts, at the same paths. Those of Pods and of published devices have the propagation HostToContainer. The directory of its own
// socket is writable for each program, and virt-broker mounts that of virt-device-plugin too, read-only; virt-handler mounts the one above
// them, read-only.
//
// The command "check" exits with 0 if the program responds. It is for probes, because the programs have no network.
//
// virt-handler finds the sockets by its flag --kubelet-root, and must run as user and group ClientUID. It mounts no other directory of the
// node.
package brokerapi
