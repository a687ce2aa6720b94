// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/vireo-project/vireo/internal/agentapi"
)

// console streams the guest's first serial port. A guest has one console, and who comes last has it, as in KubeVirt.
func (s *Server) console(w http.ResponseWriter, r *http.Request, t *target) error {
	return s.stream(w, r, t, func(session *session) (backend, error) {
		// Who has the console is told before libvirt breaks its stream in favor of this one.
		s.sessions.take(session, agentapi.Console, false, &ending{agentapi.CloseTakenOver, "another client took over the console"})
		stream, err := t.machine.OpenConsole(session.ctx, t.domain)
		if err != nil {
			return backend{}, err
		}
		return backend{ReadWriteCloser: newLossy(stream), what: "console"}, nil
	})
}

// vnc streams the guest's screen, which one client has at a time, as in KubeVirt.
func (s *Server) vnc(w http.ResponseWriter, r *http.Request, t *target) error {
	preserve, err := boolParameter(r, agentapi.PreserveSessionParameter)
	if err != nil {
		return err
	}
	return s.stream(w, r, t, func(session *session) (backend, error) {
		screen, err := t.machine.OpenGraphics(session.ctx, t.domain)
		if err != nil {
			return backend{}, err
		}
		if !s.sessions.take(session, agentapi.VNC, preserve, &ending{agentapi.CloseTakenOver, "another client took over the screen"}) {
			_ = screen.Close()
			// KubeVirt's code and words (pkg/virt-handler/rest/console.go).
			return backend{}, apierrors.NewServiceUnavailable("Active VNC connection. Request denied.")
		}
		return backend{ReadWriteCloser: screen, what: "screen"}, nil
	})
}

// boolParameter reads a parameter that is false unless it says otherwise.
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
