// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package upgradecheck finds the running guests that could not be migrated to a new launcher, and the reasons. It is
// pure: virt-controller derives a condition of the KubeVirt object from it, and virtctl a table.
//
// It checks the current state. It does not check whether another node has enough CPU and memory, which only the
// scheduler knows.
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
	"github.com/vireo-project/vireo/internal/decide/migration/eviction"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Observed contains what the result depends on besides the guests. Fields that are nil are not checked.
type Observed struct {
	// Pods configures launcher Pods. Their image does not matter.
	Pods podspec.Config
	// Eviction is the eviction strategy of VMIs that have none.
	Eviction v1.EvictionStrategy
	// Methods are the methods of workloadUpdateStrategy.
	Methods []v1.WorkloadUpdateMethod
	// Nodes are all nodes of the cluster. Their status is not read.
	Nodes []corev1.Node
	// Quotas and Budgets are those of the guests' namespaces.
	Quotas  []corev1.ResourceQuota
	Budgets []policyv1.PodDisruptionBudget
}

// Guest is a VMI, and its guest's launcher Pod or nil.
type Guest struct {
	VMI *v1.VirtualMachineInstance
	Pod *corev1.Pod
}

// Reasons why a guest could not be migrated, besides those of the condition LiveMigratable.
const (
	// ReasonUnknown: the agent of its node has not reported yet whether it can migrate.
	ReasonUnknown = "Unknown"
	// ReasonNoOtherNode: there is no other node that runs guests.
	ReasonNoOtherNode = "NoOtherNode"
	// ReasonNodeSelector: no other node matches the VMI's node selector and affinity.
	ReasonNodeSelector = "NodeSelector"
	// ReasonTaints: every other node has a taint that the VMI does not tolerate.
	ReasonTaints = "Taints"
	// ReasonCPU: no other node can run its CPU.
	ReasonCPU = "CPUModel"
	// ReasonDevices: no other node has the devices that its Pod requests.
	ReasonDevices = "Devices"
	// ReasonQuota: a quota of its namespace does not permit a second Pod.
	ReasonQuota = "ResourceQuota"
	// ReasonNoPod: no Pod can be rendered for it.
	ReasonNoPod = "NoPod"
)

// Problem is why a guest could not be migrated.
type Problem struct {
	// Reason is one of these reasons, or the reason of the condition LiveMigratable.
	Reason string `json:"reason"`
	// Message describes the problem.
	Message string `json:"message"`
}

// Fate is what happens to a guest during an upgrade, according to workloadUpdateStrategy.
type Fate string

// The values of Fate.
const (
	// Migrates: it is migrated to a new launcher.
	Migrates Fate = "Migrates"
	// ShutsDown: its Pod is evicted, which shuts it down. Its VM may restart it.
	ShutsDown Fate = "ShutsDown"
	// Stays: it keeps its launcher until it is restarted.
	Stays Fate = "Stays"
)

// Finding is the result for one guest.
type Finding struct {
	// Namespace and Name are the VMI's, and Node is the node of its guest.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Node      string `json:"node,omitempty"`
	// LauncherImage is the image of its launcher, and Outdated reports whether another one is now configured.
	LauncherImage string `json:"launcherImage,omitempty"`
	Outdated      bool   `json:"outdated"`
	// Migratable reports whether it could be migrated. If not, Problems are the reasons.
	Migratable bool      `json:"migratable"`
	Problems   []Problem `json:"problems,omitempty"`
	// EvictionStrategy is the VMI's, or else the cluster's.
	EvictionStrategy v1.EvictionStrategy `json:"evictionStrategy"`
	// OnUpgrade is what happens to it during an upgrade, and Note a remark about that or about drains.
	OnUpgrade Fate   `json:"onUpgrade"`
	Note      string `json:"note,omitempty"`
}

