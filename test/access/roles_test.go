// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package access

import (
	"maps"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Sets of users.
const (
	nobody   = ""
	admin    = "admin"
	editors  = "admin editor"
	viewers  = "admin editor viewer"
	migrator = "migrator"
	movers   = "admin editor migrator viewer" // may read migrations
	everyone = "admin editor migrator stranger viewer"
)

const (
	read   = "get list watch"
	change = "create update patch delete"
)

// permission is which users may use each verb on a resource in the namespace.
type permission struct {
	verbs, group, resource string
	users                  string
}

// permissions are those of KubeVirt's roles.
var permissions = []permission{
	{read, "kubevirt.io", "virtualmachines", viewers},
	{change, "kubevirt.io", "virtualmachines", editors},
	{"deletecollection", "kubevirt.io", "virtualmachines", admin},
	{read, "kubevirt.io", "virtualmachineinstances", viewers},
	{change, "kubevirt.io", "virtualmachineinstances", editors},
	{"deletecollection", "kubevirt.io", "virtualmachineinstances", admin},
	{read, "kubevirt.io", "virtualmachineinstancereplicasets", viewers},
	{change, "kubevirt.io", "virtualmachineinstancereplicasets", editors},
	{"deletecollection", "kubevirt.io", "virtualmachineinstancereplicasets", admin},
	{"get", "kubevirt.io", "virtualmachineinstancereplicasets/scale", viewers},
	{"update patch", "kubevirt.io", "virtualmachineinstancereplicasets/scale", editors},
	{"update patch", "kubevirt.io", "virtualmachineinstancereplicasets/status", nobody},
	{read, "kubevirt.io", "virtualmachineinstancepresets", viewers},
	{change, "kubevirt.io", "virtualmachineinstancepresets", editors},

	// Migrations are for administrators of nodes.
	{read, "kubevirt.io", "virtualmachineinstancemigrations", movers},
	{change, "kubevirt.io", "virtualmachineinstancemigrations", migrator},
	{"deletecollection", "kubevirt.io", "virtualmachineinstancemigrations", migrator},
	{"update", "subresources.kubevirt.io", "virtualmachines/migrate", migrator},
	{"update", "subresources.kubevirt.io", "virtualmachines/evacuate/cancel", "admin editor migrator"},
	{"update", "subresources.kubevirt.io", "virtualmachineinstances/evacuate/cancel", "admin editor migrator"},
	// The API server authorizes the first segment of a subresource, and then virt-api the whole subresource.
	{"update", "subresources.kubevirt.io", "virtualmachines/evacuate", "admin editor migrator"},
	{"update", "subresources.kubevirt.io", "virtualmachineinstances/evacuate", "admin editor migrator"},
	{"get", "subresources.kubevirt.io", "virtualmachineinstances/sev", viewers},
	{"update", "subresources.kubevirt.io", "virtualmachineinstances/sev", editors},
	{read, "migrations.kubevirt.io", "migrationpolicies", viewers},
	{change, "migrations.kubevirt.io", "migrationpolicies", nobody},

	// The status is written only by components, and the configuration only by cluster administrators.
	{"update patch", "kubevirt.io", "virtualmachines/status", nobody},
	{"update patch", "kubevirt.io", "virtualmachineinstances/status", nobody},
	{"update patch", "kubevirt.io", "virtualmachineinstances/finalizers", nobody},
	{"update patch", "kubevirt.io", "kubevirts/status", nobody},
	{"get list", "kubevirt.io", "kubevirts", everyone},
	{"watch", "kubevirt.io", "kubevirts", nobody},
	{change + " deletecollection", "kubevirt.io", "kubevirts", nobody},

	{"get", "subresources.kubevirt.io", "virtualmachineinstances/console", editors},
	{"get", "subresources.kubevirt.io", "virtualmachineinstances/vnc", editors},
	{"get", "subresources.kubevirt.io", "virtualmachineinstances/vnc/screenshot", editors},
	{"get", "subresources.kubevirt.io", "virtualmachineinstances/portforward", editors},
	{"get", "subresources.kubevirt.io", "virtualmachineinstances/usbredir", editors},
	{"get", "subresources.kubevirt.io", "virtualmachineinstances/vsock", nobody},
	{"get", "subresources.kubevirt.io", "virtualmachineinstances/guestosinfo", viewers},
	{"get", "subresources.kubevirt.io", "virtualmachineinstances/filesystemlist", viewers},
	{"get", "subresources.kubevirt.io", "virtualmachineinstances/userlist", viewers},
	{"get", "subresources.kubevirt.io", "virtualmachineinstances/sev/fetchcertchain", viewers},
	{"update", "subresources.kubevirt.io", "virtualmachineinstances/sev/injectlaunchsecret", editors},
	{"update", "subresources.kubevirt.io", "virtualmachineinstances/pause", editors},
	{"update", "subresources.kubevirt.io", "virtualmachineinstances/unpause", editors},
	{"update", "subresources.kubevirt.io", "virtualmachineinstances/freeze", editors},
	{"update", "subresources.kubevirt.io", "virtualmachineinstances/unfreeze", editors},
	{"update", "subresources.kubevirt.io", "virtualmachineinstances/softreboot", editors},
	{"update", "subresources.kubevirt.io", "virtualmachineinstances/reset", editors},
	{"update", "subresources.kubevirt.io", "virtualmachineinstances/addvolume", editors},
	{"update", "subresources.kubevirt.io", "virtualmachines/start", editors},
	{"update", "subresources.kubevirt.io", "virtualmachines/stop", editors},
	{"update", "subresources.kubevirt.io", "virtualmachines/restart", editors},
	{"update", "subresources.kubevirt.io", "virtualmachines/addvolume", editors},
	{"update", "subresources.kubevirt.io", "virtualmachines/removevolume", editors},
	{"update", "subresources.kubevirt.io", "virtualmachines/memorydump", editors},
	{"get", "subresources.kubevirt.io", "virtualmachines/portforward", editors},
	{"get", "subresources.kubevirt.io", "virtualmachines/expand-spec", viewers},
	{"update", "subresources.kubevirt.io", "expand-vm-spec", viewers},
	{"get list", "subresources.kubevirt.io", "version", everyone},
	{"get list", "subresources.kubevirt.io", "guestfs", everyone},

	{read, "instancetype.kubevirt.io", "virtualmachineclusterinstancetypes", everyone},
	{read, "instancetype.kubevirt.io", "virtualmachineclusterpreferences", everyone},
	{read, "instancetype.kubevirt.io", "virtualmachineinstancetypes", viewers},
	{change, "instancetype.kubevirt.io", "virtualmachineinstancetypes", editors},
	{change, "instancetype.kubevirt.io", "virtualmachinepreferences", editors},
	{read, "snapshot.kubevirt.io", "virtualmachinesnapshots", viewers},
	{change, "snapshot.kubevirt.io", "virtualmachinesnapshots", editors},
	{change, "snapshot.kubevirt.io", "virtualmachinesnapshotcontents", editors},
	{change, "snapshot.kubevirt.io", "virtualmachinerestores", editors},
	{"update patch", "snapshot.kubevirt.io", "virtualmachinesnapshots/status", nobody},
	{"update patch", "snapshot.kubevirt.io", "virtualmachinesnapshotcontents/status", nobody},
	{"update patch", "snapshot.kubevirt.io", "virtualmachinerestores/status", nobody},
	{change, "clone.kubevirt.io", "virtualmachineclones", editors},
	{"update patch", "clone.kubevirt.io", "virtualmachineclones/status", nobody},
	{read, "export.kubevirt.io", "virtualmachineexports", viewers},
	{change, "export.kubevirt.io", "virtualmachineexports", editors},
	{"update patch", "export.kubevirt.io", "virtualmachineexports/status", nobody},
	{change, "pool.kubevirt.io", "virtualmachinepools", editors},
	{"deletecollection", "pool.kubevirt.io", "virtualmachinepools", admin},
	{"get", "pool.kubevirt.io", "virtualmachinepools/scale", viewers},
	{"update patch", "pool.kubevirt.io", "virtualmachinepools/scale", editors},
	{"update patch", "pool.kubevirt.io", "virtualmachinepools/status", nobody},
	{change, "backup.kubevirt.io", "virtualmachinebackups", editors},
}

func TestPermissions(t *testing.T) {
	checks := 0
	for _, p := range permissions {
		for verb := range strings.FieldsSeq(p.verbs) {
			t.Run(verb+" "+p.resource+"."+p.group, func(t *testing.T) {
				var allowed []string
				for _, user := range slices.Sorted(maps.Keys(users)) {
					if may(t, user, verb, p.group, p.resource, namespace) {
						allowed = append(allowed, user)
					}
					checks++
				}
				if got := strings.Join(allowed, " "); got != p.users {
					t.Errorf("allowed to %q, want %q", got, p.users)
				}
			})
		}
	}
	t.Logf("%d checks", checks)
}

func TestRolesAreNamespaced(t *testing.T) {
	for user := range users {
		if may(t, user, "get", "kubevirt.io", "virtualmachines", "elsewhere") {
			t.Errorf("%s may read VMs of another namespace", user)
		}
	}
}

// A namespace's editor reaches the data of another one by none of the kinds that copy it. What the objects of its own
// namespace may name is tested beside the code that reads them.
func TestDataOfOtherNamespacesIsOutOfReach(t *testing.T) {
	for _, p := range []struct{ group, resource string }{
		{"snapshot.kubevirt.io", "virtualmachinesnapshots"},
		{"snapshot.kubevirt.io", "virtualmachinesnapshotcontents"},
		{"snapshot.kubevirt.io", "virtualmachinerestores"},
		{"clone.kubevirt.io", "virtualmachineclones"},
		{"export.kubevirt.io", "virtualmachineexports"},
		{"backup.kubevirt.io", "virtualmachinebackups"},
		{"subresources.kubevirt.io", "virtualmachines/memorydump"},
		{"subresources.kubevirt.io", "virtualmachines/addvolume"},
		// With it, DataVolumes of other namespaces may copy claims and snapshots.
		{"cdi.kubevirt.io", "datavolumes/source"},
		{"", "persistentvolumeclaims"},
		{"", "secrets"},
	} {
		for verb := range strings.FieldsSeq(read + " " + change) {
			for user := range users {
				if may(t, user, verb, p.group, p.resource, "elsewhere") {
					t.Errorf("%s may %s %s of another namespace", user, verb, p.resource)
				}
			}
		}
	}
}

// may sends a SubjectAccessReview.
func may(t *testing.T, user, verb, group, resource, where string) bool {
	t.Helper()
	resource, subresource, _ := strings.Cut(resource, "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, Groups: []string{"system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: where, Verb: verb, Group: group, Resource: resource, Subresource: subresource,
		},
	}}
	if err := cluster.Create(t.Context(), review); err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}

