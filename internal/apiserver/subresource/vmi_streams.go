// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/coder/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/apiserver/agentclient"
	"github.com/vireo-project/vireo/internal/apiserver/stream"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// vmiFinder returns the VMI for the name in a path, which is the VMI's own or its VM's.
type vmiFinder func(context.Context, types.NamespacedName) (*v1.VirtualMachineInstance, error)

// streamVerbs returns the verbs that upgrade the connection to a stream.
func (a *API) streamVerbs() []Verb {
	streamVerb := func(resource, name, arguments, doc string, serve func(http.ResponseWriter, *http.Request) error) Verb {
		return Verb{Resource: resource, Name: name, Arguments: arguments, Method: http.MethodGet, Streams: true,
			Doc: doc, Serve: serve}
	}
	const (
		port         = "{port}"
		withProtocol = "{port}/{protocol}"
		toVMI        = "Open a connection to a port of a VirtualMachineInstance."
		toVM         = "Open a connection to a port of the VirtualMachineInstance of a VirtualMachine."
	)
	return []Verb{
		streamVerb(VirtualMachineInstances, agentapi.Console, "",
			"Open the serial console of a VirtualMachineInstance. A client that has it open is disconnected.", a.console),
		streamVerb(VirtualMachineInstances, agentapi.VNC, "",
			"Open a VNC connection to the screen of a VirtualMachineInstance.", a.vnc),
		streamVerb(VirtualMachineInstances, agentapi.USBRedir, "", "Redirect a USB device to a VirtualMachineInstance.",
			a.usbredir),
		streamVerb(VirtualMachineInstances, agentapi.VSOCK, "",
			"Open a connection to a VSOCK port of a VirtualMachineInstance.", a.vsock),
		streamVerb(VirtualMachineInstances, agentapi.PortForward, port, toVMI, a.portForward(a.requireVMI)),
		streamVerb(VirtualMachineInstances, agentapi.PortForward, withProtocol, toVMI, a.portForward(a.requireVMI)),
		streamVerb(VirtualMachines, agentapi.PortForward, port, toVM, a.portForward(a.vmiOfVM)),
		streamVerb(VirtualMachines, agentapi.PortForward, withProtocol, toVM, a.portForward(a.vmiOfVM)),
	}
}

// serveStream connects a client to the agent of the request's VMI if check returns no error for the VMI.
func (a *API) serveStream(
	w http.ResponseWriter, r *http.Request, s stream.Stream, check func(*v1.VirtualMachineInstance) error,
	request agentclient.Request,
) error {
	vmi, err := a.checkedVMI(r, check)
	if err != nil {
		return err
	}
	return a.bridge(w, r, s, vmi, request)
}

func (a *API) bridge(
	w http.ResponseWriter, r *http.Request, s stream.Stream, vmi *v1.VirtualMachineInstance, request agentclient.Request,
) error {
	var err error
	if request.VMIRef, err = vmiRef(vmi); err != nil {
		return err
	}
	s.Instance = request.NamespacedName
	s.Dial = func(ctx context.Context) (*websocket.Conn, error) { return a.Agents.Dial(ctx, request) }
	return a.streams.Serve(w, r, s)
}

func (a *API) console(w http.ResponseWriter, r *http.Request) error {
	return a.serveStream(w, r, stream.Stream{Kind: stream.Console}, checkConsole,
		agentclient.Request{Verb: agentapi.Console})
}

func checkConsole(vmi *v1.VirtualMachineInstance) error {
	switch wanted := vmi.Spec.Domain.Devices.AutoattachSerialConsole; {
	case wanted != nil && !*wanted:
		return apierrors.NewBadRequest("No serial consoles are present.")
	case vmi.Status.Phase == v1.Failed:
		return vmiConflict(vmi, "VMI is in failed status")
	case !vmi.IsRunning():
		return apierrors.NewBadRequest(vmiNotRunning) // clients that wait for a console retry on this code
	}
	return nil
}

