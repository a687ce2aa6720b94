// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package scriptedlibvirtd plays a libvirtd on a socket, as far as virt-handler asks one: libvirt's C library connects to it, and a
// domain is defined, started, paused, migrated and ended, in memory and at once. A test may answer calls itself instead, as a hostile
// launcher would.
package scriptedlibvirtd
