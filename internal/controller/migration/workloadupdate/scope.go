// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package workloadupdate

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/migration/automigration"
	"github.com/vireo-project/vireo/internal/decide/migration/upgradecheck"
	"github.com/vireo-project/vireo/internal/optimistic"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Reasons of events. KubeVirt's names.
const (
	ReasonSuccessfulEvict         = "SuccessfulEvict"
	ReasonFailedEvict             = "FailedEvict"
	ReasonSuccessfulChangeAborted = "SuccessfulChangeAbortion"
	ReasonFailedChangeAborted     = "FailedChangeAbortion"
)

// action is that of all events.
const action = "UpdateWorkload"

// namePrefix is the prefix of the names of workload updates' migrations. KubeVirt's.
const namePrefix = "kubevirt-workload-update-"

// LastEvictionAnnotation of the KubeVirt object is the time of the last batch of evictions, so that a restarted
// virt-controller keeps the interval. KubeVirt does not have it.
const LastEvictionAnnotation = "kubevirt.io/last-workload-eviction"

// Scope is one reconciliation of all guests.
type Scope struct {
	// Client reads from the cache and writes to the API server. APIReader reads from the API server.
	Client    client.Client
	APIReader client.Reader
	// Recorder records events.
	Recorder events.EventRecorder
	// Now is the time of the reconciliation.
	Now time.Time
	// Config is the cluster's configuration.
	Config clusterconfig.Config

	// KubeVirt is the KubeVirt object in effect.
	KubeVirt *v1.KubeVirt
	// DeploymentID identifies what this build installs for a KubeVirt object.
	DeploymentID func(*v1.KubeVirt) (string, error)
	// Instances are all VMIs, Pods all launcher Pods and Migrations all migrations in the cache. They are not changed.
	Instances  []v1.VirtualMachineInstance
	Pods       []corev1.Pod
	Migrations []v1.VirtualMachineInstanceMigration
	// LastCheck is kept between the reconciliations, for the condition WorkloadsMigratable.
	LastCheck *Check
	// Nodes and Quotas are those of the cluster, for the condition WorkloadsMigratable.
	Nodes  []corev1.Node
	Quotas []corev1.ResourceQuota
}

// Run reconciles all guests. It returns the delay after which to requeue, or 0.
func Run(ctx context.Context, s *Scope) (time.Duration, error) {
	history := automigration.NewHistory(s.Migrations)
	guests := s.guests(history)
	observed := s.observe()
	plan := Decide(observed, guests)
	if observed.Ready && plan.hasActions() && !s.isOwn() {
		observed.Ready = false
		plan = Decide(observed, guests)
	}
	// 1. Labels and status are written first, because they describe the changes that follow.
	failed := s.labels(ctx, plan)
	requeueAfter, err := s.writeStatus(ctx, plan.Outdated, guests)
	failed = errors.Join(failed, err)
	// 2. Migrations that are no longer needed are deleted first, which frees their slots.
	for _, m := range plan.Withdraw {
		failed = errors.Join(failed, s.withdraw(ctx, m))
	}
	for i := range plan.Migrate {
		failed = errors.Join(failed, s.migrate(ctx, history, &plan.Migrate[i]))
	}
	if len(plan.Evict) > 0 {
		failed = errors.Join(failed, s.evictAll(ctx, plan.Evict))
	}
	if !plan.RequeueAt.IsZero() {
		requeueAfter = outcome.Sooner(requeueAfter, max(plan.RequeueAt.Sub(s.Now), time.Second))
	}
	return requeueAfter, failed
}

func (s *Scope) observe() Observed {
	slots, namespaces := s.slots()
	return Observed{
		Image: s.Config.Images.Launcher, Strategy: StrategyOf(&s.KubeVirt.Spec.WorkloadUpdateStrategy),
		Eviction: s.Config.EvictionStrategy,
		Ready:    s.ready(), Slots: slots, Namespaces: namespaces, LastBatch: s.lastBatch(), Now: s.Now,
	}
}

// ready reports whether the agents and virt-api match the configuration, by the KubeVirt object's status.
func (s *Scope) ready() bool {
	status := &s.KubeVirt.Status
	return status.Phase == v1.KubeVirtPhaseDeployed && status.ObservedDeploymentID == status.TargetDeploymentID &&
		ptr.Deref(status.ObservedGeneration, 0) == s.KubeVirt.Generation && s.Config.Generation == s.KubeVirt.Generation
}

