// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"net/http"
	"strings"
)

// GroupName is the group of the aggregated API.
const GroupName = "subresources.kubevirt.io"

// Versions are those that are served, the preferred one first. They are equal.
var Versions = []string{"v1", "v1alpha3"}

// Resources that have verbs.
const (
	VirtualMachines         = "virtualmachines"
	VirtualMachineInstances = "virtualmachineinstances"
)

// Verb is one thing that the API can be asked to do.
type Verb struct {
	// Resource is what it is done to; empty for a verb of the whole cluster or of a namespace.
	Resource string
	// Name is the path below the object, such as start or vnc/screenshot. It is the subresource that RBAC knows.
	Name string
	// Arguments are further path parameters, such as {port}; they are not the subresource's name.
	Arguments string
	// Namespaced says that a verb without a resource belongs to a namespace.
	Namespaced bool
	// Method is GET, which RBAC calls get, or PUT, which it calls update.
	Method string
	// Streams says that the verb takes over the connection, for as long as the client likes.
	Streams bool
	// Body and Answer are of the types that the request has and the answer gets, for the OpenAPI documents. Nil means none.
	Body, Answer any
	// Doc is a sentence for those documents.
	Doc string
	// Serve does it. An error becomes the Status that a client of Kubernetes expects.
	Serve func(http.ResponseWriter, *http.Request) error
}

// RBACName is the resource in rules of RBAC and in discovery.
func (v Verb) RBACName() string {
	if v.Resource == "" {
		return v.Name
	}
	return v.Resource + "/" + v.Name
}

// Path is the verb's path in a version, with {namespace}, {name} and the arguments as parameters.
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
