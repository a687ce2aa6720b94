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
)

// remedies are what helps against the reasons of the condition Synchronized.
var remedies = map[string]string{
	"FieldNotImplemented":                 "Take out the field that is named, or see docs/compatibility.md for what to use instead.",
	"ImpossibleSpec":                      "Change the field that is named: no guest can have that.",
	"FailedCreate":                        "The launcher Pod is refused, by a quota, a policy or for what the VM asks for. Mend what the message names.",
	"FailedBackendStorageCreate":          "The claim for the state of TPM and EFI cannot be made. Mend what the message names.",
	"BackendStorageNotReady":              "The claim for the state of TPM and EFI is not bound. See its events.",
	"NetworkAttachmentDefinitionNotFound": "Install Multus, or create the NetworkAttachmentDefinition that is named.",
	"MissingPodInterface":                 "See whether Multus runs on the node, and the events of the launcher Pod.",
	"FailedDataVolumeImport":              "See the DataVolume and its importer Pod.",
}

// handledElsewhere are reasons about which other rules know more.
var handledElsewhere = map[string]bool{
	"FailedPvcNotFound": true, "KubeVirtNotFound": true, "ErrImagePull": true, "ImagePullBackOff": true,
	"FailedMount": true, "FailedMapVolume": true, "FailedAttachVolume": true, "FailedCreatePodSandBox": true, "NetworkNotReady": true,
}

// refused: the controllers say that they cannot do what the spec asks for.
func refused(s *Snapshot) []Finding {
	var found []Finding
	if failure := s.vmCondition(v1.VirtualMachineFailure); failure.Status == corev1.ConditionTrue {
		found = append(found, Finding{
			What: "The VM's instance cannot be made or deleted: " + failure.Reason + ".", Why: []string{short(failure.Message)},
			Do: "Mend what the message names. It is tried again by itself.",
		})
	}
	sync := s.condition(v1.VirtualMachineInstanceSynchronized)
	if sync.Status != corev1.ConditionFalse || handledElsewhere[sync.Reason] {
		return found
	}
	f := Finding{What: fmt.Sprintf("The VM cannot be run as its spec asks: %s.", sync.Reason), Why: []string{short(sync.Message)}, Do: remedies[sync.Reason]}
	if f.Do == "" {
		f.Do = "Mend what the message names. It is tried again by itself."
	}
	if field := fieldOf(sync.Message); field != "" {
		f.What = fmt.Sprintf("The VM cannot be run, because of the field %s.", field)
		if s.VM != nil {
			f.Commands = []string{fmt.Sprintf("kubectl --namespace %s edit vm %s", s.Namespace, s.Name)}
		}
	}
	return append(found, f)
}

// fieldOf is the path at the beginning of a message of Kubernetes' validation.
func fieldOf(message string) string {
	path, _, found := strings.Cut(message, ": ")
	if found && strings.HasPrefix(path, "spec.") && !strings.Contains(path, " ") {
		return path
	}
	return ""
}

// claims: a disk is missing or not ready.
func claims(s *Snapshot) []Finding {
	if s.Hidden[AreaClaims] || s.VM == nil && s.VMI == nil || s.VMI != nil && (s.VMI.IsRunning() || s.VMI.IsFinal()) || stoppedByUser(s) {
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
				Do:       "Create it; the VM goes on by itself. Claims of this namespace:",
				Commands: []string{fmt.Sprintf("kubectl --namespace %s get pvc", s.Namespace)},
			})
		case claim != nil && claim.Status.Phase == corev1.ClaimPending:
			found = append(found, s.pendingClaim(claim)...)
		case claim != nil && claim.Status.Phase == corev1.ClaimLost:
			found = append(found, Finding{
				What: fmt.Sprintf("PersistentVolumeClaim %s has lost its volume, and with it what was on it.", name),
				Do:   "Bring the PersistentVolume back, or restore the claim from a backup.",
			})
		}
	}
	return found
}

// stoppedByUser says that the VM is not meant to run, so that nothing it would need is missed.
func stoppedByUser(s *Snapshot) bool {
	return s.VMI == nil && len(stopped(s)) > 0
}

