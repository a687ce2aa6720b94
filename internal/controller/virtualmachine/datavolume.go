// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/decide/instancetype"
	"github.com/vireo-project/vireo/internal/optimistic"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Reasons of events about DataVolumes. KubeVirt's names, spelled as it does.
const (
	ReasonDataVolumeCreate       = "SuccessfulDataVolumeCreate"
	ReasonFailedDataVolumeCreate = "FailedDataVolumeCreate"
	ReasonUnauthorizedDataVolume = "UnauthorizedDataVolumeCreate"
	ReasonSourcePVCNotAvailable  = "SourcePVCNotAvailabe"
	ReasonFailedDataVolumeImport = "FailedDataVolumeImport"
)

// actionProvision is the action of events about DataVolumes.
const actionProvision = "CreateDataVolume"

// The delay before a retry if no watch triggers one: for a DataSource, a label or a permission that is missing. Each
// retry is a few requests to the API server, and a tenant may have thousands of VMs that fail.
const (
	minImportRetry = 15 * time.Second
	maxImportRetry = 5 * time.Minute
)

// importRetry returns the delay before the next retry: as long as the VM has been failing, within limits.
func (s *Scope) importRetry() time.Duration {
	failure := conditions.Find(s.VM.Status.Conditions, v1.VirtualMachineFailure)
	if failure == nil {
		return minImportRetry
	}
	return min(max(s.Now.Sub(failure.LastTransitionTime.Time), minImportRetry), maxImportRetry)
}

// provisionFailure is KubeVirt's format of the condition Failure's message.
const provisionFailure = "Error encountered while creating DataVolumes: %v"

// readDataVolumes reads the DataVolumes of the VM's volumes and templates.
func readDataVolumes(ctx context.Context, s *Scope) error {
	s.dataVolumes = map[string]*cdi.DataVolume{}
	for _, name := range DataVolumeNames(s.VM) {
		dv, err := s.DataVolumes.Get(ctx, client.ObjectKey{Namespace: s.VM.Namespace, Name: name})
		switch {
		case errors.Is(err, datavolume.ErrNotInstalled):
			s.noImporter = true
			return nil
		case apierrors.IsNotFound(err):
		case err != nil:
			return err
		default:
			s.dataVolumes[name] = dv
		}
	}
	return nil
}