// Check returns the findings about the guests that run, ordered by name.
func Check(o Observed, guests []Guest) []Finding {
	findings := make([]Finding, 0, len(guests))
	for _, g := range guests {
		if g.VMI.Status.Phase == v1.Running && g.VMI.DeletionTimestamp == nil {
			findings = append(findings, check(&o, g))
		}
	}
	slices.SortFunc(findings, func(a, b Finding) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return findings
}

// Stuck returns the findings about guests that could not be migrated.
func Stuck(findings []Finding) []Finding {
	return slices.DeleteFunc(slices.Clone(findings), func(f Finding) bool { return f.Migratable })
}

func check(o *Observed, g Guest) Finding {
	vmi := g.VMI
	f := Finding{
		Namespace: vmi.Namespace, Name: vmi.Name, Node: vmi.Status.NodeName,
		LauncherImage: vmi.Status.LauncherContainerImageVersion, EvictionStrategy: eviction.StrategyOf(vmi, o.Eviction),
	}
	_, f.Outdated = vmi.Labels[v1.OutdatedLauncherImageLabel]
	if p := checkAgent(vmi); p != nil {
		f.Problems = append(f.Problems, *p)
	}
	pod, p := target(o, g)
	if p != nil {
		f.Problems = append(f.Problems, *p)
	} else {
		if p := checkNodes(o, vmi, pod); p != nil {
			f.Problems = append(f.Problems, *p)
		}
		f.Problems = append(f.Problems, checkQuotas(o, pod)...)
	}
	f.Migratable = len(f.Problems) == 0
	f.OnUpgrade, f.Note = fate(o, g, f.Migratable)
	return f
}

// checkAgent returns the problem that the agent of the guest's node has reported, or nil.
func checkAgent(vmi *v1.VirtualMachineInstance) *Problem {
	obstacle := eviction.Obstacle(vmi, true)
	if obstacle == "" {
		return nil
	}
	reason := ReasonUnknown
	if c := vmistatus.FindCondition(&vmi.Status, v1.VirtualMachineInstanceIsMigratable); c != nil && c.Reason != "" {
		reason = c.Reason
	}
	return &Problem{Reason: reason, Message: obstacle}
}

// target returns the target's Pod of a migration. Its claims and networks are not checked.
func target(o *Observed, g Guest) (*corev1.Pod, *Problem) {
	config := o.Pods
	config.LauncherImage, config.StateClaim = "launcher", "state"
	target := podspec.Target{}
	if !config.UseEmulation && g.Pod != nil {
		for i := range o.Nodes {
			if node := &o.Nodes[i]; node.Name == g.VMI.Status.NodeName {
				var err error
				if target.CPU, err = podspec.TargetCPUSelector(g.VMI, node.Name, node.Labels, g.Pod.Spec.NodeSelector); err != nil {
					return nil, &Problem{Reason: ReasonCPU, Message: err.Error()}
				}
			}
		}
	}
	pod, err := podspec.BuildTarget(g.VMI, config, target)
	if err != nil {
		return nil, &Problem{Reason: ReasonNoPod, Message: err.Error()}
	}
	return pod, nil
}

// fate returns what happens to a guest according to workloadUpdateStrategy, and a remark about its evictions.
func fate(o *Observed, g Guest, migratable bool) (Fate, string) {
	strategy := eviction.StrategyOf(g.VMI, o.Eviction)
	note := ""
	switch {
	case !migratable && strategy == v1.EvictionStrategyLiveMigrate:
		note = "a drain of its node waits until it is stopped"
	case !eviction.Migrates(strategy) && strategy != v1.EvictionStrategyExternal:
		note = "a drain of its node shuts it down"
	}
	if migratable && slices.Contains(o.Methods, v1.WorkloadUpdateMethodLiveMigrate) {
		return Migrates, note
	}
	if !slices.Contains(o.Methods, v1.WorkloadUpdateMethodEvict) || g.Pod == nil {
		return Stays, note
	}
	if budget := blockingBudget(o.Budgets, g.Pod); budget != "" {
		return Stays, fmt.Sprintf("PodDisruptionBudget %s allows no eviction now", budget)
	}
	switch decision := eviction.Decide(eviction.Facts{Pod: g.Pod, VMI: g.VMI, Default: o.Eviction, LiveMigration: true}); {
	case decision.Allowed:
		return ShutsDown, note
	case decision.Mark && migratable:
		return Migrates, note
	}
	return Stays, note
}

// blockingBudget returns the name of a budget that currently prevents an eviction of a Pod, or an empty string.
func blockingBudget(budgets []policyv1.PodDisruptionBudget, pod *corev1.Pod) string {
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
