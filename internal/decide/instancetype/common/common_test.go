// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package common_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/vireo-project/vireo/api/instancetype"
	"github.com/vireo-project/vireo/internal/decide/instancetype/common"
)

// published reads the names and labels of KubeVirt's objects.
func published(t *testing.T, file string) map[string]map[string]string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]map[string]string{}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		columns := strings.Fields(line)
		labels := map[string]string{}
		for _, label := range columns[1:] {
			key, value, _ := strings.Cut(label, "=")
			labels[instancetype.GroupName+"/"+key] = value
		}
		objects[columns[0]] = labels
	}
	return objects
}

// generated returns the names and labels of objects, which must have different names.
func generated[T metav1.Object](t *testing.T, objects []T) map[string]map[string]string {
	t.Helper()
	labels := map[string]map[string]string{}
	for _, object := range objects {
		if labels[object.GetName()] != nil {
			t.Errorf("%s exists twice", object.GetName())
		}
		labels[object.GetName()] = object.GetLabels()
	}
	return labels
}

func TestNamesAndLabelsAreKubeVirts(t *testing.T) {
	if diff := cmp.Diff(published(t, "instancetypes.txt"), generated(t, common.Instancetypes())); diff != "" {
		t.Errorf("instance types (-KubeVirt +Vireo):\n%s", diff)
	}
	if diff := cmp.Diff(published(t, "preferences.txt"), generated(t, common.Preferences())); diff != "" {
		t.Errorf("preferences (-KubeVirt +Vireo):\n%s", diff)
	}
}

// Server-side apply needs the kind, and consoles show the annotations.
func TestObjectsAreComplete(t *testing.T) {
	for _, object := range common.Instancetypes() {
		if object.Kind != "VirtualMachineClusterInstancetype" || object.APIVersion != "instancetype.kubevirt.io/v1beta1" {
			t.Errorf("%s is a %s of %s", object.Name, object.Kind, object.APIVersion)
		}
		expectAnnotations(t, object, "instancetype.kubevirt.io/displayName", "instancetype.kubevirt.io/description")
	}
	for _, object := range common.Preferences() {
		if object.Kind != "VirtualMachineClusterPreference" || object.APIVersion != "instancetype.kubevirt.io/v1beta1" {
			t.Errorf("%s is a %s of %s", object.Name, object.Kind, object.APIVersion)
		}
		expectAnnotations(t, object, "iconClass", "tags", "openshift.io/display-name", "openshift.io/provider-display-name",
			"openshift.io/documentation-url")
	}
}

// expectAnnotations fails unless an object has exactly these annotations, and none is empty.
func expectAnnotations(t *testing.T, object metav1.Object, keys ...string) {
	t.Helper()
	annotations := object.GetAnnotations()
	if len(annotations) != len(keys) {
		t.Errorf("%s has the annotations %v, want %v", object.GetName(), annotations, keys)
	}
	for _, key := range keys {
		if annotations[key] == "" {
			t.Errorf("%s has no annotation %s", object.GetName(), key)
		}
	}
}

// A caller that changes an object must not change what the next one gets.
func TestObjectsAreTheCallers(t *testing.T) {
	before, err := json.Marshal([]any{common.Instancetypes(), common.Preferences()})
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range common.Instancetypes() {
		clear(object.Labels)
		clear(object.Annotations)
		clear(object.Spec.Annotations)
		if object.Spec.Memory.Hugepages != nil {
			object.Spec.Memory.Hugepages.PageSize = "0"
		}
	}
	for _, object := range common.Preferences() {
		clear(object.Labels)
		clear(object.Annotations)
		clear(object.Spec.Annotations)
		if devices := object.Spec.Devices; devices != nil {
			devices.PreferredDiskBus = "none"
		}
		if hyperv := object.Spec.Features; hyperv != nil && hyperv.PreferredHyperv != nil {
			*hyperv.PreferredHyperv.Spinlocks.Retries = 0
		}
	}
	after, err := json.Marshal([]any{common.Instancetypes(), common.Preferences()})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(before), string(after)); diff != "" {
		t.Errorf("changed:\n%s", diff)
	}
}