// DataVolumeNames are the names of the DataVolumes of a VM, each once.
func DataVolumeNames(vm *v1.VirtualMachine) []string {
	var names []string
	seen := map[string]bool{}
	add := func(name string) {
		if name != "" && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	for i := range vm.Spec.DataVolumeTemplates {
		add(vm.Spec.DataVolumeTemplates[i].Name)
	}
	if vm.Spec.Template != nil {
		for i := range vm.Spec.Template.Spec.Volumes {
			if dv := vm.Spec.Template.Spec.Volumes[i].DataVolume; dv != nil {
				add(dv.Name)
			}
		}
	}
	return names
}

// provision creates the DataVolumes of the VM's templates, and reports whether all exist and are filled, or will be
// once a Pod consumes them. They are created before the first start, unless an annotation defers them to it.
func provision(ctx context.Context, s *Scope, next action) (bool, error) {
	starts := next == create || next == unhalt
	if s.beingRestored() {
		return false, nil
	}
	if s.Failure != nil || s.VM.Annotations[v1.ImmediateDataVolumeCreation] == "false" && !starts {
		return !starts, nil
	}
	ready := true
	for i := range s.VM.Spec.DataVolumeTemplates {
		template := &s.VM.Spec.DataVolumeTemplates[i]
		if s.noImporter {
			s.failProvision(ReasonFailedDataVolumeCreate, datavolume.ErrNotInstalled,
				"Error creating DataVolume "+template.Name+": %v")
			return false, nil
		}
		dv := s.dataVolumes[template.Name]
		var err error
		if dv == nil {
			ready = false
			err = s.createDataVolume(ctx, template)
		} else if err = s.adoptDataVolume(ctx, dv); err == nil {
			ready = s.allowsStart(dv) && ready
		}
		if err != nil {
			return false, err
		}
		if s.Failure != nil {
			return false, nil
		}
	}
	return ready, nil
}

// allowsStart reports whether the instance may be created with the DataVolume in its current state.
func (s *Scope) allowsStart(dv *cdi.DataVolume) bool {
	if message := datavolume.ExceedsQuota(dv); message != "" {
		s.failProvision(ReasonFailedDataVolumeImport, errors.New(message), "DataVolume "+dv.Name+" exceeds quota limits: %v")
		return false
	}
	return dv.DeletionTimestamp == nil && (datavolume.Usable(dv) || datavolume.WaitsForConsumer(dv))
}

// adoptDataVolume makes the VM the owner of a DataVolume that it has a template for and that has no owner. A DataVolume
// with an owner is used as it is, as KubeVirt does.
func (s *Scope) adoptDataVolume(ctx context.Context, dv *cdi.DataVolume) error {
	if metav1.GetControllerOf(dv) != nil || dv.DeletionTimestamp != nil {
		return nil
	}
	if err := s.confirmNotDeleted(ctx); err != nil {
		return err
	}
	_, err := optimistic.Patch(ctx, s.Client, dv, func(dv *cdi.DataVolume) {
		dv.OwnerReferences = append(dv.OwnerReferences, *metav1.NewControllerRef(s.VM, v1.VirtualMachineGroupVersionKind))
	})
	if err != nil {
		return fmt.Errorf("adopt DataVolume %s: %w", dv.Name, err)
	}
	return nil
}

func (s *Scope) createDataVolume(ctx context.Context, template *v1.DataVolumeTemplateSpec) error {
	source, err := s.readDataSource(ctx, template.Spec.SourceRef)
	if err != nil {
		return s.failRender(template, err)
	}
	dv, err := s.renderDataVolume(template, source)
	if err != nil {
		return s.failRender(template, s.conceal(ctx, source.Namespace, err)) // Only a DataSource may have no source.
	}
	if err := s.preferStorageClass(ctx, &dv.Spec.DataVolumeSpec); err != nil {
		return s.failReference(err)
	}
	allowed, err := s.authorizeClone(ctx, dv, source)
	if err != nil || !allowed {
		return err
	}
	if source != nil {
		// After the authorization: it reveals what is in a DataSource of another namespace.
		architecture, err := s.architectureOf(ctx, source)
		if err != nil {
			return s.failRender(template, err)
		}
		if architecture != "" {
			metav1.SetMetaDataAnnotation(&dv.ObjectMeta, SourceArchitectureAnnotation, architecture)
		}
	}
	err = s.Client.Create(ctx, dv)
	switch {
	case apierrors.IsAlreadyExists(err):
		s.RequeueAfter = outcome.Sooner(s.RequeueAfter, cacheRetry) // The cache is behind.
		return nil
	case err != nil:
		s.failProvision(ReasonFailedDataVolumeCreate, fmt.Errorf("failed to create DataVolume: %w", err),
			"Error creating DataVolume "+dv.Name+": %v")
		return fmt.Errorf("create DataVolume %s: %w", dv.Name, err)
	}
	s.dataVolumes[dv.Name] = dv
	s.Recorder.Eventf(s.VM, dv, corev1.EventTypeNormal, ReasonDataVolumeCreate, actionProvision, "Created DataVolume %s",
		dv.Name)
	return nil
}

// preferStorageClass sets the storage class of the VM's preference where the template names none.
func (s *Scope) preferStorageClass(ctx context.Context, spec *cdiv1beta1.DataVolumeSpec) error {
	if s.VM.Spec.Preference == nil {
		return nil
	}
	specs, err := s.specs(ctx)
	if err != nil {
		return err
	}
	*spec = *instancetype.WithStorageClass(spec, specs.Preference)
	return nil
}

// failRender sets the failure that a DataVolume could not be rendered. DataSources are not watched, hence the retry.
func (s *Scope) failRender(template *v1.DataVolumeTemplateSpec, err error) error {
	var unauthorized *unauthorizedError
	if errors.As(err, &unauthorized) {
		s.refuseClone(template.Name, unauthorized)
		return nil
	}
	s.failProvision(ReasonFailedDataVolumeCreate, fmt.Errorf("unable to create DataVolume manifest: %w", err),
		"Error creating DataVolume "+template.Name+": %v")
	if apierrors.IsNotFound(err) {
		s.RequeueAfter = outcome.Sooner(s.RequeueAfter, s.importRetry())
		return nil
	}
	return err
}

// renderDataVolume renders a DataVolume from a template and the DataSource that the template names. The resolved source
// is written into it: the authorization was for that source, and the DataSource may change later.
func (s *Scope) renderDataVolume(template *v1.DataVolumeTemplateSpec, named *cdi.DataSource) (*cdi.DataVolume, error) {
	dv := &cdi.DataVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: template.Name, Namespace: s.VM.Namespace,
			Labels: maps.Clone(template.Labels), Annotations: maps.Clone(template.Annotations),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s.VM, v1.VirtualMachineGroupVersionKind)},
		},
		Spec: cdi.DataVolumeSpec{DataVolumeSpec: *template.Spec.DeepCopy()},
	}
	metav1.SetMetaDataLabel(&dv.ObjectMeta, v1.CreatedByLabel, string(s.VM.UID))
	metav1.SetMetaDataAnnotation(&dv.ObjectMeta, cdi.AllowClaimAdoptionAnnotation, "true")
	delete(dv.Annotations, SourceArchitectureAnnotation) // Only virt-controller sets it.
	if dv.Spec.PriorityClassName == "" {
		dv.Spec.PriorityClassName = s.VM.Spec.Template.Spec.PriorityClassName
	}
	source, err := s.cloneSource(&dv.Spec.DataVolumeSpec, named)
	if err != nil {
		return nil, err
	}
	if source != nil {
		dv.Spec.Source, dv.Spec.SourceRef = source, nil
	}
	return dv, nil
}

