// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package agentapi is what virt-api and the node agents agree on: the paths that virt-handler serves on ConsolePort, who it
// serves them to, and what travels on them.
//
// Every path is below an instance: VMIPath gives it. Verbs that stream take a websocket of the protocol StreamProtocol, whose
// binary messages are pieces of a stream. The others answer with JSON (an image for Screenshot) or with nothing, and refuse
// with a Status of Kubernetes. The query parameter UIDParameter names the instance for which virt-api asked for the caller's
// rights: another one of the same name is refused with 409.
package agentapi

import (
	"net/url"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// ConsolePort is where virt-handler listens unless told otherwise. KubeVirt's port.
const ConsolePort = 8186

// MigrationPort is where virt-handler listens for the agents of other nodes unless told otherwise.
const MigrationPort = 8187

// ServiceName is the Service of virt-api, to which the API server sends what is for subresources.kubevirt.io. KubeVirt's name.
const ServiceName = "virt-api"

// StreamProtocol is the subprotocol of websockets that carry a plain stream of bytes, to virt-api and from there to the
// agent. KubeVirt's clients ask for it by this name.
const StreamProtocol = "plain.kubevirt.io"

// ReasonProtocol is StreamProtocol for a client of virt-api that reads close frames: the stream of one that asks for StreamProtocol
// breaks when another client takes it over, as KubeVirt's does.
const ReasonProtocol = "reason.vireo.io"

// UIDParameter is the query parameter with the instance's UID.
const UIDParameter = "uid"

// Verbs below an instance. They are called as in subresources.kubevirt.io.
const (
	// Console, VNC, USBRedir, VSOCK and PortForward stream. VNC knows PreserveSessionParameter, VSOCK PortParameter and
	// TLSParameter. PortForward is followed by a port and, if it is not tcp, a protocol.
	Console     = "console"
	VNC         = "vnc"
	USBRedir    = "usbredir"
	VSOCK       = "vsock"
	PortForward = "portforward"

	// Screenshot answers GET with a PNG image. It knows MoveCursorParameter.
	Screenshot = "vnc/screenshot"
	// GuestOSInfo, UserList and FilesystemList answer GET with the types of the same subresources in kubevirt.io/v1.
	GuestOSInfo    = "guestosinfo"
	UserList       = "userlist"
	FilesystemList = "filesystemlist"

	// These take PUT and answer with nothing. Freeze takes a FreezeUnfreezeTimeout of kubevirt.io/v1.
	Pause      = "pause"
	Unpause    = "unpause"
	SoftReboot = "softreboot"
	Reset      = "reset"
	Freeze     = "freeze"
	Unfreeze   = "unfreeze"
)

// Query parameters of single verbs, as in subresources.kubevirt.io.
const (
	// PreserveSessionParameter set to true makes VNC refuse while another client looks at the screen.
	PreserveSessionParameter = "preserveSession"
	// MoveCursorParameter set to true moves the pointer first, so that a blanked screen shows something.
	MoveCursorParameter = "moveCursor"
	// PortParameter and TLSParameter are VSOCK's.
	PortParameter = "port"
	TLSParameter  = "tls"
)

// CloseTakenOver is the code of a close frame that ends a console or a screen because another client has it now. RFC 6455
// leaves the codes from 4000 on to agreements such as this one. Other ends have its own codes: 1000 for an end of the guest's
// side, 1001 for an agent that stops, 1008 for a side that takes nothing, 1011 for a connection that broke. A reason in words
// goes with each. virt-api passes CloseTakenOver on to clients that ask for ReasonProtocol.
const CloseTakenOver = 4001

// VMIPath is the path of a verb of an instance. Arguments follow the verb.
func VMIPath(vmi types.NamespacedName, verb string, arguments ...string) string {
	object := path.Join("/v1/namespaces", url.PathEscape(vmi.Namespace), "virtualmachineinstances", url.PathEscape(vmi.Name))
	return path.Join(object, verb, path.Join(arguments...))
}

// ServerName is the name in the certificate of a node's agent. A certificate is made for one node: the agent of another cannot
// answer for it.
func ServerName(node string) string { return node + ".virt-handler" }

// migrationSuffix ends the names in the certificates with which agents know each other.
const migrationSuffix = ".virt-handler-migration"

// MigrationName is the name in the certificate of a node's agent towards other agents.
func MigrationName(node string) string { return node + migrationSuffix }

// MigrationNode is the node of such a name.
func MigrationNode(name string) (string, bool) {
	node, ok := strings.CutSuffix(name, migrationSuffix)
	return node, ok && node != ""
}

// ClientName is the common name in virt-api's certificate, the only one that agents serve.
const ClientName = "kubevirt.io:virt-api"
