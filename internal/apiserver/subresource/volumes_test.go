// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/decide/hotplug"
	"github.com/vireo-project/vireo/test/builder"
)

const (
	addData    = `{"name":"data","disk":{"disk":{"bus":"scsi"},"serial":"data","name":"other"},"volumeSource":{"dataVolume":{"name":"dv"}}}`
	removeData = `{"name":"data"}`
)

// volumesOf describes the volumes and disks of a spec.
func volumesOf(spec *v1.VirtualMachineInstanceSpec) string {
	var out []string
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		text := strings.TrimSuffix(v.Name+"="+v.WrittenClaim(), "=")
		if v.IsHotpluggable() {
			text += "(hotpluggable)"
		}
		out = append(out, text)
	}
	for i := range spec.Domain.Devices.Disks {
		disk, _ := json.Marshal(spec.Domain.Devices.Disks[i])
		out = append(out, string(disk))
	}
	return strings.Join(out, " ")
}

func newHotplugWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	w := newWorld(t, objects...)
	w.config.HotplugVolumes = true
	return w
}

// pluggable is a template with a disk that is not hotpluggable, one that is, and an empty CD-ROM drive.
func pluggable(b *builder.VMI) *builder.VMI {
	return b.PVC("root", "root-claim").Hotpluggable("old", "old-claim").With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks,
			v1.Disk{Name: "tray", DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{}}})
	})
}

func TestVolumesOfAVM(t *testing.T) {
	vm := builder.MakeVM("vm").Namespace("ns").Template(pluggable(builder.MakeVMI("vm"))).Obj()
	w := newHotplugWorld(t, vm, builder.MakeVM("empty").Namespace("ns").Template(builder.MakeVMI("empty")).Obj())
	of := func(name string) string {
		vm := &v1.VirtualMachine{}
		if err := w.client.Get(context.Background(), client.ObjectKey{Namespace: "ns", Name: name}, vm); err != nil {
			t.Fatal(err)
		}
		return volumesOf(&vm.Spec.Template.Spec)
	}
	expect := func(name, want string) {
		t.Helper()
		if got := of(name); got != want {
			t.Errorf("%s has %s, want %s", name, got, want)
		}
	}
	before := of("vm")
	w.expect(http.MethodPut, vmPath+"none/addvolume", addData, 404, "not found")
	w.expect(http.MethodPut, vmPath+"vm/addvolume", strings.Replace(addData, `"name":"data",`, `"name":"root",`, 1), 409,
		"Unable to add volume [root] because volume with that name already exists")
	w.expect(http.MethodPut, vmPath+"vm/addvolume", strings.Replace(addData, `"name":"dv"`, `"name":"old-claim"`, 1), 409,
		"Unable to add volume source [old-claim] because it already exists")
	w.expect(http.MethodPut, vmPath+"vm/addvolume", strings.Replace(addData, `"name":"data",`, `"name":"tray",`, 1), 409,
		"Unable to add volume [tray] because disk with that name already exists")
	w.expect(http.MethodPut, vmPath+"vm/removevolume", `{"name":"none"}`, 409, "Unable to remove volume [none] because it does not exist")
	w.expect(http.MethodPut, vmPath+"vm/removevolume", `{"name":"root"}`, 409, "Unable to remove volume [root] because it is not hotpluggable")
	w.expect(http.MethodPut, vmPath+"vm/removevolume", `{"name":"root-claim"}`, 409, "Unable to remove volume [root] because it is not hotpluggable")
	w.expect(http.MethodPut, vmPath+"vm/addvolume", addData[:len(addData)-1]+`,"dryRun":["All"]}`, 202, "")
	w.expect(http.MethodPut, vmPath+"vm/addvolume", addData[:len(addData)-1]+`,"dryRun":["Some"]}`, 400, `"Some" is not supported`)
	expect("vm", before)

	w.expect(http.MethodPut, vmPath+"vm/addvolume", addData, 202, "")
	disk := `{"name":"data","disk":{"bus":"scsi"},"serial":"data"}`
	expect("vm", strings.Replace(before, "old=old-claim(hotpluggable)",
		"old=old-claim(hotpluggable) data=dv(hotpluggable)", 1)+" "+disk)
	w.expect(http.MethodPut, vmPath+"vm/addvolume", `{"name":"tray","disk":{"cdrom":{}},"volumeSource":{"persistentVolumeClaim":{"claimName":"iso"}}}`, 202, "")
	w.expect(http.MethodPut, vmPath+"vm/removevolume", `{"name":"tray"}`, 202, "")
	w.expect(http.MethodPut, vmPath+"vm/removevolume", `{"name":"dv"}`, 202, "")
	expect("vm", before)
	w.expect(http.MethodPut, vmPath+"empty/addvolume", addData, 202, "")
	expect("empty", "data=dv(hotpluggable) "+disk)
	w.expect(http.MethodPut, vmPath+"empty/removevolume", removeData, 202, "")
	expect("empty", "")
}

