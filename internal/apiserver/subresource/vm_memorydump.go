// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/optimistic"
)

// KubeVirt's messages.
const (
	claimRequired  = "Memory dump requires claim name to be set"
	dumpUnderway   = "memory dump request for pvc [%s] already in progress"
	dumpOnOther    = "can't request memory dump for pvc [%s] while pvc [%s] is still associated as the memory dump pvc"
	dumpIsMissing  = "can't remove memory dump association for vm %s, no association found"
	dumpRemoving   = "can't dump memory for pvc [%s] a remove memory dump request is in progress"
	dumpIsRemoved  = "memory dump remove request for pvc [%s] already exists"
	claimNameWrong = "the name of a claim for memory dumps has to be a DNS label of at most 63 characters, and %q is none"
)

// memoryDump requests a dump of a running guest's memory to a claim: virt-controller checks and attaches the claim. The VM's spec is not
// changed.
func (a *API) memoryDump(w http.ResponseWriter, r *http.Request) error {
	options := &v1.VirtualMachineMemoryDumpRequest{}
	if err := decode(r, options); err != nil {
		return err
	}
	return a.changeDump(w, r, func(m vmWithVMI) (*v1.VirtualMachineMemoryDumpRequest, error) {
		return decideDump(m, options.ClaimName)
	})
}

// removeMemoryDump ends the association of a VM with the claim for its memory dumps, whose files stay.
func (a *API) removeMemoryDump(w http.ResponseWriter, r *http.Request) error {
	return a.changeDump(w, r, decideRemoveDump)
}

func decideDump(m vmWithVMI, claim string) (*v1.VirtualMachineMemoryDumpRequest, error) {
	last := m.vm.Status.MemoryDumpRequest
	if claim == "" && last != nil {
		claim = last.ClaimName
	}
	switch {
	case claim == "":
		return nil, apierrors.NewBadRequest(claimRequired)
	case len(validation.IsDNS1123Label(claim)) > 0:
		// It is also the name of the volume in the VMI.
		return nil, apierrors.NewBadRequest(fmt.Sprintf(claimNameWrong, claim))
	case last != nil && last.ClaimName != claim:
		return nil, m.conflict(dumpOnOther, claim, last.ClaimName)
	case last != nil && last.Phase == v1.MemoryDumpDissociating:
		return nil, m.conflict(dumpRemoving, claim)
	case last != nil && last.Phase != v1.MemoryDumpCompleted && last.Phase != v1.MemoryDumpFailed:
		return nil, m.conflict(dumpUnderway, claim)
	case !m.isActive() || !m.vmi.IsRunning():
		return nil, m.conflict(notRunning)
	}
	return &v1.VirtualMachineMemoryDumpRequest{ClaimName: claim, Phase: v1.MemoryDumpAssociating}, m.checkOwner()
}

func decideRemoveDump(m vmWithVMI) (*v1.VirtualMachineMemoryDumpRequest, error) {
	last := m.vm.Status.MemoryDumpRequest
	switch {
	case last == nil:
		return nil, m.conflict(dumpIsMissing, m.vm.Name)
	case last.Remove:
		return nil, m.conflict(dumpIsRemoved, last.ClaimName)
	}
	request := last.DeepCopy()
	request.Phase, request.Remove = v1.MemoryDumpDissociating, true
	return request, nil
}

// changeDump reads a VM and its VMI, and writes the request that decide returns to the VM's status. On a write conflict it starts over.
func (a *API) changeDump(w http.ResponseWriter, r *http.Request, decide func(vmWithVMI) (*v1.VirtualMachineMemoryDumpRequest, error)) error {
	if !a.Config().HotplugVolumes {
		return apierrors.NewBadRequest(hotplugIsOff)
	}
	if err := retryConflicts(func() error { return a.writeDump(r.Context(), key(r), decide) }); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

func (a *API) writeDump(ctx context.Context, key types.NamespacedName, decide func(vmWithVMI) (*v1.VirtualMachineMemoryDumpRequest, error)) error {
	m, err := a.vmWithVMI(ctx, key)
	if err != nil {
		return err
	}
	request, err := decide(m)
	if err != nil {
		return &decisionError{err}
	}
	changed := m.vm.DeepCopy()
	changed.Status.MemoryDumpRequest = request
	return a.Client.Status().Patch(ctx, changed, optimistic.MergeFrom(m.vm))
}
