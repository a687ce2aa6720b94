// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	agentvmi "github.com/vireo-project/vireo/internal/agent/vmi"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// Connections are the agent's connections to launchers.
type Connections interface {
	// Open returns the connection to a Pod. While it is being made, Open waits for it until the context ends. An error
	// wraps hypervisor.ErrConnecting or hypervisor.ErrUnreachable.
	Open(ctx context.Context, pod hypervisor.PodRef) (Connection, error)
}

// Connection is the connection to one launcher Pod's libvirtd.
type Connection interface {
	Terminals
	USBPorts
	Screens
	Power
	Guests
	Freezers
}

// Terminals opens consoles and screens. Errors that wrap hypervisor.ErrNoDomain or hypervisor.ErrNotRunning are about
// the guest's state.
type Terminals interface {
	// OpenConsole opens the guest's first serial port. An earlier stream of it ends.
	OpenConsole(ctx context.Context, domain string) (io.ReadWriteCloser, error)
	// OpenGraphics opens a new connection to the guest's VNC server. Other connections stay open.
	OpenGraphics(ctx context.Context, domain string) (net.Conn, error)
}

// USBPorts opens the guest's ports for USB devices of clients. An error wraps hypervisor.ErrNotRunning if the guest
// runs without them.
type USBPorts interface {
	// OpenUSB connects to a port. It must be free.
	OpenUSB(ctx context.Context, port int) (net.Conn, error)
}

// Power controls the guest's power state.
type Power interface {
	// Pause stops the guest's CPUs. It does nothing if the guest is paused.
	Pause(ctx context.Context, domain string) error
	// Unpause resumes the guest's CPUs.
	Unpause(ctx context.Context, domain string) error
	// Reset presses the reset button.
	Reset(ctx context.Context, domain string) error
	// Reboot requests a reboot from the guest.
	Reboot(ctx context.Context, domain string) error
}

// Screens takes screenshots.
type Screens interface {
	// Screenshot calls take with an image of the guest's screen and its MIME type.
	Screenshot(ctx context.Context, domain string, take func(mime string, image io.Reader) error) error
}

// Guests queries the guest agent. Its errors wrap hypervisor.ErrGuestSilent or hypervisor.ErrGuestRefused.
type Guests interface {
	// GuestAgent returns everything that the guest agent reports.
	GuestAgent(ctx context.Context, domain string) (*hypervisor.GuestAgent, error)
	// GuestUsers returns the users who are logged in.
	GuestUsers(ctx context.Context, domain string) (hypervisor.List[hypervisor.GuestUser], error)
	// GuestFilesystems returns the mounted file systems.
	GuestFilesystems(ctx context.Context, domain string) (hypervisor.List[hypervisor.GuestFilesystem], error)
	// Usage returns what the guest agent last reported about the use of the guest, or nil.
	Usage() *hypervisor.GuestUsage
}

// Freezers stops and resumes writes to a guest's file systems.
type Freezers interface {
	// Freeze freezes the file systems for at most limit. Zero means until Thaw.
	Freeze(ctx context.Context, domain string, limit time.Duration) error
	// Thaw thaws the file systems. It does nothing if the guest is not frozen.
	Thaw(ctx context.Context, domain string) error
}

// runningVMI is the VMI of a request, and what its launcher Pod is reached by.
type runningVMI struct {
	vmi  *v1.VirtualMachineInstance
	pod  *corev1.Pod
	conn Connection
	// domain is the domain's name.
	domain string
}

// verb serves one request. An error becomes a Status. A verb that has started its response must not return one.
type verb func(http.ResponseWriter, *http.Request, *runningVMI) error

// serve finds the VMI of a request and calls the verb.
func (s *Server) serve(do verb) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		v, err := s.find(r.Context(), types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")},
			types.UID(r.URL.Query().Get(agentapi.UIDParameter)))
		if err == nil {
			err = do(w, r, v)
		}
		if err != nil {
			writeError(w, r, err)
		}
	})
}

// find returns the VMI if it runs on the node, and the connection to its launcher.
func (s *Server) find(ctx context.Context, key types.NamespacedName, uid types.UID) (*runningVMI, error) {
	if uid == "" {
		return nil, apierrors.NewBadRequest("the parameter " + agentapi.UIDParameter +
			" is missing: set it to the UID of the VMI")
	}
	vmi := &v1.VirtualMachineInstance{}
	err := s.Client.Get(ctx, key, vmi)
	switch {
	case apierrors.IsNotFound(err):
		return nil, apierrors.NewNotFound(vmiResource, key.Name)
	case err != nil:
		return nil, fmt.Errorf("read the VirtualMachineInstance: %w", err)
	case vmi.UID != uid:
		return nil, conflict(key.Name, "it was deleted and created again in the meantime")
	case vmi.Status.NodeName != s.Node:
		return nil, conflict(key.Name, "it does not run on this node")
	}
	pod, err := s.pod(ctx, vmi)
	if err != nil {
		return nil, err
	}
	conn, err := s.connect(ctx, hypervisor.PodRef{UID: pod.UID, VMI: key})
	if err != nil {
		return nil, err
	}
	return &runningVMI{vmi: vmi, pod: pod, conn: conn, domain: launcherpod.DomainName(key.Namespace, key.Name)}, nil
}

// connect returns the connection to a Pod. After its start, the agent needs seconds to connect to the guests that run:
// a request waits for that, as it does for an agent that is being replaced.
func (s *Server) connect(ctx context.Context, pod hypervisor.PodRef) (Connection, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return s.Connections.Open(ctx, pod)
}

// pod returns the launcher Pod in which a VMI runs.
func (s *Server) pod(ctx context.Context, vmi *v1.VirtualMachineInstance) (*corev1.Pod, error) {
	pods := &corev1.PodList{}
	if err := s.Client.List(ctx, pods, client.InNamespace(vmi.Namespace),
		client.MatchingFields{agentvmi.PodIndex: vmi.Name}); err != nil {
		return nil, fmt.Errorf("list launcher Pods: %w", err)
	}
	own := pods.Items[:0]
	for _, pod := range pods.Items {
		if podspec.IsOf(&pod, vmi) {
			own = append(own, pod)
		}
	}
	if pod := agentvmi.LivePod(s.Node, vmi, own); pod != nil {
		return pod, nil
	}
	return nil, conflict(vmi.Name, "it is not running: its launcher Pod has ended")
}
