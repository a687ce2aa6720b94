// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package explain

import (
	"encoding/json"
	"fmt"
	"regexp"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/migration/upgradecheck"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

// remedies are the remedies for reasons of the condition Synchronized.
var remedies = map[string]string{
	"FieldNotImplemented":                 "Remove the field, or see docs/compatibility.md for an alternative.",
	"ImpossibleSpec":                      "Change the field: no guest can have this value.",
	"FailedCreate":                        "The launcher Pod is refused by a quota, a policy or the API server. Fix what the message names.",
	"FailedBackendStorageCreate":          "The claim for the state of TPM and EFI cannot be created. Fix what the message names.",
	"BackendStorageNotReady":              "The claim for the state of TPM and EFI is not bound. Check its events.",
	"NetworkAttachmentDefinitionNotFound": "Install Multus, or create the NetworkAttachmentDefinition.",
	"MissingPodInterface":                 "Check that Multus runs on the node, and the events of the launcher Pod.",
	"FailedDataVolumeImport":              "Check the DataVolume and its importer Pod.",
}

// handledElsewhere are reasons that other rules explain in more detail.
var handledElsewhere = map[string]bool{
	"FailedPvcNotFound": true, "KubeVirtNotFound": true, "ErrImagePull": true, "ImagePullBackOff": true,
	"FailedMount": true, "FailedMapVolume": true, "FailedAttachVolume": true, "FailedCreatePodSandBox": true,
	"NetworkNotReady": true,
}

// missingReferences contains the kinds of objects that a VM refers to and that cannot be found, by the reason of its
// condition Failure.
var missingReferences = map[string]string{"FailedFindInstancetype": "instance type",
	"FailedFindPreference": "preference"}

// failedSync reports that virt-controller or virt-handler cannot do what the spec requires.
func failedSync(s *Snapshot) []Finding {
	var found []Finding
	if failure := s.vmCondition(v1.VirtualMachineFailure); failure.Status == corev1.ConditionTrue {
		f := Finding{
			What: "The VM's instance cannot be created or deleted: " + sentence(failure.Reason),
			Why:  []string{short(failure.Message)},
			Do:   "Fix what the message names. It is retried automatically.",
		}
		if what := missingReferences[failure.Reason]; what != "" {
			f.What = "The VM's " + what + " cannot be found."
			f.Do = "Create what the message names, or refer to another " + what + ". It is retried automatically."
			f.Commands = []string{fmt.Sprintf("kubectl --namespace %s edit vm %s", s.Namespace, s.Name)}
		}
		found = append(found, f)
	}
	sync := s.condition(v1.VirtualMachineInstanceSynchronized)
	if sync.Status != corev1.ConditionFalse || handledElsewhere[sync.Reason] {
		return found
	}
	f := Finding{What: "The VM cannot be run as its spec requires: " + sentence(sync.Reason),
		Why: []string{short(sync.Message)}, Do: remedies[sync.Reason]}
	if f.Do == "" {
		f.Do = "Fix what the message names. It is retried automatically."
	}
	if field := fieldOf(sync.Message); field != "" {
		f.What = fmt.Sprintf("The VM cannot be run, because of the field %s.", field)
		if s.VM != nil {
			f.Commands = []string{fmt.Sprintf("kubectl --namespace %s edit vm %s", s.Namespace, s.Name)}
		}
	}
	return append(found, f)
}

// fieldOf returns the field's path at the beginning of a validation message, or "".
func fieldOf(message string) string {
	path, _, found := strings.Cut(message, ": ")
	if found && strings.HasPrefix(path, "spec.") && !strings.Contains(path, " ") {
		return path
	}
	return ""
}

// claims reports that a claim is missing, not bound or lost.
func claims(s *Snapshot) []Finding {
	if s.Hidden[AreaClaims] || s.VM == nil && s.VMI == nil || s.VMI != nil && (s.VMI.IsRunning() || s.VMI.IsFinal()) ||
		stoppedByUser(s) {
		return nil
	}
	var found []Finding
	names, volumes := s.claims()
	for i, name := range names {
		claim, known := s.Claims[name]
		switch {
		case !known:
		case claim == nil && !s.isTemplated(name):
			found = append(found, Finding{
				What:     fmt.Sprintf("PersistentVolumeClaim %s, of the volume %s, does not exist.", name, volumes[i]),
				Do:       "Create it; the VM then starts automatically. Claims of this namespace:",
				Commands: []string{fmt.Sprintf("kubectl --namespace %s get pvc", s.Namespace)},
			})
		case claim != nil && claim.Status.Phase == corev1.ClaimPending:
			found = append(found, s.pendingClaim(claim)...)
		case claim != nil && claim.Status.Phase == corev1.ClaimLost:
			found = append(found, Finding{
				What: fmt.Sprintf("PersistentVolumeClaim %s has lost its volume and its data.", name),
				Do:   "Recover the PersistentVolume, or restore the claim from a backup.",
			})
		}
	}
	return found
}

// stoppedByUser reports whether the VM is not meant to run, so that missing objects are not a problem.
func stoppedByUser(s *Snapshot) bool {
	return s.VMI == nil && len(stopped(s)) > 0
}

// isTemplated reports whether a claim comes from a template of the VM.
func (s *Snapshot) isTemplated(name string) bool {
	if s.VM != nil {
		for _, template := range s.VM.Spec.DataVolumeTemplates {
			if template.Name == name {
				return true
			}
		}
	}
	return false
}

func (s *Snapshot) pendingClaim(claim *corev1.PersistentVolumeClaim) []Finding {
	name := claim.Name
	describe := []string{fmt.Sprintf("kubectl --namespace %s describe pvc %s", s.Namespace, name)}
	class := s.DefaultClass
	if claim.Spec.StorageClassName != nil {
		class = *claim.Spec.StorageClassName
	}
	f := Finding{What: fmt.Sprintf("PersistentVolumeClaim %s is not bound to a volume.", name),
		Do: "Check its provisioner's events:", Commands: describe}
	if e := s.eventOf("PersistentVolumeClaim", name); e != nil {
		f.Why = append(f.Why, fmt.Sprintf("%s: %s", e.Reason, short(e.Message)))
	}
	known, isKnown := s.Classes[class]
	switch {
	case s.Hidden[AreaClasses]:
	case class == "":
		f.Why = append(f.Why, "It names no storage class, and the cluster has no default one.")
		f.Do, f.Commands = "Use a storage class that the cluster has:", []string{"kubectl get storageclass"}
	case !isKnown:
		f.Why = append(f.Why, fmt.Sprintf("The cluster has no storage class %q.", class))
		f.Do, f.Commands = "Use a storage class that the cluster has:", []string{"kubectl get storageclass"}
	case known.WaitsForConsumer && s.Pod() == nil:
		f.Why = append(f.Why, fmt.Sprintf(
			"Its storage class %s creates the volume when the first Pod needs it, and the VM has no Pod yet.", class))
	case known.WaitsForConsumer && len(f.Why) == 0:
		return nil // The claim waits for the scheduler, see scheduling.
	}
	return one(f)
}

// scheduling reports that no node fits the Pod.
func scheduling(s *Snapshot) []Finding {
	message := ""
	if pod := s.Pod(); pod != nil {
		if c := podstate.Condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
			message = c.Message
		}
	}
	if message == "" {
		return nil
	}
	why, lacks := parseSchedulerMessage(message)
	nodes := "No node"
	if s.VMI != nil && s.VMI.IsRunning() {
		// The newest Pod is the target of a migration.
		nodes, why = "No other node", append(why,
			"The guest keeps running on its node. Its migration waits for a target node.")
	}
	f := Finding{What: nodes + " fits the VM.", Why: why}
	switch {
	case lacks["memory"]:
		f.What = nodes + " has enough memory for the VM."
		f.Do = "Request less memory" + s.requestedMemory() + ", stop other VMs, or add a node. What is free:"
	case lacks["cpu"]:
		f.What, f.Do = nodes+" has enough CPU for the VM.", "Request fewer CPUs, stop other VMs, or add a node. What is free:"
	default:
		f.Do = "Change what the VM requires of its node, or change the nodes:"
	}
	f.Commands = []string{"kubectl describe nodes | grep -A8 'Allocated resources'", "kubectl get nodes --show-labels"}
	return one(f)
}