// isOwn reports whether this build has made the installation. After an upgrade of virt-controller, the KubeVirt
// object's status still describes the previous version, whose agents are about to be replaced, which ends their
// transfers. isOwn renders all manifests, so it is called only before a guest is migrated or evicted.
func (s *Scope) isOwn() bool {
	wanted, err := s.DeploymentID(s.KubeVirt)
	return err == nil && s.KubeVirt.Status.ObservedDeploymentID == wanted
}

// slots returns the number of free slots of the cluster, and the namespaces that use slots. A migration from a lost
// node uses none, and neither does one whose VMI was deleted.
func (s *Scope) slots() (int, map[string]bool) {
	moves := map[client.ObjectKey]bool{}
	for i := range s.Instances {
		vmi := &s.Instances[i]
		moves[client.ObjectKeyFromObject(vmi)] = !vmistatus.Lost(&vmi.Status)
	}
	slots, namespaces := int(*s.Config.Migrations.ParallelMigrationsPerCluster), map[string]bool{}
	for i := range s.Migrations {
		m := &s.Migrations[i]
		if UsesSlot(m) && moves[client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.VMIName}] {
			slots--
			namespaces[m.Namespace] = true
		}
	}
	return slots, namespaces
}

func (s *Scope) lastBatch() time.Time {
	at, err := time.Parse(time.RFC3339, s.KubeVirt.Annotations[LastEvictionAnnotation])
	if err != nil {
		return time.Time{} // There is none yet, or a user has changed it.
	}
	return at
}

// guests returns the VMIs, each with its Pod and its migrations.
func (s *Scope) guests(history automigration.History) []Guest {
	pods := make(map[client.ObjectKey]*corev1.Pod, len(s.Pods))
	startedByKubeVirt := map[types.UID]bool{}
	for i := range s.Pods {
		pods[client.ObjectKeyFromObject(&s.Pods[i])] = &s.Pods[i]
		if owner := podspec.Owner(&s.Pods[i]); owner != nil && podspec.StartedByKubeVirt(&s.Pods[i]) {
			startedByKubeVirt[owner.UID] = true
		}
	}
	guests := make([]Guest, 0, len(s.Instances))
	for i := range s.Instances {
		vmi := &s.Instances[i]
		if startedByKubeVirt[vmi.UID] {
			continue // Nothing but a restart gives it another launcher.
		}
		pod := pods[client.ObjectKey{Namespace: vmi.Namespace, Name: podspec.OwnPodName(vmi)}]
		if pod != nil && !podspec.IsOf(pod, vmi) {
			pod = nil // The Pod of another owner is not evicted.
		}
		guests = append(guests, Guest{VMI: vmi, Pod: pod, Migrations: history.Of(vmi)})
	}
	return guests
}

// labels sets and removes the label. Its value is empty, as KubeVirt's.
func (s *Scope) labels(ctx context.Context, plan Plan) error {
	var failed error
	label := func(vmi *v1.VirtualMachineInstance, change func(*v1.VirtualMachineInstance)) {
		// The patch contains only the label.
		before := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
			Namespace: vmi.Namespace, Name: vmi.Name, UID: vmi.UID, Labels: vmi.Labels,
		}}
		after := before.DeepCopy()
		change(after)
		if err := s.Client.Patch(ctx, after, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
			failed = errors.Join(failed, fmt.Errorf("label VirtualMachineInstance %s/%s: %w", vmi.Namespace, vmi.Name, err))
		}
	}
	for _, vmi := range plan.Label {
		label(vmi, func(after *v1.VirtualMachineInstance) {
			metav1.SetMetaDataLabel(&after.ObjectMeta, v1.OutdatedLauncherImageLabel, "")
		})
	}
	for _, vmi := range plan.Unlabel {
		label(vmi, func(after *v1.VirtualMachineInstance) { delete(after.Labels, v1.OutdatedLauncherImageLabel) })
	}
	return failed
}

// migrate creates the migration of a guest, if it is still needed: another migration may just have ended.
func (s *Scope) migrate(ctx context.Context, history automigration.History, g *Guest) error {
	creator := automigration.Creator{
		Client: s.Client, APIReader: s.APIReader, Recorder: s.Recorder, Action: action,
		Purpose: " for automated workload update", Prefix: namePrefix,
	}
	return creator.Migrate(ctx, history, g.VMI,
		func(vmi *v1.VirtualMachineInstance, m *v1.VirtualMachineInstanceMigration) bool {
			complete(vmi, m)
			return Outdated(vmi, nil, s.Config.Images.Launcher) || changes(vmi)
		})
}

