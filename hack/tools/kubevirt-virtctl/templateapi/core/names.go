// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package core replaces KubeVirt's API of VM templates, which cannot be downloaded everywhere. It has what the
// commands' imports need.
package core

// Names of the kind.
const (
	GroupName            = "template.kubevirt.io"
	SingularResourceName = "virtualmachinetemplate"
	PluralResourceName   = "virtualmachinetemplates"
)