// isTemplated says that a claim comes from a template of the VM.
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
	f := Finding{What: fmt.Sprintf("PersistentVolumeClaim %s is not bound to a volume.", name), Do: "See what its provisioner says:", Commands: describe}
	if e := s.eventOf("PersistentVolumeClaim", name); e != nil {
		f.Why = append(f.Why, fmt.Sprintf("%s: %s", e.Reason, short(e.Message)))
	}
	known, isKnown := s.Classes[class]
	switch {
	case s.Hidden[AreaClasses]:
	case class == "":
		f.Why = append(f.Why, "It names no storage class, and the cluster has no default one.")
		f.Do, f.Commands = "Give it a storage class that the cluster has:", []string{"kubectl get storageclass"}
	case !isKnown:
		f.Why = append(f.Why, fmt.Sprintf("The cluster has no storage class %q.", class))
		f.Do, f.Commands = "Give it a storage class that the cluster has:", []string{"kubectl get storageclass"}
	case known.WaitsForConsumer && s.Pod() == nil:
		f.Why = append(f.Why, fmt.Sprintf("Its storage class %s makes volumes where the first Pod that needs them runs, and the VM has no Pod yet.", class))
	case known.WaitsForConsumer && len(f.Why) == 0:
		return nil // The scheduler comes first, and another rule looks at it.
	}
	return one(f)
}

// schedule: no node takes the Pod.
func schedule(s *Snapshot) []Finding {
	message := ""
	if pod := s.Pod(); pod != nil {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				message = c.Message
			}
		}
	}
	if message == "" {
		return nil
	}
	why, lacks := words(message)
	nodes := "No node"
	if s.VMI != nil && s.VMI.IsRunning() {
		// The newest Pod is the one that a migration has made.
		nodes, why = "No other node", append(why, "The guest runs on where it is, and waits for a node to move to.")
	}
	f := Finding{What: nodes + " takes the VM.", Why: why}
	switch {
	case lacks["memory"]:
		f.What = nodes + " has enough memory for the VM."
		f.Do = fmt.Sprintf("Ask for less than %s, stop other VMs, or add a node. What is free:", s.memory())
	case lacks["cpu"]:
		f.What, f.Do = nodes+" has enough CPU for the VM.", "Ask for fewer CPUs, stop other VMs, or add a node. What is free:"
	default:
		f.Do = "Change what the VM asks of its node, or the nodes:"
	}
	f.Commands = []string{"kubectl describe nodes | grep -A8 'Allocated resources'", "kubectl get nodes --show-labels"}
	return one(f)
}

// memory is what the launcher Pod asks for.
func (s *Snapshot) memory() string {
	if pod := s.Pod(); pod != nil {
		for _, container := range pod.Spec.Containers {
			if q, found := container.Resources.Requests[corev1.ResourceMemory]; found && container.Name == "compute" {
				return q.String()
			}
		}
	}
	if m := s.Template().Domain.Memory; m != nil && m.Guest != nil {
		return m.Guest.String()
	}
	return "now"
}

// causes turn what the scheduler says of some nodes into words. The first that fits counts.
var causes = []struct {
	pattern *regexp.Regexp
	says    string
	lacks   string
}{
	{regexp.MustCompile(`^Insufficient memory$`), "too little free memory", "memory"},
	{regexp.MustCompile(`^Insufficient cpu$`), "too little free CPU", "cpu"},
	{regexp.MustCompile(`^Insufficient devices\.kubevirt\.io/kvm$`), "no KVM (for software emulation: developerConfiguration.useEmulation in the KubeVirt object)", ""},
	{regexp.MustCompile(`^Insufficient (\S+)$`), "too little of $1", ""},
	{regexp.MustCompile(`untolerated taint(?:\(s\))? \{([^}:]+)[^}]*\}`), "the taint $1, which the VM does not tolerate", ""},
	{regexp.MustCompile(`didn't match Pod's node affinity/selector`), "without the labels that the VM asks for (nodeSelector, affinity), or not ready for VMs (kubevirt.io/schedulable)", ""},
	{regexp.MustCompile(`unschedulable`), "cordoned (kubectl uncordon)", ""},
	{regexp.MustCompile(`didn't match pod (anti-)?affinity`), "no fit for the VM's affinity to other Pods", ""},
	{regexp.MustCompile(`volume node affinity conflict`), "out of reach of the VM's volume, which is on other nodes", ""},
	{regexp.MustCompile(`unbound immediate PersistentVolumeClaims`), "a claim that is not bound", ""},
	{regexp.MustCompile(`didn't find available persistent volumes to bind`), "no volume for the VM's claim", ""},
	{regexp.MustCompile(`Too many pods`), "as many Pods as may be", ""},
}

