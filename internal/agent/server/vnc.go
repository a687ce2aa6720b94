// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/vireo-project/vireo/internal/agentapi"
)

// vnc streams the guest's screen to one client at a time, as in KubeVirt.
func (s *Server) vnc(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
	preserve, err := boolParameter(r, agentapi.PreserveSessionParameter)
	if err != nil {
		return err
	}
	return s.stream(w, r, v, func(session *session) (backend, error) {
		screen, err := v.conn.OpenGraphics(session.ctx, v.domain)
		if err != nil {
			return backend{}, err
		}
		if !s.sessions.acquire(session, agentapi.VNC, preserve, &closeError{agentapi.CloseTakenOver, "another client took over the screen"}) {
			_ = screen.Close()
			// KubeVirt's code and words (pkg/virt-handler/rest/console.go).
			return backend{}, apierrors.NewServiceUnavailable("Active VNC connection. Request denied.")
		}
		return backend{ReadWriteCloser: screen, what: "screen"}, nil
	})
}

// boolParameter returns a parameter, false if it is absent.
func boolParameter(r *http.Request, name string) (bool, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, apierrors.NewBadRequest("the parameter " + name + " is neither true nor false")
	}
	return value, nil
}
