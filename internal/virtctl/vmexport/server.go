// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmexport

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/exporter/content"
)

// connectTimeout bounds connecting to a server, and the start of a response.
const connectTimeout = 30 * time.Second

// server is a server from which an export can be downloaded.
type server struct {
	links *exportv1.VirtualMachineExportLink
	token string
	http  *http.Client
	stop  chan struct{}
}

func (s *server) close() {
	s.http.CloseIdleConnections()
	if s.stop != nil {
		close(s.stop)
	}
}

// server returns the server of the export: at its external address, or at its Service through a forwarded port or
// another address. In the latter cases, too, the certificate is verified for the Service's name.
func (e *export) server(ctx context.Context, vmExport *exportv1.VirtualMachineExport) (*server, error) {
	s := &server{links: vmExport.Status.Links.External}
	var err error
	if s.token, err = e.token(ctx, vmExport); err != nil {
		return nil, err
	}
	replacement := e.serviceURL
	if e.portForward {
		port, stop, err := e.forward(ctx, vmExport)
		if err != nil {
			return nil, err
		}
		s.stop = stop
		if replacement == "" {
			replacement = net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
		}
	}
	if replacement != "" {
		s.links = vmExport.Status.Links.Internal
	}
	if s.links == nil {
		return nil, fmt.Errorf(
			"VirtualMachineExport '%s' has no external links: the cluster has no Ingress or Route to virt-exportproxy; use --port-forward", e.key)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: e.insecure} //nolint:gosec // only if the user requests it
	if roots := x509.NewCertPool(); roots.AppendCertsFromPEM([]byte(s.links.Cert)) {
		config.RootCAs = roots // otherwise the system's
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, DisableCompression: true,
		TLSHandshakeTimeout: connectTimeout, ResponseHeaderTimeout: connectTimeout,
	}
	if replacement != "" {
		if _, _, err := net.SplitHostPort(replacement); err != nil {
			replacement = net.JoinHostPort(replacement, "443")
		}
		transport.Proxy = nil
		transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, network, replacement)
		}
	}
	s.http = &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return s, nil
}

// connectionError returns an error about a request to a server. It does not wrap the url.Error, so that it is not
// mistaken for an error of the API server.
func connectionError(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		return fmt.Errorf("the certificate of the server is not trusted; use --insecure to skip its verification: %w", err)
	}
	return fmt.Errorf("the server of the export: %w", err)
}

// forward forwards a local port to the Pod of the export.
func (e *export) forward(
	ctx context.Context, vmExport *exportv1.VirtualMachineExport,
) (port uint16, stop chan struct{}, err error) {
	config, err := e.cli.Config()
	if err != nil {
		return 0, nil, err
	}
	address, err := podAddress(config, vmExport)
	if err != nil {
		return 0, nil, err
	}
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return 0, nil, err
	}
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, address)
	stop, ready, failed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	ports := []string{fmt.Sprintf("%d:%d", e.localPort, content.Port)}
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, ports, stop, ready, io.Discard, io.Discard)
	if err != nil {
		return 0, nil, err
	}
	go func() { failed <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-failed:
		return 0, nil, fmt.Errorf("forward a port to the export's Pod: %w", err)
	case <-time.After(connectTimeout):
		close(stop)
		return 0, nil, errors.New("timeout waiting for port forwarding to be ready")
	case <-ctx.Done():
		close(stop)
		return 0, nil, ctx.Err()
	}
	forwarded, err := forwarder.GetPorts()
	if err != nil {
		close(stop)
		return 0, nil, err
	}
	e.printf("Port forwarding is ready.")
	return forwarded[0].Local, stop, nil
}

// podAddress returns the address of the API server for a forwarded port of the export's Pod, which has the name of its
// Service.
func podAddress(config *rest.Config, vmExport *exportv1.VirtualMachineExport) (*url.URL, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	return base.JoinPath("api", "v1", "namespaces", vmExport.Namespace, "pods", cmp.Or(vmExport.Status.ServiceName,
		content.ServiceName(vmExport.Name)), "portforward"), nil
}
