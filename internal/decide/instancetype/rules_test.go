// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package instancetype_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/instancetype"
)

const (
	ratioText = "%d vCPUs provided by the instance type are not divisible by the " +
		"Spec.PreferSpreadSocketToCoreRatio or Spec.CPU.PreferSpreadOptions.Ratio of %d provided by the preference"
	threadsText = "%d vCPUs provided by the instance type are not divisible by the number of threads per core %d"
	bothText    = "%d vCPUs provided by the instance type are not divisible by the number of threads per core 2 and " +
		"Spec.PreferSpreadSocketToCoreRatio or Spec.CPU.PreferSpreadOptions.Ratio of %d"
)

func TestTopology(t *testing.T) {
	for _, tc := range []struct {
		cpus       uint32
		preference string
		want       [3]uint32
		problem    string
	}{
		{4, `{}`, [3]uint32{4, 1, 1}, ""},
		{4, `{cpu: {preferredCPUTopology: sockets}}`, [3]uint32{4, 1, 1}, ""},
		{4, `{cpu: {preferredCPUTopology: preferSockets}}`, [3]uint32{4, 1, 1}, ""},
		{4, `{cpu: {preferredCPUTopology: any}}`, [3]uint32{4, 1, 1}, ""},
		{4, `{cpu: {preferredCPUTopology: preferAny}}`, [3]uint32{4, 1, 1}, ""},
		{4, `{cpu: {preferredCPUTopology: cores}}`, [3]uint32{1, 4, 1}, ""},
		{4, `{cpu: {preferredCPUTopology: preferCores}}`, [3]uint32{1, 4, 1}, ""},
		{4, `{cpu: {preferredCPUTopology: threads}}`, [3]uint32{1, 1, 4}, ""},
		{4, `{cpu: {preferredCPUTopology: preferThreads}}`, [3]uint32{1, 1, 4}, ""},
		{6, `{cpu: {preferredCPUTopology: spread}}`, [3]uint32{3, 2, 1}, ""},
		{6, `{cpu: {preferredCPUTopology: preferSpread}}`, [3]uint32{3, 2, 1}, ""},
		{6, `{cpu: {preferredCPUTopology: spread}, preferSpreadSocketToCoreRatio: 3}`, [3]uint32{2, 3, 1}, ""},
		{6, `{cpu: {preferredCPUTopology: spread, spreadOptions: {ratio: 6}}, preferSpreadSocketToCoreRatio: 3}`, [3]uint32{1, 6, 1}, ""},
		{6, `{cpu: {preferredCPUTopology: spread, spreadOptions: {across: CoresThreads}}}`, [3]uint32{1, 3, 2}, ""},
		{12, `{cpu: {preferredCPUTopology: spread, spreadOptions: {across: SocketsCoresThreads, ratio: 3}}}`, [3]uint32{2, 3, 2}, ""},
		// One CPU needs no layout, so that no ratio matters.
		{1, `{cpu: {preferredCPUTopology: spread}}`, [3]uint32{1, 1, 1}, ""},
		{1, `{cpu: {preferredCPUTopology: spread, spreadOptions: {ratio: 0}}}`, [3]uint32{1, 1, 1}, ""},
		{0, `{cpu: {preferredCPUTopology: cores}}`, [3]uint32{1, 1, 1}, ""},
		{5, `{cpu: {preferredCPUTopology: spread}}`, [3]uint32{5, 1, 1}, fmt.Sprintf(ratioText, 5, 2)},
		{5, `{cpu: {preferredCPUTopology: spread, spreadOptions: {across: CoresThreads}}}`, [3]uint32{5, 1, 1}, fmt.Sprintf(threadsText, 5, 2)},
		{5, `{cpu: {preferredCPUTopology: spread, spreadOptions: {across: SocketsCoresThreads}}}`, [3]uint32{5, 1, 1}, fmt.Sprintf(bothText, 5, 2)},
		{6, `{cpu: {preferredCPUTopology: spread, spreadOptions: {across: SocketsCoresThreads}}}`, [3]uint32{6, 1, 1}, fmt.Sprintf(bothText, 6, 2)},
		{
			6, `{cpu: {preferredCPUTopology: spread, spreadOptions: {across: SocketsCoresThreads, ratio: 2147483648}}}`,
			[3]uint32{6, 1, 1}, fmt.Sprintf(bothText, 6, uint32(2147483648)),
		},
		{
			6, `{cpu: {preferredCPUTopology: spread, spreadOptions: {ratio: 0}}}`, [3]uint32{6, 1, 1},
			"6 vCPUs provided by the instance type are not divisible by the ratio of 0 provided by the preference: set it to 1 or more",
		},
	} {
		t.Run(fmt.Sprintf("%d %s", tc.cpus, tc.preference), func(t *testing.T) {
			size := &v1beta1.VirtualMachineInstancetypeSpec{CPU: v1beta1.CPUInstancetype{Guest: tc.cpus}}
			preference := parse[v1beta1.VirtualMachinePreferenceSpec](t, tc.preference)
			expanded, _ := instancetype.Expand(&v1.VirtualMachineInstanceTemplateSpec{}, size, preference)
			cpu := expanded.Spec.Domain.CPU
			if got := [3]uint32{cpu.Sockets, cpu.Cores, cpu.Threads}; got != tc.want {
				t.Errorf("sockets, cores and threads are %v, want %v", got, tc.want)
			}
			err := instancetype.CheckTopology(size, preference)
			if (err != nil) != (tc.problem != "") ||
				err != nil && (err.Detail != tc.problem || err.Field != "instancetype.spec.cpu.guest") {
				t.Errorf("got  %v\nwant %s", err, tc.problem)
			}
		})
	}
	if err := instancetype.CheckTopology(nil, nil); err != nil {
		t.Error(err)
	}
}

