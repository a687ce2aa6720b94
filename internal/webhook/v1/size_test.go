// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// padded returns a spec with so many bytes in a field that has no limit.
func padded(bytes int) specOption {
	return func(spec *v1.VirtualMachineInstanceSpec) {
		spec.NodeSelector = map[string]string{"pad": strings.Repeat("x", bytes)}
	}
}

func newSet(bytes int) *v1.VirtualMachineInstanceReplicaSet {
	labels := map[string]string{"app": "set"}
	set := &v1.VirtualMachineInstanceReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "set",
		Namespace: metav1.NamespaceDefault}}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	set.Spec.Template = &v1.VirtualMachineInstanceTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: *newSpec(padded(bytes))}
	return set
}

func TestObjectsOfTenantsAreLimited(t *testing.T) {
	config := fixedConfig{clusterconfig.Default()}
	config.DefaultArchitecture = clusterconfig.ArchAMD64
	trusted := sets.New("virt-controller")
	vm := &vmValidator{config: config, trusted: trusted, finder: readers()}
	vmi := &vmiValidator{config: config, trusted: trusted}
	pool, set := &poolValidator{config: config}, &replicaSetValidator{config: config}
	by := func(user string) context.Context {
		return admission.NewContextWithRequest(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
			UserInfo: authenticationv1.UserInfo{Username: user},
		}})
	}
	for name, tc := range map[string]struct {
		limit  int
		create func(ctx context.Context, bytes int) error
		// update changes an object of some bytes.
		update func(ctx context.Context, before, after int) error
		// trusted reports whether virt-controller may create a larger one.
		trusted bool
	}{
		"VM": {maxSpec, func(ctx context.Context, bytes int) error {
			_, err := vm.ValidateCreate(ctx, newVM("vm", padded(bytes)))
			return err
		}, func(ctx context.Context, before, after int) error {
			_, err := vm.ValidateUpdate(ctx, newVM("vm", padded(before)), newVM("vm", padded(after)))
			return err
		}, true},
		"VMI": {maxSpec, func(ctx context.Context, bytes int) error {
			_, err := vmi.ValidateCreate(ctx, newVMI("vmi", padded(bytes)))
			return err
		}, nil, true},
		"pool": {maxTemplate, func(ctx context.Context, bytes int) error {
			_, err := pool.ValidateCreate(ctx, newPool("pool", padded(bytes)))
			return err
		}, func(ctx context.Context, before, after int) error {
			_, err := pool.ValidateUpdate(ctx, newPool("pool", padded(before)), newPool("pool", padded(after)))
			return err
		}, false},
		"replica set": {maxTemplate, func(ctx context.Context, bytes int) error {
			_, err := set.ValidateCreate(ctx, newSet(bytes))
			return err
		}, func(ctx context.Context, before, after int) error {
			_, err := set.ValidateUpdate(ctx, newSet(before), newSet(after))
			return err
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			small, large := tc.limit*9/10, tc.limit
			if err := tc.create(by("tenant"), small); err != nil {
				t.Error(err)
			}
			if err := tc.create(by("tenant"), large); err == nil || !strings.Contains(err.Error(), "may not be more than") {
				t.Errorf("a large one: %v", err)
			}
			if err := tc.create(by("virt-controller"), large); (err == nil) != tc.trusted {
				t.Errorf("a large one by virt-controller: %v", err)
			}
			if tc.update == nil {
				return
			}
			if err := tc.update(by("tenant"), small, large); err == nil {
				t.Error("one became too large")
			}
			if err := tc.update(by("tenant"), large, large+1); err != nil {
				t.Errorf("a large one from an earlier version cannot be changed: %v", err)
			}
		})
	}
}
