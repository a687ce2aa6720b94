// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"context"
	"net"
	"path"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agentapi"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/migrationtls"
)

// Migration is one attempt to move a guest, and where its target's agent is.
type Migration struct {
	// VMI is the guest.
	VMI types.NamespacedName
	// UID is that of the attempt.
	UID types.UID
	// TargetNode is where the guest goes, and Agent the address of that node's agent.
	TargetNode, Agent string
}

// Of is the migration of a VMI, whose status has one.
func Of(vmi *v1.VirtualMachineInstance) Migration {
	m := vmi.Status.MigrationState
	return Migration{
		VMI: types.NamespacedName{Namespace: vmi.Namespace, Name: vmi.Name},
		UID: m.MigrationUID, TargetNode: m.TargetNode, Agent: m.TargetNodeAddress,
	}
}

// Requests that an agent takes from the agent of the node that a guest leaves.
const (
	// destinationRequest is answered with a Destination.
	destinationRequest = "destination"
	// tunnelRequest becomes a connection to the target's libvirtd.
	tunnelRequest = "libvirt"
	// imagesRequest is answered with Images.
	imagesRequest = "images"
	// stateRequest brings the state of the machine that lasts.
	stateRequest = "state"
	// releaseRequest lets the target's guest run.
	releaseRequest = "release"

	// tunnelProtocol is what a connection is upgraded to: libvirt's own protocol.
	tunnelProtocol = "vireo-libvirt"
)

func (m Migration) path(request string) string {
	return agentapi.VMIPath(m.VMI, "migrations", string(m.UID), request)
}

// Destination is what the source must know to send a guest.
type Destination struct {
	// Address is where the target's QEMU listens, on hypervisor.MigrationMemoryPort and MigrationDisksPort.
	Address string `json:"address"`
	// Domain is the XML of the domain as the target's agent would start it.
	Domain string `json:"domain"`
	// TLSName is the name in the certificate of the target's QEMU, and TLS what the source's shows. Without them nothing is
	// encrypted.
	TLSName string              `json:"tlsName,omitempty"`
	TLS     *migrationtls.Files `json:"tls,omitempty"`
	// PostCopy says that QEMU can take in a post-copy on the target's node. An agent that does not know the field has not looked.
	PostCopy bool `json:"postCopy,omitempty"`
	// Images says that the target's agent answers imagesRequest. One that does not know the field does not.
	Images bool `json:"images,omitempty"`
	// Digests are those that the spec of the target's Pod names images by, by the directories where they are mounted. An agent that does
	// not know the field names none.
	Digests map[string]string `json:"digests,omitempty"`
}

// Release is the answer of the target's agent when its guest runs.
type Release struct {
	// RunsForMs is for how many milliseconds it does already: longer than this took after a post-copy. It is 0 if that is not known.
	RunsForMs uint64 `json:"runsForMs,omitempty"`
}

// IsPlain says that a guest is to be sent unencrypted.
func IsPlain(options *v1.VMIMConfigurationOptions) bool {
	return options != nil && isTrue(options.DisableTLS)
}

// Peers reaches the agents of other nodes.
type Peers interface {
	// Destination asks the target's agent where and how to send the guest.
	Destination(ctx context.Context, m Migration) (*Destination, error)
	// Tunnel connects to the libvirtd of the target's Pod.
	Tunnel(ctx context.Context, m Migration) (net.Conn, error)
	// Images asks it what the images in the target's Pod hold, and returns when they have been read.
	Images(ctx context.Context, m Migration) (*Images, error)
	// KeepState gives it the EFI variables that last, and returns when all of the machine's state is on the target's claim.
	KeepState(ctx context.Context, m Migration, nvram []byte) error
	// Release tells the target's agent that the source's guest will never run again, and returns for how long the target's has run.
	Release(ctx context.Context, m Migration) (time.Duration, error)
}

// Machine is the hypervisor of a launcher, of which a guest is copied.
type Machine interface {
	// LiveXML is the running domain as it can be given to another libvirtd.
	LiveXML(ctx context.Context, domain string) (*libvirtxml.Domain, error)
	// Source says how far a guest is from leaving.
	Source(ctx context.Context, domain string) (hypervisor.SourceState, error)
	// Copy copies it. The end of the context ends the connections that it needs.
	Copy(ctx context.Context, request hypervisor.CopyRequest) error
	// CopyProgress is how far that is, or nil.
	CopyProgress(ctx context.Context, domain string) (*hypervisor.CopyProgress, error)
	// CancelCopy ends it.
	CancelCopy(ctx context.Context, domain string) error
	// StartPostCopy lets the target's guest run with what it has.
	StartPostCopy(ctx context.Context, domain string) error
	// SetMaxDowntime says how long the guest may stand still at the end.
	SetMaxDowntime(ctx context.Context, domain string, limit time.Duration) error
	// ReadNVRAM reads the file with the EFI variables that last.
	ReadNVRAM(ctx context.Context, file string) ([]byte, error)
	// PutMigrationTLS gives QEMU what it needs to show who it is, and RemoveMigrationTLS takes that away.
	PutMigrationTLS(ctx context.Context, files migrationtls.Files) error
	RemoveMigrationTLS(ctx context.Context) error
}

// callTimeout bounds a question to libvirtd while a guest is copied, and requests to other agents that do not stream.
const callTimeout = 15 * time.Second

// below is a path of a verb with wildcards, as the server's routes need it.
func below(request string) string {
	return path.Join("/v1/namespaces/{namespace}/virtualmachineinstances/{name}/migrations/{uid}", request)
}