// complete sets annotation, priority and label as KubeVirt does: updates of the launcher have the highest priority, and
// changes by a user have the priority of users' migrations.
func complete(vmi *v1.VirtualMachineInstance, m *v1.VirtualMachineInstanceMigration) {
	m.Annotations = map[string]string{v1.WorkloadUpdateMigrationAnnotation: ""}
	m.Spec.Priority = ptr.To(v1.PrioritySystemCritical)
	if changes(vmi) {
		m.Spec.Priority = ptr.To(v1.PriorityUserTriggered)
	}
	if changesVolumes(vmi) {
		m.Labels[v1.VolumesUpdateMigration] = vmi.Name
		if len(vmi.Name) > validation.LabelValueMaxLength {
			m.Labels[v1.VolumesUpdateMigration] = string(vmi.UID)
		}
	}
}

// withdraw deletes a migration that is no longer needed, unless it has changed since.
func (s *Scope) withdraw(ctx context.Context, m *v1.VirtualMachineInstanceMigration) error {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Spec.VMIName}}
	for i := range s.Instances {
		if s.Instances[i].Namespace == m.Namespace && s.Instances[i].Name == m.Spec.VMIName {
			vmi = &s.Instances[i]
		}
	}
	err := s.Client.Delete(ctx, m, kit.Unchanged(m))
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return err // The migration has changed: the next reconciliation decides again.
	case err != nil:
		s.Recorder.Eventf(vmi, m, corev1.EventTypeWarning, ReasonFailedChangeAborted, action,
			"Failed to abort change for vmi: %s: %v", vmi.Name, err)
		return fmt.Errorf("delete migration %s/%s, which is no longer needed: %w", m.Namespace, m.Name, err)
	}
	s.Recorder.Eventf(vmi, m, corev1.EventTypeNormal, ReasonSuccessfulChangeAborted, action, "Aborted change for vmi: %s",
		vmi.Name)
	return nil
}

// evictAll evicts a batch. It writes the time first, with an optimistic lock, so that a batch is skipped after a crash,
// and only one of two concurrent reconciliations evicts.
func (s *Scope) evictAll(ctx context.Context, batch []Guest) error {
	before := s.KubeVirt.DeepCopy()
	metav1.SetMetaDataAnnotation(&s.KubeVirt.ObjectMeta, LastEvictionAnnotation, s.Now.UTC().Format(time.RFC3339))
	if err := s.Client.Patch(ctx, s.KubeVirt, optimistic.MergeFrom(before)); err != nil {
		return fmt.Errorf("record the time of the evictions: %w", err)
	}
	var failed error
	for i := range batch {
		failed = errors.Join(failed, s.evict(ctx, &batch[i]))
	}
	return failed
}

// evict evicts the Pod of a guest. A rejection is not an error: a later batch retries.
func (s *Scope) evict(ctx context.Context, g *Guest) error {
	err := s.Client.SubResource("eviction").Create(ctx, g.Pod, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: g.Pod.Namespace, Name: g.Pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(g.Pod.UID)}},
	})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // The Pod was deleted.
	case err != nil:
		s.Recorder.Eventf(g.VMI, g.Pod, corev1.EventTypeWarning, ReasonFailedEvict, action,
			"Error deleting VMI during automated workload update: %v", err)
		if apierrors.IsTooManyRequests(err) {
			return nil
		}
		return fmt.Errorf("evict Pod %s/%s: %w", g.Pod.Namespace, g.Pod.Name, err)
	}
	s.Recorder.Eventf(g.VMI, g.Pod, corev1.EventTypeNormal, ReasonSuccessfulEvict, action,
		"Initiated eviction of VMI as part of automated workload update")
	return nil
}

func (s *Scope) findings(guests []Guest) []upgradecheck.Finding {
	checked := make([]upgradecheck.Guest, len(guests))
	for i := range guests {
		checked[i] = upgradecheck.Guest{VMI: guests[i].VMI, Pod: guests[i].Pod}
	}
	return upgradecheck.Check(upgradecheck.Observed{
		Pods: s.Config.Pods(), Eviction: s.Config.EvictionStrategy,
		Methods: s.KubeVirt.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods, Nodes: s.Nodes, Quotas: s.Quotas,
	}, checked)
}
