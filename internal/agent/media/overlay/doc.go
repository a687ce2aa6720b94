// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package overlay makes qcow2 overlays whose data is in a raw image. QEMU can track the changed blocks of a disk with
// such an overlay, while the image stays a plain one that can also be used without it. It writes the header and the
// tables itself: qemu-img would overwrite the image with zeros. docs/adr/0090
package overlay
