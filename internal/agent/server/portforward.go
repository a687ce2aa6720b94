// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/vireo-project/vireo/internal/agent/httpserver"
)

const (
	// maxDatagram is the payload of the largest UDP datagram over IPv4.
	maxDatagram = 65507
	// dialTimeout bounds how long a guest may take to accept a connection.
	dialTimeout = 30 * time.Second
)

// portForward connects to a port of the guest, at the address that the kubelet reported for its Pod. It never dials the
// addresses that the guest reports: they could be anything that the node can reach.
func (s *Server) portForward(w http.ResponseWriter, r *http.Request, v *runningVMI) error {
	network, address, err := forwardTarget(r.PathValue("port"), r.PathValue("protocol"), v.pod)
	if err != nil {
		return err
	}
	return s.stream(w, r, v, func(session *session) (backend, error) {
		ctx, cancel := context.WithTimeout(session.ctx, dialTimeout)
		defer cancel()
		dialer := net.Dialer{KeepAlive: httpserver.KeepAlive}
		conn, err := dialer.DialContext(ctx, network, address.String())
		if err != nil {
			return backend{}, fmt.Errorf("%w: %w", errNoConnection, err)
		}
		return backend{ReadWriteCloser: conn, what: "connection to port " + strconv.Itoa(int(address.Port())),
			datagrams: network == "udp"}, nil
	})
}

// errNoConnection means that the guest did not accept a connection.
var errNoConnection = errors.New("cannot connect to the guest")

// forwardTarget returns the network and the address of a guest's port.
func forwardTarget(port, protocol string, pod *corev1.Pod) (string, netip.AddrPort, error) {
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return "", netip.AddrPort{}, apierrors.NewBadRequest("the port is no number from 1 to 65535")
	}
	switch protocol {
	case "":
		protocol = "tcp"
	case "tcp", "udp":
	default:
		return "", netip.AddrPort{}, apierrors.NewBadRequest("the protocol is neither tcp nor udp")
	}
	address, err := netip.ParseAddr(pod.Status.PodIP)
	switch {
	case err != nil:
		return "", netip.AddrPort{}, apierrors.NewServiceUnavailable("the launcher Pod has no address yet, try again")
	case pod.Spec.HostNetwork, !address.IsGlobalUnicast():
		// Loopback, link-local and multicast addresses mean something else to the node than to the Pod.
		return "", netip.AddrPort{},
			apierrors.NewServiceUnavailable("the launcher Pod has an address that is not its own alone")
	}
	return protocol, netip.AddrPortFrom(address, uint16(number)), nil
}

// forwardDatagram writes one message as one datagram.
func forwardDatagram(to io.Writer, message io.Reader, buffer []byte) error {
	n, err := io.ReadFull(message, buffer)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
	case err != nil:
		return err
	default:
		// The message is larger than a datagram may be: the buffer has room for one byte more. It is dropped, as a network
		// would.
		return nil
	}
	_, err = to.Write(buffer[:n])
	return err
}
