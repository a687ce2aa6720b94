// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/version"
	"github.com/vireo-project/vireo/internal/conditions"
)

// Reasons of the conditions and events of a KubeVirt object. All but the last two are KubeVirt's.
const (
	ReasonAllComponentsReady   = "AllComponentsReady"
	ReasonAllResourcesCreated  = "AllResourcesCreated"
	ReasonDeploymentInProgress = "DeploymentInProgress"
	ReasonUpdateInProgress     = "UpdateInProgress"
	ReasonDeploymentFailed     = "DeploymentFailed"
	ReasonExistingDeployment   = "ExistingDeployment"
	ReasonDeletionInProgress   = "DeletionInProgress"
	ReasonDeletionFailed       = "DeletionFailed"
	// ReasonFailedUpdate is the reason of the event that an update has stopped, because a Pod of it cannot run.
	ReasonFailedUpdate = "FailedUpdate"
	// ReasonInvalidConfiguration means that fields of the object are invalid and their defaults apply.
	ReasonInvalidConfiguration = "InvalidConfiguration"
	// ReasonCertificateRotationOverdue means that an authority or a certificate was not renewed although half of the time
	// for that has passed. It is a reason of Degraded and of a Warning event.
	ReasonCertificateRotationOverdue = "CertificateRotationOverdue"
)

// verdict is the phase and the conditions that follow from a state.
type verdict struct {
	phase                            v1.KubeVirtPhase
	available, progressing, degraded bool
	reason, message                  string
	// created reports whether all resources exist as they are to be installed.
	created bool
	// reconciling and stalled are the conditions of that name: work goes on, or cannot go on without a change by a user.
	reconciling, stalled bool
	// notSynchronized is why the object's spec cannot be applied, or empty.
	notSynchronized string
}

// Status computes the object's status from what was observed. It makes no requests.
func Status(s *Scope, now time.Time) {
	status := &s.KubeVirt.Status
	v := judge(s)
	if v.phase != "" {
		status.Phase = v.phase
	}
	status.OperatorVersion = version.Get().String()
	if s.Conflict == "" && s.KubeVirt.DeletionTimestamp == nil {
		deployment(s, status)
	}
	if s.Conflict != "" || s.KubeVirt.DeletionTimestamp != nil || s.InstallErr == nil && s.Rollout.Done {
		// As in KubeVirt, a generation is observed when it is rolled out.
		status.ObservedGeneration = ptr.To(s.KubeVirt.Generation)
	} else if status.ObservedGeneration == nil {
		// Tools that compare the generations must not find the object ready before the first rollout.
		status.ObservedGeneration = ptr.To[int64](0)
	}

	c := conditionList{list: slices.Clone(status.Conditions), now: metav1.NewTime(now.Truncate(time.Second))}
	c.set(v1.KubeVirtConditionAvailable, v.available, v.reason, v.message)
	c.set(v1.KubeVirtConditionProgressing, v.progressing, v.reason, v.message)
	c.set(v1.KubeVirtConditionDegraded, v.degraded, v.reason, v.message)
	switch {
	case v.created:
		c.set(v1.KubeVirtConditionCreated, true, ReasonAllResourcesCreated, "All resources were created.")
	case v.reason == ReasonUpdateInProgress, s.Conflict != "", s.KubeVirt.DeletionTimestamp != nil:
		c.remove(v1.KubeVirtConditionCreated)
	}
	c.only(v1.KubeVirtConditionReconciling, v.reconciling || v.progressing, v.reason, v.message)
	c.only(v1.KubeVirtConditionStalled, v.stalled, v.reason, v.message)
	c.remove(v1.KubeVirtConditionWaiting) // The guard has set it, in a process that ran no reconciler.
	c.remove(v1.KubeVirtConditionSynchronized)
	if v.notSynchronized != "" {
		c.keepSince(status.Conditions)
		c.set(v1.KubeVirtConditionSynchronized, false, v.reason, v.notSynchronized)
	}
	setCommonInstancetypes(s, &c)
	setIgnored(&c, &s.KubeVirt.Spec)
	status.Conditions = c.list
}

