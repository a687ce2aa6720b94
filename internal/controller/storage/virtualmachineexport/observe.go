// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineexport

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachinebackup"
	"github.com/vireo-project/vireo/internal/controller/storage/volumesnapshot"
	"github.com/vireo-project/vireo/internal/decide/export"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
	"github.com/vireo-project/vireo/internal/exporter/content"
)

// observe reads what the next step depends on. Objects in lists belong to the cache and must not be changed.
func (s *scope) observe(ctx context.Context) (*export.Observed, error) {
	o := &export.Observed{Now: s.now, Export: s.export, Unfilled: map[string]string{}, Used: map[string]bool{}}
	if !s.now.Before(export.Expiry(s.export)) && export.SourceKind(s.export) != export.KindBackup {
		return o, nil
	}
	for _, part := range []func(context.Context, *export.Observed) error{
		s.readClaims, s.readSource, s.readImports, s.readUsers, s.readOwn, s.readConfig,
	} {
		if err := part(ctx, o); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// key returns the key of an object in the namespace of the export.
func (s *scope) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: s.export.Namespace, Name: name}
}

func (s *scope) readClaims(ctx context.Context, o *export.Observed) (err error) {
	o.Claims, err = kit.Claims(ctx, s.Client, s.export.Namespace)
	return err
}

func (s *scope) readSource(ctx context.Context, o *export.Observed) error {
	switch export.SourceKind(s.export) {
	case export.KindVM:
		return s.readVM(ctx, o)
	case export.KindSnapshot:
		return s.readSnapshot(ctx, o)
	case export.KindBackup:
		return s.readBackup(ctx, o)
	default:
		return nil
	}
}

// readVM reads the VM. It reads the VMI from the API server, because the cache may be stale: if a VMI was created
// meanwhile, its guest would write to the disks while they are read.
func (s *scope) readVM(ctx context.Context, o *export.Observed) error {
	key := s.key(s.export.Spec.Source.Name)
	vm, err := kit.Read(ctx, key, &v1.VirtualMachine{}, s.Client, s.APIReader)
	if err != nil || vm == nil {
		return err
	}
	vmi, err := kit.Read(ctx, key, &v1.VirtualMachineInstance{}, s.Client, s.APIReader)
	if err != nil {
		return err
	}
	o.Running = vmi != nil && !vmi.IsFinal()
	if o.VM, o.Problem, err = s.expanded(ctx, vm); err != nil {
		return err
	}
	if o.VM.Spec.Template != nil && o.VM.Spec.Template.Spec.HasPersistentState() {
		o.State, err = volumesnapshot.StateClaim(ctx, s.Client, o.VM)
	}
	return err
}

// expanded returns a VM with its instance type and preference applied. If they cannot be applied, it returns the VM
// unchanged, and the reason.
func (s *scope) expanded(ctx context.Context, vm *v1.VirtualMachine) (*v1.VirtualMachine, string, error) {
	if vm.Spec.Instancetype == nil && vm.Spec.Preference == nil {
		return vm, "", nil
	}
	specs, err := reference.Finder{Objects: s.Client, Revisions: s.APIReader}.Find(ctx, vm)
	switch {
	case apierrors.IsNotFound(err):
		return vm, "The instance type or the preference of the VM does not exist: " + err.Error(), nil
	case err != nil:
		return nil, "", fmt.Errorf("instance type and preference of VirtualMachine %s: %w", client.ObjectKeyFromObject(vm),
			err)
	}
	expanded, conflicts := reference.ExpandVM(vm, specs)
	if len(conflicts) > 0 {
		return vm, "The instance type contradicts the VM", nil
	}
	return expanded, "", nil
}

func (s *scope) readSnapshot(ctx context.Context, o *export.Observed) (err error) {
	o.Snapshot, err = kit.Read(ctx, s.key(s.export.Spec.Source.Name), &v1beta1.VirtualMachineSnapshot{}, s.Client,
		s.APIReader)
	if err != nil || o.Snapshot == nil {
		return err
	}
	stored, err := kit.Read(ctx, s.key(capture.ContentName(o.Snapshot)), &v1beta1.VirtualMachineSnapshotContent{},
		s.Client, s.APIReader)
	if err != nil || stored == nil || !capture.IsContentOf(stored, o.Snapshot) {
		return err
	}
	o.Content = stored
	if storedVM := stored.Spec.Source.VirtualMachine; storedVM != nil {
		vm := &v1.VirtualMachine{ObjectMeta: *storedVM.ObjectMeta.DeepCopy(), Spec: *storedVM.Spec.DeepCopy()}
		vm.Namespace = s.export.Namespace // Users may write contents, and must not read other namespaces this way.
		if o.Stored, o.Problem, err = s.expanded(ctx, vm); err != nil {
			return err
		}
	}
	o.VolumeSnapshots, err = volumesnapshot.OfContent(ctx, s.VolumeSnapshots, stored)
	return err
}

