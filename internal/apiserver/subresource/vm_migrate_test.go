// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
)

func migrations(w *world) []v1.VirtualMachineInstanceMigration {
	w.t.Helper()
	list := &v1.VirtualMachineInstanceMigrationList{}
	if err := w.client.List(context.Background(), list); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

func TestMigrate(t *testing.T) {
	vm := func(name string) *v1.VirtualMachine {
		return builder.MakeVM(name).Namespace("ns").UID("vm-" + name).Obj()
	}
	w := newWorld(t, vm("vm"), running("vm").OwnedBy(vm("vm")).Obj(), vm("stopped"),
		vm("ended"), running("ended").OwnedBy(vm("ended")).With(phase(v1.Succeeded)).Obj(),
		vm("foreign"), running("foreign").OwnedBy(vm("vm")).Obj(), vm("alone"), running("alone").Obj())
	// Permissions for a VM do not include a VMI of the same name that has another owner.
	w.expect(http.MethodPut, vmPath+"foreign/migrate", "", 409, "exists but belongs to another owner")
	w.expect(http.MethodPut, vmPath+"alone/migrate", "", 409, "exists but belongs to another owner")
	w.expect(http.MethodPut, vmPath+"none/migrate", "", 404, `virtualmachine.kubevirt.io "none" not found`)
	w.expect(http.MethodPut, vmPath+"stopped/migrate", "", 404, `virtualmachineinstance.kubevirt.io "stopped" not found`)
	w.expect(http.MethodPut, vmPath+"ended/migrate", "", 409, "VM is not running")
	w.expect(http.MethodPut, vmPath+"vm/migrate", "[", 400, "Can not unmarshal")
	w.expect(http.MethodPut, vmPath+"vm/migrate", `{"dryRun":["All"]}`, 202, "")
	if created := migrations(w); len(created) > 0 {
		t.Fatalf("created %v", created)
	}
	w.expect(http.MethodPut, vmPath+"vm/migrate", `{"addedNodeSelector":{"zone":"b"}}`, 202, "")
	created := migrations(w)
	want := v1.VirtualMachineInstanceMigrationSpec{VMIName: "vm", AddedNodeSelector: map[string]string{"zone": "b"}}
	if len(created) != 1 || !strings.HasPrefix(created[0].GenerateName, "kubevirt-migrate-vm-") ||
		created[0].Namespace != "ns" {
		t.Fatalf("created %v", created)
	}
	if diff := cmp.Diff(want, created[0].Spec); diff != "" {
		t.Error(diff)
	}
	w.expectCalls()
}

// TestGracePeriodOfAForeignVMI: a stop with a grace period changes the VMI, which must be the VM's.
func TestGracePeriodOfAForeignVMI(t *testing.T) {
	vm := builder.MakeVM("vm").Namespace("ns").UID("u").Strategy(v1.RunStrategyAlways).Obj()
	instance := running("vm").Obj()
	w := newWorld(t, vm, instance)
	w.expect(http.MethodPut, vmPath+"vm/stop", `{"gracePeriod":1}`, 409, "exists but belongs to another owner")
	after := &v1.VirtualMachineInstance{}
	if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(instance), after); err != nil ||
		after.Spec.TerminationGracePeriodSeconds != nil {
		t.Errorf("got %v, %v", after.Spec.TerminationGracePeriodSeconds, err)
	}
	w.expect(http.MethodPut, vmPath+"vm/stop", "", 202, "")
}

// TestGracePeriodOfAStop: only a VMI that is being stopped gets another grace period, whatever fails in between.
func TestGracePeriodOfAStop(t *testing.T) {
	vm := builder.MakeVM("vm").Namespace("ns").UID("u").Strategy(v1.RunStrategyManual).Obj()
	instance := running("vm").OwnedBy(vm).UID("vmi").Obj()
	w := newWorld(t, vm, instance)
	grace := func() *int64 {
		t.Helper()
		after := &v1.VirtualMachineInstance{}
		if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(instance), after); err != nil {
			t.Fatal(err)
		}
		return after.Spec.TerminationGracePeriodSeconds
	}
	w.intercept(interceptor.Funcs{SubResourcePatch: func(
		context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption,
	) error {
		return apierrors.NewServiceUnavailable("etcd")
	}})
	w.expect(http.MethodPut, vmPath+"vm/stop", `{"gracePeriod":1}`, 503, "etcd")
	if got := grace(); got != nil {
		t.Errorf("the stop failed, and the grace period is %d", *got)
	}

	conflicts := 2
	w.intercept(interceptor.Funcs{Patch: func(
		ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption,
	) error {
		if _, isVMI := o.(*v1.VirtualMachineInstance); isVMI && conflicts > 0 {
			conflicts--
			reported := &v1.VirtualMachineInstance{}
			if err := c.Get(ctx, client.ObjectKeyFromObject(o), reported); err != nil {
				return err
			}
			reported.Status.Reason = strconv.Itoa(conflicts)
			if err := c.Status().Update(ctx, reported); err != nil {
				return err
			}
		}
		return c.Patch(ctx, o, patch, options...)
	}})
	w.expect(http.MethodPut, vmPath+"vm/stop", `{"gracePeriod":1,"dryRun":["All"]}`, 202, "")
	if got := grace(); got != nil {
		t.Errorf("after a dry run, the grace period is %d", *got)
	}
	conflicts = 2
	w.expect(http.MethodPut, vmPath+"vm/stop", `{"gracePeriod":1}`, 202, "")
	if got := grace(); got == nil || *got != 1 {
		t.Errorf("got %v", got)
	}

	w.intercept(interceptor.Funcs{Patch: func(
		_ context.Context, _ client.WithWatch, o client.Object, _ client.Patch, _ ...client.PatchOption,
	) error {
		return apierrors.NewNotFound(v1.GroupVersion.WithResource("virtualmachineinstances").GroupResource(), o.GetName())
	}})
	w.expect(http.MethodPut, vmPath+"vm/stop", `{"gracePeriod":1}`, 202, "")
	w.intercept(interceptor.Funcs{Patch: func(
		context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption,
	) error {
		return apierrors.NewServiceUnavailable("etcd")
	}})
	w.expect(http.MethodPut, vmPath+"vm/stop", `{"gracePeriod":1}`, 500, "the VM is being stopped, but within the grace period that it had")
}

func TestMigrateWithoutTheKind(t *testing.T) {
	for _, missing := range []error{
		&meta.NoKindMatchError{GroupKind: v1.GroupVersion.WithKind("VirtualMachineInstanceMigration").GroupKind()},
		apierrors.NewNotFound(v1.GroupVersion.WithResource("virtualmachineinstancemigrations").GroupResource(), ""),
	} {
		w := newWorld(t, builder.MakeVM("vm").Namespace("ns").UID("u").Obj(),
			running("vm").OwnedBy(builder.MakeVM("vm").UID("u").Obj()).Obj())
		w.intercept(interceptor.Funcs{Create: func(context.Context, client.WithWatch, client.Object,
			...client.CreateOption) error {
			return missing
		}})
		w.expect(http.MethodPut, vmPath+"vm/migrate", "", 501,
			"virtualmachines/migrate is not implemented by Vireo yet: the kind VirtualMachineInstanceMigration is not installed")
	}
}
