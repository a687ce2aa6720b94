// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package export

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	exportapi "github.com/vireo-project/vireo/api/export"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/component/printable"
	"github.com/vireo-project/vireo/internal/conditions"
	backupplan "github.com/vireo-project/vireo/internal/decide/backup/plan"
	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

const (
	// poll is the first interval at which a waiting export reads what is not watched: other Pods, and routes to
	// virt-exportproxy. The interval increases up to maxPoll the longer the export waits for the same reason.
	poll    = 10 * time.Second
	maxPoll = 5 * time.Minute
	// pollReady is the same for an export that is ready.
	pollReady = time.Minute
	// restart is the delay between the end of a Pod and its replacement, which limits how often a failing Pod is replaced.
	restart = 30 * time.Second
)

// Step is what to do for an export now, and its status if that succeeds.
type Step struct {
	// Expired reports whether the export has expired. It is then deleted, and nothing else is done.
	Expired bool
	// Token reports whether the Secret with the token is to be created.
	Token bool
	// Service is the Service to create, or nil.
	Service *corev1.Service
	// Claims are the claims to create.
	Claims []*corev1.PersistentVolumeClaim
	// Pod is the Pod to create, after the Secret Certificate, which expires at CertificateEnd. Nil if there is none to
	// create.
	Pod            *corev1.Pod
	Certificate    string
	CertificateEnd time.Time
	// Delete reports whether the existing Pod is to be deleted, and Paused whether that is because the source is in use.
	Delete, Paused bool
	// Ended reports whether the Pod to delete has ended.
	Ended bool
	// Stop reports whether the existing Pod is to end and to stay, with what it reports.
	Stop bool
	// Content is what the existing Pod has to serve from now on. It is empty if the Pod already does.
	Content string
	// Status is the status to write.
	Status *exportv1.VirtualMachineExportStatus
	// RequeueAfter is when to plan again, even if nothing changes.
	RequeueAfter time.Duration
}

// Next returns what to do for an export now.
func Next(o *Observed) (*Step, error) {
	expiry := Expiry(o.Export)
	if o.isPulled() {
		expiry = backupplan.Expiry(o.Backup)
	} else if !o.Now.Before(expiry) {
		return &Step{Expired: true}, nil
	}
	step, s := &Step{}, o.source()
	if s.ends {
		o.endPull(step, &s)
		step.Status = o.status(&s, *s.obstacle)
		return step, nil
	}
	// Whether the Pod has ended by itself or is being deleted, its last status has what clients have read.
	if s.pulled && o.Pod != nil && o.ownsPod() {
		o.takeReport(&s)
	}
	step.requeue(expiry.Sub(o.Now))
	_, generated := TokenName(o.Export)
	step.Token = generated && (o.Export.Status == nil || o.Export.Status.TokenSecretRef == nil || o.waitsLong())
	ready := o.ready(step, &s)
	served, problem, err := o.content(&s)
	if err != nil {
		return nil, err
	}
	if foreign := o.planService(step); foreign != nil {
		ready = foreign
	}
	step.Claims = s.missing
	if ready == nil {
		ready = o.planPod(step, &s, served)
	}
	if problem != "" && ready.Status == corev1.ConditionTrue {
		ready.Message = "There are no manifests. " + problem
	}
	step.Status = o.status(&s, *ready)
	return step, nil
}

func (s *Step) requeue(after time.Duration) {
	if s.RequeueAfter == 0 || after < s.RequeueAfter {
		s.RequeueAfter = max(after, time.Millisecond)
	}
}

// pollWhile requeues the export, because the cause of its condition Ready may not be watched. The delay is the time for
// which the condition has had its reason, so that it doubles each time.
func (o *Observed) pollWhile(step *Step, ready *exportv1.Condition) *exportv1.Condition {
	step.requeue(min(max(o.age(ready), poll), maxPoll))
	return ready
}

// age returns how long the condition Ready has had its reason.
func (o *Observed) age(ready *exportv1.Condition) time.Duration {
	if o.Export.Status == nil {
		return 0
	}
	known := conditions.Find(o.Export.Status.Conditions, ready.Type)
	if known == nil || known.Status != ready.Status || known.Reason != ready.Reason {
		return 0
	}
	return o.Now.Sub(known.LastTransitionTime.Time)
}