func TestRequirements(t *testing.T) {
	const vm = "spec.template.spec.domain."
	for _, tc := range []struct {
		spec, instancetype, preference string
		paths                          []string
		want                           string
	}{
		{`{domain: {devices: {}}}`, ``, ``, nil, ""},
		{`{domain: {devices: {}}}`, ``, `{}`, nil, ""},
		{`{domain: {devices: {}}}`, `{` + size + `}`, `{requirements: {cpu: {guest: 2}, memory: {guest: 1Gi}}}`, nil, ""},
		{
			`{domain: {devices: {}}}`, `{` + size + `}`, `{requirements: {cpu: {guest: 3}, memory: {guest: 2Gi}}}`, []string{"spec.instancetype"},
			"insufficient CPU resources of 2 vCPU provided by instance type, preference requires 3 vCPU",
		},
		{
			`{domain: {devices: {}}}`, `{` + size + `}`, `{requirements: {memory: {guest: 2Gi}}}`, []string{"spec.instancetype"},
			"insufficient Memory resources of 1Gi provided by instance type, preference requires 2Gi",
		},
		{`{domain: {devices: {}}}`, ``, `{requirements: {cpu: {guest: 1}}}`, nil, ""},
		{`{domain: {devices: {}, resources: {requests: {cpu: 1500m}}}}`, ``, `{requirements: {cpu: {guest: 2}}}`, nil, ""},
		{`{domain: {devices: {}, cpu: {sockets: 2}}}`, ``, `{requirements: {cpu: {guest: 2}}}`, nil, ""},
		{
			`{domain: {devices: {}, cpu: {cores: 4}}}`, ``, `{requirements: {cpu: {guest: 2}}}`, []string{vm + "cpu.sockets"},
			"insufficient CPU resources of 1 vCPU provided by VirtualMachine, preference requires 2 vCPU provided as sockets",
		},
		{
			`{domain: {devices: {}, cpu: {sockets: 4}}}`, ``, `{cpu: {preferredCPUTopology: cores}, requirements: {cpu: {guest: 2}}}`, []string{vm + "cpu.cores"},
			"insufficient CPU resources of 1 vCPU provided by VirtualMachine, preference requires 2 vCPU provided as cores",
		},
		{
			`{domain: {devices: {}, cpu: {sockets: 4}}}`, ``, `{cpu: {preferredCPUTopology: threads}, requirements: {cpu: {guest: 2}}}`, []string{vm + "cpu.threads"},
			"insufficient CPU resources of 1 vCPU provided by VirtualMachine, preference requires 2 vCPU provided as threads",
		},
		// KubeVirt counts 0 CPUs.
		{`{domain: {devices: {}, cpu: {cores: 4}}}`, ``, `{cpu: {preferredCPUTopology: any}, requirements: {cpu: {guest: 4}}}`, nil, ""},
		{
			`{domain: {devices: {}, cpu: {cores: 2, threads: 2}}}`, ``, `{cpu: {preferredCPUTopology: preferAny}, requirements: {cpu: {guest: 5}}}`,
			[]string{vm + "cpu.cores", vm + "cpu.sockets", vm + "cpu.threads"},
			"insufficient CPU resources of 4 vCPU provided by VirtualMachine, preference requires 5 vCPU provided as cores, sockets and threads",
		},
		{
			`{domain: {devices: {}, cpu: {cores: 2, threads: 2}}}`, ``, `{cpu: {preferredCPUTopology: spread}, requirements: {cpu: {guest: 4}}}`,
			[]string{vm + "cpu.sockets", vm + "cpu.cores"},
			"insufficient CPU resources of 2 vCPU provided by VirtualMachine, preference requires 4 vCPU provided as SocketsCores",
		},
		{
			`{domain: {devices: {}, cpu: {sockets: 4, threads: 2}}}`, ``,
			`{cpu: {preferredCPUTopology: spread, spreadOptions: {across: CoresThreads}}, requirements: {cpu: {guest: 4}}}`,
			[]string{vm + "cpu.cores", vm + "cpu.threads"},
			"insufficient CPU resources of 2 vCPU provided by VirtualMachine, preference requires 4 vCPU provided as CoresThreads",
		},
		{
			`{domain: {devices: {}, cpu: {sockets: 65536, cores: 65536, threads: 1}}}`, ``,
			`{cpu: {preferredCPUTopology: spread, spreadOptions: {across: SocketsCoresThreads}}, requirements: {cpu: {guest: 4}}}`, nil, "",
		},
		{
			`{domain: {devices: {}}}`, ``, `{requirements: {memory: {guest: 1Gi}}}`, []string{vm + "memory"},
			"insufficient Memory resources of 0 provided by VirtualMachine, preference requires 1Gi",
		},
		{
			`{domain: {devices: {}, memory: {guest: 512Mi}}}`, ``, `{requirements: {memory: {guest: 1Gi}}}`, []string{vm + "memory"},
			"insufficient Memory resources of 512Mi provided by VirtualMachine, preference requires 1Gi",
		},
		{
			`{domain: {devices: {}, resources: {limits: {memory: 512Mi}}}}`, ``, `{requirements: {memory: {guest: 1Gi}}}`, []string{vm + "memory"},
			"insufficient Memory resources of 512Mi provided by VirtualMachine, preference requires 1Gi",
		},
		{`{domain: {devices: {}, memory: {hugepages: {pageSize: 1Gi}}}}`, ``, `{requirements: {memory: {guest: 1Gi}}}`, nil, ""},
		{`{architecture: arm64, domain: {devices: {}}}`, ``, `{requirements: {architecture: arm64}}`, nil, ""},
		{`{domain: {devices: {}}}`, ``, `{requirements: {architecture: arm64}}`, nil, ""},
		{
			`{architecture: amd64, domain: {devices: {}}}`, `{` + size + `}`, `{requirements: {architecture: arm64}}`,
			[]string{"spec.template.spec.architecture"}, "preference requires architecture arm64 but amd64 is being requested",
		},
	} {
		t.Run(tc.spec+tc.instancetype+tc.preference, func(t *testing.T) {
			err := instancetype.CheckRequirements(&templateOf(t, tc.spec).Spec,
				parse[v1beta1.VirtualMachineInstancetypeSpec](t, tc.instancetype),
				parse[v1beta1.VirtualMachinePreferenceSpec](t, tc.preference))
			if err == nil && tc.want == "" {
				return
			}
			var unmet *instancetype.RequirementError
			if !errors.As(err, &unmet) || err.Error() != tc.want {
				t.Fatalf("got  %v\nwant %s", err, tc.want)
			}
			var want field.ErrorList
			for _, path := range tc.paths {
				want = append(want, &field.Error{
					Type: field.ErrorTypeNotFound, Field: path, BadValue: field.OmitValueType{},
					Detail: "failure checking preference requirements: " + tc.want,
				})
			}
			if diff := cmp.Diff(want, unmet.Admission()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// report is an error for each of a list, and the warnings.
func report(errs field.ErrorList, warnings []string) []string {
	var out []string
	for _, err := range errs {
		out = append(out, err.Field+": "+err.Detail)
	}
	return append(out, warnings...)
}

func TestValidateInstancetype(t *testing.T) {
	const percent = "spec.memory.overcommitPercent"
	for text, want := range map[string][]string{
		`{` + size + `}`: nil,
		`{cpu: {guest: 1}, memory: {guest: 1Gi, overcommitPercent: 100}}`: nil,
		`{cpu: {guest: 1}, memory: {guest: 1Gi, overcommitPercent: 101}}`: {percent + ": spec.memory.overcommitPercent '101': must be in range between 0 and 100."},
		`{cpu: {guest: 1}, memory: {guest: 1Gi, overcommitPercent: -1, hugepages: {}}}`: {
			percent + ": spec.memory.overcommitPercent '-1': must be in range between 0 and 100.",
			percent + ": spec.memory.overcommitPercent and spec.memory.hugepages should not be requested together.",
		},
		`{launchSecurity: {}, ` + size + `}`: {"launchSecurity is deprecated and will be removed in a future release. Use preference instead."},
	} {
		got := report(instancetype.ValidateInstancetype(parse[v1beta1.VirtualMachineInstancetypeSpec](t, text),
			field.NewPath("spec")))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", text, diff)
		}
	}
}

func TestValidatePreference(t *testing.T) {
	for text, want := range map[string][]string{
		`{}`:                                  nil,
		`{cpu: {preferredCPUTopology: any}}`:  nil,
		`{cpu: {preferredCPUTopology: wide}}`: {"spec.cpu.preferredCPUTopology: unknown preferredCPUTopology wide"},
		`{cpu: {preferredCPUTopology: preferCores}}`: {
			"PreferredCPUTopology preferCores is deprecated for removal in a future release, please use cores instead",
		},
		`{cpu: {preferredCPUTopology: cores, spreadOptions: {across: all, ratio: 0}}}`:  nil,
		`{cpu: {preferredCPUTopology: spread}}`:                                         nil,
		`{cpu: {preferredCPUTopology: spread, spreadOptions: {across: all, ratio: 0}}}`: {"spec.cpu.spreadOptions.across: across all is not supported"},
		`{cpu: {preferredCPUTopology: spread, spreadOptions: {across: CoresThreads}}}`:  nil,
		`{cpu: {preferredCPUTopology: spread, spreadOptions: {ratio: 0}}}`:              {"spec.cpu.spreadOptions.ratio: must be 1 or more"},
		`{cpu: {preferredCPUTopology: spread}, preferSpreadSocketToCoreRatio: 0}`:       nil,
		`{cpu: {preferredCPUTopology: preferSpread, spreadOptions: {across: CoresThreads, ratio: 4}}}`: {
			"spec.cpu.spreadOptions.ratio: only a ratio of 2 (1 core 2 threads) is allowed when spreading vCPUs over cores and threads",
			"PreferredCPUTopology preferSpread is deprecated for removal in a future release, please use spread instead",
		},
	} {
		got := report(instancetype.ValidatePreference(parse[v1beta1.VirtualMachinePreferenceSpec](t, text),
			field.NewPath("spec")))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", text, diff)
		}
	}
}

func TestStorageClass(t *testing.T) {
	fast := parse[v1beta1.VirtualMachinePreferenceSpec](t, `{volumes: {preferredStorageClassName: fast}}`)
	for text, want := range map[string]*string{
		`{pvc: {}}`: ptr.To("fast"), `{storage: {}}`: ptr.To("fast"),
		`{pvc: {storageClassName: slow}}`: ptr.To("slow"), `{storage: {storageClassName: ""}}`: ptr.To(""),
	} {
		spec := parse[cdiv1beta1.DataVolumeSpec](t, text)
		before := spec.DeepCopy()
		got := instancetype.WithStorageClass(spec, fast)
		var class *string
		if got.PVC != nil {
			class = got.PVC.StorageClassName
		} else {
			class = got.Storage.StorageClassName
		}
		if diff := cmp.Diff(want, class); diff != "" {
			t.Errorf("%s (-want +got)\n%s", text, diff)
		}
		for _, none := range []*v1beta1.VirtualMachinePreferenceSpec{nil, {}, {Volumes: &v1beta1.VolumePreferences{}}} {
			if diff := cmp.Diff(spec, instancetype.WithStorageClass(spec, none)); diff != "" {
				t.Errorf("%s without a class (-want +got)\n%s", text, diff)
			}
		}
		if diff := cmp.Diff(before, spec); diff != "" {
			t.Errorf("%s was changed\n%s", text, diff)
		}
	}
}
