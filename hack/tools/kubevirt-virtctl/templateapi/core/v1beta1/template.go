// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package v1beta1 replaces the types of VM templates. No command that is built here uses one.
package v1beta1

import "k8s.io/apimachinery/pkg/runtime"

// VirtualMachineTemplate is a template without content.
type VirtualMachineTemplate struct{ runtime.Unknown }
