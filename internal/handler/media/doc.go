// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package media prepares a VMI's disks in its launcher Pod: overlays over images, empty disks, cloud-init media
// and the disk images in claims. libvirtd makes the files, in the Pod and as the Pod's user, so the agent writes
// nothing that a Pod can redirect. Each step finds what an earlier one made, so that it can be repeated after a
// restart of the agent; none of them is to be repeated once the domain runs.
package media
