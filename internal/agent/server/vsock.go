// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/vireo-project/vireo/internal/agent/vsock"
	"github.com/vireo-project/vireo/internal/agentapi"
)

// vsock connects to a VSOCK port of the guest, at the CID that virt-controller assigned. With TLS, the guest must use TLS 1.3 and
// its certificate is not verified, as in KubeVirt: the kernel connects to no other guest. Unlike KubeVirt's, this agent has no
// client certificate: a guest cannot get the authority to verify it.
func (s *Server) vsock(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
	port, err := strconv.ParseUint(r.URL.Query().Get(agentapi.PortParameter), 10, 32)
	if err != nil {
		return apierrors.NewBadRequest("the parameter " + agentapi.PortParameter + " is no port of VSOCK, a number of 32 bits")
	}
	secure, err := boolParameter(r, agentapi.TLSParameter)
	if err != nil {
		return err
	}
	if v.vmi.Status.VSOCKCID == nil || *v.vmi.Status.VSOCKCID < vsock.FirstGuest {
		return apierrors.NewBadRequest("VM doesn't have VSOCK enabled")
	}
	return s.stream(w, r, v, func(session *session) (backend, error) {
		ctx, cancel := context.WithTimeout(session.ctx, dialTimeout)
		defer cancel()
		conn, err := s.dialVSOCK(ctx, *v.vmi.Status.VSOCKCID, uint32(port))
		if err == nil && secure {
			conn, err = overTLS(ctx, conn)
		}
		if err != nil {
			return backend{}, fmt.Errorf("%w: %w", errNoConnection, err)
		}
		return backend{ReadWriteCloser: conn, what: "connection to VSOCK port " + strconv.FormatUint(port, 10)}, nil
	})
}

func overTLS(ctx context.Context, conn net.Conn) (net.Conn, error) {
	secured := tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}) //nolint:gosec // see vsock
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secured, nil
}