// deployment sets the target and, when the rollout is done, the observed version.
func deployment(s *Scope, status *v1.KubeVirtStatus) {
	registry, _, tag := clusterconfig.SplitImage(s.Config.Images.Handler)
	status.DefaultArchitecture = s.Config.DefaultArchitecture
	status.TargetKubeVirtRegistry, status.TargetKubeVirtVersion = registry, tag
	if s.DeploymentID == "" || s.InstallErr != nil {
		return
	}
	status.TargetDeploymentID = s.DeploymentID
	status.TargetDeploymentConfig = deploymentConfig(s, registry, tag)
	status.Generations = s.Generations
	if s.Rollout.Done {
		status.ObservedKubeVirtRegistry, status.ObservedKubeVirtVersion = registry, tag
		status.ObservedDeploymentID, status.ObservedDeploymentConfig = s.DeploymentID, status.TargetDeploymentConfig
	}
}

// deploymentConfig returns what is installed as JSON, with KubeVirt's names.
func deploymentConfig(s *Scope, registry, tag string) string {
	images := s.Config.Images
	config := map[string]any{
		"id": s.DeploymentID, "namespace": s.Namespace, "registry": registry, "imagePrefix": "", "kubeVirtVersion": tag,
		"virtHandlerImage": images.Handler, "virtBrokerImage": images.Broker, "virtApiImage": images.API, "virtLauncherImage": images.Launcher,
		"virtExportProxyImage": images.ExportProxy, "virtExportServerImage": images.Exporter,
		"additionalProperties": map[string]string{"ImagePullPolicy": string(s.Config.ImagePullPolicy)},
	}
	if s.ControllerImage != "" {
		config["virtControllerImage"] = s.ControllerImage
	}
	raw, err := json.Marshal(config)
	if err != nil {
		return ""
	}
	return string(raw)
}

// updateFailure returns why the update cannot go on, or nothing.
func updateFailure(s *Scope) string {
	if s.Crash == "" || s.Rollout.Done || s.KubeVirt.Status.ObservedDeploymentID == s.DeploymentID {
		return ""
	}
	return failed(s, s.Crash)
}

// failed is KubeVirt's message with a cause. An update by the object's imageTag may lack what images do not contain.
// The new virt-controller cannot add it, because it has the permissions of the installed roles.
func failed(s *Scope, cause string) string {
	message := "An error occurred during deployment: " + cause
	_, _, tag := clusterconfig.SplitImage(s.Config.Images.Handler)
	if before := s.KubeVirt.Status.ObservedKubeVirtVersion; s.KubeVirt.Spec.ImageTag == "" || before == "" ||
		before == tag {
		return message
	}
	return fmt.Sprintf("%s. spec.imageTag changes images only: the CRDs, roles, policies and priority class of version %s have to be applied before", message, tag)
}

// judge returns the verdict on the state. The order matters: the first case that applies decides.
func judge(s *Scope) verdict {
	installed := s.KubeVirt.Status.ObservedDeploymentID
	switch {
	case s.Conflict != "":
		return verdict{reason: ReasonExistingDeployment, message: s.Conflict, degraded: true, notSynchronized: s.Conflict}
	case s.KubeVirt.DeletionTimestamp != nil:
		return judgeDeletion(s)
	case len(s.Overdue) > 0:
		v := verdict{phase: deployingUnless(installed != ""), available: installed != "", degraded: true, stalled: true,
			reason: ReasonCertificateRotationOverdue, message: strings.Join(s.Overdue, "; ")}
		if s.InstallErr != nil {
			v.notSynchronized = s.InstallErr.Error()
		}
		return v
	case s.InstallErr != nil:
		return verdict{phase: deployingUnless(installed != ""), available: installed != "", degraded: true, stalled: true,
			reason: ReasonDeploymentFailed, message: failed(s, s.InstallErr.Error()), notSynchronized: s.InstallErr.Error()}
	case updateFailure(s) != "":
		// The previous installation keeps running, and components that are not updated yet are not updated.
		message := updateFailure(s)
		return verdict{phase: deployingUnless(installed != ""), available: installed != "", degraded: true, stalled: true,
			reason: ReasonDeploymentFailed, message: message, notSynchronized: message}
	case installed == "" && !s.Rollout.Done:
		return verdict{phase: v1.KubeVirtPhaseDeploying, progressing: true, created: true,
			reason: ReasonDeploymentInProgress, message: deploying(s)}
	case installed != s.DeploymentID && !s.Rollout.Done:
		// KubeVirt, too, is degraded while it updates, and its alerts expect it.
		return verdict{phase: v1.KubeVirtPhaseDeployed, available: true, progressing: true, degraded: true,
			reason: ReasonUpdateInProgress, message: updating(s)}
	case s.ConfigErr != nil:
		message := s.ConfigErr.Error()
		return verdict{phase: v1.KubeVirtPhaseDeployed, available: true, degraded: true, created: true,
			reason: ReasonInvalidConfiguration, message: message, notSynchronized: message}
	case !s.Rollout.Done:
		// A node joins or an agent restarts: nothing is being updated, and the other nodes' guests run.
		return verdict{phase: v1.KubeVirtPhaseDeployed, available: serves(s), progressing: true, created: true,
			reason: ReasonDeploymentInProgress, message: deploying(s)}
	}
	return verdict{phase: v1.KubeVirtPhaseDeployed, available: true, created: true,
		reason: ReasonAllComponentsReady, message: "All components are ready."}
}

