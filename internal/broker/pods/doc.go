// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package pods finds launcher Pods on the node by their UID alone, and checks that they are launchers. It relies on the kubelet's
// directories and on the kernel, and on nothing that the client of the broker says.
//
// A launcher Pod is one whose sockets volume has a socket of libvirtd that is served by a process which
//   - runs as QEMU's user,
//   - is in the Pod's cgroup, of which the kubelet is the only writer,
//   - and has, as its termination log, a file that the kubelet created for the Pod's container compute. The user who adds a container
//     for debugging controls everything in that one, including its root directory.
//
// This does not prove that virt-controller created the Pod: that is recorded in the API server only, and every tenant can create a Pod
// of this shape. What the broker does for a Pod must therefore affect that Pod only, whoever controls it.
package pods
