// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package broker is virt-broker: the verbs of package brokerapi about the sockets, files, volumes and processes of launcher Pods. Packages
// network and device have those of the two other programs of its Pod, and package server serves them to virt-handler, and to no other user.
// The programs have every privilege on the node that the agent needs, so they trust virt-handler with nothing:
//
//   - A request names a Pod by its UID. Whether that Pod is a launcher, and which processes and files it has, is derived from the
//     kubelet's directories and from the kernel; see package pods for what this proves.
//   - What a verb does affects that Pod only. Names and numbers in a request are checked against what a launcher Pod has.
//   - Descriptors that are passed are of sockets, of regular files that are open for reading, and of processes to watch. None leads to
//     another file.
//   - Every verb is idempotent, so that it completes what a broker or a client that was killed has left.
//   - The size of a request, its time and the number of requests in flight are limited, the latter for each Pod and in all.
package broker
