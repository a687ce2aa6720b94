// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package scriptedlibvirtd simulates a libvirtd on a socket, with the calls that virt-handler makes. libvirt's C
// library can connect to it. It defines, starts, pauses, migrates and ends one domain, in memory and without delay. A
// test can replace the responses to calls, for example by those of a hostile launcher.
package scriptedlibvirtd