// readBackup reads the backup, and the VMI that has its intent. That VMI is not found by the backup's source, which may
// be a tracker that is deleted while the backup is pulled. A stale backup or VMI only delays what has to be done: both
// are watched by the backup's reconciler, whose writes enqueue the export.
func (s *scope) readBackup(ctx context.Context, o *export.Observed) (err error) {
	o.Backup, err = kit.Read(ctx, s.key(s.export.Spec.Source.Name), &v1alpha1.VirtualMachineBackup{}, s.Client)
	if err != nil || o.Backup == nil {
		return err
	}
	guests := &v1.VirtualMachineInstanceList{}
	err = s.Client.List(ctx, guests, client.InNamespace(s.export.Namespace),
		client.MatchingFields{virtualmachinebackup.GuestIndex: string(o.Backup.UID)})
	if err != nil {
		return fmt.Errorf("list the VirtualMachineInstances of namespace %s that may have the backup %s: %w",
			s.export.Namespace, o.Backup.Name, err)
	}
	for i := range guests.Items {
		if intent := guests.Items[i].Status.DiskBackup; intent != nil && intent.ID == string(o.Backup.UID) {
			o.Guest = &guests.Items[i]
		}
	}
	return nil
}

// readImports reads which claims the importer still fills.
func (s *scope) readImports(ctx context.Context, o *export.Observed) error {
	for _, name := range sourceClaims(o) {
		claim := o.Claims[name]
		if claim == nil {
			continue
		}
		filled, problem, err := datavolume.Filled(ctx, s.DataVolumes, claim)
		if err != nil {
			return err
		}
		if !filled {
			o.Unfilled[name] = problem
		}
	}
	return nil
}

// sourceClaims returns the names of the claims that the source has, without those that are made for the export.
func sourceClaims(o *export.Observed) []string {
	switch {
	case export.SourceKind(o.Export) == export.KindClaim:
		return []string{o.Export.Spec.Source.Name}
	case o.VM != nil:
		var names []string
		for _, v := range capture.Volumes(o.VM, capture.Storage{Claims: o.Claims, State: o.State}) {
			names = append(names, v.ClaimName)
		}
		return names
	default:
		return nil
	}
}

// readOwn reads the Service and the Pod of the export. If the cache does not have the Pod yet, its creation is
// attempted again and fails.
func (s *scope) readOwn(ctx context.Context, o *export.Observed) (err error) {
	key := s.key(content.ServiceName(s.export.Name))
	if o.Service, err = kit.Read(ctx, key, &corev1.Service{}, s.APIReader); err != nil {
		return err
	}
	o.Pod, err = kit.Read(ctx, key, &corev1.Pod{}, s.Pods)
	return err
}

// settingsOf returns the settings of a configuration that concern exports. A change of them enqueues all exports. The
// lifetimes of certificates apply to the next ones.
func settingsOf(config *clusterconfig.Config) export.Config {
	return export.Config{
		Image: config.Images.Exporter, PullPolicy: config.LauncherPullPolicy, Resources: config.ExporterResources,
		Verbosity: config.Verbosity.Controller, OCI: config.IsEnabled(clusterconfig.GateOCIExport),
	}
}

// readConfig reads the configuration of the installation, and the CA of exporters.
func (s *scope) readConfig(ctx context.Context, o *export.Observed) error {
	config := s.Config.Current()
	o.Config = settingsOf(&config)
	key := client.ObjectKey{Namespace: s.Namespace, Name: certificate.Exporter.AuthoritySecret()}
	secret, err := kit.Read(ctx, key, &corev1.Secret{}, s.Client)
	if err != nil {
		return err
	}
	if secret != nil {
		if s.authority, err = certificate.AuthorityFrom(certificate.Exporter, secret.Data); err != nil {
			log.FromContext(ctx).Error(err, "A part of the authority cannot be used", "secret", secret.Name)
		}
		if end, _ := s.authority.End(s.now, config.Certificates); end.After(s.now) {
			o.Config.CA, o.Config.CAEnd = string(s.authority.Bundle()), end
		}
	}
	if o.Config.AgentCA, err = s.agentAuthority(ctx); err != nil {
		return err
	}
	o.Config.External, err = s.external(ctx)
	return err
}

// agentAuthority returns the certificates by which exporters of backups verify agents, or nothing if there is none yet.
func (s *scope) agentAuthority(ctx context.Context) (string, error) {
	if export.SourceKind(s.export) != export.KindBackup {
		return "", nil
	}
	key := client.ObjectKey{Namespace: s.Namespace, Name: certificate.AgentBackup.AuthoritySecret()}
	secret, err := kit.Read(ctx, key, &corev1.Secret{}, s.Client)
	if err != nil || secret == nil {
		return "", err
	}
	authority, err := certificate.AuthorityFrom(certificate.AgentBackup, secret.Data)
	if err != nil {
		log.FromContext(ctx).Error(err, "A part of the authority cannot be used", "secret", secret.Name)
	}
	return string(authority.Bundle()), nil
}
