// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package device advertises the node's devices that guests need to the kubelet: kvm, tun, vhost-net, vhost-vsock and userfaultfd, each
// as many times as there may be guests, since a device file can be opened any number of times.
package device
