// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// migrationPrefix is the generateName of migrations that the verb migrate creates. KubeVirt's.
const migrationPrefix = "kubevirt-migrate-vm-"

// migrate creates a VirtualMachineInstanceMigration of a VM's VMI.
func (a *API) migrate(w http.ResponseWriter, r *http.Request) error {
	options := &v1.MigrateOptions{}
	if err := decode(r, options); err != nil {
		return err
	}
	dry, err := isDryRun(options.DryRun)
	if err != nil {
		return err
	}
	vm, err := a.vm(r.Context(), key(r))
	if err != nil {
		return err
	}
	vmi, err := a.requireVMI(r.Context(), key(r))
	if err != nil {
		return err
	}
	if err := (vmWithVMI{vm, vmi}).checkOwner(); err != nil {
		return err
	}
	if !vmi.IsRunning() {
		return vmWithVMI{vm: vm}.conflict(notRunning)
	}
	create := []client.CreateOption{}
	if dry {
		create = append(create, client.DryRunAll)
	}
	err = a.Client.Create(r.Context(), &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, GenerateName: migrationPrefix},
		Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: vm.Name, AddedNodeSelector: options.AddedNodeSelector},
	}, create...)
	// The namespace exists, so that NotFound means that the kind is not installed.
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return notImplemented("virtualmachines/migrate", "the kind VirtualMachineInstanceMigration is not installed")
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}