// ready returns the condition Ready of an export that has to wait, or nil. It deletes the Pod of an export whose source
// is in use, but not that of a backup.
func (o *Observed) ready(step *Step, s *source) *exportv1.Condition {
	pending := func(reason, message string) *exportv1.Condition {
		return o.pollWhile(step, condition(exportv1.ConditionReady, corev1.ConditionFalse, reason, message))
	}
	switch {
	case s.obstacle != nil:
		// What virt-controller does not know about a backup may be only what its cache lacks. Clients may be reading
		// it, and what they have read would be lost with the Pod, which ends with the backup.
		if o.Pod != nil && o.Pod.DeletionTimestamp == nil && o.ownsPod() && !s.pulled {
			step.Delete, step.Paused = true, s.obstacle.Reason == exportapi.InUseReason
		}
		if s.watched {
			return s.obstacle
		}
		return o.pollWhile(step, s.obstacle)
	case o.Config.Image == "":
		return pending(exportapi.PodPendingReason,
			"The installation has no image of virt-exportserver: virt-controller needs VIRT_EXPORTSERVER_IMAGE")
	case o.Config.CA == "":
		return pending(exportapi.PodPendingReason, "There is no authority for the certificates of exporters yet")
	default:
		return nil
	}
}

func (o *Observed) ownsPod() bool { return metav1.IsControlledBy(o.Pod, o.Export) }

// waitsLong reports whether the Pod has not started for some time. The Secret with the token may then be missing,
// because it belonged to an earlier export of the same name and was deleted with it.
func (o *Observed) waitsLong() bool {
	return o.Pod != nil && o.Pod.Status.Phase == corev1.PodPending && o.Now.Sub(o.Pod.CreationTimestamp.Time) >= restart
}

// planService creates the Service. It returns the condition Ready if another Service has its name.
func (o *Observed) planService(step *Step) *exportv1.Condition {
	switch {
	case o.Service == nil:
		step.Service = o.service()
	case !metav1.IsControlledBy(o.Service, o.Export):
		return o.pollWhile(step, condition(exportv1.ConditionReady, corev1.ConditionFalse, exportapi.InitializingReason,
			fmt.Sprintf("Service %s/%s exists and does not belong to the export: delete one of them",
				o.Service.Namespace, o.Service.Name)))
	}
	return nil
}

// planPod creates, replaces or updates the Pod, and returns the condition Ready.
func (o *Observed) planPod(step *Step, s *source, served []byte) *exportv1.Condition {
	waiting := func(message string) *exportv1.Condition {
		return condition(exportv1.ConditionReady, corev1.ConditionFalse, exportapi.PodPendingReason, message)
	}
	switch {
	case o.Pod == nil:
		step.Pod, step.CertificateEnd = o.pod(s, served), o.CertificateEnd()
		step.Certificate = CertificateSecret(o.Export, step.CertificateEnd)
		return waiting(podProblem(step.Pod))
	case !o.ownsPod():
		return o.pollWhile(step,
			waiting(fmt.Sprintf("Pod %s/%s exists and does not belong to the export: delete one of them", o.Pod.Namespace,
				o.Pod.Name)))
	case o.Pod.DeletionTimestamp != nil:
		return waiting("The former Pod of the exporter terminates")
	case podstate.Terminal(o.Pod):
		return o.ended(step)
	case o.renews(step), o.hasOtherVolumes(s, served), o.lacksImage(s):
		o.replace(step, s)
		return waiting("The exporter's Pod is replaced")
	}
	// An exporter reads at its start whether to compute digests, and thus gets no content without them before it is ready.
	if o.Pod.Annotations[ContentAnnotation] != string(served) && (o.hasImage(s) || !o.madeForImage() ||
		podstate.Ready(o.Pod)) {
		step.Content = string(served)
	}
	if o.Pod.Status.Phase != corev1.PodRunning || !podstate.Ready(o.Pod) {
		// Only the Secret with the token is not watched, and may have to be created again.
		problem := waiting(podProblem(o.Pod))
		if o.Pod.Status.Phase != corev1.PodPending {
			problem.Reason = exportapi.UnknownReason
		}
		if o.Pod.Status.Phase == corev1.PodRunning && s.backup != nil {
			problem.Message = "The exporter waits for a connection of the agent on node " + o.Guest.Status.NodeName
		}
		if o.Pod.Status.Phase == corev1.PodRunning && o.hasImage(s) {
			problem.Message = "The exporter reads the disks, because an OCI image begins with their digests. The log of its Pod has the progress"
		}
		step.requeue(min(max(o.age(problem), restart), maxPoll))
		return problem
	}
	step.requeue(pollReady)
	return condition(exportv1.ConditionReady, corev1.ConditionTrue, exportapi.PodReadyReason, "")
}

// replace ends the Pod, so that another one replaces it. That of a backup is not deleted before it has reported what
// clients have read.
func (o *Observed) replace(step *Step, s *source) {
	switch {
	case !s.pulled || o.Pod.Status.Phase == corev1.PodPending:
		step.Delete = true
	case !o.stops():
		step.Stop = true
	}
}

// stops reports whether the kubelet was requested to stop the Pod.
func (o *Observed) stops() bool {
	return o.Pod.Spec.ActiveDeadlineSeconds != nil && *o.Pod.Spec.ActiveDeadlineSeconds <= StopDeadline
}

