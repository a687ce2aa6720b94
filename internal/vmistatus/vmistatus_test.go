// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmistatus

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/constants"
)

func TestEveryStatusFieldHasAnOwner(t *testing.T) {
	status := reflect.TypeFor[v1.VirtualMachineInstanceStatus]()
	seen := map[string]bool{}
	for i := range status.NumField() {
		name := jsonName(status.Field(i))
		seen[name] = true
		if name == conditionsField || name == migrationField {
			continue
		}
		o, ok := fieldOwners[name]
		if !ok {
			t.Errorf("status.%s has no writer: add it to fieldOwners in internal/vmistatus/ownership.go", name)
			continue
		}
		for _, stage := range []Stage{Preparing, Live, Ended} {
			if w := o.at(stage); w != Controller && w != Handler {
				t.Errorf("status.%s has no writer in stage %d", name, stage)
			}
		}
	}
	for name := range fieldOwners {
		if !seen[name] {
			t.Errorf("fieldOwners has %q, which is no field of the status", name)
		}
	}
}

func TestEveryConditionTypeHasAnOwner(t *testing.T) {
	for name, condition := range constants.OfType(t, "../../api/v1", "VirtualMachineInstanceConditionType") {
		if _, ok := conditionOwners[v1.VirtualMachineInstanceConditionType(condition)]; !ok {
			t.Errorf("the condition %s (%s) has no writer: add it to conditionOwners in internal/vmistatus/ownership.go, "+
				"and follow \"a new condition of a VMI\" in docs/architecture.md", condition, name)
		}
	}
}

// notSet are KubeVirt's conditions that Vireo does not set.
var notSet = map[v1.VirtualMachineInstanceConditionType]bool{
	v1.VirtualMachineInstanceUnsupportedAgent:                  true,
	v1.VirtualMachineInstanceDecentralizedLiveMigrationFailure: true,
	v1.VirtualMachineInstanceSoftwareEmulation:                 true,
}

// Each writer of a condition uses its constant, in one of the directories in which statuses are computed.
func TestEveryConditionIsComputedByItsWriters(t *testing.T) {
	directories := map[Writer][]string{
		Controller: {"internal/controller/virtualmachineinstance", "internal/decide/migration/eviction"},
		Handler:    {"internal/agent/vmi"},
	}
	computes := func(w Writer, constant string) bool {
		used := regexp.MustCompile(`\bv1\.` + constant + `\b`)
		return slices.ContainsFunc(directories[w], func(directory string) bool {
			files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(directory), "*.go"))
			if err != nil || len(files) == 0 {
				t.Fatalf("%s has no source: %v", directory, err)
			}
			return slices.ContainsFunc(files, func(file string) bool {
				source, err := os.ReadFile(file)
				return err == nil && !strings.HasSuffix(file, "_test.go") && used.Match(source)
			})
		})
	}
	for name, condition := range constants.OfType(t, "../../api/v1", "VirtualMachineInstanceConditionType") {
		kind := v1.VirtualMachineInstanceConditionType(condition)
		for _, stage := range []Stage{Preparing, Live, Ended} {
			writer := conditionOwners[kind].at(stage)
			if writer != "" && computes(writer, name) == notSet[kind] {
				t.Errorf("%s writes the condition %s (%s) by the table, and %v use its constant: %t. Follow \"a new condition of a "+
					"VMI\" in docs/architecture.md", writer, condition, name, directories[writer], notSet[kind])
				break
			}
		}
	}
}

func status(phase v1.VirtualMachineInstancePhase, changes ...func(*v1.VirtualMachineInstanceStatus),
) *v1.VirtualMachineInstanceStatus {
	s := &v1.VirtualMachineInstanceStatus{Phase: phase}
	for _, change := range changes {
		change(s)
	}
	return s
}

func withCondition(kind v1.VirtualMachineInstanceConditionType) func(*v1.VirtualMachineInstanceStatus) {
	return func(s *v1.VirtualMachineInstanceStatus) {
		s.Conditions = append(s.Conditions, v1.VirtualMachineInstanceCondition{Type: kind, Status: corev1.ConditionTrue})
	}
}

