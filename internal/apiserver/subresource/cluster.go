// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"net/http"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/version"
)

// clusterVerbs returns the verbs that concern no object.
func (a *API) clusterVerbs() []Verb {
	return []Verb{
		{
			Name: "expand-vm-spec", Namespaced: true, Method: http.MethodPut, Body: &v1.VirtualMachine{}, Response: &v1.VirtualMachine{},
			Doc: "Expand the instance type and the preference of a VirtualMachine.", Serve: a.expandVMSpec,
		},
		{
			Name: "version", Method: http.MethodGet, Response: &version.Info{},
			Doc: "Get the version of virt-api.", Serve: serveVersion,
		},
		{
			Name: "guestfs", Method: http.MethodGet, Response: &v1.GuestfsInfo{},
			Doc: "Get the image of libguestfs-tools.", Serve: a.guestfs,
		},
		{
			Name: "healthz", Method: http.MethodGet,
			Doc: "Check whether virt-api reaches the API server.", Serve: a.healthz,
		},
	}
}

func serveVersion(w http.ResponseWriter, _ *http.Request) error {
	writeObject(w, version.Get())
	return nil
}

// healthz serves the same response as the component's /healthz, as in KubeVirt.
func (a *API) healthz(w http.ResponseWriter, r *http.Request) error {
	a.Health.ServeHTTP(w, r)
	return nil
}
