// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package peer contains the requests that the agents of a migration's two nodes exchange. The source's agent is the
// client: it requests from the target's agent where to send the guest, reaches the target's libvirtd through it, and
// finally releases the guest. The target's agent is the server, which authorizes each request by the VMI's status.
package peer

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migrate/qemutls"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// Attempt identifies one attempt to migrate a guest, and the agent of its target.
type Attempt struct {
	// VMI is the guest's.
	VMI types.NamespacedName
	// UID is that of the VirtualMachineInstanceMigration.
	UID types.UID
	// TargetNode is the target's node, and Agent the address of its agent.
	TargetNode, Agent string
}

// AttemptOf returns the attempt in a VMI's status.migrationState, which must be set.
func AttemptOf(vmi *v1.VirtualMachineInstance) Attempt {
	m := vmi.Status.MigrationState
	return Attempt{
		VMI: types.NamespacedName{Namespace: vmi.Namespace, Name: vmi.Name},
		UID: m.MigrationUID, TargetNode: m.TargetNode, Agent: m.TargetNodeAddress,
	}
}

// Requests that a target's agent serves to the source's agent.
const (
	// destinationRequest returns a Destination.
	destinationRequest = "destination"
	// tunnelRequest becomes a connection to the target's libvirtd.
	tunnelRequest = "libvirt"
	// imagesRequest returns Images.
	imagesRequest = "images"
	// stateRequest sends the guest's persistent state.
	stateRequest = "state"
	// bitmapsRequest sends the bitmaps of the guest's tracked disks.
	bitmapsRequest = "bitmaps"
	// releaseRequest lets the target's guest run, and returns a Release.
	releaseRequest = "release"

	// tunnelProtocol is the name of the protocol that a tunnel's connection is upgraded to: libvirt's own.
	tunnelProtocol = "vireo-libvirt"
)

func (a Attempt) path(request string) string {
	return agentapi.VMIPath(a.VMI, "migrations", string(a.UID), request)
}

// pattern is the path of a request with wildcards, for the server's routes.
func pattern(request string) string {
	return path.Join("/v1/namespaces/{namespace}/virtualmachineinstances/{name}/migrations/{uid}", request)
}

// Destination is what the source needs to send a guest.
type Destination struct {
	// Address is where the target's QEMU listens, on hypervisor.MigrationMemoryPort and MigrationDisksPort.
	Address string `json:"address"`
	// Domain is the XML of the domain as the target's agent would start it.
	Domain string `json:"domain"`
	// TLSName is the name in the certificate of the target's QEMU, and TLS the certificate for the source's. Without them
	// the transfer is not encrypted.
	TLSName string         `json:"tlsName,omitempty"`
	TLS     *qemutls.Files `json:"tls,omitempty"`
	// PostCopy reports whether the target's QEMU supports post-copy. An agent that does not know the field has not checked
	// that.
	PostCopy bool `json:"postCopy,omitempty"`
	// Images reports whether the target's agent serves imagesRequest. An agent that does not know the field does not.
	Images bool `json:"images,omitempty"`
	// Bitmaps reports whether the target's agent serves bitmapsRequest. An agent that does not know the field does not.
	Bitmaps bool `json:"bitmaps,omitempty"`
	// Digests are the digests by which the spec of the target's Pod names images, by the directories where they are
	// mounted. An agent that does not know the field sends none.
	Digests map[string]string `json:"digests,omitempty"`
}

// Checksum identifies the content of one file of a container image that a guest uses.
type Checksum struct {
	// Size is the file's size in bytes, and CRC32 the CRC-32 (IEEE) of its content.
	Size  int64  `json:"size"`
	CRC32 uint32 `json:"crc32"`
}

// Images identifies the content of the images in the target's Pod.
type Images struct {
	// Checksums has the disk of each containerDisk by the name of its volume, and the kernel and the initrd of a
	// kernelBoot image by KernelFile and InitrdFile.
	Checksums map[string]Checksum `json:"sums"`
}

// Release is the response of the target's agent when its guest runs.
type Release struct {
	// RunsForMs is for how many milliseconds the guest has run. After a post-copy that is longer than the request took. It
	// is 0 if that is unknown.
	RunsForMs uint64 `json:"runsForMs,omitempty"`
}

// callTimeout bounds requests that do not stream.
const callTimeout = 15 * time.Second

// KeepState sends the guest's EFI variables, or none if they are not persistent. Without an error, all of the guest's
// persistent state is on the target's claim.
func (c *Client) KeepState(ctx context.Context, a Attempt, nvram []byte) error {
	_, err := c.send(ctx, http.MethodPut, a, stateRequest, nvram)
	return err
}

// keepState stores the persistent state of a guest that is transferred but not complete yet.
func (s *Server) keepState(w http.ResponseWriter, r *http.Request, req request) error {
	nvram, err := io.ReadAll(http.MaxBytesReader(w, r.Body, hypervisor.MaxNVRAM))
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("read the EFI variables: %v", err))
	}
	files, err := stateFiles(req.target.Domain)
	if err != nil {
		return err
	}
	if (files.NVRAM != "") != (len(nvram) > 0) {
		return apierrors.NewBadRequest("the domain and the request differ in whether the EFI variables are persistent")
	}
	launcher, err := s.Open(req.target.Pod)
	if err != nil {
		return err
	}
	if err := launcher.KeepState(r.Context(), files, nvram); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// stateFiles returns the paths of a domain's persistent state.
func stateFiles(text string) (hypervisor.StateFiles, error) {
	var files hypervisor.StateFiles
	d := &libvirtxml.Domain{}
	if err := d.Unmarshal(text); err != nil {
		return files, fmt.Errorf("read the domain that was prepared: %w", err)
	}
	if d.OS != nil && d.OS.NVRam != nil && isPersistent(d.OS.NVRam.NVRam) {
		files.NVRAM = d.OS.NVRam.NVRam
	}
	if d.Devices == nil {
		return files, nil
	}
	for i := range d.Devices.TPMs {
		backend := d.Devices.TPMs[i].Backend
		if backend == nil || backend.Emulator == nil || backend.Emulator.Source == nil || backend.Emulator.Source.Dir == nil {
			continue
		}
		if dir := backend.Emulator.Source.Dir.Path; isPersistent(dir) {
			files.TPM = dir
		}
	}
	return files, nil
}

func isPersistent(path string) bool { return strings.HasPrefix(path, launcherpod.StateDir+"/") }