func TestCheck(t *testing.T) {
	onNode := func(s *v1.VirtualMachineInstanceStatus) { s.NodeName = "n" }
	withMAC := func(s *v1.VirtualMachineInstanceStatus) {
		s.Interfaces = []v1.VirtualMachineInstanceNetworkInterface{{MAC: "m"}}
	}
	withVolume := func(s *v1.VirtualMachineInstanceStatus) { s.VolumeStatus = []v1.VolumeStatus{{Name: "v"}} }
	withClaim := func(capacity string) func(*v1.VirtualMachineInstanceStatus) {
		return func(s *v1.VirtualMachineInstanceStatus) {
			s.VolumeStatus = []v1.VolumeStatus{{Name: "v", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{
				Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(capacity)},
			}}}
		}
	}
	ready := withCondition(v1.VirtualMachineInstanceReady)
	paused := withCondition(v1.VirtualMachineInstancePaused)
	lost := func(s *v1.VirtualMachineInstanceStatus) {
		withCondition(v1.VirtualMachineInstanceNodeUnresponsive)(s)
		s.Conditions[len(s.Conditions)-1].Reason = v1.VirtualMachineInstanceReasonNodeLost
	}
	for _, tc := range []struct {
		name          string
		writer        Writer
		before, after *v1.VirtualMachineInstanceStatus
		changed       []string
		refused       string
	}{
		{"nothing", Handler, status(v1.Running), status(v1.Running), nil, ""},
		{"nil and empty are the same", Handler, status(v1.Running), status(v1.Running,
			func(s *v1.VirtualMachineInstanceStatus) { s.Interfaces = []v1.VirtualMachineInstanceNetworkInterface{} }), nil, ""},
		{"conditions in another order are the same", Handler, status(v1.Running, ready, paused),
			status(v1.Running, paused, ready), nil, ""},
		{"assignment", Controller, status(v1.Pending), status(v1.Scheduled, onNode, withVolume, ready),
			[]string{"nodeName", "phase", "volumeStatus", "conditions[Ready]"}, ""},
		{"the agent must not assign itself a VMI", Handler, status(v1.Scheduling), status(v1.Running), nil, "status.phase"},
		{"the agent starts the guest", Handler, status(v1.Scheduled), status(v1.Running, withMAC, ready, withVolume),
			[]string{"phase", "interfaces", "volumeStatus", "conditions[Ready]"}, ""},
		{"the controller must not start the guest", Controller, status(v1.Scheduled), status(v1.Running), nil, "status.phase"},
		{"the controller must not touch a live guest's readiness", Controller, status(v1.Running, ready),
			status(v1.Running), nil, "status.conditions[Ready]"},
		{"the controller must not touch interfaces", Controller, status(v1.Pending), status(v1.Pending, withMAC), nil,
			"status.interfaces"},
		{"the controller reports the size of a live guest's claim", Controller, status(v1.Running, withClaim("1Gi")), status(v1.Running, withClaim("2Gi")),
			[]string{"volumeStatus.persistentVolumeClaimInfo"}, ""},
		{"the controller must not touch a live guest's volumes", Controller, status(v1.Running), status(v1.Running, withVolume), nil, "status.volumeStatus "},
		{"the agent must not describe claims", Handler, status(v1.Running, withClaim("1Gi")), status(v1.Running, withClaim("2Gi")), nil,
			"status.volumeStatus.persistentVolumeClaimInfo"},
		{"the agent must not lose claims", Handler, status(v1.Running, withClaim("1Gi")), status(v1.Running, withVolume), nil,
			"status.volumeStatus.persistentVolumeClaimInfo"},
		{"the agent must not move the VMI", Handler, status(v1.Running), status(v1.Running, onNode), nil, "status.nodeName"},
		{"the agent must not end the VMI", Handler, status(v1.Running), status(v1.Failed), nil, "status.phase"},
		{"the controller ends the VMI", Controller, status(v1.Running, ready), status(v1.Failed),
			[]string{"phase", "conditions[Ready]"}, ""},
		{"the agent must not write to an ended VMI", Handler, status(v1.Failed), status(v1.Failed, ready), nil, "status.conditions[Ready]"},
		{"the agent sets Unknown", Handler, status(v1.Running), status(v1.Unknown), []string{"phase"}, ""},
		{"the controller ends a VMI whose state is unknown", Controller, status(v1.Unknown), status(v1.Failed),
			[]string{"phase"}, ""},
		{"the controller writes the readiness of a guest on a lost node", Controller, status(v1.Running, ready),
			status(v1.Running, lost), []string{"conditions[NodeUnresponsive]", "conditions[Ready]"}, ""},
		{"the agent must not write the readiness while its node is lost", Handler, status(v1.Running, lost), status(v1.Running, lost, ready), nil,
			"status.conditions[Ready]"},
		{"the agent writes the readiness once its node is back", Handler, status(v1.Running), status(v1.Running, ready),
			[]string{"conditions[Ready]"}, ""},
		{"a condition without a writer", Controller, status(v1.Pending), status(v1.Pending, withCondition("Nonsense")), nil,
			"status.conditions[Nonsense] has no writer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			changed, err := Check(tc.writer, tc.before, tc.after)
			if tc.refused != "" {
				if !errors.Is(err, ErrNotOwner) || !strings.Contains(err.Error(), tc.refused) {
					t.Fatalf("got %v, want a refusal that names %s", err, tc.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.changed, changed); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// server responds to status patches like an API server that has the VMI at resource version 1, and records them.
// (The fake client cannot track managed fields of a type with a uint64.)
func server() (client.Client, *[]map[string]any) {
	version := 1
	var patches []map[string]any
	respond := func(_ context.Context, _ client.Client, _ string, obj client.Object, patch client.Patch,
		_ ...client.SubResourcePatchOption,
	) error {
		data, err := patch.Data(obj)
		if err != nil {
			return err
		}
		var body map[string]any
		if err := json.Unmarshal(data, &body); err != nil {
			return err
		}
		patches = append(patches, body)
		metadata, _ := body["metadata"].(map[string]any)
		if metadata["resourceVersion"] != strconv.Itoa(version) {
			return apierrors.NewConflict(schema.GroupResource{Resource: "vmis"}, obj.GetName(), errors.New("stale"))
		}
		version++
		obj.SetResourceVersion(strconv.Itoa(version))
		return nil
	}
	c := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{SubResourcePatch: respond})
	return c, &patches
}

func TestPatch(t *testing.T) {
	ctx := context.Background()
	c, patches := server()
	before := v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", ResourceVersion: "1"},
		Status:     v1.VirtualMachineInstanceStatus{Phase: v1.Pending},
	}
	after := before.DeepCopy()
	after.Labels = map[string]string{"must": "not-be-sent"}

	if changed, err := Patch(ctx, c, Controller, &before, after); changed || err != nil || len(*patches) != 0 {
		t.Fatalf("without a difference: changed %v, err %v, %d requests", changed, err, len(*patches))
	}

	after.Status.NodeName = "node"
	if changed, err := Patch(ctx, c, Controller, &before, after); !changed || err != nil {
		t.Fatalf("changed %v, err %v", changed, err)
	}
	want := []map[string]any{{
		"metadata": map[string]any{"resourceVersion": before.ResourceVersion},
		"status":   map[string]any{"nodeName": "node"},
	}}
	if diff := cmp.Diff(want, *patches); diff != "" {
		t.Error(diff)
	}
	if after.ResourceVersion == before.ResourceVersion {
		t.Error("after kept the old resource version")
	}

	stale := before.DeepCopy()
	stale.Status.NodeName = "elsewhere"
	if _, err := Patch(ctx, c, Controller, &before, stale); !apierrors.IsConflict(err) {
		t.Errorf("a stale version was accepted: %v", err)
	}

	foreign := after.DeepCopy()
	foreign.Status.NodeName = "mine"
	if _, err := Patch(ctx, c, Handler, after, foreign); !errors.Is(err, ErrNotOwner) || len(*patches) != 2 {
		t.Errorf("a foreign field: err %v, %d requests", err, len(*patches))
	}
}

func TestSetCondition(t *testing.T) {
	first := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	later := metav1.NewTime(first.Add(time.Minute))
	ready := func(status corev1.ConditionStatus, reason string) v1.VirtualMachineInstanceCondition {
		return v1.VirtualMachineInstanceCondition{Type: v1.VirtualMachineInstanceReady, Status: status, Reason: reason}
	}
	s := &v1.VirtualMachineInstanceStatus{}
	for _, step := range []struct {
		name      string
		condition v1.VirtualMachineInstanceCondition
		changed   bool
		since     metav1.Time
	}{
		{"new", ready(corev1.ConditionFalse, "A"), true, first},
		{"the same", ready(corev1.ConditionFalse, "A"), false, first},
		{"another reason", ready(corev1.ConditionFalse, "B"), true, first},
		{"another status", ready(corev1.ConditionTrue, ""), true, later},
	} {
		now := later
		if step.name == "new" {
			now = first
		}
		if changed := SetCondition(s, step.condition, now); changed != step.changed {
			t.Errorf("%s: changed %v", step.name, changed)
		}
		want := step.condition
		want.LastTransitionTime = step.since
		if diff := cmp.Diff(&want, FindCondition(s, v1.VirtualMachineInstanceReady)); diff != "" {
			t.Errorf("%s: %s", step.name, diff)
		}
	}
	if !IsConditionTrue(s, v1.VirtualMachineInstanceReady) || IsConditionTrue(s, v1.VirtualMachineInstancePaused) {
		t.Error("IsConditionTrue is wrong")
	}
	if !RemoveCondition(s, v1.VirtualMachineInstanceReady) || RemoveCondition(s, v1.VirtualMachineInstanceReady) {
		t.Error("RemoveCondition does not report whether there was one")
	}
}

func TestPhaseStamps(t *testing.T) {
	first := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	later := metav1.NewTime(first.Add(time.Minute))
	s := &v1.VirtualMachineInstanceStatus{Phase: v1.Pending}
	if !StampPhase(s, v1.Pending, first) || StampPhase(s, v1.Pending, later) {
		t.Error("a phase is stamped once")
	}
	if !SetPhase(s, v1.Scheduled, later) || SetPhase(s, v1.Scheduled, later) {
		t.Error("SetPhase reports whether something changed")
	}
	want := []v1.VirtualMachineInstancePhaseTransitionTimestamp{
		{Phase: v1.Pending, PhaseTransitionTimestamp: first},
		{Phase: v1.Scheduled, PhaseTransitionTimestamp: later},
	}
	if diff := cmp.Diff(want, s.PhaseTransitionTimestamps); diff != "" {
		t.Error(diff)
	}
	if !HasPassed(s, v1.Scheduled) || HasPassed(s, v1.Running) {
		t.Error("HasPassed is wrong")
	}
}
