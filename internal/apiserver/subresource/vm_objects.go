// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kjson "sigs.k8s.io/json"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/internal/decide/migration/eviction"
	"github.com/vireo-project/vireo/internal/optimistic"
	"github.com/vireo-project/vireo/internal/quantity"
)

// expandSpec returns a VM with its instance type and preference expanded.
func (a *API) expandSpec(w http.ResponseWriter, r *http.Request) error {
	vm, err := a.vm(r.Context(), key(r))
	if err != nil {
		return err
	}
	expanded, err := a.expand(r.Context(), vm)
	if err != nil {
		return apierrors.NewInternalError(err) // KubeVirt's code.
	}
	writeObject(w, expanded)
	return nil
}

// expandVMSpec does the same for the VM in the request's body, which need not exist.
func (a *API) expandVMSpec(w http.ResponseWriter, r *http.Request) error {
	vm, err := readVM(r.Body)
	if err != nil {
		return err
	}
	namespace := r.PathValue("namespace")
	if vm.Namespace != "" && vm.Namespace != namespace {
		return apierrors.NewBadRequest("VM namespace must be empty or " + namespace)
	}
	vm.Namespace = namespace
	expanded, err := a.expand(r.Context(), vm)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	writeObject(w, expanded)
	return nil
}

// expand returns a VM with the instance type and the preference that it uses: those of its ControllerRevisions, or else
// of the objects. Nothing is inferred from volumes. A VM without both is returned unchanged: other defaults are applied
// when its VMI is created.
func (a *API) expand(ctx context.Context, vm *v1.VirtualMachine) (*v1.VirtualMachine, error) {
	specs, err := reference.Finder{Objects: a.Client, Revisions: a.Client}.Find(ctx, vm)
	if err != nil {
		return nil, err
	}
	expanded, conflicts := reference.ExpandVM(vm, specs)
	if len(conflicts) > 0 {
		return nil, conflicts.ErrVM()
	}
	expanded.SetGroupVersionKind(v1.GroupVersion.WithKind("VirtualMachine"))
	return expanded, nil
}

// readVM decodes a VM as strictly as the API server does with fieldValidation=Strict.
func readVM(body io.Reader) (*v1.VirtualMachine, error) {
	raw, err := io.ReadAll(body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the body has more than %d bytes", tooLarge.Limit))
	case err != nil:
		return nil, apierrors.NewBadRequest(err.Error())
	case len(bytes.TrimSpace(raw)) == 0:
		return nil, apierrors.NewBadRequest("empty request body")
	case !json.Valid(raw):
		return nil, decode(&http.Request{Body: io.NopCloser(bytes.NewReader(raw))}, &struct{}{})
	}
	vm := &v1.VirtualMachine{}
	if err := quantity.Check(raw, vm); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	strict, err := kjson.UnmarshalStrict(raw, vm)
	if err != nil {
		strict = append(strict, err)
	}
	if err == nil && vm.Spec.Template == nil {
		strict = append(strict, errors.New("spec.template: required value"))
	}
	if len(strict) == 0 {
		return vm, nil
	}
	invalid := apierrors.NewBadRequest("Object is not a valid VirtualMachine")
	invalid.ErrStatus.Details = &metav1.StatusDetails{}
	for _, problem := range strict {
		invalid.ErrStatus.Details.Causes = append(invalid.ErrStatus.Details.Causes,
			metav1.StatusCause{Message: problem.Error()})
	}
	return nil, invalid
}

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

// memoryDump requests a dump of a running guest's memory to a claim: virt-controller checks and attaches the claim. The
// VM's spec is not changed.
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