// requestedMemory returns how much memory the VM requests, as a part of a sentence, or "" if that is unknown.
func (s *Snapshot) requestedMemory() string {
	if pod := s.Pod(); pod != nil {
		for _, container := range pod.Spec.Containers {
			if q, found := container.Resources.Requests[corev1.ResourceMemory]; found && container.Name == "compute" {
				return " than " + q.String()
			}
		}
	}
	if m := s.Template().Domain.Memory; m != nil && m.Guest != nil {
		return " than " + m.Guest.String()
	}
	return ""
}

// causes are explanations of the scheduler's messages about nodes. The first match applies. lacks is the resource that
// is missing.
var causes = []struct {
	pattern     *regexp.Regexp
	explanation string
	lacks       string
}{
	{regexp.MustCompile(`^Insufficient memory$`), "too little free memory", "memory"},
	{regexp.MustCompile(`^Insufficient cpu$`), "too little free CPU", "cpu"},
	{regexp.MustCompile(`^Insufficient devices\.kubevirt\.io/kvm$`),
		"no KVM (for software emulation: developerConfiguration.useEmulation in the KubeVirt object)", ""},
	{
		regexp.MustCompile(`^Insufficient devices\.kubevirt\.io/vhost-net$`),
		"no vhost-net, which virtio NICs need (" + upgradecheck.LoadVhostNet + ")", "",
	},
	{regexp.MustCompile(`^Insufficient (\S+)$`), "too little of $1", ""},
	{regexp.MustCompile(`untolerated taint(?:\(s\))? \{([^}:]+)[^}]*\}`),
		"the taint $1, which the VM does not tolerate", ""},
	{regexp.MustCompile(`didn't match Pod's node affinity/selector`), "without the labels that the VM requires (nodeSelector, affinity), or not ready for VMs (kubevirt.io/schedulable)", ""},
	{regexp.MustCompile(`unschedulable`), "cordoned (kubectl uncordon)", ""},
	{regexp.MustCompile(`didn't match pod (anti-)?affinity`), "the VM's affinity to other Pods does not match", ""},
	{regexp.MustCompile(`volume node affinity conflict`), "the VM's volume is not accessible there", ""},
	{regexp.MustCompile(`unbound immediate PersistentVolumeClaims`), "a claim that is not bound", ""},
	{regexp.MustCompile(`didn't find available persistent volumes to bind`), "no volume for the VM's claim", ""},
	{regexp.MustCompile(`Too many pods`), "the maximum number of Pods", ""},
}