// ended deletes a Pod some time after it has ended. As in KubeVirt, the reason is Unknown for a Pod that has failed.
func (o *Observed) ended(step *Step) *exportv1.Condition {
	if wait := finished(o.Pod).Add(restart).Sub(o.Now); wait > 0 {
		step.requeue(wait)
	} else {
		step.Delete, step.Ended = true, true
	}
	reason := exportapi.UnknownReason
	if o.Pod.Status.Phase == corev1.PodSucceeded {
		reason = exportapi.PodCompletedReason
	}
	return condition(exportv1.ConditionReady, corev1.ConditionFalse, reason, "The exporter's Pod has ended"+podEnd(o.Pod))
}

// renews reports whether the Pod has to be replaced because its certificate expires before the export, and soon.
func (o *Observed) renews(step *Step) bool {
	end, err := time.Parse(time.RFC3339, o.Pod.Annotations[CertificateEndAnnotation])
	if err != nil || end.After(Expiry(o.Export)) {
		return false
	}
	wait := end.Add(-renewal).Sub(o.Now)
	if wait > 0 {
		step.requeue(wait)
		return false
	}
	return o.CertificateEnd().After(end)
}

// hasOtherVolumes reports whether the Pod has other claims than the export, or serves one of them in another format:
// the VM has changed. next is what it has to serve.
func (o *Observed) hasOtherVolumes(s *source, next []byte) bool {
	if now := o.Pod.Annotations[ContentAnnotation]; now != string(next) && servesOther(s, []byte(now)) {
		return true
	}
	mounted := map[string]bool{}
	for i := range o.Pod.Spec.Volumes {
		if claim := o.Pod.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			mounted[claim.ClaimName] = true
		}
	}
	for i := range s.volumes {
		if !mounted[s.volumes[i].claim.Name] {
			return true
		}
	}
	return len(mounted) != len(s.volumes)
}

// servesOther reports whether a content has other volumes than the export, or another backup. A running exporter can
// get new content, but no other volumes. Content that cannot be read is replaced.
func servesOther(s *source, raw []byte) bool {
	served, err := content.Parse(raw)
	if err != nil {
		return false
	}
	for i := range s.volumes {
		if now, found := served.Volume(s.volumes[i].Name); !found || now != s.volumes[i].Volume {
			return true
		}
	}
	return s.isOtherBackup(served)
}

// lacksImage reports whether the Pod was created before the export became an OCI image. An exporter computes digests
// when it starts. What it serves now does not show that: the image is taken from it while there is no manifest of the
// VM, and returned later without a new Pod.
func (o *Observed) lacksImage(s *source) bool { return o.hasImage(s) && !o.madeForImage() }

// madeForImage reports whether the exporter computes the digests of an OCI image when it starts.
func (o *Observed) madeForImage() bool { return o.Pod.Annotations[ImageAnnotation] == "true" }

// maxText is how many characters of a Pod's status or of an error are used. A part of a Pod's status is written by the
// exporter.
const maxText = 512

// podProblem returns why a Pod is not ready yet.
func podProblem(pod *corev1.Pod) string {
	if c := podstate.Condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return "The exporter's Pod is not scheduled: " + short(c.Message)
	}
	for i := range pod.Status.ContainerStatuses {
		if waiting := pod.Status.ContainerStatuses[i].State.Waiting; waiting != nil && waiting.Message != "" {
			return fmt.Sprintf("The exporter's Pod does not start: %s: %s", waiting.Reason, short(waiting.Message))
		}
	}
	if pod.Status.Phase == corev1.PodRunning {
		return "The exporter is not ready yet"
	}
	token := ""
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Name == tokenVolume && v.Secret != nil {
			token = " and for the Secret " + v.Secret.SecretName + " with the key token"
		}
	}
	return "The exporter's Pod waits for its volumes" + token
}

// podEnd returns how a Pod has ended, as the end of a sentence.
func podEnd(pod *corev1.Pod) string {
	for i := range pod.Status.ContainerStatuses {
		if t := pod.Status.ContainerStatuses[i].State.Terminated; t != nil && t.ExitCode != 0 {
			return fmt.Sprintf(" with exit code %d: %s", t.ExitCode, short(t.Message))
		}
	}
	if pod.Status.Message != "" {
		return ": " + short(pod.Status.Message)
	}
	return ""
}

func finished(pod *corev1.Pod) time.Time {
	end := pod.CreationTimestamp.Time
	for i := range pod.Status.ContainerStatuses {
		if t := pod.Status.ContainerStatuses[i].State.Terminated; t != nil && t.FinishedAt.After(end) {
			end = t.FinishedAt.Time
		}
	}
	return end
}

func short(text string) string { return printable.Text(text, maxText) }
