// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package devices changes the devices of running guests as their VMIs change: hotplugged volumes, the sizes of disks,
// interfaces and their links, CPUs and memory. What is done next follows from the spec, the status, the Pods and the
// running domain. So a new agent continues where an earlier one has stopped.
package devices

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/jobs"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/domain"
)

// Devices are those of the guests of a node: what changing them depends on.
type Devices struct {
	// Client reads attachment Pods from a cache.
	Client client.Reader
	// Node is the node's name.
	Node string
	// Facts are the facts about the node.
	Facts facts.Node
	// Networks connects guests to their Pod's network.
	Networks Networks
	// Files returns access to the files of a Pod.
	Files func(pod types.UID) Files
	// Enqueue triggers a reconciliation of a VMI. It must not block.
	Enqueue func(types.NamespacedName)
}

// Networks connects interfaces to the Pod's network.
type Networks interface {
	// Ensure creates what is missing and returns the tap of each interface by the interface's name. While the guest is
	// expected by a migration (awaited), the Pod's ports for the transfer are not forwarded to it.
	Ensure(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod,
		awaited bool) (map[string]domain.InterfaceFact, error)
}

// Files reads the files and processes of a launcher Pod, and changes those that the Pod may not change itself.
type Files interface {
	facts.Files
	media.DeviceFiles
	// SetRealtime gives vCPUs of the Pod's guest a realtime priority, if they run on CPUs that only their container may
	// use.
	SetRealtime(ctx context.Context, vcpus []uint) error
	// AttachVolume gives the Pod the claim of an attachment Pod. block reports whether it is a block device.
	AttachVolume(ctx context.Context, volume string, attachment types.UID, block bool) error
	// AttachDevice waits until the container of an attachment Pod is started, and gives the Pod its block device.
	AttachDevice(ctx context.Context, volume string, attachment types.UID) error
	// AttachDirectory gives the Pod all files of the claim of an attachment Pod.
	AttachDirectory(ctx context.Context, volume string, attachment types.UID) error
	// DetachVolume removes either from the Pod, once what was written to a directory is on its disk. The attachment Pod
	// may be gone, and its UID unknown.
	DetachVolume(ctx context.Context, volume string, attachment types.UID, block bool) error
}

// State is what earlier reconciliations of a Pod know about its devices. The zero value knows nothing.
//
// Each part belongs to one subject: only the file that declares the part's type uses its fields, and others call its
// methods.
type State struct {
	realtime    realtimePriority
	sizes       diskSizes
	growths     growths
	pluggings   pluggings
	earlyMounts earlyMounts
	releases    releases
}

// Stop ends what waits for attachment Pods. The outcome no longer matters, because the Pod is gone.
func (s *State) Stop() { s.earlyMounts.stop() }

// Guest has the devices of a guest in one reconciliation.
type Guest struct {
	*phase.Scope
	devices *Devices
	jobs    *jobs.Guest
	state   *State
}

// Of returns the devices of the guest of a reconciliation. A volume that its jobs write to is not unmounted.
func (d *Devices) Of(s *phase.Scope, j *jobs.Guest, state *State) *Guest {
	return &Guest{Scope: s, devices: d, jobs: j, state: state}
}

// Connection is what changes of devices need of libvirtd.
type Connection interface {
	diskGrower
	interfaceUpdater
	interfacePlugger
	guestResizer
	diskPlugger
}
