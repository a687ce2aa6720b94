// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinerestore

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
)

// recorded are events with the types of their objects.
type recorded []string

//nolint:revive // argument-limit: the signature is client-go's.
func (r *recorded) Eventf(regarding, _ runtime.Object, kind, reason, _, note string, args ...any) {
	*r = append(*r, fmt.Sprintf("%T: %s %s: %s", regarding, kind, reason, fmt.Sprintf(note, args...)))
}

func TestADataVolumeThatCannotBeCreatedIsReportedOnTheRestore(t *testing.T) {
	for name, target := range map[string]*v1.VirtualMachine{"an existing VM": builder.MakeVM("vm").Obj(),
		"a new VM": nil} {
		var got recorded
		s := &scope{
			Reconciler: &Reconciler{Recorder: &got}, restore: restoreTo("back", "vm", "snap", nil), target: target,
			failed: []failedDataVolume{{"root", errors.New("exceeded quota")}},
		}
		s.recordFailedDataVolumes()
		want := recorded{
			"*v1beta1.VirtualMachineRestore: Warning RestoreDataVolumeCreateError: Error creating restore DataVolume root: exceeded quota",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