// One object of each family and one preference with each trait.
func TestSpecs(t *testing.T) {
	specs := map[string]any{}
	for _, object := range common.Instancetypes() {
		specs[object.Name] = object.Spec
	}
	for _, object := range common.Preferences() {
		specs[object.Name] = object.Spec
	}
	for name, want := range specsOfKubeVirt {
		t.Run(name, func(t *testing.T) {
			got, err := json.Marshal(specs[name])
			if err != nil {
				t.Fatal(err)
			}
			expected, err := yaml.YAMLToJSON([]byte(want))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tree(t, expected), tree(t, got)); diff != "" {
				t.Errorf("spec (-KubeVirt +Vireo):\n%s", diff)
			}
		})
	}
}

func tree(t *testing.T, text []byte) (value any) {
	t.Helper()
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	return value
}

// specsOfKubeVirt are specs with the values of KubeVirt v1.9.0. A memory of 1.5Gi is written as Kubernetes writes it.
var specsOfKubeVirt = map[string]string{
	"u1.small": `{cpu: {guest: 1}, memory: {guest: 2Gi}}`,
	"o1.large": `{cpu: {guest: 2}, memory: {guest: 8Gi, overcommitPercent: 50}}`,
	"d1.2xmedium": `{cpu: {guest: 2, dedicatedCPUPlacement: true, isolateEmulatorThread: true}, memory: {guest: 4Gi},
      ioThreadsPolicy: auto}`,
	"rt1.xlarge": `{cpu: {guest: 4, dedicatedCPUPlacement: true, isolateEmulatorThread: true, numa: {guestMappingPassthrough: {}},
      realtime: {}}, memory: {guest: 16Gi, hugepages: {pageSize: 1Gi}}, ` + undisturbed + `}`,
	"cx1.2xlarge1gi": `{cpu: {guest: 8, dedicatedCPUPlacement: true, isolateEmulatorThread: true, maxSockets: 8,
      numa: {guestMappingPassthrough: {}}}, memory: {guest: 16Gi, hugepages: {pageSize: 1Gi}}, ioThreadsPolicy: auto}`,
	"m1.large": `{cpu: {guest: 2}, memory: {guest: 16Gi, hugepages: {pageSize: 2Mi}}}`,
	"n1.medium": `{cpu: {guest: 4, dedicatedCPUPlacement: true, isolateEmulatorThread: true},
      memory: {guest: 4Gi, hugepages: {pageSize: 1Gi}}, ` + undisturbed + `}`,

	"legacy":                   `{annotations: {vm.kubevirt.io/os: legacy}, devices: {preferredDiskBus: sata, preferredInterfaceModel: e1000}}`,
	"linux":                    `{` + linux + `, devices: {` + virtio + `}}`,
	"linux.efi":                `{` + linux + `, devices: {` + virtio + `}, firmware: {preferredEfi: {secureBoot: false}}}`,
	"linux.virtiotransitional": `{` + linux + `, devices: {` + virtio + `, preferredUseVirtioTransitional: true}}`,
	"fedora.arm64": `{` + linux + `, devices: {` + virtio + `}, preferredArchitecture: arm64,
      requirements: {architecture: arm64, cpu: {guest: 1}, memory: {guest: 2Gi}}}`,
	"rhel.9.s390x": `{` + linux + `, devices: {` + virtio + `, preferredDiskDedicatedIoThread: true}, preferredArchitecture: s390x,
      requirements: {architecture: s390x, cpu: {guest: 1}, memory: {guest: 1536Mi}}}`,
	"rhel.9.desktop": `{` + linux + `, devices: {` + virtio + `, preferredDiskDedicatedIoThread: true,
        preferredAutoattachInputDevice: true, preferredInputBus: virtio, preferredInputType: tablet},
      features: {preferredSmm: {}}, firmware: {preferredEfi: {secureBoot: true}}, preferredArchitecture: amd64,
      requirements: {architecture: amd64, cpu: {guest: 1}, memory: {guest: 1536Mi}}}`,
	"rhel.8.dpdk": `{` + linux + `, devices: {` + virtio + `, preferredNetworkInterfaceMultiQueue: true},
      cpu: {preferredCPUTopology: spread, spreadOptions: {across: SocketsCoresThreads, ratio: 4}},
      requirements: {cpu: {guest: 8}, memory: {guest: 1536Mi}}}`,
	"rhel.9.realtime": `{` + linux + `, devices: {` + virtio + `, preferredDiskDedicatedIoThread: true,
        preferredNetworkInterfaceMultiQueue: true, preferredAutoattachGraphicsDevice: false,
        preferredAutoattachMemBalloon: false, preferredAutoattachSerialConsole: true},
      cpu: {preferredCPUTopology: spread, spreadOptions: {across: SocketsCoresThreads}},
      features: {preferredSmm: {}}, firmware: {preferredEfi: {secureBoot: true}}, preferredArchitecture: amd64,
      requirements: {architecture: amd64, cpu: {guest: 4}, memory: {guest: 4Gi}}}`,
	"windows.2k3": `{annotations: {vm.kubevirt.io/os: windows, kubevirt.io/disablePCIHole64: "true"}, ` + windows + `,
      devices: {preferredAutoattachInputDevice: true, preferredDiskBus: sata, preferredInterfaceModel: rtl8139},
      features: {` + features + `}, requirements: {cpu: {guest: 1}, memory: {guest: 256Mi}}}`,
	"windows.11": `{annotations: {vm.kubevirt.io/os: windows}, ` + windows + `,
      devices: {preferredAutoattachInputDevice: true, preferredDiskBus: sata, preferredInterfaceModel: e1000e,
        preferredTPM: {persistent: true}},
      features: {` + features + `, preferredSmm: {}}, firmware: {preferredEfi: {secureBoot: true, persistent: true}},
      requirements: {cpu: {guest: 2}, memory: {guest: 4Gi}}}`,
	"windows.10.virtio": `{annotations: {vm.kubevirt.io/os: windows}, ` + windows + `,
      devices: {preferredAutoattachInputDevice: true, preferredDiskBus: virtio, preferredInterfaceModel: virtio,
        preferredInputBus: virtio, preferredInputType: tablet, preferredVideoType: virtio},
      features: {` + features + `, preferredSmm: {}}, firmware: {preferredEfi: {secureBoot: true}},
      requirements: {cpu: {guest: 1}, memory: {guest: 2Gi}}}`,
}

// Parts of several specs.
const (
	undisturbed = `annotations: {cpu-load-balancing.crio.io: disable, cpu-quota.crio.io: disable, irq-load-balancing.crio.io: disable}`
	linux       = `annotations: {vm.kubevirt.io/os: linux}`
	virtio      = `preferredDiskBus: virtio, preferredInterfaceModel: virtio, preferredRng: {}`
	windows     = `cpu: {preferredCPUTopology: sockets}, preferredTerminationGracePeriodSeconds: 3600,
      clock: {preferredClockOffset: {utc: {}}, preferredTimer: {hpet: {present: false}, hyperv: {},
        pit: {tickPolicy: delay}, rtc: {tickPolicy: catchup}}}`
	features = `preferredAcpi: {}, preferredApic: {}, preferredHyperv: {frequencies: {}, ipi: {}, reenlightenment: {}, relaxed: {},
        reset: {}, runtime: {}, spinlocks: {spinlocks: 8191}, synic: {}, synictimer: {direct: {}}, tlbflush: {}, vapic: {}, vpindex: {}}`
)
