// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

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
	return slices.Concat(serving.vmVerbs(), serving.vmiVerbs(), serving.streamVerbs(), serving.clusterVerbs(), serving.profilerVerbs(), notImplementedVerbs())
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
		return false, apierrors.NewBadRequest(fmt.Sprintf("dryRun[%d]: %q is not supported, use %s", at, options[at], metav1.DryRunAll))
	}
	return len(options) > 0, nil
}
