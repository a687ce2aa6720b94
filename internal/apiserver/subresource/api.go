// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package subresource implements the verbs of the aggregated API subresources.kubevirt.io, such as
// virtualmachines/start. API.Verbs lists them, and discovery, the OpenAPI documents, routing and authorization are
// derived from that list. The package server serves them.
package subresource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/apiserver/agentclient"
	"github.com/vireo-project/vireo/internal/apiserver/profile"
	"github.com/vireo-project/vireo/internal/apiserver/stream"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// API implements the verbs.
type API struct {
	// Client reads from the API server without a cache, so that verbs see the current state, and writes to it.
	Client client.Client
	// Agents sends requests to the node agents.
	Agents *agentclient.Client
	// Profiles collects the components' profiles.
	Profiles *profile.Client
	// Config returns the current configuration of the cluster.
	Config func() clusterconfig.Config
	// Health reports whether the API server is reachable, and the version of the configuration.
	Health http.Handler
	// GuestfsImage is the image of libguestfs-tools; empty if there is none.
	GuestfsImage string
	// Limits limit the streams.
	Limits stream.Limits

	streams *stream.Bridge
}

// Resources in errors. They are in the singular, as in KubeVirt.
var (
	vmResource  = v1.GroupVersion.WithResource("virtualmachine").GroupResource()
	vmiResource = v1.GroupVersion.WithResource("virtualmachineinstance").GroupResource()
)

// Verbs returns all verbs of the API. Streams end when stopping is closed.
func (a *API) Verbs(stopping <-chan struct{}) []Verb {
	// Each server counts its own streams.
	serving := *a
	serving.streams = stream.NewBridge(a.Limits, stopping)
	return slices.Concat(serving.vmVerbs(), serving.vmiVerbs(), serving.streamVerbs(), serving.clusterVerbs(),
		serving.profilerVerbs(), notImplementedVerbs())
}

// key returns the namespace and name in a request's path.
func key(r *http.Request) types.NamespacedName {
	return types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
}

func (a *API) vm(ctx context.Context, key types.NamespacedName) (*v1.VirtualMachine, error) {
	vm := &v1.VirtualMachine{}
	err := a.Client.Get(ctx, key, vm)
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(vmResource, key.Name)
	}
	return vm, err
}

// vmi returns a VMI, or nil if it does not exist.
func (a *API) vmi(ctx context.Context, key types.NamespacedName) (*v1.VirtualMachineInstance, error) {
	vmi := &v1.VirtualMachineInstance{}
	err := a.Client.Get(ctx, key, vmi)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return vmi, err
}

// decode decodes a request's body, which may be empty. Unknown fields are ignored, as in KubeVirt.
func decode(r *http.Request, into any) error {
	err := json.NewDecoder(r.Body).Decode(into)
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return nil
	case errors.As(err, &tooLarge):
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the body has more than %d bytes", tooLarge.Limit))
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("Can not unmarshal Request body to struct, error: %s", err))
	}
}

// isDryRun reports whether the dryRun field of a request requests a dry run.
func isDryRun(options []string) (bool, error) {
	if at := slices.IndexFunc(options, func(o string) bool { return o != metav1.DryRunAll }); at >= 0 {
		return false, apierrors.NewBadRequest(fmt.Sprintf("dryRun[%d]: %q is not supported, use %s", at,
			options[at], metav1.DryRunAll))
	}
	return len(options) > 0, nil
}

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
	// Body and Response have the types of the request's and the response's body, for the OpenAPI documents. Nil means
	// none.
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

// unimplemented is a verb of KubeVirt that Vireo does not implement yet.
type unimplemented struct {
	resource, name, method string
	reason                 string
}

// Reasons why verbs are not implemented.
const (
	noBackup = "VirtualMachineBackups are made without it"
	noSEV    = "guests with encrypted memory do not run"
)

// unimplementedVerbs are in discovery, and need a permission like the others. They return 501 and the reason.
var unimplementedVerbs = []unimplemented{
	{VirtualMachineInstances, "backup", http.MethodPut, noBackup},
	{VirtualMachineInstances, "redefine-checkpoint", http.MethodPut, noBackup},
	{VirtualMachineInstances, "sev/fetchcertchain", http.MethodGet, noSEV},
	{VirtualMachineInstances, "sev/querylaunchmeasurement", http.MethodGet, noSEV},
	{VirtualMachineInstances, "sev/setupsession", http.MethodPut, noSEV},
	{VirtualMachineInstances, "sev/injectlaunchsecret", http.MethodPut, noSEV},
}

func notImplementedVerbs() []Verb {
	verbs := make([]Verb, 0, len(unimplementedVerbs))
	for _, u := range unimplementedVerbs {
		verb := Verb{Resource: u.resource, Name: u.name, Method: u.method, Doc: "Not implemented: " + u.reason + "."}
		verb.Serve = func(http.ResponseWriter, *http.Request) error { return notImplemented(verb.RBACName(), u.reason) }
		verbs = append(verbs, verb)
	}
	return verbs
}

// notImplemented returns the error of a verb, or of an option of it, that is not implemented.
func notImplemented(verb, reason string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotImplemented, Reason: agentclient.NotImplemented,
		Message: verb + " is not implemented by Vireo yet: " + reason,
		Details: &metav1.StatusDetails{Group: GroupName, Kind: verb},
	}}
}
