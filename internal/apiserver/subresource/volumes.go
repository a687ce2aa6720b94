// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/decide/hotplug"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Names of the verbs.
const (
	addVolume    = "addvolume"
	removeVolume = "removevolume"
)

// KubeVirt's messages.
const (
	hotplugIsOff    = "Enable DeclarativeHotplugVolumes or HotplugVolumes feature gate to use this API."
	nameExpected    = "Request with no body, a new name is expected as the request body"
	isOwned         = "VMI %s/%s is owned by a VM"
	isOfTemplate    = isOwned + ", whose template has the volume [%s]: remove it from the VM"
	volumeExists    = "Unable to add volume [%s] because volume with that name already exists"
	sourceExists    = "Unable to add volume source [%s] because it already exists"
	volumeIsMissing = "Unable to remove volume [%s] because it does not exist"
	volumeIsFixed   = "Unable to remove volume [%s] because it is not hotpluggable"
)

// diskExists is the message for a disk that is no drive for the volume.
const diskExists = "Unable to add volume [%s] because disk with that name already exists"

// volumeChange is a request to change the volumes of a VM's template or of a VMI.
type volumeChange struct {
	dry bool
	// add has the volume and its disk to add. The volume to remove otherwise.
	volume *v1.Volume
	disk   *v1.Disk
	remove string
}

// addOptions reads a request to add a volume.
func (a *API) addOptions(r *http.Request) (volumeChange, error) {
	options := &v1.AddVolumeOptions{}
	if err := a.volumeOptions(r, options); err != nil {
		return volumeChange{}, err
	}
	switch {
	case options.Name == "":
		return volumeChange{}, apierrors.NewBadRequest("AddVolumeOptions requires name to be set")
	case options.Disk == nil:
		return volumeChange{}, apierrors.NewBadRequest("AddVolumeOptions requires disk to not be nil")
	case options.VolumeSource == nil:
		return volumeChange{}, apierrors.NewBadRequest("AddVolumeOptions requires VolumeSource to not be nil")
	}
	volume := &v1.Volume{Name: options.Name}
	switch source := options.VolumeSource; {
	case source.DataVolume != nil && source.PersistentVolumeClaim == nil:
		volume.DataVolume = source.DataVolume
		volume.DataVolume.Hotpluggable = true
	case source.PersistentVolumeClaim != nil && source.DataVolume == nil:
		volume.PersistentVolumeClaim = source.PersistentVolumeClaim
		volume.PersistentVolumeClaim.Hotpluggable = true
	default:
		return volumeChange{}, apierrors.NewBadRequest("volumeSource: set either dataVolume or persistentVolumeClaim")
	}
	if volume.WrittenClaim() == "" {
		return volumeChange{}, apierrors.NewBadRequest("volumeSource: the name of the claim or DataVolume is missing")
	}
	options.Disk.Name = options.Name
	dry, err := isDryRun(options.DryRun)
	return volumeChange{dry: dry, volume: volume, disk: options.Disk}, err
}

// removeOptions reads a request to remove a volume.
func (a *API) removeOptions(r *http.Request) (volumeChange, error) {
	options := &v1.RemoveVolumeOptions{}
	if err := a.volumeOptions(r, options); err != nil {
		return volumeChange{}, err
	}
	if options.Name == "" {
		return volumeChange{}, apierrors.NewBadRequest("RemoveVolumeOptions requires name to be set")
	}
	dry, err := isDryRun(options.DryRun)
	return volumeChange{dry: dry, remove: options.Name}, err
}

// volumeOptions decodes the body of a request, which must not be empty, if volumes can be plugged at all.
func (a *API) volumeOptions(r *http.Request, into any) error {
	if !a.Config().HotplugVolumes {
		return apierrors.NewBadRequest(hotplugIsOff)
	}
	body, err := io.ReadAll(r.Body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the body has more than %d bytes", tooLarge.Limit))
	case err != nil:
		return apierrors.NewBadRequest(fmt.Sprintf("Can not read Request body, error: %s", err))
	case strings.TrimSpace(string(body)) == "":
		return apierrors.NewBadRequest(nameExpected)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("Can not unmarshal Request body to struct, error: %s", err))
	}
	return nil
}

func (a *API) addVolumeToVM(w http.ResponseWriter, r *http.Request) error {
	change, err := a.addOptions(r)
	if err != nil {
		return err
	}
	return changeVolumes(w, r, change, a.changeVM)
}

