// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package device is the kubelet's device plugin for the devices that guests need: kvm, tun, vhost-net, vhost-vsock and
// userfaultfd. It advertises one of each for every guest that the node may run, as a device file can be opened any number of
// times.
package device
