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
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/subresource/agent"
	"github.com/vireo-project/vireo/internal/subresource/stream"
)

// API serves the verbs.
type API struct {
	// Client reads from and writes to the API server, without a cache: a verb answers for what is there now.
	Client client.Client
	// Agents are the node agents.
	Agents *agent.Client
	// Config is the configuration of the cluster.
	Config func() clusterconfig.Config
	// Health tells whether the API server is there, and by which configuration virt-api goes.
	Health http.Handler
	// GuestfsImage is the image of libguestfs-tools; empty if there is none.
	GuestfsImage string
	// Limits bound the streams.
	Limits stream.Limits

	streams *stream.Bridge
}

// Names of objects in errors, in the singular, as KubeVirt has them.
var (
	vmResource  = v1.GroupVersion.WithResource("virtualmachine").GroupResource()
	vmiResource = v1.GroupVersion.WithResource("virtualmachineinstance").GroupResource()
)

// Verbs are all that the API can be asked to do. Streams end when stopping is closed.
func (a *API) Verbs(stopping <-chan struct{}) []Verb {
	// A server has streams of its own.
	serving := *a
	serving.streams = stream.NewBridge(a.Limits, stopping)
	return slices.Concat(serving.vmVerbs(), serving.vmiVerbs(), serving.streamVerbs(), serving.clusterVerbs(), missingVerbs())
}

// key is the object that a request is about.
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

// vmi returns the instance of a name, or nil if there is none.
func (a *API) vmi(ctx context.Context, key types.NamespacedName) (*v1.VirtualMachineInstance, error) {
	vmi := &v1.VirtualMachineInstance{}
	err := a.Client.Get(ctx, key, vmi)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return vmi, err
}

// decode reads a request's body. None is an empty one. What it does not know, it passes over, as KubeVirt does.
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

// isDryRun says what a body's field dryRun asks for.
func isDryRun(options []string) (bool, error) {
	if at := slices.IndexFunc(options, func(o string) bool { return o != metav1.DryRunAll }); at >= 0 {
		return false, apierrors.NewBadRequest(fmt.Sprintf("dryRun[%d]: %q is not supported, use %s", at, options[at], metav1.DryRunAll))
	}
	return len(options) > 0, nil
}
