// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/internal/wire/agentapi"
	"github.com/vireo-project/vireo/test/pki"
)

func TestVSOCK(t *testing.T) {
	vmi := instance()
	vmi.Status.VSOCKCID = ptr.To[uint32](4711)
	n := newNode(t, nil, vmi, launcherPod())
	guest := pki.New(t)
	n.server.DialVSOCK(func(_ context.Context, cid, port uint32) (net.Conn, error) {
		if cid != 4711 {
			return nil, errors.New("another guest")
		}
		ours, theirs := net.Pipe()
		switch port {
		case 22:
			go echo(theirs)
		case 443:
			go echo(tls.Server(theirs,
				&tls.Config{Certificates: []tls.Certificate{guest.Issue("guest", x509.ExtKeyUsageServerAuth)}}))
		default:
			return nil, errors.New("connection reset by peer")
		}
		return ours, nil
	})
	for _, parameters := range []string{"port=22", "port=22&tls=false", "port=443&tls=true"} {
		stream := n.stream(n.url(parameters, agentapi.VSOCK))
		send(t, stream, "hello")
		expectMessage(t, stream, "hello")
	}
	for parameters, c := range map[string]struct {
		code    int
		message string
	}{
		"":                   {http.StatusBadRequest, "no port of VSOCK"},
		"port=4294967296":    {http.StatusBadRequest, "no port of VSOCK"},
		"port=22&tls=please": {http.StatusBadRequest, "tls"},
		"port=23":            {http.StatusInternalServerError, "connection reset"},
	} {
		code, body := n.refused(n.url(parameters, agentapi.VSOCK))
		expectStatus(t, code, body, c.code, c.message)
	}
}

func TestVSOCKNeverConnectsToTheNode(t *testing.T) {
	for _, cid := range []*uint32{nil, ptr.To[uint32](0), ptr.To[uint32](1), ptr.To[uint32](2)} {
		vmi := instance()
		vmi.Status.VSOCKCID = cid
		n := newNode(t, nil, vmi, launcherPod())
		code, body := n.refused(n.url("port=22", agentapi.VSOCK))
		expectStatus(t, code, body, http.StatusBadRequest, "VM doesn't have VSOCK enabled")
	}
}
