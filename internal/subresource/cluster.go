// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"sigs.k8s.io/controller-runtime/pkg/log"

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

// healthz answers in KubeVirt's words.
func (a *API) healthz(w http.ResponseWriter, r *http.Request) error {
	server, err := a.APIServer.ServerVersion()
	if err != nil {
		log.FromContext(r.Context()).Error(err, "Cannot reach the API server")
		responsewriters.WriteRawJSON(http.StatusInternalServerError, map[string]any{
			"apiserver": map[string]any{"connectivity": "failed", "error": err.Error()},
		}, w)
		return nil
	}
	writeObject(w, map[string]any{"apiserver": map[string]any{"connectivity": "ok", "version": server}})
	return nil
}
