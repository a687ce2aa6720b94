// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl"
	"github.com/vireo-project/vireo/test/builder"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
)

func TestMemoryDump(t *testing.T) {
	request := func(phase v1.MemoryDumpPhase) *v1.VirtualMachineMemoryDumpRequest {
		return &v1.VirtualMachineMemoryDumpRequest{ClaimName: "mem", Phase: phase, FileName: ptr.To("demo.memory.dump"),
			Message: "full"}
	}
	for _, tt := range []struct {
		command, path, body, want string
		code                      int
		status                    *v1.VirtualMachineMemoryDumpRequest
	}{
		{"get demo --claim-name=mem", "memorydump", `{"claimName":"mem","phase":""}`, "is in the file demo.memory.dump of the claim mem", 0, request(v1.MemoryDumpCompleted)},
		{"get demo", "memorydump", `{"claimName":"","phase":""}`, "The memory of VM demo", 0, request(v1.MemoryDumpCompleted)},
		{"get demo", "memorydump", `{"claimName":"","phase":""}`, "the memory dump of VM demo has failed: full", 1, request(v1.MemoryDumpFailed)},
		{"remove demo", "removememorydump", `{}`, "memory dump of VM demo is being removed", 0, nil},
		{"get demo --claim-name=mem --create-claim --storage-class=fast", "memorydump", `{"claimName":"mem","phase":""}`, "PVC tenant/mem created", 0,
			request(v1.MemoryDumpCompleted)},
	} {
		t.Run(tt.command, func(t *testing.T) {
			s := virtctltest.NewServer(t)
			vm := builder.MakeVM("demo").Namespace("tenant").Template(builder.MakeVMI("demo")).Obj()
			vm.Status.MemoryDumpRequest = tt.status
			vmi := builder.MakeVMI("demo").Namespace("tenant").Obj()
			vmi.Status.Memory = &v1.MemoryStatus{GuestCurrent: ptr.To(resource.MustParse("1Gi"))}
			s.Add(vm, vmi)
			s.Record(http.MethodPut, vmPath+tt.path, http.StatusAccepted, "")
			got := s.Run(virtctl.Execute, append([]string{"memory-dump"}, strings.Fields(tt.command)...)...)
			if got.Code != tt.code || !strings.Contains(got.ErrOut, tt.want) {
				t.Errorf("got %+v, want %q", got, tt.want)
			}
			if requests := s.Requests(); len(requests) != 1 || string(requests[0].Body) != tt.body {
				t.Errorf("got %+v, want %s", requests, tt.body)
			}
			if !strings.Contains(tt.command, "--create-claim") {
				return
			}
			spec, _ := s.Get("persistentvolumeclaims", virtctltest.Namespace, "mem").Object["spec"].(map[string]any)
			requests, _ := spec["resources"].(map[string]any)["requests"].(map[string]any)
			size := resource.MustParse(requests["storage"].(string))
			if least := resource.MustParse("1190Mi"); spec["storageClassName"] != "fast" || size.Cmp(least) < 0 {
				t.Errorf("the claim is %+v", spec)
			}
		})
	}
}

func TestMemoryDumpsThatAreWrong(t *testing.T) {
	for command, want := range map[string]string{
		"list demo":     "invalid function 'list'",
		"download demo": "set --output",
		"download demo --output=x --claim-name=c":                           "only for the function",
		"get demo --create-claim":                                           "set --claim-name",
		"get demo --claim-name=c --access-mode=x":                           "need --create-claim",
		"download demo --output=x":                                          "VM demo has no memory dump",
		"get demo --claim-name=c --create-claim --access-mode=ReadOnlyMany": "cannot have the access mode ReadOnlyMany",
	} {
		s := virtctltest.NewServer(t)
		s.Add(builder.MakeVM("demo").Namespace("tenant").Template(builder.MakeVMI("demo")).Obj())
		if got := s.Run(virtctl.Execute, append([]string{"memory-dump"}, strings.Fields(command)...)...); got.Code == 0 ||
			!strings.Contains(got.ErrOut, want) {
			t.Errorf("%s: %+v", command, got)
		}
	}
}