func (a *API) removeVolumeFromVM(w http.ResponseWriter, r *http.Request) error {
	change, err := a.removeOptions(r)
	if err != nil {
		return err
	}
	return changeVolumes(w, r, change, a.changeVM)
}

func (a *API) addVolumeToVMI(w http.ResponseWriter, r *http.Request) error {
	change, err := a.addOptions(r)
	if err != nil {
		return err
	}
	return changeVolumes(w, r, change, a.changeVMI)
}

func (a *API) removeVolumeFromVMI(w http.ResponseWriter, r *http.Request) error {
	change, err := a.removeOptions(r)
	if err != nil {
		return err
	}
	return changeVolumes(w, r, change, a.changeVMI)
}

// changeVolumes serves the four verbs. On a write conflict it starts over.
func changeVolumes(w http.ResponseWriter, r *http.Request, change volumeChange,
	apply func(context.Context, types.NamespacedName, volumeChange) error) error {
	if err := retryConflicts(func() error { return apply(r.Context(), key(r), change) }); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// changeVM changes the template of a VM. virt-controller plugs the volume into the running guest.
func (a *API) changeVM(ctx context.Context, key types.NamespacedName, change volumeChange) error {
	vm, err := a.vm(ctx, key)
	if err != nil {
		return err
	}
	if vm.Spec.Template == nil {
		return &decisionError{apierrors.NewBadRequest(fmt.Sprintf("VirtualMachine %s has no template", key))}
	}
	if change.volume != nil && vm.Status.Created {
		// A running guest can have fewer disks than one that starts.
		disk := change.disk.DeepCopy()
		hotplug.SetDefaults(disk)
		if problem := hotplug.Problem(disk); problem != "" && vmistatus.FindDisk(&vm.Spec.Template.Spec, disk.Name) == nil {
			return &decisionError{apierrors.NewBadRequest(problem)}
		}
	}
	operations, err := change.operations("/spec/template/spec", &vm.Spec.Template.Spec, vmResource, vm)
	if err != nil {
		return &decisionError{err}
	}
	return a.patchVolumes(ctx, vm, operations, change.dry)
}

// changeVMI changes the spec of a VMI. A VM would undo the change of its VMI, unless the deprecated feature gate allows
// volumes of the VMI only: then an annotation lists them.
func (a *API) changeVMI(ctx context.Context, key types.NamespacedName, change volumeChange) error {
	vmi, err := a.requireVMI(ctx, key)
	if err != nil {
		return err
	}
	switch {
	case vmistatus.VMOf(vmi) != nil && !a.Config().IsEnabled(clusterconfig.GateHotplug):
		return &decisionError{apierrors.NewBadRequest(fmt.Sprintf(isOwned, vmi.Namespace, vmi.Name))}
	case !vmi.IsRunning():
		return &decisionError{vmiConflict(vmi, vmiNotRunning)}
	}
	if change.volume != nil {
		change.disk = change.disk.DeepCopy()
		hotplug.SetDefaults(change.disk)
		if vmistatus.IsHotplugged(vmistatus.FindVolume(&vmi.Status, change.volume.Name)) {
			return &decisionError{vmiConflict(vmi, fmt.Sprintf(volumeExists, change.volume.Name))} // It is being unplugged.
		}
	}
	operations, err := change.operations("/spec", &vmi.Spec, vmiResource, vmi)
	if err != nil {
		return &decisionError{err}
	}
	if vmistatus.VMOf(vmi) != nil {
		listed, err := change.list(vmi)
		if err != nil {
			return &decisionError{err}
		}
		operations = append(operations, listed)
	}
	return a.patchVolumes(ctx, vmi, operations, change.dry)
}

// list returns the JSON patch of the annotation that lists the volumes of a VM's VMI which its template does not have.
func (c volumeChange) list(vmi *v1.VirtualMachineInstance) (jsonpatch.Operation, error) {
	names := hotplug.Ephemeral(vmi)
	if c.volume != nil {
		if !slices.Contains(names, c.volume.Name) {
			names = append(names, c.volume.Name)
		}
	} else {
		name := vmi.Spec.Volumes[findToRemove(&vmi.Spec, c.remove)].Name
		at := slices.Index(names, name)
		if at < 0 {
			return jsonpatch.Operation{}, apierrors.NewBadRequest(fmt.Sprintf(isOfTemplate, vmi.Namespace, vmi.Name, name))
		}
		names = slices.Delete(names, at, at+1)
	}
	after := vmi.DeepCopy()
	hotplug.SetEphemeral(after, names)
	return jsonpatch.NewOperation("add", "/metadata/annotations", after.Annotations), nil
}

// patchVolumes applies operations to the object that they were computed for.
func (a *API) patchVolumes(
	ctx context.Context, object client.Object, operations []jsonpatch.Operation, dry bool,
) error {
	// The same resource version makes the API server refuse the patch of a later version with a conflict.
	operations = append(operations, jsonpatch.NewOperation("replace", "/metadata/resourceVersion",
		object.GetResourceVersion()))
	raw, err := json.Marshal(operations)
	if err != nil {
		return err
	}
	options := []client.PatchOption{}
	if dry {
		options = append(options, client.DryRunAll)
	}
	return a.Client.Patch(ctx, object, client.RawPatch(types.JSONPatchType, raw), options...)
}

// operations returns the JSON patch of a spec at a path, which leaves everything else as the user wrote it.
func (c volumeChange) operations(
	path string, spec *v1.VirtualMachineInstanceSpec, resource schema.GroupResource, object metav1.Object,
) ([]jsonpatch.Operation, error) {
	refuse := func(format, name string) ([]jsonpatch.Operation, error) {
		return nil, apierrors.NewConflict(resource, object.GetName(), fmt.Errorf(format, name))
	}
	volumes, disks := path+"/volumes", path+"/domain/devices/disks"
	if c.volume == nil {
		at := findToRemove(spec, c.remove)
		switch {
		case at < 0:
			return refuse(volumeIsMissing, c.remove)
		case !spec.Volumes[at].IsHotpluggable():
			return refuse(volumeIsFixed, spec.Volumes[at].Name)
		}
		operations := []jsonpatch.Operation{jsonpatch.NewOperation("remove", fmt.Sprintf("%s/%d", volumes, at), nil)}
		disk := slices.IndexFunc(spec.Domain.Devices.Disks,
			func(d v1.Disk) bool { return d.Name == spec.Volumes[at].Name && d.CDRom == nil })
		if disk >= 0 {
			operations = append(operations, jsonpatch.NewOperation("remove", fmt.Sprintf("%s/%d", disks, disk), nil))
		}
		return operations, nil
	}
	has := vmistatus.FindDisk(spec, c.disk.Name)
	switch {
	case hotplug.FindVolume(spec, c.volume.Name) != nil:
		return refuse(volumeExists, c.volume.Name)
	case slices.ContainsFunc(spec.Volumes, func(v v1.Volume) bool { return v.WrittenClaim() == c.volume.WrittenClaim() }):
		return refuse(sourceExists, c.volume.WrittenClaim())
	case has != nil && (has.CDRom == nil || c.disk.CDRom == nil):
		return refuse(diskExists, c.disk.Name)
	}
	operations := []jsonpatch.Operation{appendTo(volumes, len(spec.Volumes), c.volume)}
	if has == nil {
		operations = append(operations, appendTo(disks, len(spec.Domain.Devices.Disks), c.disk))
	}
	return operations, nil
}

// appendTo returns the operation that appends to a list, which an object lacks if it is empty.
func appendTo(path string, length int, value any) jsonpatch.Operation {
	if length == 0 {
		return jsonpatch.NewOperation("add", path, []any{value})
	}
	return jsonpatch.NewOperation("add", path+"/-", value)
}

// findToRemove returns the index of the volume that a request names, or -1. As in KubeVirt, that may be the name of its
// claim or DataVolume instead; of two volumes of one claim, it is the hotpluggable one.
func findToRemove(spec *v1.VirtualMachineInstanceSpec, name string) int {
	for _, matches := range []func(v v1.Volume) bool{
		func(v v1.Volume) bool { return v.Name == name },
		func(v v1.Volume) bool { return v.IsHotpluggable() && v.WrittenClaim() == name },
		func(v v1.Volume) bool { return v.WrittenClaim() == name },
	} {
		if at := slices.IndexFunc(spec.Volumes, matches); at >= 0 {
			return at
		}
	}
	return -1
}
