// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package brokerapi is the protocol between virt-handler and virt-broker, the two halves of the node agent. virt-handler has a token for
// the API server and handles what guests, launchers and other nodes send, and has no privileges on the node. virt-broker has the
// privileges, and neither a token nor a network. It is the only package that both processes are built from.
//
// virt-broker serves one unix socket, in a directory that both Pods mount. A client opens a connection for each request: it sends one
// Request and receives one Response, or several with a verb that watches. A connection that ends before the response cancels the request.
// A Response may come with a descriptor, which stays valid when virt-broker ends. The broker receives no descriptors.
//
// A request about a Pod names it by its UID and nothing else. The broker finds everything else itself: see package broker.
//
// # Deployment
//
// virt-broker is started as /usr/bin/virt-broker, and has these flags:
//
//	--kubelet-root   root directory of the kubelet on the node, /var/lib/kubelet
//	--pod-logs-dir   directory in which the kubelet creates a directory for the logs of each Pod, /var/log/pods
//	--dev-dir        path at which the node's /dev is mounted, /host-dev
//	--max-devices    maximum number of VMIs on the node, 1000
//	--v              log verbosity, 0
//
// It needs the node's process namespace (hostPID) and these directories of the node, at the same paths unless stated:
//
//	<kubelet root>/plugins/kubevirt.io.broker   writable, for its socket; virt-handler mounts it too, read-only
//	<kubelet root>/pods                         read-only, with propagation HostToContainer
//	<kubelet root>/pod-resources                read-only
//	/var/lib/kubelet/device-plugins             writable
//	/var/log/pods                               read-only; only the names of its directories are read
//	/dev                                        read-only, at --dev-dir; only looked at
//	/dev/net                                    for /dev/net/tun
//
// The command "virt-broker check" exits with 0 if the broker responds. It is for probes, because the broker has no network.
//
// virt-handler finds the socket by its flag --kubelet-root, and must run as user ClientUID. It mounts no other directory of the node. It
// has no flags --dev-dir and --max-devices any more.
package brokerapi
