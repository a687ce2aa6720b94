// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmistatus

import (
	"slices"
	"strings"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// infoSourceDomain is the element of infoSource of an interface that the domain has. Source: kubevirt/kubevirt
// pkg/network/vmispec/infosource.go
const infoSourceDomain = "domain"

// HasInterface reports whether a running guest has an interface of the spec, according to its agent.
func HasInterface(status *v1.VirtualMachineInstanceStatus, name string) bool {
	return slices.ContainsFunc(status.Interfaces, func(i v1.VirtualMachineInstanceNetworkInterface) bool {
		return i.Name == name && slices.Contains(strings.Split(i.InfoSource, ", "), infoSourceDomain)
	})
}
