// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package backup decides about the backup of a running guest's disks. virt-controller writes an intent to the VMI's status. The agent
// keeps a record of what it has done in the metadata of the running domain, and copies it to the VMI's status. Everything here is
// pure: an action can be repeated, and after a restart the next process decides again from what it observes.
//
// docs/adr/0090 has the reasons.
package backup