var part = regexp.MustCompile(`^(\d+) (?:node\(s\) )?(?:had )?(.*)$`)

// parseSchedulerMessage explains "0/3 nodes are available: 1 Insufficient memory, 2 node(s) had …. preemption: …".
func parseSchedulerMessage(message string) (why []string, lacks map[string]bool) {
	lacks = map[string]bool{}
	_, detail, found := strings.Cut(message, "are available: ")
	if !found {
		return []string{short(message)}, lacks
	}
	// Only the first sentence is about nodes. Messages of plugins about claims and preemption follow.
	detail, _, _ = strings.Cut(detail, ". ")
	detail = strings.TrimSuffix(strings.TrimSpace(detail), ".")
	for text := range strings.SplitSeq(detail, ", ") {
		m := part.FindStringSubmatch(text)
		if m == nil {
			why = append(why, short(text))
			continue
		}
		explanation := m[2]
		for _, cause := range causes {
			if at := cause.pattern.FindStringSubmatchIndex(m[2]); at != nil {
				explanation = string(cause.pattern.ExpandString(nil, cause.explanation, m[2], at))
				if cause.lacks != "" {
					lacks[cause.lacks] = true
				}
				break
			}
		}
		count := m[1] + " nodes: "
		if m[1] == "1" {
			count = "1 node: "
		}
		why = append(why, short(count+explanation))
	}
	sort.SliceStable(why, func(i, j int) bool {
		return strings.Contains(why[i], "too little") && !strings.Contains(why[j], "too little")
	})
	return why, lacks
}

