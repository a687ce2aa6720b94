// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/apiserver/agentclient"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// KubeVirt's messages (kubevirt/kubevirt pkg/virt-api/rest).
const (
	vmiNotRunning    = "VMI is not running"
	vmiNotPaused     = "VMI is not paused"
	vmiPaused        = "VMI is paused"
	noGuestAgent     = "VMI does not have guest agent connected"
	snapshotUnderway = "VM snapshot is in progress"
)

// requireVMI returns a VMI, or an error if it does not exist.
func (a *API) requireVMI(ctx context.Context, key types.NamespacedName) (*v1.VirtualMachineInstance, error) {
	vmi, err := a.vmi(ctx, key)
	if err == nil && vmi == nil {
		return nil, apierrors.NewNotFound(vmiResource, key.Name)
	}
	return vmi, err
}

// checkedVMI returns the VMI of a request, or an error if it does not exist or check returns one.
func (a *API) checkedVMI(
	r *http.Request, check func(*v1.VirtualMachineInstance) error,
) (*v1.VirtualMachineInstance, error) {
	vmi, err := a.requireVMI(r.Context(), key(r))
	if err != nil {
		return nil, err
	}
	return vmi, check(vmi)
}

// vmiOfVM returns the VMI of a VM.
func (a *API) vmiOfVM(ctx context.Context, key types.NamespacedName) (*v1.VirtualMachineInstance, error) {
	vm, err := a.vm(ctx, key)
	if err != nil {
		return nil, err
	}
	if !vm.Status.Created {
		return nil, apierrors.NewConflict(vmResource, vm.Name, errors.New("VMI is not started"))
	}
	vmi, err := a.requireVMI(ctx, key)
	if err != nil {
		return nil, err
	}
	return vmi, vmWithVMI{vm, vmi}.checkOwner()
}

// vmiConflict returns the error of a request that the VMI's state does not allow.
func vmiConflict(vmi *v1.VirtualMachineInstance, message string) error {
	return apierrors.NewConflict(vmiResource, vmi.Name, errors.New(message))
}

// condition returns a condition of a VMI, or nil.
func condition(
	vmi *v1.VirtualMachineInstance, kind v1.VirtualMachineInstanceConditionType,
) *v1.VirtualMachineInstanceCondition {
	return conditions.Find(vmi.Status.Conditions, kind)
}

// vmiRef returns the reference to a VMI by which its node's agent is found. A VMI has an agent from the phase Scheduled
// until it finishes.
func vmiRef(vmi *v1.VirtualMachineInstance) (agentclient.VMIRef, error) {
	if !vmi.IsRunning() && !vmi.IsScheduled() {
		return agentclient.VMIRef{}, apierrors.NewBadRequest("Unable to connect to VirtualMachineInstance because phase is " +
			string(vmi.Status.Phase) + " instead of " + string(v1.Running) + " or " + string(v1.Scheduled))
	}
	return agentclient.VMIRef{
		NamespacedName: types.NamespacedName{Namespace: vmi.Namespace, Name: vmi.Name}, UID: vmi.UID,
		Node: vmi.Status.NodeName,
	}, nil
}

// putToAgent sends a request to the agent of a VMI, unless it is a dry run.
func (a *API) putToAgent(
	w http.ResponseWriter, r *http.Request, vmi *v1.VirtualMachineInstance, request agentclient.Request, dry bool,
) error {
	var err error
	if request.VMIRef, err = vmiRef(vmi); err != nil {
		return err
	}
	if !dry {
		if err := a.Agents.Put(r.Context(), request); err != nil {
			return err
		}
	}
	// KubeVirt responds 202 to changes of a VM and 200 to changes of a VMI.
	w.WriteHeader(http.StatusOK)
	return nil
}

// guestInfo returns information from the guest agent. The response is decoded to T and encoded again, so that a node
// cannot send anything else to the client.
func guestInfo[T any](a *API, verb string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		vmi, err := a.checkedVMI(r, checkGuestAgent)
		if err != nil {
			return err
		}
		agent, err := vmiRef(vmi)
		if err != nil {
			return err
		}
		info := new(T)
		warn := func(text string) {
			if header, err := utilnet.NewWarningHeader(299, "-", text); err == nil {
				w.Header().Add(agentapi.WarningHeader, header)
			}
		}
		if err := a.Agents.Get(r.Context(), agentclient.Request{VMIRef: agent, Verb: verb, Warn: warn}, info); err != nil {
			return err
		}
		writeObject(w, info)
		return nil
	}
}

