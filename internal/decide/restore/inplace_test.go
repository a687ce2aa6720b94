// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package restore

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/api/snapshot"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// recreate creates a claim or a DataVolume again, with another UID and the owners that are given.
func recreate(c *cluster, object Object, owners ...metav1.OwnerReference) {
	object.SetOwnerReferences(owners)
	c.create(object)
}

func ownedBy(name string, vm *v1.VirtualMachine) metav1.OwnerReference {
	owner := vm.DeepCopy()
	owner.Name = name
	if name != vm.Name {
		owner.UID = "uid-of-another"
	}
	return *metav1.NewControllerRef(owner, v1.VirtualMachineGroupVersionKind)
}

func ofDataVolume(dv *cdi.DataVolume) metav1.OwnerReference {
	return *metav1.NewControllerRef(dv, cdi.GroupVersion.WithKind("DataVolume"))
}

// TestInPlaceReplacesOnlyDisksOfTheVM has claims that were created after the snapshot, under the names of those of
// which it was taken.
func TestInPlaceReplacesOnlyDisksOfTheVM(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*cluster)
		want   string // the object that is in the way
	}{
		"a claim of the VM": {change: func(c *cluster) { recreate(c, c.Claims["data-pvc"], ownedBy("vm", c.Target)) }},
		"a claim of its DataVolume": {change: func(c *cluster) {
			recreate(c, c.DataVolumes["root-dv"], ownedBy("vm", c.Target))
			recreate(c, c.Claims["root-dv"], ofDataVolume(c.DataVolumes["root-dv"]))
		}},
		"a claim of the VM's last restore, without an owner": {change: func(c *cluster) {
			metav1.SetMetaDataAnnotation(&c.Target.ObjectMeta, snapshot.LastRestoreAnnotation, "earlier-r0")
			metav1.SetMetaDataAnnotation(&c.Claims["data-pvc"].ObjectMeta, snapshot.LastRestoreAnnotation, "earlier-r0")
			recreate(c, c.Claims["data-pvc"])
		}},
		"a claim of the same DataVolume":        {change: func(c *cluster) { recreate(c, c.Claims["more-dv"], c.Claims["more-dv"].OwnerReferences...) }},
		"no claim":                              {change: func(c *cluster) { c.remove(c.Claims["data-pvc"]) }},
		"no claim of a DataVolume":              {change: func(c *cluster) { c.remove(c.Claims["more-dv"]) }},
		"a claim of another VM":                 {change: func(c *cluster) { recreate(c, c.Claims["data-pvc"], ownedBy("other", c.Target)) }, want: "PersistentVolumeClaim data-pvc"},
		"a claim of a user":                     {change: func(c *cluster) { recreate(c, c.Claims["data-pvc"]) }, want: "PersistentVolumeClaim data-pvc"},
		"a user's claim of a VM that is gone":   {change: func(c *cluster) { again(c); recreate(c, claim("data-pvc", metav1.OwnerReference{})) }, want: "PersistentVolumeClaim data-pvc"},
		"a claim that another restore has made": {change: anotherRestores, want: "PersistentVolumeClaim data-pvc"},
		"a claim of a DataVolume of no VM": {change: func(c *cluster) {
			recreate(c, c.DataVolumes["more-dv"])
			recreate(c, c.Claims["more-dv"], ofDataVolume(c.DataVolumes["more-dv"]))
		}, want: "PersistentVolumeClaim more-dv"},
		"no claim of a DataVolume of another VM": {change: func(c *cluster) {
			c.remove(c.Claims["more-dv"])
			// The importer creates no claim for it.
			metav1.SetMetaDataAnnotation(&c.DataVolumes["more-dv"].ObjectMeta, prePopulated, "true")
			recreate(c, c.DataVolumes["more-dv"], ownedBy("other", c.Target))
		}, want: "DataVolume more-dv"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			inPlace(c)
			tc.change(c)
			if tc.want == "" {
				c.run(t, all)
				return
			}
			for range 20 {
				step := Next(c.Observed)
				if len(step.Delete) > 0 {
					t.Fatalf("the step deletes %v", step.Delete)
				}
				c.apply(step, all)
				c.settle()
			}
			if got := c.Restore.Status.Conditions[0].Reason; !strings.HasPrefix(got,
				tc.want+" exists already: delete it, or give volume ") {
				t.Errorf("got %q", got)
			}
		})
	}
}

// TestInPlaceWaitsForAStorageClass has a class that is missing when the restore begins, or after the first claim was
// replaced.
func TestInPlaceWaitsForAStorageClass(t *testing.T) {
	for name, replaced := range map[string]int{"no claim is replaced": 0, "a claim is replaced": 1} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			inPlace(c)
			restored := func() (count int) {
				for _, claim := range c.Claims {
					if claim.Annotations[snapshot.LastRestoreAnnotation] == "back-r1" {
						count++
					}
				}
				return count
			}
			for restored() < replaced {
				one := replaced
				c.apply(Next(c.Observed), func() bool { one--; return one >= 0 })
				c.settle()
			}
			modes := c.BindingModes
			c.BindingModes = nil
			before := len(c.Claims)
			for range 20 {
				step := Next(c.Observed)
				if len(step.Delete) > 0 {
					t.Fatalf("the step deletes %v", step.Delete)
				}
				c.apply(step, all)
				c.settle()
			}
			if got := c.Restore.Status.Conditions[0].Reason; got != "StorageClass fast does not exist" ||
				len(c.Claims) != before {
				t.Errorf("%d claims of %d are left, and the reason is %q", len(c.Claims), before, got)
			}
			c.BindingModes = modes
			c.run(t, all)
		})
	}
}

// TestAMissingStorageClassHidesNoPermanentError has patches that can never be applied.
func TestAMissingStorageClassHidesNoPermanentError(t *testing.T) {
	c := newCluster()
	toNew(c)
	c.BindingModes, c.Restore.Spec.Patches = nil, []string{`{"op":"remove","path":"/spec/template/spec/nodeSelector"}`}
	for range 20 {
		c.apply(Next(c.Observed), all)
		c.settle()
	}
	if !Finished(c.Restore.Status) {
		t.Errorf("the status is %+v", c.Restore.Status)
	}
}

// anotherRestores makes a claim the disk that a restore of another VM has made.
func anotherRestores(c *cluster) {
	metav1.SetMetaDataAnnotation(&c.Target.ObjectMeta, snapshot.LastRestoreAnnotation, "earlier-r0")
	metav1.SetMetaDataAnnotation(&c.Claims["data-pvc"].ObjectMeta, snapshot.LastRestoreAnnotation, "of-another-r9")
	recreate(c, c.Claims["data-pvc"])
}
