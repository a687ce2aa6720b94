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
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/node"
	"github.com/vireo-project/vireo/internal/migration"
	"github.com/vireo-project/vireo/internal/nodeloss"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonNodeUnresponsive is status.reason, and the reason of the event, of a VMI whose node's agent is silent. It is
// KubeVirt's name.
const ReasonNodeUnresponsive = "NodeUnresponsive"

// ReasonNodeOutOfService is the reason of the event about a launcher Pod that was removed from a node that is out of service.
const ReasonNodeOutOfService = v1.VirtualMachineInstanceReasonNodeOutOfService

// lookAtNode finds out whether the agent of a live VMI's node is silent. That ends nothing: the guest may well run.
// But what the status says may be old, and a Pod that is gone as well went with its node.
func lookAtNode(ctx context.Context, s *Scope) error {
	if s.stage() != vmistatus.Live || s.VMI.Status.NodeName == "" {
		return nil
	}
	silent, left, err := s.silence(ctx, s.VMI.Status.NodeName)
	if err != nil {
		return err
	}
	s.RequeueAfter = left
	if !silent {
		return nil
	}
	host, err := s.readNode(ctx, s.VMI.Status.NodeName)
	if host == nil {
		return err
	}
	s.NodeSilent, s.verdict, s.outOfService = true, nodeloss.Judge(host), nodeloss.OutOfService(host)
	return nil
}

// silence says whether a node's agent is silent, or when to look again. A Node that was removed is not: Kubernetes takes its Pods
// away, and that decides.
func (s *Scope) silence(ctx context.Context, name string) (silent bool, left time.Duration, err error) {
	host := &metav1.PartialObjectMetadata{}
	host.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	err = s.Client.Get(ctx, client.ObjectKey{Name: name}, host)
	switch {
	case apierrors.IsNotFound(err):
		return false, 0, nil
	case err != nil:
		return false, 0, fmt.Errorf("get Node %s: %w", name, err)
	}
	silent, left = node.Silent(&host.ObjectMeta, s.Now)
	return silent, left, nil
}

// readNode reads a whole Node from the API server: the cache has the metadata only, and a taint that was taken back must not be
// believed. It returns nil for one that is gone.
func (s *Scope) readNode(ctx context.Context, name string) (*corev1.Node, error) {
	host := &corev1.Node{}
	if err := s.Live.Get(ctx, client.ObjectKey{Name: name}, host); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("get Node %s: %w", name, err)
	}
	return host, nil
}

// removeFenced removes the launcher Pods of a VMI from nodes that are declared to be out of service and do not answer. It decides
// nothing else: all that follows comes from a Pod being gone, as if its node had been removed, in a migration as well.
func removeFenced(ctx context.Context, s *Scope) error {
	for _, pod := range []*corev1.Pod{s.Pod, s.Other} {
		if PodState(pod) != migration.PodAlive || pod.Spec.NodeName == "" {
			continue
		}
		fenced, err := s.fenced(ctx, pod.Spec.NodeName)
		if err != nil {
			return err
		}
		if !fenced {
			continue
		}
		// As it was when that was decided: between this line and the one before, a process can have been suspended for hours, in which
		// its node came back.
		err = s.Client.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: ptr.To(pod.UID), ResourceVersion: ptr.To(pod.ResourceVersion)})
		switch {
		case apierrors.IsNotFound(err), apierrors.IsConflict(err):
			continue // Kubernetes removes it, too, or will tell what has changed.
		case err != nil:
			return fmt.Errorf("remove launcher Pod %s from node %s, which is out of service: %w", pod.Name, pod.Spec.NodeName, err)
		}
		s.event(corev1.EventTypeWarning, ReasonNodeOutOfService, actionDelete,
			"Node %s is out of service: removed virtual machine pod %s", pod.Spec.NodeName, pod.Name)
	}
	return nil
}

// fenced says that nothing runs on a node: its agent and its kubelet are silent, and somebody says that it is out of service.
func (s *Scope) fenced(ctx context.Context, name string) (bool, error) {
	if name == s.VMI.Status.NodeName && s.stage() == vmistatus.Live {
		return s.NodeSilent && s.verdict == nodeloss.Fenced, nil
	}
	silent, _, err := s.silence(ctx, name)
	if err != nil || !silent {
		return false, err
	}
	host, err := s.readNode(ctx, name)
	return host != nil && nodeloss.Judge(host) == nodeloss.Fenced, err
}

// setLive notes that the node's agent is silent, for as long as it is, and where a guest that migrates is.
func setLive(s *Scope, status *v1.VirtualMachineInstanceStatus) {
	switch {
	case s.NodeSilent:
		status.Reason = ReasonNodeUnresponsive
		reason, message := explainSilence(s)
		vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
			Type: v1.VirtualMachineInstanceNodeUnresponsive, Status: corev1.ConditionTrue, Reason: reason, Message: message,
		}, metav1.NewTime(s.Now))
		if vmistatus.Lost(status) {
			setNotReady(s, status, ReasonNodeUnresponsive, fmt.Sprintf("Node %s does not respond", s.VMI.Status.NodeName))
		}
	default:
		if status.Reason == ReasonNodeUnresponsive {
			status.Reason = ""
		}
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstanceNodeUnresponsive)
	}
	setEvacuation(s, status)
	setMigration(s, status)
	setVolumesChange(s, status)
	setClaims(s, status)
}

// explainSilence says what the silence of a live VMI's node means, what is waited for and what to do about it.
func explainSilence(s *Scope) (reason, message string) {
	name := s.VMI.Status.NodeName
	switch s.verdict {
	case nodeloss.Fenced:
		return v1.VirtualMachineInstanceReasonNodeOutOfService, fmt.Sprintf(
			"Node %s is out of service: its launcher Pod is removed, and the guest counts as ended.", name)
	case nodeloss.Lost:
		back := "It goes on by itself when the node is back"
		if s.deleting() || s.Pod != nil && s.Pod.DeletionTimestamp != nil {
			back = "It is shut down when the node is back"
		}
		return v1.VirtualMachineInstanceReasonNodeLost, fmt.Sprintf("Node %s does not respond. Its guest may still run and write its disks, so that "+
			"no other one starts. %s. If the node is powered off and stays so, release the guest: %s", name, back, nodeloss.Release(name))
	default:
		message = fmt.Sprintf("virt-handler on node %s does not respond, its kubelet does: the guest is left alone, and what is said about it may "+
			"be old. See why: kubectl --namespace %s get pods --selector kubevirt.io=virt-handler --field-selector spec.nodeName=%s",
			name, s.Namespace, name)
		if s.outOfService {
			message += fmt.Sprintf(". The taint %s is not believed while the kubelet responds", corev1.TaintNodeOutOfService)
		}
		return v1.VirtualMachineInstanceReasonAgentSilent, message
	}
}