func checkGuestAgent(vmi *v1.VirtualMachineInstance) error {
	switch {
	case !vmi.IsRunning():
		return vmiConflict(vmi, vmiNotRunning)
	case condition(vmi, v1.VirtualMachineInstanceAgentConnected) == nil:
		return vmiConflict(vmi, noGuestAgent)
	}
	return nil
}

const (
	// maxScreenshot bounds a screenshot, in bytes. An incompressible one of 8192 by 4096 pixels fits.
	maxScreenshot = 128 << 20
	// screenshotTimeout bounds the transfer of a screenshot. It is shorter than the server's request timeout.
	screenshotTimeout = 25 * time.Second
)

// pngSignature begins every PNG image. ISO/IEC 15948, 5.2.
var pngSignature = []byte("\x89PNG\r\n\x1a\n")

// screenshot copies a PNG image of the screen from the agent.
func (a *API) screenshot(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), screenshotTimeout)
	defer cancel()
	vmi, err := a.requireVMI(ctx, key(r))
	if err != nil {
		return err
	}
	if err := checkVNC(vmi); err != nil {
		return err
	}
	agent, err := vmiRef(vmi)
	if err != nil {
		return err
	}
	query := url.Values{}
	if move, err := flag(r, agentapi.MoveCursorParameter, false); err != nil {
		return err
	} else if move {
		query.Set(agentapi.MoveCursorParameter, "true")
	}
	image, err := a.Agents.Open(ctx, agentclient.Request{VMIRef: agent, Verb: agentapi.Screenshot, Query: query})
	if err != nil {
		return err
	}
	defer func() { _ = image.Close() }()
	start := make([]byte, len(pngSignature))
	if _, err := io.ReadFull(image, start); err != nil || !bytes.Equal(start, pngSignature) {
		return apierrors.NewInternalError(errors.New("failed to retrieve the VNC screen: the node agent sent no PNG image"))
	}
	w.Header().Set("Content-Type", "image/png")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, err = io.Copy(w, io.MultiReader(bytes.NewReader(start), io.LimitReader(image, maxScreenshot)))
	if err != nil {
		panic(http.ErrAbortHandler) // too late for a Status: abort the connection, so that the client notices the truncation
	}
	return nil
}

// flag returns a boolean query parameter, or defaultValue if it is not set.
func flag(r *http.Request, name string, defaultValue bool) (bool, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return defaultValue, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, apierrors.NewBadRequest(fmt.Sprintf("%s: %q is neither true nor false", name, text))
	}
	return value, nil
}

func writeObject(w http.ResponseWriter, object any) {
	responsewriters.WriteRawJSON(http.StatusOK, object, w)
}

// guestfsName is the image's name in the references that clients construct.
const guestfsName = "libguestfs-tools"

// guestfs returns the image of libguestfs-tools.
func (a *API) guestfs(w http.ResponseWriter, _ *http.Request) error {
	if a.GuestfsImage == "" {
		return apierrors.NewInternalError(
			errors.New("the cluster has no libguestfs-tools image: specify one with virtctl's flag --image"))
	}
	writeObject(w, guestfsInfo(a.GuestfsImage))
	return nil
}

// guestfsInfo splits an image reference. A reference that clients could not reconstruct is returned in GsImage.
func guestfsInfo(image string) v1.GuestfsInfo {
	rest, digest, _ := strings.Cut(image, "@")
	registry, name := "", rest
	if slash := strings.LastIndexByte(rest, '/'); slash >= 0 {
		registry, name = rest[:slash], rest[slash+1:]
	}
	name, tag, _ := strings.Cut(name, ":")
	prefix, found := strings.CutSuffix(name, guestfsName)
	if !found || tag == "" && digest == "" {
		return v1.GuestfsInfo{GsImage: image}
	}
	return v1.GuestfsInfo{Registry: registry, Tag: tag, Digest: digest, ImagePrefix: prefix}
}