// deploying and updating are KubeVirt's messages, followed by the progress.
func deploying(s *Scope) string {
	registry, _, tag := clusterconfig.SplitImage(s.Config.Images.Handler)
	return fmt.Sprintf("Deploying version %s with registry %s: %s", tag, registry, s.Rollout.Message)
}

func updating(s *Scope) string {
	registry, _, tag := clusterconfig.SplitImage(s.Config.Images.Handler)
	before := &s.KubeVirt.Status
	return fmt.Sprintf("Transitioning from previous version %s with registry %s to target version %s using registry %s: %s",
		before.ObservedKubeVirtVersion, before.ObservedKubeVirtRegistry, tag, registry, s.Rollout.Message)
}

func judgeDeletion(s *Scope) verdict {
	u := s.Uninstall
	switch {
	case u.Done:
		return verdict{phase: v1.KubeVirtPhaseDeleted, reason: ReasonDeletionInProgress,
			message: "Everything that was installed is gone."}
	case u.Err != nil:
		return verdict{phase: v1.KubeVirtPhaseDeleting, degraded: true, reason: ReasonDeletionFailed,
			message: u.Err.Error(), notSynchronized: u.Err.Error()}
	case u.Blocked != "":
		// Guests and agents keep running.
		return verdict{phase: v1.KubeVirtPhaseDeleting, available: true, degraded: true, reason: ReasonDeletionFailed,
			message: "Deletion is blocked: " + u.Blocked}
	}
	return verdict{phase: v1.KubeVirtPhaseDeleting, degraded: true, reason: ReasonDeletionInProgress,
		message: "Waiting: " + u.Waiting}
}

func deployingUnless(deployed bool) v1.KubeVirtPhase {
	if deployed {
		return v1.KubeVirtPhaseDeployed
	}
	return v1.KubeVirtPhaseDeploying
}

// serves reports whether at least one agent and one virt-api are ready. An agent without its broker is not.
func serves(s *Scope) bool {
	return s.Agents != nil && s.Agents.Status.NumberReady > 0 && s.API != nil && s.API.Status.ReadyReplicas > 0
}

// conditionList changes a list of conditions and keeps the times of those that do not change.
type conditionList struct {
	list []v1.KubeVirtCondition
	now  metav1.Time
}

func (c *conditionList) set(kind v1.KubeVirtConditionType, value bool, reason, message string) {
	wanted := v1.KubeVirtCondition{
		Type: kind, Status: corev1.ConditionFalse, Reason: reason, Message: message,
		LastProbeTime: c.now, LastTransitionTime: c.now,
	}
	if value {
		wanted.Status = corev1.ConditionTrue
	}
	conditions.SetProbed(&c.list, wanted)
}

// only sets a condition that is present only while it is true.
func (c *conditionList) only(kind v1.KubeVirtConditionType, value bool, reason, message string) {
	if value {
		c.set(kind, true, reason, message)
		return
	}
	c.remove(kind)
}

func (c *conditionList) remove(kind v1.KubeVirtConditionType) { conditions.Remove(&c.list, kind) }

// keepSince restores the previous Synchronized, so that its transition time stays if it does not change.
func (c *conditionList) keepSince(before []v1.KubeVirtCondition) {
	if known := conditions.Find(before, v1.KubeVirtConditionSynchronized); known != nil {
		c.list = append(c.list, *known)
	}
}