var part = regexp.MustCompile(`^(\d+) (?:node\(s\) )?(?:had )?(.*)$`)

// words takes a message of the scheduler apart: "0/3 nodes are available: 1 Insufficient memory, 2 node(s) had …. preemption: …".
func words(message string) (why []string, lacks map[string]bool) {
	lacks = map[string]bool{}
	_, detail, found := strings.Cut(message, "are available: ")
	if !found {
		return []string{short(message)}, lacks
	}
	// The sentence about the nodes ends here; what its plugins say of claims and preemption follows.
	detail, _, _ = strings.Cut(detail, ". ")
	detail = strings.TrimSuffix(strings.TrimSpace(detail), ".")
	for text := range strings.SplitSeq(detail, ", ") {
		m := part.FindStringSubmatch(text)
		if m == nil {
			why = append(why, short(text))
			continue
		}
		says := m[2]
		for _, cause := range causes {
			if at := cause.pattern.FindStringSubmatchIndex(m[2]); at != nil {
				says = string(cause.pattern.ExpandString(nil, cause.says, m[2], at))
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
		why = append(why, short(count+says))
	}
	sort.SliceStable(why, func(i, j int) bool {
		return strings.Contains(why[i], "too little") && !strings.Contains(why[j], "too little")
	})
	return why, lacks
}

// images: an image cannot be had.
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
				What: fmt.Sprintf("The image %s cannot be pulled.", imageOf(pod, status, waiting.Message)), Why: []string{short(pullMessage(s, pod, waiting))},
				Do:       "Check the image's name and tag, that the node reaches its registry, and imagePullSecret if it needs one. The volumes' images:",
				Commands: []string{fmt.Sprintf("kubectl --namespace %s get vmi %s -o jsonpath='{range .spec.volumes[*]}{.containerDisk.image}{\"\\n\"}{end}'", s.Namespace, s.Name)},
			})
		}
	}
	return found
}

var quotedImage = regexp.MustCompile(`image "([^"]+)"`)

// imageOf is the image that cannot be pulled. That of a volume is not the container's: the message names it.
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

// pullMessage is why it cannot: the event says more than the status while the kubelet waits before the next try.
func pullMessage(s *Snapshot, pod *corev1.Pod, waiting *corev1.ContainerStateWaiting) string {
	if waiting.Reason == "ImagePullBackOff" {
		if e := s.eventOf("Pod", pod.Name, "Failed"); e != nil && strings.Contains(e.Message, "pull") {
			return e.Message
		}
	}
	return waiting.Message
}

// podTrouble: the kubelet cannot start the Pod for another reason.
func podTrouble(s *Snapshot) []Finding {
	pod := s.Pod()
	if pod == nil || pod.Spec.NodeName == "" || pod.Status.Phase != corev1.PodPending || len(images(s)) > 0 {
		return nil
	}
	e := s.eventOf("Pod", pod.Name, "FailedMount", "FailedMapVolume", "FailedAttachVolume", "FailedCreatePodSandBox", "NetworkNotReady", "Failed")
	if e == nil {
		return nil
	}
	return one(Finding{
		What: fmt.Sprintf("Node %s cannot start the VM's Pod: %s.", pod.Spec.NodeName, e.Reason), Why: []string{short(e.Message)},
		Do: "Mend what the message names; the node tries again by itself.", Commands: []string{fmt.Sprintf("kubectl --namespace %s describe pod %s", s.Namespace, pod.Name)},
	})
}

// outcome is what a launcher wrote when it ended: a line of JSON, or what a container runtime says.
func outcome(message, reason string) string {
	var said struct{ Reason, Message string }
	if json.Unmarshal([]byte(message), &said) == nil && said.Message != "" {
		return short(said.Message)
	}
	if message == "" {
		return reason
	}
	return short(message)
}