func (a *API) vnc(w http.ResponseWriter, r *http.Request) error {
	preserve, err := flag(r, agentapi.PreserveSessionParameter, false)
	if err != nil {
		return err
	}
	query := url.Values{}
	if preserve {
		query.Set(agentapi.PreserveSessionParameter, "true")
	}
	return a.serveStream(w, r, stream.Stream{Kind: stream.VNC}, checkVNC,
		agentclient.Request{Verb: agentapi.VNC, Query: query})
}

func checkVNC(vmi *v1.VirtualMachineInstance) error {
	switch wanted := vmi.Spec.Domain.Devices.AutoattachGraphicsDevice; {
	case wanted != nil && !*wanted:
		return apierrors.NewBadRequest("No graphics devices are present.")
	case !vmi.IsRunning():
		return apierrors.NewBadRequest(vmiNotRunning)
	}
	return nil
}

func (a *API) usbredir(w http.ResponseWriter, r *http.Request) error {
	return a.serveStream(w, r, stream.Stream{Kind: stream.USBRedir}, checkUSBRedir,
		agentclient.Request{Verb: agentapi.USBRedir})
}

func checkUSBRedir(vmi *v1.VirtualMachineInstance) error {
	switch {
	case vmi.Spec.Domain.Devices.ClientPassthrough == nil:
		return vmiConflict(vmi, "Not configured with USB Redirection")
	case !vmi.IsRunning():
		return apierrors.NewBadRequest(vmiNotRunning)
	}
	return nil
}

func (a *API) vsock(w http.ResponseWriter, r *http.Request) error {
	encrypted, err := flag(r, agentapi.TLSParameter, true)
	if err != nil {
		return err
	}
	port, err := strconv.ParseUint(r.URL.Query().Get(agentapi.PortParameter), 10, 32)
	if err != nil || port == 0 {
		return apierrors.NewBadRequest("port: a number from 1 to 4294967295 is required")
	}
	query := url.Values{
		agentapi.PortParameter: {strconv.FormatUint(port, 10)}, agentapi.TLSParameter: {strconv.FormatBool(encrypted)},
	}
	return a.serveStream(w, r, stream.Stream{Kind: stream.VSOCK}, checkVSOCK,
		agentclient.Request{Verb: agentapi.VSOCK, Query: query})
}

func checkVSOCK(vmi *v1.VirtualMachineInstance) error {
	if wanted := vmi.Spec.Domain.Devices.AutoattachVSOCK; wanted == nil || !*wanted {
		return apierrors.NewBadRequest("VSOCK is not attached.")
	}
	return nil
}

// Protocols of the verb portforward.
const (
	protocolTCP = "tcp"
	protocolUDP = "udp"
)

// maxDatagram is the maximum UDP payload, rounded up. Each datagram is one websocket message, which must not be split.
const maxDatagram = 64 << 10

func (a *API) portForward(find vmiFinder) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		vmi, err := find(r.Context(), key(r))
		if err != nil {
			return err
		}
		if err := checkPortForward(vmi); err != nil {
			return err
		}
		port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
		if err != nil || port == 0 {
			return apierrors.NewBadRequest(fmt.Sprintf("port: %q is not a number from 1 to 65535", r.PathValue("port")))
		}
		request := agentclient.Request{Verb: agentapi.PortForward, Arguments: []string{strconv.FormatUint(port, 10)}}
		tunnel := stream.Stream{Kind: stream.PortForward}
		switch protocol := r.PathValue("protocol"); protocol {
		case "", protocolTCP:
		case protocolUDP:
			request.Arguments = append(request.Arguments, protocolUDP)
			tunnel.Buffer = maxDatagram
		default:
			return apierrors.NewBadRequest(fmt.Sprintf("protocol: %q is neither %s nor %s", protocol, protocolTCP, protocolUDP))
		}
		return a.bridge(w, r, tunnel, vmi, request)
	}
}

func checkPortForward(vmi *v1.VirtualMachineInstance) error {
	switch {
	case condition(vmi, v1.VirtualMachineInstancePaused) != nil:
		return vmiConflict(vmi, vmiPaused)
	case len(vmi.Status.Interfaces) == 0:
		// The agent connects to the Pod's address and not to one that the guest reports.
		return apierrors.NewBadRequest("no network interfaces are present")
	}
	return nil
}
