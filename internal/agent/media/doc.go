// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package media prepares a VMI's disks in its launcher Pod: overlays on images, empty disks, cloud-init media and disk images on
// claims. libvirtd creates the files, in the Pod and as the Pod's user, so that a Pod cannot redirect the agent's writes. Every
// step is idempotent, so that it can be repeated after a restart of the agent, but not once the domain runs.
package media
