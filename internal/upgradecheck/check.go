// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package upgradecheck says which running guests could not be moved to a new launcher, and why. It is pure: virt-controller makes a
// condition of the KubeVirt object from it, and virtctl a table.
//
// What it says is about now. That there is room on another node, in terms of CPU and memory, only the scheduler knows when it is asked.
package upgradecheck

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/eviction"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// World is what the answer depends on beyond the guests. Nothing is said about what is nil.
type World struct {
	// Pods is how launcher Pods are made. Which image they have does not matter.
	Pods podspec.Config
	// Eviction is the strategy of guests that name none.
	Eviction v1.EvictionStrategy
	// Methods are those of workloadUpdateStrategy.
	Methods []v1.WorkloadUpdateMethod
	// Nodes are all of the cluster. Their status is not read.
	Nodes []corev1.Node
	// Quotas and Budgets are those of the guests' namespaces.
	Quotas  []corev1.ResourceQuota
	Budgets []policyv1.PodDisruptionBudget
}

// Guest is a VMI, and the Pod that its guest is in or nil.
type Guest struct {
	VMI *v1.VirtualMachineInstance
	Pod *corev1.Pod
}

// Reasons why a guest could not be moved, beyond those of the condition LiveMigratable.
const (
	// ReasonUnknown: the agent of its node has not told yet whether it can migrate.
	ReasonUnknown = "Unknown"
	// ReasonNoOtherNode: there is no other node that runs guests.
	ReasonNoOtherNode = "NoOtherNode"
	// ReasonNodeSelector: what the VMI asks of its node no other node has.
	ReasonNodeSelector = "NodeSelector"
	// ReasonTaints: the VMI tolerates the taints of no other node.
	ReasonTaints = "Taints"
	// ReasonCPU: no other node can run its CPU.
	ReasonCPU = "CPUModel"
	// ReasonQuota: a quota of its namespace leaves no room for a second Pod.
	ReasonQuota = "ResourceQuota"
	// ReasonNoPod: no Pod can be made for it.
	ReasonNoPod = "NoPod"
)

// Problem is why a guest could not be moved.
type Problem struct {
	// Reason is one word: one of the above, or of the condition LiveMigratable.
	Reason string `json:"reason"`
	// Message is what stands in the way, and where.
	Message string `json:"message"`
}

// Fate is what an upgrade does to a guest by workloadUpdateStrategy.
type Fate string

// The fates.
const (
	// Migrates: it is moved to a new launcher while it runs.
	Migrates Fate = "Migrates"
	// ShutsDown: its Pod is evicted, and who made it may start it anew.
	ShutsDown Fate = "ShutsDown"
	// Stays: it keeps its launcher until it is started anew.
	Stays Fate = "Stays"
)

// Finding is what is known about one guest.
type Finding struct {
	// Namespace and Name are the VMI's, Node is where its guest is.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Node      string `json:"node,omitempty"`
	// LauncherImage is the one that it has, and Outdated says that it is not the one that is configured now.
	LauncherImage string `json:"launcherImage,omitempty"`
	Outdated      bool   `json:"outdated"`
	// Migratable says that nothing is in the way of moving it while it runs. Otherwise Problems is what is.
	Migratable bool      `json:"migratable"`
	Problems   []Problem `json:"problems,omitempty"`
	// EvictionStrategy is its own or the cluster's.
	EvictionStrategy v1.EvictionStrategy `json:"evictionStrategy"`
	// OnUpgrade is what happens to it, and Note what else is to be known about that.
	OnUpgrade Fate   `json:"onUpgrade"`
	Note      string `json:"note,omitempty"`
}