func TestVolumesOfAVMI(t *testing.T) {
	vm := builder.MakeVM("owned").Namespace("ns").UID("1").Obj()
	w := newHotplugWorld(t, vm, running("owned").OwnedBy(vm).Obj(), pluggable(running("vmi")).Obj(),
		builder.MakeVMI("starts").Namespace("ns").Phase(v1.Scheduled).Obj(),
		running("slow").With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "data", Phase: v1.HotplugVolumeDetaching,
				HotplugVolume: &v1.HotplugVolumeStatus{}}}
		}).Obj())
	w.expect(http.MethodPut, vmiPath+"none/addvolume", addData, 404, "not found")
	w.expect(http.MethodPut, vmiPath+"owned/addvolume", addData, 400, "VMI ns/owned is owned by a VM")
	w.expect(http.MethodPut, vmiPath+"owned/removevolume", removeData, 400, "VMI ns/owned is owned by a VM")
	w.expect(http.MethodPut, vmiPath+"starts/addvolume", addData, 409, "VMI is not running")
	w.expect(http.MethodPut, vmiPath+"starts/removevolume", removeData, 409, "VMI is not running")
	w.expect(http.MethodPut, vmiPath+"slow/addvolume", addData, 409,
		"Unable to add volume [data] because volume with that name already exists")
	w.expect(http.MethodPut, vmiPath+"vmi/addvolume", strings.Replace(addData, `"disk":{"bus":"scsi"},`, "", 1), 202, "")
	vmi := &v1.VirtualMachineInstance{}
	get := func() string {
		if err := w.client.Get(context.Background(), client.ObjectKey{Namespace: "ns", Name: "vmi"}, vmi); err != nil {
			t.Fatal(err)
		}
		return volumesOf(&vmi.Spec)
	}
	if got := get(); !strings.HasSuffix(got, `{"name":"data","disk":{"bus":"scsi"},"serial":"data"}`) || !strings.Contains(got, "data=dv(hotpluggable)") {
		t.Error(got)
	}
	w.expect(http.MethodPut, vmiPath+"vmi/removevolume", removeData, 202, "")
	if got := get(); strings.Contains(got, "data=") {
		t.Error(got)
	}
}

