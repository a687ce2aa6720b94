// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package nbd is a client of the NBD protocol: it reads from an export, and reads which of its blocks have data or have changed. The server
// is a launcher's QEMU, which a guest may have taken over. So everything that it sends is limited and checked: a reply that is not complete
// and consistent ends the session.
//
// Source of the protocol: https://github.com/NetworkBlockDevice/nbd, doc/proto.md.
package nbd
