// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package agentapi defines the API between virt-api and the node agents: paths, certificates, parameters and protocols.
//
// virt-handler serves it on ConsolePort. VMIPath returns the path of a VMI's verb. Verbs that stream use a websocket
// with the protocol StreamProtocol, whose binary messages are chunks of the stream. The others return JSON (an image
// for Screenshot) or nothing. Errors are a Kubernetes Status. The query parameter UIDParameter identifies the VMI for
// which virt-api has authorized the caller: the agent rejects requests for another one with the same name, with 409.
package agentapi

import (
	"net/url"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// ConsolePort is the default port on which virt-handler serves virt-api. Source: KubeVirt.
const ConsolePort = 8186

// MigrationPort is the default port on which virt-handler serves the agents of other nodes.
const MigrationPort = 8187

// ServiceName is virt-api's Service, to which the API server forwards requests for subresources.kubevirt.io. Source:
// KubeVirt.
const ServiceName = "virt-api"

// StreamProtocol is the subprotocol of websockets for a plain stream of bytes, to virt-api and from there to the agent.
// KubeVirt's clients request it.
const StreamProtocol = "plain.kubevirt.io"

// ReasonProtocol is StreamProtocol for a client of virt-api that reads close frames. With StreamProtocol, a stream is
// closed without a close frame when another client takes it over, as in KubeVirt.
const ReasonProtocol = "reason.vireo.io"

// UIDParameter is the query parameter with the VMI's UID.
const UIDParameter = "uid"

// Verbs of a VMI. The names are those of subresources.kubevirt.io.
const (
	// Console, VNC, USBRedir, VSOCK and PortForward stream. VNC accepts PreserveSessionParameter, VSOCK PortParameter and
	// TLSParameter. PortForward is followed by a port and, if it is not tcp, a protocol.
	Console     = "console"
	VNC         = "vnc"
	USBRedir    = "usbredir"
	VSOCK       = "vsock"
	PortForward = "portforward"

	// Screenshot returns a PNG image (GET). It accepts MoveCursorParameter.
	Screenshot = "vnc/screenshot"
	// GuestOSInfo, UserList and FilesystemList return the types of these subresources in kubevirt.io/v1 (GET).
	GuestOSInfo    = "guestosinfo"
	UserList       = "userlist"
	FilesystemList = "filesystemlist"

	// These return nothing (PUT). The body for Freeze is a FreezeUnfreezeTimeout of kubevirt.io/v1.
	Pause      = "pause"
	Unpause    = "unpause"
	SoftReboot = "softreboot"
	Reset      = "reset"
	Freeze     = "freeze"
	Unfreeze   = "unfreeze"
)

// Query parameters of single verbs, as in subresources.kubevirt.io.
const (
	// PreserveSessionParameter set to true makes VNC fail while another client uses the screen.
	PreserveSessionParameter = "preserveSession"
	// MoveCursorParameter set to true moves the pointer first, so that the guest unblanks its screen.
	MoveCursorParameter = "moveCursor"
	// PortParameter and TLSParameter are VSOCK's.
	PortParameter = "port"
	TLSParameter  = "tls"
)

// WarningHeader is the header of a response with a warning for the user, as defined by RFC 7234.
const WarningHeader = "Warning"

// CloseTakenOver is the code of the close frame of a console or a screen that another client has taken over, from RFC
// 6455's range for private use. Other close frames have the codes of RFC 6455: 1000 if the guest's side was closed,
// 1001 if the agent stops, 1008 if a side does not read, 1011 if a connection failed. Each has a reason text. virt-api
// forwards CloseTakenOver to clients that request ReasonProtocol.
const CloseTakenOver = 4001

// VMIPath returns the path of a VMI's verb. Arguments follow the verb.
func VMIPath(vmi types.NamespacedName, verb string, arguments ...string) string {
	object := path.Join("/v1/namespaces", url.PathEscape(vmi.Namespace), "virtualmachineinstances",
		url.PathEscape(vmi.Name))
	return path.Join(object, verb, path.Join(arguments...))
}

// ServerName returns the name in the certificate of a node's agent. A certificate is issued for one node: the agent of
// another node cannot impersonate it.
func ServerName(node string) string { return node + ".virt-handler" }

// migrationSuffix is the suffix of the names in the certificates with which agents authenticate to each other.
const migrationSuffix = ".virt-handler-migration"

// MigrationName returns the name in the certificate with which a node's agent authenticates to other agents.
func MigrationName(node string) string { return node + migrationSuffix }

// MigrationNode returns the node of such a name.
func MigrationNode(name string) (string, bool) {
	node, ok := strings.CutSuffix(name, migrationSuffix)
	return node, ok && node != ""
}

// BackupName returns the name in the certificate with which a node's agent authenticates to the exporters that read the
// disks of its guests.
func BackupName(node string) string { return node + ".virt-handler-backup" }

// ClientName is the common name in virt-api's certificate. Agents serve no other client on ConsolePort.
const ClientName = "kubevirt.io:virt-api"