// With the gate HotplugVolumes, clients may plug a volume into the VMI of a VM, which the VM does not undo.
func TestVolumesOfTheVMIOfAVM(t *testing.T) {
	vm := builder.MakeVM("owned").Namespace("ns").UID("1").Obj()
	w := newHotplugWorld(t, vm, pluggable(running("owned")).OwnedBy(vm).Obj())
	w.config.FeatureGates = clusterconfig.NewFeatureGates([]string{"HotplugVolumes"}, nil)
	vmi := &v1.VirtualMachineInstance{}
	expect := func(plugged bool, annotation string) {
		t.Helper()
		if err := w.client.Get(context.Background(), client.ObjectKey{Namespace: "ns", Name: "owned"}, vmi); err != nil {
			t.Fatal(err)
		}
		if got := volumesOf(&vmi.Spec); strings.Contains(got, "data=dv(hotpluggable)") != plugged {
			t.Error(got)
		}
		if got := vmi.Annotations[hotplug.EphemeralAnnotation]; got != annotation {
			t.Errorf("the annotation is %q, want %q", got, annotation)
		}
	}
	w.expect(http.MethodPut, vmiPath+"owned/addvolume", strings.Replace(addData, `{"name"`, `{"dryRun":["All"],"name"`, 1), 202, "")
	expect(false, "")
	w.expect(http.MethodPut, vmiPath+"owned/addvolume", addData, 202, "")
	expect(true, `["data"]`)
	w.expect(http.MethodPut, vmiPath+"owned/addvolume", addData, 409, "already exists")
	w.expect(http.MethodPut, vmiPath+"owned/addvolume", strings.NewReplacer(`"data"`, `"more"`, `"dv"`, `"more"`).Replace(addData), 202, "")
	expect(true, `["data","more"]`)
	// The VM would plug what its template has again.
	w.expect(http.MethodPut, vmiPath+"owned/removevolume", `{"name":"old"}`, 400, "VMI ns/owned is owned by a VM, whose template has the volume [old]")
	w.expect(http.MethodPut, vmiPath+"owned/removevolume", `{"name":"dv"}`, 202, "")
	expect(false, `["more"]`)
	w.expect(http.MethodPut, vmiPath+"owned/removevolume", `{"name":"more"}`, 202, "")
	expect(false, "")
}

func TestRequestsForVolumes(t *testing.T) {
	w := newHotplugWorld(t,
		builder.MakeVM("vm").Namespace("ns").Template(builder.MakeVMI("vm")).With(
			func(vm *v1.VirtualMachine) { vm.Status.Created = true }).Obj())
	for _, path := range []string{vmPath, vmiPath} {
		for body, message := range map[string]string{
			"":                       "Request with no body, a new name is expected as the request body",
			"x":                      "Can not unmarshal Request body to struct",
			`{}`:                     "AddVolumeOptions requires name to be set",
			`{"name":"d"}`:           "AddVolumeOptions requires disk to not be nil",
			`{"name":"d","disk":{}}`: "AddVolumeOptions requires VolumeSource to not be nil",
			`{"name":"d","disk":{},"volumeSource":{}}`:                "set either dataVolume or persistentVolumeClaim",
			`{"name":"d","disk":{},"volumeSource":{"dataVolume":{}}}`: "the name of the claim or DataVolume is missing",
		} {
			w.expect(http.MethodPut, path+"vm/addvolume", body, 400, message)
		}
		w.expect(http.MethodPut, path+"vm/removevolume", `{}`, 400, "RemoveVolumeOptions requires name to be set")
		w.expect(http.MethodPut, path+"vm/removevolume", "", 400, "Request with no body")
	}
	w.expect(http.MethodPut, vmPath+"vm/addvolume", strings.Replace(addData, "scsi", "sata", 1), 400,
		"Hotplug configuration for disk [data] requires bus to be 'scsi' or 'virtio'. [sata] is not permitted.")
	w.expect(http.MethodPut, vmPath+"vm/addvolume", strings.Replace(addData, `"disk":{"bus":"scsi"}`, `"lun":{"bus":"virtio"}`, 1), 400,
		"Hotplug configuration for LUN [data] requires bus to be 'scsi'. [virtio] is not permitted.")

	w.config.HotplugVolumes = false
	w.expect(http.MethodPut, vmPath+"vm/addvolume", addData, 400,
		"Enable DeclarativeHotplugVolumes or HotplugVolumes feature gate to use this API.")
}
