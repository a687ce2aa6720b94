// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package limits bounds what one tenant can take from the others. All components use these limits:
//
//   - a Queue makes callers wait until there is capacity, and serves namespaces round-robin. A waiting caller has to be
//     cheap;
//   - Shares refuse instead of waiting, and leave to the others as much as one tenant takes;
//   - a TokenBucket limits a rate, and its refill slows down while it is empty;
//   - Access limits what waits for storage that does not respond;
//   - Connections limits the open connections of a server, and closes those of the client that has most.
//
// The table of docs/conventions.md lists all bounds and their values.
package limits
