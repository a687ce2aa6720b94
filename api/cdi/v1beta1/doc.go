// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package v1beta1 contains the part of cdi.kubevirt.io/v1beta1 that VirtualMachines contain: the specification of a
// DataVolume. The kinds of that group belong to the Containerized Data Importer, which also installs their CRDs.
// +kubebuilder:object:generate=true
package v1beta1