// images reports that an image cannot be pulled.
func images(s *Snapshot) []Finding {
	pod := s.Pod()
	if pod == nil {
		return nil
	}
	var found []Finding
	for _, status := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		waiting := status.State.Waiting
		if waiting == nil {
			continue
		}
		switch waiting.Reason {
		case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull":
			found = append(found, Finding{
				What: fmt.Sprintf("The image %s cannot be pulled.", imageOf(pod, status, waiting.Message)),
				Why:  []string{short(pullMessage(s, pod, waiting))},
				Do:   "Check the image's name and tag, the node's connection to the registry, and imagePullSecret if it needs one. The volumes' images:",
				Commands: []string{fmt.Sprintf(
					"kubectl --namespace %s get vmi %s -o jsonpath='{range .spec.volumes[*]}{.containerDisk.image}{\"\\n\"}{end}'",
					s.Namespace, s.Name)},
			})
		}
	}
	return found
}

var quotedImage = regexp.MustCompile(`image "([^"]+)"`)

// imageOf returns the image that cannot be pulled. It may be that of a volume, which only the message names.
func imageOf(pod *corev1.Pod, status corev1.ContainerStatus, message string) string {
	if m := quotedImage.FindStringSubmatch(message); m != nil {
		return m[1]
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.Image != nil && strings.Contains(message, volume.Image.Reference) {
			return volume.Image.Reference
		}
	}
	return status.Image
}

// pullMessage returns why the image cannot be pulled. During the kubelet's backoff, only the event contains the reason.
func pullMessage(s *Snapshot, pod *corev1.Pod, waiting *corev1.ContainerStateWaiting) string {
	if waiting.Reason == "ImagePullBackOff" {
		if e := s.eventOf("Pod", pod.Name, "Failed"); e != nil && strings.Contains(e.Message, "pull") {
			return e.Message
		}
	}
	return waiting.Message
}

// podStart reports that the kubelet cannot start the Pod, other than for an image.
func podStart(s *Snapshot) []Finding {
	pod := s.Pod()
	if pod == nil || pod.Spec.NodeName == "" || pod.Status.Phase != corev1.PodPending || len(images(s)) > 0 {
		return nil
	}
	e := s.eventOf("Pod", pod.Name, "FailedMount", "FailedMapVolume", "FailedAttachVolume", "FailedCreatePodSandBox",
		"NetworkNotReady", "Failed")
	if e == nil {
		return nil
	}
	return one(Finding{
		What:     fmt.Sprintf("Node %s cannot start the VM's Pod: %s.", pod.Spec.NodeName, e.Reason),
		Why:      []string{short(e.Message)},
		Do:       "Fix what the message names; the node retries automatically.",
		Commands: []string{fmt.Sprintf("kubectl --namespace %s describe pod %s", s.Namespace, pod.Name)},
	})
}

// outcome returns the message of a launcher's outcome, which is a line of JSON, or else the container runtime's reason.
func outcome(message, reason string) string {
	var outcome struct{ Reason, Message string }
	if json.Unmarshal([]byte(message), &outcome) == nil && outcome.Message != "" {
		return short(outcome.Message)
	}
	if message == "" {
		return reason
	}
	return short(message)
}
