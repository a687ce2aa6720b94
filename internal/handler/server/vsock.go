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

	"github.com/vireo-project/vireo/internal/agentapi"
	"github.com/vireo-project/vireo/internal/handler/vsock"
)

// vsock connects to a VSOCK port of the guest, at the address that the controller gave it. With TLS, the guest must speak
// TLS 1.3 and its certificate is not checked, as in KubeVirt: the kernel leads to no other guest. Unlike KubeVirt's, the
// agent shows no certificate, as a guest has no way to get the authority that it would check it with.
func (s *Server) vsock(w http.ResponseWriter, r *http.Request, t *target) error {
	port, err := strconv.ParseUint(r.URL.Query().Get(agentapi.PortParameter), 10, 32)
	if err != nil {
		return apierrors.NewBadRequest("the parameter " + agentapi.PortParameter + " is no port of VSOCK, a number of 32 bits")
	}
	secure, err := boolParameter(r, agentapi.TLSParameter)
	if err != nil {
		return err
	}
	if t.vmi.Status.VSOCKCID == nil || *t.vmi.Status.VSOCKCID < vsock.FirstGuest {
		return apierrors.NewBadRequest("VM doesn't have VSOCK enabled")
	}
	if err := checkUpgrade(r); err != nil {
		return err
	}
	session, err := s.sessions.open(r.Context(), t.vmi.UID)
	if err != nil {
		return err
	}
	defer s.sessions.close(session)
	ctx, cancel := context.WithTimeout(session.ctx, dialTimeout)
	defer cancel()
	conn, err := s.dialVSOCK(ctx, *t.vmi.Status.VSOCKCID, uint32(port))
	if err != nil {
		return fmt.Errorf("%w: %w", errNoConnection, err)
	}
	if secure {
		if conn, err = overTLS(ctx, conn); err != nil {
			return fmt.Errorf("%w: %w", errNoConnection, err)
		}
	}
	bridge(w, r, session, backend{ReadWriteCloser: conn, what: "connection to VSOCK port " + strconv.FormatUint(port, 10)})
	return nil
}

func overTLS(ctx context.Context, conn net.Conn) (net.Conn, error) {
	secured := tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}) //nolint:gosec // see vsock
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secured, nil
}
