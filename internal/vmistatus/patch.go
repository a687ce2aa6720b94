// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmistatus

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/optimistic"
)

// ErrNotOwner is wrapped by the error that Patch returns for a change of a field that has another writer, or none. It
// is a programming error: a retry does not help.
var ErrNotOwner = errors.New("status field belongs to another writer")

// Patch writes the difference between two versions of one VMI's status and reports whether there was one. Without a
// difference it sends nothing. It sends a JSON merge patch of /status with the resource version of before as the
// precondition, and returns a conflict unchanged: the caller then reconciles what the API server has. After success,
// after has the status and the resource version of the response.
func Patch(
	ctx context.Context, c client.Client, w Writer, before, after *v1.VirtualMachineInstance,
) (changed bool, err error) {
	fields, err := Check(w, &before.Status, &after.Status)
	if err != nil {
		return false, fmt.Errorf("status of VirtualMachineInstance %s/%s: %w", before.Namespace, before.Name, err)
	}
	if len(fields) == 0 {
		return false, nil
	}
	if err := swap(ctx, c, before, after); err != nil {
		return false, fmt.Errorf("patch status of VirtualMachineInstance %s/%s (%s): %w",
			before.Namespace, before.Name, strings.Join(fields, ", "), err)
	}
	return true, nil
}

// swap is the compare-and-swap with which every write is done.
func swap(ctx context.Context, c client.Client, before, after *v1.VirtualMachineInstance) error {
	// Only the status is sent, whatever else the caller changed in memory.
	from, to := statusOnly(before), statusOnly(before)
	to.Status = *after.Status.DeepCopy()
	if err := c.Status().Patch(ctx, to, optimistic.MergeFrom(from)); err != nil {
		return err
	}
	after.ResourceVersion = to.ResourceVersion
	after.Status = to.Status
	return nil
}

func statusOnly(vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstance {
	return &v1.VirtualMachineInstance{
		TypeMeta: vmi.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vmi.Namespace, Name: vmi.Name, UID: vmi.UID, ResourceVersion: vmi.ResourceVersion,
		},
		Status: *vmi.Status.DeepCopy(),
	}
}

// Check returns the fields in which two statuses differ, conditions as conditions[Type], or an error that names the
// first field that the writer must not change.
func Check(w Writer, before, after *v1.VirtualMachineInstanceStatus) ([]string, error) {
	stage := stageOfChange(before, after)
	var changed []string
	from, to := reflect.ValueOf(before).Elem(), reflect.ValueOf(after).Elem()
	for i := range from.NumField() {
		name := jsonName(from.Type().Field(i))
		if name == conditionsField || name == migrationField || name == volumesField {
			continue
		}
		if equality.Semantic.DeepEqual(from.Field(i).Interface(), to.Field(i).Interface()) {
			continue
		}
		if err := mayWrite(w, stage, "status."+name, fieldOwners[name]); err != nil {
			return nil, err
		}
		changed = append(changed, name)
	}
	volumes, err := checkVolumes(w, stage, before.VolumeStatus, after.VolumeStatus)
	if err != nil {
		return nil, err
	}
	conditions, err := checkConditions(w, stage, before, after)
	if err != nil {
		return nil, err
	}
	migrated, err := checkMigration(w, before, after.MigrationState)
	if err != nil {
		return nil, err
	}
	return slices.Concat(changed, volumes, conditions, migrated), nil
}

// stageOfChange is the stage whose writers may make a change. virt-controller may end a VMI in any stage, and change
// everything that belongs to the end.
func stageOfChange(before, after *v1.VirtualMachineInstanceStatus) Stage {
	if StageOf(after.Phase) == Ended {
		return Ended
	}
	return StageOf(before.Phase)
}

func checkConditions(
	w Writer, stage Stage, before, after *v1.VirtualMachineInstanceStatus,
) ([]string, error) {
	var changed []string
	check := func(kind v1.VirtualMachineInstanceConditionType, same bool) error {
		if same {
			return nil
		}
		name := fmt.Sprintf("conditions[%s]", kind)
		changed = append(changed, name)
		return mayWrite(w, stage, "status."+name, ownersOf(kind, before, after))
	}
	for i := range after.Conditions {
		old := FindCondition(before, after.Conditions[i].Type)
		same := old != nil && equality.Semantic.DeepEqual(*old, after.Conditions[i])
		if err := check(after.Conditions[i].Type, same); err != nil {
			return nil, err
		}
	}
	for i := range before.Conditions {
		kept := FindCondition(after, before.Conditions[i].Type) != nil
		if err := check(before.Conditions[i].Type, kept); err != nil {
			return nil, err
		}
	}
	return changed, nil
}

// ownersOf returns the writers of a condition. Only virt-controller writes Ready while the node is Lost.
func ownersOf(kind v1.VirtualMachineInstanceConditionType, before, after *v1.VirtualMachineInstanceStatus) owners {
	if kind == v1.VirtualMachineInstanceReady && (Lost(before) || Lost(after)) {
		return byController
	}
	return conditionOwners[kind]
}

func mayWrite(w Writer, stage Stage, field string, o owners) error {
	owner := o.at(stage)
	switch owner {
	case w:
		return nil
	case "":
		return fmt.Errorf("%s has no writer in internal/vmistatus/ownership.go: %w", field, ErrNotOwner)
	default:
		return fmt.Errorf("%s belongs to %s now, %s must not change it: %w", field, owner, w, ErrNotOwner)
	}
}

// jsonName is the name of a struct field in JSON.
func jsonName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return name
}
