// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package convergence decides what a migration's transfer needs to end: a longer downtime, a disruption of the guest, or to be aborted. It
// decides on the progress that the launcher reports, which it does not trust.
package convergence
