// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"fmt"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/vireo-project/vireo/internal/agentapi"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// usbRedir connects a client to the guest's first free USB port. The client keeps the port until it disconnects: another client
// does not take it over.
func (s *Server) usbRedir(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
	if v.vmi.Spec.Domain.Devices.ClientPassthrough == nil {
		// virt-api's message.
		return conflict(v.vmi.Name, "Not configured with USB Redirection")
	}
	return s.stream(w, r, v, func(session *session) (backend, error) {
		port, found := s.sessions.acquireFree(session, agentapi.USBRedir, launcherpod.USBPorts)
		if !found {
			// KubeVirt's code (pkg/virt-handler/rest/console.go).
			return backend{}, apierrors.NewServiceUnavailable(fmt.Sprintf(
				"All USB devices are in use: clients have %d devices in the guest, which is as many as it has ports for", launcherpod.USBPorts))
		}
		conn, err := v.conn.OpenUSB(session.ctx, port)
		if err != nil {
			return backend{}, err
		}
		return backend{ReadWriteCloser: conn, what: "USB port " + strconv.Itoa(port)}, nil
	})
}