func newVM(name string) *v1.VirtualMachine {
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	vm.Spec.RunStrategy = ptr.To(v1.RunStrategyHalted)
	vm.Spec.Template = &v1.VirtualMachineInstanceTemplateSpec{}
	return vm
}

func TestRequestsOfUsers(t *testing.T) {
	editor, viewer := as(t, "editor"), as(t, "viewer")
	vm := newVM("acted-on")
	expectForbidden(t, viewer.Create(t.Context(), vm.DeepCopy()))
	if err := editor.Create(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	if err := viewer.Get(t.Context(), client.ObjectKeyFromObject(vm), &v1.VirtualMachine{}); err != nil {
		t.Error(err)
	}
	expectForbidden(t, viewer.Delete(t.Context(), vm))
	expectForbidden(t, as(t, "stranger").Get(t.Context(), client.ObjectKeyFromObject(vm), &v1.VirtualMachine{}))

	before := vm.DeepCopy()
	vm.Status.Ready = true
	expectForbidden(t, editor.Status().Patch(t.Context(), vm, client.MergeFrom(before)))
	if err := editor.Patch(t.Context(), vm, client.MergeFrom(before)); err != nil {
		t.Error(err)
	}
	if vm.Status.Ready {
		t.Error("a write of the object changed its status")
	}
	expectForbidden(t, editor.DeleteAllOf(t.Context(), &v1.VirtualMachine{}, client.InNamespace(namespace)))
	if err := as(t, "admin").DeleteAllOf(t.Context(), &v1.VirtualMachine{}, client.InNamespace(namespace)); err != nil {
		t.Error(err)
	}
}

func expectForbidden(t *testing.T, err error) {
	t.Helper()
	if !apierrors.IsForbidden(err) {
		t.Errorf("got %v, want Forbidden", err)
	}
}
