// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package memorydump

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// world is what Next observes, with the changes that it made.
type world struct {
	t *testing.T
	Observed
	annotation string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, Observed: Observed{
		Now:     time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		Request: &v1.VirtualMachineMemoryDumpRequest{ClaimName: "dump", Phase: v1.MemoryDumpAssociating},
		VMI:     &v1.VirtualMachineInstance{}, Claim: &corev1.PersistentVolumeClaim{},
	}}
	w.VMI.Status.Phase = v1.Running
	w.VMI.Status.Memory = &v1.MemoryStatus{GuestCurrent: ptr.To(resource.MustParse("1Gi"))}
	w.Claim.Status.Phase = corev1.ClaimBound
	w.Claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	return w
}

// next applies the next steps until nothing changes, and returns the request.
func (w *world) next() string {
	w.t.Helper()
	for range 10 {
		before := fmt.Sprint(w.describe(), w.VMI)
		step := Next(w.Observed)
		if step.AddVolume != nil {
			w.VMI.Spec.UtilityVolumes = append(w.VMI.Spec.UtilityVolumes, *step.AddVolume)
		}
		if step.RemoveVolume != "" {
			w.VMI.Spec.UtilityVolumes = nil
		}
		if step.Annotation != "" {
			w.annotation = step.Annotation
		}
		w.Request = step.Request
		if w.Request == nil || fmt.Sprint(w.describe(), w.VMI) == before {
			return w.describe()
		}
	}
	w.t.Fatal("it does not settle")
	return ""
}

func (w *world) describe() string {
	if w.Request == nil {
		return "none"
	}
	text := string(w.Request.Phase)
	if w.Request.Message != "" {
		text += ": " + w.Request.Message
	}
	if w.VMI != nil && len(w.VMI.Spec.UtilityVolumes) > 0 {
		text += ", attached"
	}
	return text
}

func (w *world) expect(want string) {
	w.t.Helper()
	if got := w.next(); got != want {
		w.t.Fatalf("got %q, want %q", got, want)
	}
}

// agent reports the state of the volume as the agent and virt-controller do; "" removes it.
func (w *world) agent(phase v1.VolumePhase, message string) {
	w.VMI.Status.VolumeStatus = nil
	if phase == "" {
		return
	}
	status := v1.VolumeStatus{Name: "dump", Phase: phase, Message: message, HotplugVolume: &v1.HotplugVolumeStatus{}}
	if strings.HasPrefix(string(phase), "MemoryDump") {
		status.MemoryDumpVolume = &v1.DomainMemoryDumpInfo{ClaimName: "dump", TargetFileName: "f",
			StartTimestamp: ptr.To(metav1.NewTime(w.Now))}
	}
	w.VMI.Status.VolumeStatus = []v1.VolumeStatus{status}
}

func TestDump(t *testing.T) {
	w := newWorld(t)
	w.expect("InProgress, attached")
	w.agent(v1.VolumePending, "no node")
	w.expect("InProgress: no node, attached")
	w.agent(v1.MemoryDumpVolumeInProgress, "")
	w.expect("InProgress, attached")
	w.agent(v1.MemoryDumpVolumeCompleted, "")
	w.expect("Unmounting")
	if w.annotation != "f" || *w.Request.FileName != "f" || w.Request.StartTimestamp == nil {
		t.Errorf("the claim has the annotation %q, the request is %+v", w.annotation, w.Request)
	}
	w.agent(v1.HotplugVolumeDetaching, "")
	w.expect("Unmounting")
	w.agent("", "")
	w.expect("Completed")
	w.expect("Completed")

	w.Request.Phase = v1.MemoryDumpAssociating
	w.expect("InProgress, attached")
	w.agent(v1.MemoryDumpVolumeFailed, "full")
	w.expect("Failed: full")
	w.agent("", "")
	w.expect("Failed: full")

	w.Request.Phase, w.Request.Remove = v1.MemoryDumpDissociating, true
	w.expect("none")
}

func TestDumpIsRemovedAtAnyTime(t *testing.T) {
	w := newWorld(t)
	w.expect("InProgress, attached")
	w.agent(v1.MemoryDumpVolumeInProgress, "")
	w.Request.Phase, w.Request.Remove = v1.MemoryDumpDissociating, true
	w.expect("Dissociating")
	w.agent("", "")
	w.expect("none")
}

func TestDumpOfAGuestThatEnds(t *testing.T) {
	for phase, want := range map[v1.MemoryDumpPhase]string{
		v1.MemoryDumpAssociating: "Failed: the VM is not running", v1.MemoryDumpUnmounting: "Completed",
		v1.MemoryDumpDissociating: "none",
		v1.MemoryDumpInProgress:   "Failed: the VM stopped, or was restarted, before its memory was dumped",
		v1.MemoryDumpCompleted:    "Completed",
	} {
		w := newWorld(t)
		w.VMI, w.Request.Phase = nil, phase
		w.expect(want)
	}
	w := newWorld(t)
	w.Request.Phase = v1.MemoryDumpInProgress
	w.expect("Failed: the VM stopped, or was restarted, before its memory was dumped")
}

func TestProblems(t *testing.T) {
	for want, change := range map[string]func(*world){
		"the VM is not running":                         func(w *world) { w.VMI.Status.Phase = v1.Scheduled },
		"the VM has disableHotplug set":                 func(w *world) { w.VMI.Spec.Domain.Devices.DisableHotplug = true },
		"pvc [dump] does not exist":                     func(w *world) { w.Claim = nil },
		"pvc should be filesystem pvc":                  func(w *world) { w.Claim.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) },
		"pvc access mode can't be read only":            func(w *world) { w.Claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany} },
		"pvc size [1Gi] should be bigger then [1124Mi]": func(w *world) { w.Claim.Status.Capacity[corev1.ResourceStorage] = resource.MustParse("1Gi") },
		"pvc [dump] is a volume of the VM: use another": func(w *world) { w.VMI.Spec.Volumes = []v1.Volume{{Name: "dump"}} },
	} {
		w := newWorld(t)
		change(w)
		if got := w.next(); !strings.HasPrefix(got, "Failed: "+want) || w.Request.EndTimestamp == nil {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestWaitsForTheVolumeOfAnEarlierDump(t *testing.T) {
	w := newWorld(t)
	w.agent(v1.HotplugVolumeDetaching, "")
	w.expect("Associating")
	w.agent("", "")
	w.expect("InProgress, attached")
}
