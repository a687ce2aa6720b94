// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

var migrationResource = schema.GroupResource{Group: "kubevirt.io", Resource: "virtualmachineinstancemigrations"}

// authorize finds what a request is about. The status of the VMI decides: this very migration, to this node, from the node whose
// agent asks, and not ended. What the path says is only where to look.
func (s *Server) authorize(r *http.Request) (request, error) {
	if r.TLS == nil {
		return request{}, apierrors.NewUnauthorized("the connection is not encrypted")
	}
	peer, err := s.Peer(*r.TLS)
	if err != nil {
		return request{}, apierrors.NewUnauthorized(err.Error())
	}
	asked := request{
		vmi:       types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")},
		migration: types.UID(r.PathValue("uid")),
	}
	vmi := &v1.VirtualMachineInstance{}
	if err := s.Incoming.Get(r.Context(), asked.vmi, vmi); err != nil {
		if apierrors.IsNotFound(err) {
			// Nobody learns which guests there are.
			return request{}, s.notHere(asked)
		}
		return request{}, fmt.Errorf("read the VirtualMachineInstance: %w", err)
	}
	m := vmi.Status.MigrationState
	switch {
	case m == nil || m.MigrationUID != asked.migration || m.TargetNode != s.Node:
		return request{}, s.notHere(asked)
	case m.SourceNode != peer:
		return request{}, apierrors.NewForbidden(migrationResource, string(asked.migration), fmt.Errorf("the agent of node %s is not that of the node that the guest leaves", peer))
	case m.Failed:
		return request{}, conflict(asked, "the migration has failed")
	case isRelease(r):
		// The status may say already who owns the guest, and the Pod is looked for by whoever lets it run.
		return asked, nil
	case vmistatus.HasEnded(m):
		return request{}, conflict(asked, "the migration has ended")
	}
	arrival, ready := s.Arrivals.Expected(asked.migration)
	if !ready {
		// The status says it, and this process has not prepared it yet: it was restarted.
		return request{}, apierrors.NewServiceUnavailable("the target is not prepared, try again")
	}
	if arrival.Refusal != "" {
		return request{}, conflict(asked, arrival.Refusal)
	}
	asked.arrival = arrival
	return asked, nil
}

func isRelease(r *http.Request) bool { return r.Method == http.MethodPost }

func (s *Server) notHere(asked request) error {
	return apierrors.NewNotFound(migrationResource, string(asked.migration))
}

func conflict(asked request, why string) error {
	return apierrors.NewConflict(migrationResource, string(asked.migration), errors.New(why))
}
