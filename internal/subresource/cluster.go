// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"net/http"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/version"
)

// clusterVerbs are done to no object.
func (a *API) clusterVerbs() []Verb {
	return []Verb{
		{
			Name: "expand-vm-spec", Namespaced: true, Method: http.MethodPut, Body: &v1.VirtualMachine{}, Answer: &v1.VirtualMachine{},
			Doc: "Write the instance type and the preference of a VirtualMachine out.", Serve: a.expandVMSpec,
		},
		{
			Name: "version", Method: http.MethodGet, Answer: &version.Info{},
			Doc: "Get the version of virt-api.", Serve: serveVersion,
		},
		{
			Name: "guestfs", Method: http.MethodGet, Answer: &GuestfsInfo{},
			Doc: "Get the image of libguestfs-tools.", Serve: a.guestfs,
		},
		{
			Name: "healthz", Method: http.MethodGet,
			Doc: "Tell whether virt-api reaches the API server.", Serve: a.healthz,
		},
	}
}

func serveVersion(w http.ResponseWriter, _ *http.Request) error {
	writeObject(w, version.Get())
	return nil
}

// healthz answers what the component's own /healthz answers, as in KubeVirt.
func (a *API) healthz(w http.ResponseWriter, r *http.Request) error {
	a.Health.ServeHTTP(w, r)
	return nil
}
