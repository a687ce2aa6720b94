// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package guestmetrics contains the metrics of the node's running guests: what libvirt and the guest agents report about the use of
// CPU, memory, disks and network. Names, labels and units are KubeVirt's (docs/metrics.md).
//
// Everything comes from launchers and guests, which are hostile. So the number of series of a guest and the length of their labels
// are limited, and a launcher that does not respond delays a scrape only once. See ADR 80.
package guestmetrics
