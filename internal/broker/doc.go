// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package broker is virt-broker: the verbs of package brokerapi about the sockets, files, volumes and processes of launcher Pods. Packages
// network and device have those of the two other programs of its Pod, and package server serves them to virt-handler, and to no other user.
// The programs have every privilege on the node that the agent needs, so they trust virt-handler with nothing:
//
//   - A request names a Pod by its UID. Package pods derives from the kubelet's directories and the kernel whether it is a launcher.
//   - What a verb does affects that Pod only. Names and numbers in a request are checked against what a launcher Pod has.
//   - Descriptors that are passed are of sockets, of regular files for reading, and of processes to watch. None leads to another file.
//   - Every verb is idempotent: it completes what was interrupted. Requests are limited in size, time and number, for each Pod and in all.
//
// To read it: verbs.go of brokerapi; package server; how a Pod's libvirtd is found, in doc.go and peer.go of pods; how its files are reached,
// in root.go and beneath.go of podprocess; then one file for each verb; and devicerule, for the device files of hotplugged volumes.
package broker
