// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package diskbus_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/diskbus"
	"github.com/vireo-project/vireo/test/builder"
	"github.com/vireo-project/vireo/test/constants"
)

var (
	kinds         = []string{diskbus.Disk, diskbus.LUN, diskbus.CDRom}
	architectures = []string{clusterconfig.ArchAMD64, clusterconfig.ArchARM64, clusterconfig.ArchS390X}
)

// Each bus of the API is a row, and no row is a bus that the API does not have.
func TestTableHasTheBusesOfTheAPI(t *testing.T) {
	names := diskbus.Names("")
	api := constants.OfType(t, "../../api/v1", "DiskBus")
	for constant, bus := range api {
		if !slices.Contains(names, v1.DiskBus(bus)) {
			t.Errorf("%s (%s) has no row in the table of internal/diskbus: follow \"a new disk bus\" in docs/architecture.md",
				constant, bus)
		}
	}
	for _, name := range names {
		if !slices.Contains(slices.Collect(maps.Values(api)), string(name)) {
			t.Errorf("the bus %s of internal/diskbus has no constant in api/v1/disk_types.go", name)
		}
	}
}

// The comments of the fields, which kubectl explain shows, name each bus that their kind of disks can be on.
func TestCommentsNameTheBuses(t *testing.T) {
	for file, fields := range map[string]map[string]string{
		"../../api/v1/disk_types.go": {
			`type DiskTarget struct \{\s*// bus is`:  diskbus.Disk,
			`type LunTarget struct \{\s*// bus is`:   diskbus.LUN,
			`type CDRomTarget struct \{\s*// bus is`: diskbus.CDRom,
		},
		"../../api/instancetype/v1beta1/preference_device_types.go": {
			`// preferredDiskBus is`:  diskbus.Disk,
			`// preferredLunBus is`:   diskbus.LUN,
			`// preferredCdromBus is`: diskbus.CDRom,
		},
	} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for field, kind := range fields {
			comment := regexp.MustCompile(field + ` ([^.]*)\.`).FindSubmatch(source)
			if comment == nil {
				t.Fatalf("%s has no comment that matches %q", file, field)
			}
			for _, name := range diskbus.Names(kind) {
				if !regexp.MustCompile(`\b` + string(name) + `\b`).Match(comment[1]) {
					t.Errorf("%s: the comment %q does not name the bus %s of a %s: follow \"a new disk bus\" in docs/architecture.md",
						file, comment[1], name, kind)
				}
			}
		}
	}
}

func TestRowsAreComplete(t *testing.T) {
	for _, name := range diskbus.Names("") {
		bus := diskbus.Of(name)
		if bus.Name != name || bus.Prefix == "" || len(bus.Kinds) == 0 {
			t.Errorf("%s: a row needs a prefix, and kinds of disks: %+v", name, bus)
		}
		for _, architecture := range bus.Architectures {
			if !slices.Contains(architectures, architecture) {
				t.Errorf("%s: unknown architecture %s", name, architecture)
			}
		}
	}
	if bus := diskbus.Of("ide"); bus.Name != "" || bus.Connects(diskbus.Disk) || bus.Plugs(diskbus.Disk) || bus.Virtio {
		t.Errorf("an unknown bus is %+v", bus)
	}
}

func TestDefaults(t *testing.T) {
	want := map[string]map[string]v1.DiskBus{
		"amd64": {"disk": "sata", "lun": "scsi", "cdrom": "sata"},
		"arm64": {"disk": "virtio", "lun": "scsi", "cdrom": "scsi"},
		"s390x": {"disk": "virtio", "lun": "scsi", "cdrom": "scsi"},
		"":      {"disk": "virtio", "lun": "scsi", "cdrom": "scsi"},
	}
	for architecture, buses := range want {
		for kind, bus := range buses {
			if got := diskbus.Default(kind, architecture); got != bus {
				t.Errorf("a %s on %q is on %q, want %q", kind, architecture, got, bus)
			}
		}
	}
}

func TestPluggedIsOfAllKindsThatCanBePlugged(t *testing.T) {
	bus := diskbus.Of(diskbus.Plugged)
	if !bus.Plugs(diskbus.Disk) || !bus.Plugs(diskbus.LUN) || len(bus.Architectures) > 0 {
		t.Errorf("the default of plugged disks is %+v", bus)
	}
}

func TestOfDisk(t *testing.T) {
	for _, want := range append([]string{""}, kinds...) {
		disk := builder.MakeDisk("a", want, v1.DiskBusSCSI)
		if kind, bus := diskbus.OfDisk(&disk); kind != want || (bus == v1.DiskBusSCSI) != (want != "") {
			t.Errorf("%q: got %q on %q", want, kind, bus)
		}
	}
}
