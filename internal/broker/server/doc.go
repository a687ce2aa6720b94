// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package server serves verbs of package brokerapi on a unix socket, to virt-handler and to no other user beside its own. The programs of
// virt-broker's Pod share it:
//
//   - Of the program's own user, which is that of the other programs, it accepts probes and what one program requests from another.
//   - It refuses requests with verbs or arguments that the program does not know.
//   - The size of a request, its time and the number of requests in flight are limited, the latter for each Pod and in all.
//   - Each request is logged. A client determines neither the number of lines nor their length.
package server
