// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/internal/diskbus"
	"github.com/vireo-project/vireo/internal/virtctl"
	"github.com/vireo-project/vireo/test/builder"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
)

func TestVolumes(t *testing.T) {
	const added, removed = "Successfully submitted add volume request to VM demo for volume data\n",
		"Successfully submitted remove volume request to VM demo for volume data\n"
	claim := `"volumeSource":{"persistentVolumeClaim":{"claimName":"data","hotpluggable":true}}`
	for _, tt := range []struct{ command, body, out string }{
		{"addvolume demo --volume-name=data", `{"name":"data","disk":{"name":"data","disk":{"bus":"scsi"},"serial":"data"},` + claim + `}`, added},
		{
			"addvolume demo --volume-name=data --serial=S1 --cache=none --disk-type=lun --dry-run",
			`{"name":"data","disk":{"name":"data","lun":{"bus":"scsi"},"serial":"S1","cache":"none"},` + claim + `,"dryRun":["All"]}`, "Dry Run execution\n" + added,
		},
		{"removevolume demo --volume-name=data", `{"name":"data"}`, removed},
		{"removevolume demo --volume-name=data --dry-run", `{"name":"data","dryRun":["All"]}`, "Dry Run execution\n" + removed},
	} {
		t.Run(tt.command, func(t *testing.T) {
			s := virtctltest.NewServer(t)
			s.Add(builder.MakePVC("data").Namespace("tenant").Obj())
			s.Record(http.MethodPut, vmPath+strings.Fields(tt.command)[0], http.StatusAccepted, "")
			got := s.Run(virtctl.Execute, strings.Fields(tt.command)...)
			if diff := cmp.Diff(virtctltest.Result{Out: tt.out}, got); diff != "" {
				t.Fatalf("result (-want +got):\n%s", diff)
			}
			if requests := s.Requests(); len(requests) != 1 || string(requests[0].Body) != tt.body {
				t.Errorf("got %+v, want %s", requests, tt.body)
			}
		})
	}
}

func TestVolumesOfADataVolumeAndAnInstance(t *testing.T) {
	s := virtctltest.NewServer(t)
	s.AddKind(cdi.GroupVersion.String(), "DataVolume", "datavolumes")
	s.Add(&cdi.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "data"}})
	s.Record(http.MethodPut, vmPath+"addvolume", http.StatusNotFound, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	s.Record(http.MethodPut, vmiPath+"addvolume", http.StatusAccepted, "")
	got := s.Run(virtctl.Execute, "addvolume", "demo", "--volume-name=data")
	if !strings.HasPrefix(got.Out, "Successfully submitted add volume request") {
		t.Errorf("%+v", got)
	}
	requests := s.Requests()
	if len(requests) != 2 || !strings.Contains(string(requests[1].Body), `"volumeSource":{"dataVolume":{"name":"data","hotpluggable":true}}`) {
		t.Errorf("%+v", requests)
	}
}

func TestVolumesThatAreWrong(t *testing.T) {
	for command, want := range map[string]string{
		"addvolume demo":                                                 `required flag(s) "volume-name" not set`,
		"addvolume demo --volume-name=none":                              "volume none is not a DataVolume or PersistentVolumeClaim of the namespace",
		"addvolume demo --volume-name=data --bus=sata":                   "--bus=sata is not supported: use scsi or virtio",
		"addvolume demo --volume-name=data --disk-type=lun --bus=virtio": "--bus=virtio is not supported with --disk-type=lun: use scsi",
		"addvolume demo --volume-name=data --disk-type=cdrom":            "--disk-type=cdrom is not supported: use disk or lun",
		"addvolume demo --volume-name=data --cache=fast":                 "--cache=fast is not supported",
		"removevolume demo":                                              `required flag(s) "volume-name" not set`,
	} {
		s := virtctltest.NewServer(t)
		if got := s.Run(virtctl.Execute, strings.Fields(command)...); got.Code == 0 || !strings.Contains(got.ErrOut, want) {
			t.Errorf("%s: %+v", command, got)
		}
	}
}

// The flag --bus takes the buses on which disks can be plugged, and its help and errors name them.
func TestBusesOfVolumes(t *testing.T) {
	help := virtctltest.NewServer(t).Run(virtctl.Execute, "addvolume", "--help").Out
	for _, name := range diskbus.Names("") {
		for _, kind := range []string{diskbus.Disk, diskbus.LUN} {
			s := virtctltest.NewServer(t)
			s.Add(builder.MakePVC("data").Namespace("tenant").Obj())
			s.Record(http.MethodPut, vmPath+"addvolume", http.StatusAccepted, "")
			got := s.Run(virtctl.Execute, "addvolume", "demo", "--volume-name=data", "--disk-type="+kind, "--bus="+string(name))
			if (got.Code == 0) != diskbus.Of(name).Plugs(kind) {
				t.Errorf("%s on %s: %+v", kind, name, got)
			}
		}
		wrong := virtctltest.NewServer(t).Run(virtctl.Execute, "addvolume", "demo", "--volume-name=data", "--bus=fdc").ErrOut
		if _, use, _ := strings.Cut(wrong, ": use"); diskbus.Of(name).Plugs(diskbus.Disk) &&
			(!strings.Contains(use, string(name)) || !strings.Contains(help, string(name))) {
			t.Errorf("the help of --bus or %q, in internal/virtctl/lifecycle/volumes.go, does not name the bus %s", wrong, name)
		}
	}
}