// Check looks at the guests that run, and gives what it finds in the order of their names.
func Check(w World, guests []Guest) []Finding {
	findings := make([]Finding, 0, len(guests))
	for _, g := range guests {
		if g.VMI.Status.Phase == v1.Running && g.VMI.DeletionTimestamp == nil {
			findings = append(findings, check(&w, g))
		}
	}
	slices.SortFunc(findings, func(a, b Finding) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return findings
}

// Stuck are the findings about guests that could not be moved.
func Stuck(findings []Finding) []Finding {
	return slices.DeleteFunc(slices.Clone(findings), func(f Finding) bool { return f.Migratable })
}

func check(w *World, g Guest) Finding {
	vmi := g.VMI
	f := Finding{
		Namespace: vmi.Namespace, Name: vmi.Name, Node: vmi.Status.NodeName,
		LauncherImage: vmi.Status.LauncherContainerImageVersion, EvictionStrategy: eviction.StrategyOf(vmi, w.Eviction),
	}
	_, f.Outdated = vmi.Labels[v1.OutdatedLauncherImageLabel]
	if p := ability(vmi); p != nil {
		f.Problems = append(f.Problems, *p)
	}
	pod, p := target(w, g)
	if p != nil {
		f.Problems = append(f.Problems, *p)
	} else {
		if p := place(w, vmi, pod); p != nil {
			f.Problems = append(f.Problems, *p)
		}
		f.Problems = append(f.Problems, quotas(w, pod)...)
	}
	f.Migratable = len(f.Problems) == 0
	f.OnUpgrade, f.Note = fate(w, g, f.Migratable)
	return f
}

// ability is what the guest's agent says about migrations of it.
func ability(vmi *v1.VirtualMachineInstance) *Problem {
	why := eviction.Obstacle(vmi, true)
	if why == "" {
		return nil
	}
	reason := ReasonUnknown
	if c := vmistatus.FindCondition(&vmi.Status, v1.VirtualMachineInstanceIsMigratable); c != nil && c.Reason != "" {
		reason = c.Reason
	}
	return &Problem{Reason: reason, Message: why}
}

// target is the Pod that the guest would go to. Claims and networks have no part in what is looked at here.
func target(w *World, g Guest) (*corev1.Pod, *Problem) {
	config := w.Pods
	config.LauncherImage, config.StateClaim = "launcher", "state"
	to := podspec.Target{}
	if !config.UseEmulation && g.Pod != nil {
		for i := range w.Nodes {
			if node := &w.Nodes[i]; node.Name == g.VMI.Status.NodeName {
				var err error
				if to.CPU, err = podspec.TargetCPUSelector(g.VMI, node.Name, node.Labels, g.Pod.Spec.NodeSelector); err != nil {
					return nil, &Problem{Reason: ReasonCPU, Message: err.Error()}
				}
			}
		}
	}
	pod, err := podspec.BuildTarget(g.VMI, config, to)
	if err != nil {
		return nil, &Problem{Reason: ReasonNoPod, Message: err.Error()}
	}
	return pod, nil
}

// fate is what workloadUpdateStrategy does to a guest, and what is to be known about its evictions.
func fate(w *World, g Guest, migratable bool) (Fate, string) {
	strategy := eviction.StrategyOf(g.VMI, w.Eviction)
	note := ""
	switch {
	case !migratable && strategy == v1.EvictionStrategyLiveMigrate:
		note = "a drain of its node waits until it is stopped"
	case !eviction.Migrates(strategy) && strategy != v1.EvictionStrategyExternal:
		note = "a drain of its node shuts it down"
	}
	if migratable && slices.Contains(w.Methods, v1.WorkloadUpdateMethodLiveMigrate) {
		return Migrates, note
	}
	if !slices.Contains(w.Methods, v1.WorkloadUpdateMethodEvict) || g.Pod == nil {
		return Stays, note
	}
	if budget := holds(w.Budgets, g.Pod); budget != "" {
		return Stays, fmt.Sprintf("PodDisruptionBudget %s allows no eviction now", budget)
	}
	switch answer := eviction.Decide(eviction.Facts{Pod: g.Pod, VMI: g.VMI, Default: w.Eviction, LiveMigration: true}); {
	case answer.Allowed:
		return ShutsDown, note
	case answer.Mark && migratable:
		return Migrates, note
	}
	return Stays, note
}

// holds is the name of a budget that keeps a Pod from being evicted now, or empty.
func holds(budgets []policyv1.PodDisruptionBudget, pod *corev1.Pod) string {
	for i := range budgets {
		budget := &budgets[i]
		if budget.Namespace != pod.Namespace || budget.Status.DisruptionsAllowed > 0 {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			return budget.Name
		}
	}
	return ""
}
