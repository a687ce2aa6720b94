// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package takeover

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/specsupport"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Guest is a running guest.
type Guest struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Node      string `json:"node"`
	// Pod is its launcher Pod.
	Pod string `json:"pod,omitempty"`
	// Verdict is what becomes of it.
	Verdict Verdict `json:"verdict"`
	// Reasons are why it has to be stopped, or cannot be started again.
	Reasons []string `json:"reasons,omitempty"`
}

// Verdict is what becomes of a guest.
type Verdict string

// The verdicts.
const (
	// Adopted guests run on, and get Vireo's launcher at their next start.
	Adopted Verdict = "Adopted"
	// AdoptedOnce guests run on, but Vireo cannot start them again as their spec is.
	AdoptedOnce Verdict = "AdoptedOnce"
	// StopFirst guests have to be stopped before the takeover, or lose their data or their Pod's resources.
	StopFirst Verdict = "StopFirst"
)

// planGuests decides about each guest that runs.
func (p *Plan) planGuests(c *Cluster) {
	pods := map[types.UID][]*corev1.Pod{}
	for i := range c.Pods {
		pod := &c.Pods[i]
		// Attachment Pods belong to a Pod.
		if owner := podspec.Owner(pod); owner != nil && !podstate.Finished(pod) {
			pods[owner.UID] = append(pods[owner.UID], pod)
		}
	}
	for i := range c.VMIs {
		vmi := &c.VMIs[i]
		if vmistatus.StageOf(vmi.Status.Phase) != vmistatus.Live || vmi.Status.Phase == v1.Scheduled {
			continue
		}
		p.Guests = append(p.Guests, p.planGuest(vmi, pods[vmi.UID]))
	}
	slices.SortFunc(p.Guests, func(a, b Guest) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
}

// planGuest decides about a guest with its launcher Pods that have not finished.
func (p *Plan) planGuest(vmi *v1.VirtualMachineInstance, pods []*corev1.Pod) Guest {
	g := Guest{Namespace: vmi.Namespace, Name: vmi.Name, Node: vmi.Status.NodeName, Verdict: Adopted}
	if problem := ambiguity(vmi, pods); problem != "" {
		p.stop(name("VirtualMachineInstance", vmi), "%s", problem)
		g.Verdict, g.Reasons = StopFirst, []string{"its launcher Pod is not known"}
		return g
	}
	pod := pods[0]
	g.Pod = pod.Name
	if reasons := mustStop(vmi, pod); len(reasons) > 0 {
		g.Verdict, g.Reasons = StopFirst, reasons
		return g
	}
	if reasons := cannotStart(vmi); len(reasons) > 0 {
		g.Verdict, g.Reasons = AdoptedOnce, reasons
	}
	return g
}

// ambiguity returns why it is not known in which Pod a guest runs, or "". A tenant can make Pods that the VMI seems to
// control.
func ambiguity(vmi *v1.VirtualMachineInstance, pods []*corev1.Pod) string {
	node := vmi.Status.NodeName
	switch {
	case len(pods) != 1:
		return fmt.Sprintf("%d unfinished launcher Pods belong to it, and one is needed. Delete those in which no guest runs, or "+
			"stop the VM.", len(pods))
	case pods[0].Spec.NodeName != node, vmi.Status.ActivePods[pods[0].UID] != node:
		return fmt.Sprintf("Its only unfinished Pod is %s on node %q, which is not the one of status.activePods and "+
			"status.nodeName (%q). Stop the VM.", pods[0].Name, pods[0].Spec.NodeName, node)
	default:
		return ""
	}
}

// mustStop returns why a guest cannot be adopted. What KubeVirt's agent has mounted into a Pod, only it unmounts: the
// kubelet would wait for it without end, or delete what is mounted.
func mustStop(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) (reasons []string) {
	security := pod.Spec.SecurityContext
	if security == nil || security.RunAsNonRoot == nil || !*security.RunAsNonRoot {
		reasons = append(reasons, "its launcher runs as root")
	}
	if len(vmi.Spec.UtilityVolumes) > 0 {
		reasons = append(reasons, "it has utility volumes")
	}
	images := map[string]bool{}
	for i := range pod.Spec.Volumes {
		images[pod.Spec.Volumes[i].Name] = pod.Spec.Volumes[i].Image != nil
	}
	if firmware := vmi.Spec.Domain.Firmware; firmware != nil && firmware.KernelBoot != nil &&
		firmware.KernelBoot.Container != nil && !slices.Contains(slices.Collect(maps.Values(images)), true) {
		reasons = append(reasons, "its kernel is mounted by KubeVirt's agent, and not in an image volume")
	}
	for i := range vmi.Spec.Volumes {
		if volume := &vmi.Spec.Volumes[i]; volume.ContainerDisk != nil && !images[volume.Name] {
			reasons = append(reasons, "its container disk "+volume.Name+" is mounted by KubeVirt's agent, and not an image volume")
		}
	}
	for i := range vmi.Status.VolumeStatus {
		status := &vmi.Status.VolumeStatus[i]
		switch info := status.PersistentVolumeClaimInfo; {
		case status.MemoryDumpVolume != nil:
			reasons = append(reasons, "the claim "+status.Name+" of a memory dump is mounted")
		case vmistatus.IsHotplugged(status) && (info == nil || !vmistatus.IsBlock(info)):
			reasons = append(reasons, "its hotplugged volume "+status.Name+" is a file system")
		}
	}
	return reasons
}

// cannotStart returns why Vireo cannot start a guest again with its spec.
func cannotStart(vmi *v1.VirtualMachineInstance) (reasons []string) {
	found := append(specsupport.UnimplementedInVMI(field.NewPath("spec"), &vmi.Spec),
		specsupport.UnimplementedInAnnotations(field.NewPath("metadata", "annotations"), vmi.Annotations)...)
	for _, refusal := range specsupport.Refusals(found) {
		reasons = append(reasons, refusal.Field+": "+refusal.Detail)
	}
	return reasons
}
