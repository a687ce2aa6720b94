// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package peer

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

// authorize returns what a request is about, if it is allowed. The VMI's status decides: it must have this migration, to this node, from
// the node of the client's certificate, and not ended. The path only selects the VMI.
func (s *Server) authorize(r *http.Request) (request, error) {
	if r.TLS == nil {
		return request{}, apierrors.NewUnauthorized("the connection is not encrypted")
	}
	node, err := s.PeerNode(*r.TLS)
	if err != nil {
		return request{}, apierrors.NewUnauthorized(err.Error())
	}
	req := request{
		vmi:       types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")},
		migration: types.UID(r.PathValue("uid")),
	}
	vmi := &v1.VirtualMachineInstance{}
	if err := s.Incoming.Get(r.Context(), req.vmi, vmi); err != nil {
		if apierrors.IsNotFound(err) {
			// The response does not reveal which VMIs exist.
			return request{}, s.notHere(req)
		}
		return request{}, fmt.Errorf("read the VirtualMachineInstance: %w", err)
	}
	m := vmi.Status.MigrationState
	switch {
	case m == nil || m.MigrationUID != req.migration || m.TargetNode != s.Node:
		return request{}, s.notHere(req)
	case m.SourceNode != node:
		return request{}, apierrors.NewForbidden(migrationResource, string(req.migration), fmt.Errorf("the agent of node %s is not that of the migration's source", node))
	case m.Failed:
		return request{}, conflict(req, "the migration has failed")
	case isRelease(r):
		// The target may own the guest already. ServerOptions.Run finds the Pod.
		return req, nil
	case vmistatus.HasEnded(m):
		return request{}, conflict(req, "the migration has ended")
	}
	target, ready := s.Targets.Get(req.migration)
	if !ready {
		// This process was restarted and has not prepared the target yet.
		return request{}, apierrors.NewServiceUnavailable("the target is not prepared, try again")
	}
	if target.Refusal != "" {
		return request{}, conflict(req, target.Refusal)
	}
	req.target = target
	return req, nil
}

func isRelease(r *http.Request) bool { return r.Method == http.MethodPost }

func (s *Server) notHere(req request) error {
	return apierrors.NewNotFound(migrationResource, string(req.migration))
}

func conflict(req request, why string) error {
	return apierrors.NewConflict(migrationResource, string(req.migration), errors.New(why))
}
