// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"net/http"
	"strings"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// GroupName is the group of the aggregated API.
const GroupName = v1.SubresourceGroupName

// Versions are the served versions.
var Versions = v1.SubresourceVersions

// Resources with verbs.
const (
	VirtualMachines         = "virtualmachines"
	VirtualMachineInstances = "virtualmachineinstances"
)

// Verb is one operation of the API.
type Verb struct {
	// Resource is the resource whose objects the verb applies to; empty for a verb of the whole cluster or of a namespace.
	Resource string
	// Name is the path below the object, such as start or vnc/screenshot. It is the subresource in RBAC rules.
	Name string
	// Arguments are further path parameters, such as {port}, which are not part of the subresource in RBAC rules.
	Arguments string
	// Namespaced reports whether a verb without a resource belongs to a namespace.
	Namespaced bool
	// Method is GET (get in RBAC rules) or PUT (update).
	Method string
	// Streams reports whether the verb upgrades the connection to a stream without a timeout.
	Streams bool
	// Body and Response have the types of the request's and the response's body, for the OpenAPI documents. Nil means none.
	Body, Response any
	// Doc is the description in the OpenAPI documents.
	Doc string
	// Serve serves a request. The server converts a returned error to a Status.
	Serve func(http.ResponseWriter, *http.Request) error
}

// RBACName returns the resource in RBAC rules and in discovery.
func (v Verb) RBACName() string {
	if v.Resource == "" {
		return v.Name
	}
	return v.Resource + "/" + v.Name
}

// Path returns the verb's path in a version, with {namespace}, {name} and the arguments as parameters.
func (v Verb) Path(version string) string {
	parts := []string{"/apis", GroupName, version}
	switch {
	case v.Resource != "":
		parts = append(parts, "namespaces/{namespace}", v.Resource, "{name}")
	case v.Namespaced:
		parts = append(parts, "namespaces/{namespace}")
	}
	parts = append(parts, v.Name)
	if v.Arguments != "" {
		parts = append(parts, v.Arguments)
	}
	return strings.Join(parts, "/")
}
