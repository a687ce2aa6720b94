// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/install/node"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/internal/vmistatus/nodeloss"
)

// ReasonNodeUnresponsive is status.reason, and the reason of the event, of a VMI whose node's agent is silent.
// KubeVirt's name.
const ReasonNodeUnresponsive = node.ReasonNodeUnresponsive

// ReasonNodeOutOfService is the reason of the event about a launcher Pod that was deleted because its node is out of
// service.
const ReasonNodeOutOfService = v1.VirtualMachineInstanceReasonNodeOutOfService

// silence is what it means for a live VMI that the agent of its node is silent.
type silence struct {
	verdict nodeloss.Verdict
	// reason and message are those of the condition NodeUnresponsive.
	reason, message string
}

// readAgent observes whether the agent of a live VMI's node responds. A silent agent does not end the VMI, because the
// guest may still run. But the status may be outdated, and if the launcher Pod is gone too, it was lost with its node.
func (s *scope) readAgent(ctx context.Context) error {
	name := s.vmi.Status.NodeName
	if s.stage() != vmistatus.Live || name == "" {
		return nil
	}
	silent, left, err := s.agentSilence(ctx, name)
	if err != nil {
		return err
	}
	if left > 0 {
		s.requeueIn(left)
	}
	if !silent {
		return nil
	}
	host, err := s.readNode(ctx, name)
	if host == nil {
		return err
	}
	s.silence = s.explainSilence(host)
	return nil
}

// agentSilence reports whether a node's agent is silent, and the time until a stopped agent counts as silent; see
// node.Silent. The agent of a removed Node is not silent: Kubernetes deletes that Node's Pods.
func (s *scope) agentSilence(ctx context.Context, name string) (silent bool, left time.Duration, err error) {
	host := &metav1.PartialObjectMetadata{}
	host.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	err = s.client.Get(ctx, client.ObjectKey{Name: name}, host)
	switch {
	case apierrors.IsNotFound(err):
		return false, 0, nil
	case err != nil:
		return false, 0, fmt.Errorf("get Node %s: %w", name, err)
	}
	silent, left = node.Silent(&host.ObjectMeta, s.now)
	return silent, left, nil
}

// readNode reads a Node from the API server: the cache has only its metadata, and a taint that was just removed must
// have no effect. It returns nil if the Node is gone.
func (s *scope) readNode(ctx context.Context, name string) (*corev1.Node, error) {
	host := &corev1.Node{}
	if err := s.apiReader.Get(ctx, client.ObjectKey{Name: name}, host); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("get Node %s: %w", name, err)
	}
	return host, nil
}

// deleteFencedPods deletes the VMI's launcher Pods on nodes that are out of service and do not respond. The rest
// of the reconciliation treats the missing Pods as if their Nodes had been removed, also during a migration.
func (s *scope) deleteFencedPods(ctx context.Context) error {
	for _, pod := range []*corev1.Pod{s.pod, s.otherPod} {
		if PodFate(pod) != protocol.PodAlive || pod.Spec.NodeName == "" {
			continue
		}
		fenced, err := s.isFenced(ctx, pod.Spec.NodeName)
		if err != nil {
			return err
		}
		if !fenced {
			continue
		}
		// The resource version is a precondition: if this process was suspended after the check above, the node may be back.
		err = s.client.Delete(ctx, pod, client.GracePeriodSeconds(0), kit.Unchanged(pod))
		switch {
		case apierrors.IsNotFound(err), apierrors.IsConflict(err):
			continue // It is gone, or its change triggers another reconciliation.
		case err != nil:
			return fmt.Errorf("remove launcher Pod %s from node %s, which is out of service: %w", pod.Name, pod.Spec.NodeName,
				err)
		}
		s.event(corev1.EventTypeWarning, ReasonNodeOutOfService, actionDelete,
			"Node %s is out of service: removed virtual machine pod %s", pod.Spec.NodeName, pod.Name)
	}
	return nil
}

// isFenced reports whether a node counts as stopped: its agent and its kubelet are silent, and it is declared out of
// service.
func (s *scope) isFenced(ctx context.Context, name string) (bool, error) {
	if name == s.vmi.Status.NodeName && s.stage() == vmistatus.Live {
		return s.silence != nil && s.silence.verdict == nodeloss.Fenced, nil
	}
	silent, _, err := s.agentSilence(ctx, name)
	if err != nil || !silent {
		return false, err
	}
	host, err := s.readNode(ctx, name)
	return host != nil && nodeloss.Judge(host) == nodeloss.Fenced, err
}

// setLive reports a silent agent for as long as it is silent, and the state of migrations and claims.
func setLive(o *observed, r *result, status *v1.VirtualMachineInstanceStatus) {
	switch {
	case o.silence != nil:
		status.Reason = ReasonNodeUnresponsive
		vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
			Type: v1.VirtualMachineInstanceNodeUnresponsive, Status: corev1.ConditionTrue,
			Reason: o.silence.reason, Message: o.silence.message,
		}, metav1.NewTime(o.now))
		if vmistatus.Lost(status) {
			setNotReady(o, status, ReasonNodeUnresponsive, fmt.Sprintf("Node %s does not respond", o.vmi.Status.NodeName))
		}
	default:
		if status.Reason == ReasonNodeUnresponsive {
			status.Reason = ""
		}
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstanceNodeUnresponsive)
	}
	setEvacuation(o, status)
	setMigration(o, r, status)
	setVolumesChange(o, status)
	setResizing(o, r, status)
	setHotplug(o, status)
	setMigrationRequired(o, r, status)
	setClaims(o, status)
	setTracking(o, status)
}

// explainSilence judges a live VMI's node whose agent is silent. The message describes what happens next and what a
// user can do.
func (s *scope) explainSilence(host *corev1.Node) *silence {
	name, verdict := s.vmi.Status.NodeName, nodeloss.Judge(host)
	switch verdict {
	case nodeloss.Fenced:
		return &silence{verdict, v1.VirtualMachineInstanceReasonNodeOutOfService, fmt.Sprintf(
			"Node %s is out of service: its launcher Pod is removed, and the guest counts as ended.", name)}
	case nodeloss.Lost:
		back := "It continues when the node is back"
		if s.deleting() || s.pod != nil && s.pod.DeletionTimestamp != nil {
			back = "It is shut down when the node is back"
		}
		return &silence{verdict, v1.VirtualMachineInstanceReasonNodeLost, fmt.Sprintf(
			"Node %s does not respond. Its guest may still run and write its disks, so it is not started on another node. "+
				"%s. If the node is powered off and stays off, take it out of service: %s",
			name, back, nodeloss.TaintCommand(name))}
	default:
		message := fmt.Sprintf("virt-handler on node %s does not respond, its kubelet does: the guest is not changed, "+
			"and its status may be outdated. Find out why: kubectl --namespace %s get pods "+
			"--selector kubevirt.io=virt-handler --field-selector spec.nodeName=%s",
			name, s.namespace, name)
		if nodeloss.OutOfService(host) {
			message += fmt.Sprintf(". The taint %s has no effect while the kubelet responds", corev1.TaintNodeOutOfService)
		}
		return &silence{verdict, v1.VirtualMachineInstanceReasonAgentSilent, message}
	}
}