// failProvision sets the failure to create a DataVolume. event is the format of the event's note, with one %v for the
// error.
func (s *Scope) failProvision(reason string, err error, event string) {
	s.fail(reason, actionProvision, err, failureFormats{event: event, condition: provisionFailure})
	s.Failure.Reason = ReasonFailedCreate
}

// readClaims reads the claims of a VM whose guest does not run yet: it waits for those that are not bound.
func readClaims(ctx context.Context, s *Scope) error {
	if s.VM.Spec.Template == nil || alive(s) && s.VMI.IsRunning() {
		return nil
	}
	s.claims = map[string]*corev1.PersistentVolumeClaim{}
	for _, name := range ClaimNames(s.VM) {
		claim, err := kit.Read(ctx, client.ObjectKey{Namespace: s.VM.Namespace, Name: name}, &corev1.PersistentVolumeClaim{},
			s.Client)
		if err != nil {
			return err
		}
		if claim != nil {
			s.claims[name] = claim
		}
	}
	return nil
}

// ClaimNames are the names of the claims of a VM's volumes. A DataVolume's claim has its name.
func ClaimNames(vm *v1.VirtualMachine) []string {
	if vm.Spec.Template == nil {
		return nil
	}
	var names []string
	for i := range vm.Spec.Template.Spec.Volumes {
		if name := podspec.ClaimName(&vm.Spec.Template.Spec.Volumes[i]); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// recordFailedImports records an event for each failed import, after the status changed to DataVolumeError.
func (s *Scope) recordFailedImports() {
	for _, name := range DataVolumeNames(s.VM) {
		if dv := s.dataVolumes[name]; dv != nil && datavolume.Failed(dv) {
			s.Recorder.Eventf(s.VM, dv, corev1.EventTypeWarning, ReasonFailedDataVolumeImport, actionProvision,
				"DataVolume %s failed to import disk image", dv.Name)
		}
	}
}