// changeDump reads a VM and its VMI, and writes the request that decide returns to the VM's status. On a write conflict
// it starts over.
func (a *API) changeDump(
	w http.ResponseWriter, r *http.Request, decide func(vmWithVMI) (*v1.VirtualMachineMemoryDumpRequest, error),
) error {
	if !a.Config().HotplugVolumes {
		return apierrors.NewBadRequest(hotplugIsOff)
	}
	if err := retryConflicts(func() error { return a.writeDump(r.Context(), key(r), decide) }); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

func (a *API) writeDump(
	ctx context.Context, key types.NamespacedName, decide func(vmWithVMI) (*v1.VirtualMachineMemoryDumpRequest, error),
) error {
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

// migrationPrefix is the generateName of migrations that the verb migrate creates. KubeVirt's.
const migrationPrefix = "kubevirt-migrate-vm-"

// migrate creates a VirtualMachineInstanceMigration of a VM's VMI.
func (a *API) migrate(w http.ResponseWriter, r *http.Request) error {
	options := &v1.MigrateOptions{}
	if err := decode(r, options); err != nil {
		return err
	}
	dry, err := isDryRun(options.DryRun)
	if err != nil {
		return err
	}
	vm, err := a.vm(r.Context(), key(r))
	if err != nil {
		return err
	}
	vmi, err := a.requireVMI(r.Context(), key(r))
	if err != nil {
		return err
	}
	if err := (vmWithVMI{vm, vmi}).checkOwner(); err != nil {
		return err
	}
	if !vmi.IsRunning() {
		return vmWithVMI{vm: vm}.conflict(notRunning)
	}
	create := []client.CreateOption{}
	if dry {
		create = append(create, client.DryRunAll)
	}
	err = a.Client.Create(r.Context(), &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, GenerateName: migrationPrefix},
		Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: vm.Name, AddedNodeSelector: options.AddedNodeSelector},
	}, create...)
	// The namespace exists, so that NotFound means that the kind is not installed.
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return notImplemented("virtualmachines/migrate", "the kind VirtualMachineInstanceMigration is not installed")
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// cancelEvacuation clears status.evacuationNodeName of a VMI.
func (a *API) cancelEvacuation(find vmiFinder) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		vmi, err := find(r.Context(), key(r))
		if err != nil {
			return err
		}
		if err := a.checkDrainTaint(r.Context(), vmi); err != nil {
			return err
		}
		options := &v1.EvacuateCancelOptions{}
		if err := decode(r, options); err != nil {
			return err
		}
		dry, err := isDryRun(options.DryRun)
		if err != nil {
			return err
		}
		switch vmi.Status.EvacuationNodeName {
		case "": // no evacuation
			w.WriteHeader(http.StatusOK)
			return nil
		case options.EvacuationNodeName:
		default:
			return vmiConflict(vmi, fmt.Sprintf("evacuationNodeName: the VMI is to leave node %q and not %q",
				vmi.Status.EvacuationNodeName, options.EvacuationNodeName))
		}
		changed := vmi.DeepCopy()
		changed.Status.EvacuationNodeName = ""
		patch := []client.SubResourcePatchOption{}
		if dry {
			patch = append(patch, client.DryRunAll)
		}
		// The optimistic lock makes sure that an evacuation of another node, requested meanwhile, is not canceled.
		if err := a.Client.Status().Patch(r.Context(), changed, optimistic.MergeFrom(vmi), patch...); err != nil {
			return err
		}
		w.WriteHeader(http.StatusOK)
		return nil
	}
}

// checkDrainTaint returns an error if the VMI's node has the drain taint: VMIs of such a node are evacuated regardless
// of their status.
func (a *API) checkDrainTaint(ctx context.Context, vmi *v1.VirtualMachineInstance) error {
	name, key := cmp.Or(vmi.Status.EvacuationNodeName, vmi.Status.NodeName), a.Config().Migrations.NodeDrainTaintKey
	if name == "" || key == nil {
		return nil
	}
	node := &corev1.Node{}
	if err := a.Client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return client.IgnoreNotFound(err)
	}
	if eviction.HasTaint(node, *key) {
		taint := corev1.Taint{Key: *key, Effect: corev1.TaintEffectNoSchedule}
		// KubeVirt's message.
		return apierrors.NewBadRequest(fmt.Sprintf("Node %q has NodeDrainTaintKey %q", name, taint.String()))
	}
	return nil
}
