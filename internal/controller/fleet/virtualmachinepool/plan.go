// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinepool

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
)

// defaultReplicas applies to a pool without spec.replicas. KubeVirt's value.
const defaultReplicas = 1

// burst is how many VMs one reconciliation creates or deletes at most. KubeVirt's value, from Kubernetes.
const burst = 250

// At most healBurst VMs of a pool are replaced within healPause, and none while that many are new or being deleted. The
// pool's settings cannot lift this limit: a template that never starts, with a minFailingToStartDuration of 0, would
// otherwise keep virt-controller busy.
const (
	healBurst = 10
	healPause = time.Minute
)

// state is the input of a plan.
type state struct {
	spec *poolv1.VirtualMachinePoolSpec
	now  time.Time
	// members are the VMs of the pool, those that are being deleted included.
	members []*member
	// current is the name of the revision with the template.
	current string
	// revisions are the specs of other revisions, by name; nil for a revision that does not exist.
	revisions map[string]*poolv1.VirtualMachinePoolSpec
}

// plan is what one reconciliation does with the VMs of a pool. A VM is in at most one of scaleIn, heal and recreate.
type plan struct {
	// create is the number of new VMs.
	create int
	// scaleIn are VMs that are deleted because there are too many.
	scaleIn []*member
	// matched is how many VMs the selectors match, and kept how many surplus VMs are kept because they match too few.
	kept, matched int
	// heal are VMs that are deleted with their disks and replaced, because they fail to start.
	heal []*member
	// rewrite are VMs whose spec gets the changes of the template; their guests continue to run.
	rewrite []*member
	// relabel are VMs that are labeled with the current revision because it is equal to theirs, and relabelInstance those
	// whose VMIs are.
	relabel, relabelInstance []*member
	// restart are VMs whose VMI is replaced, because it is not made from the current template.
	restart []*member
	// recreate are VMs that are deleted with their disks, because the template has other disks.
	recreate []*member
	// after is the delay until the next VM has to be healed, or 0.
	after time.Duration
	// scaleInErr and updateErr are why no VMs can be selected for these.
	scaleInErr, updateErr error
}

// isEmpty reports whether there is nothing to do.
func (p *plan) isEmpty() bool {
	return p.create == 0 && len(p.scaleIn) == 0 && len(p.heal) == 0 && len(p.rewrite) == 0 && len(p.relabel) == 0 &&
		len(p.relabelInstance) == 0 && len(p.restart) == 0 && len(p.recreate) == 0
}

// decide makes the plan. Scaling, healing and updates share one budget of VMs that may be unavailable.
func decide(s *state) *plan {
	p := &plan{}
	p.scale(s)
	live := slices.DeleteFunc(slices.Clone(s.members),
		func(m *member) bool { return m.deleting() || slices.Contains(p.scaleIn, m) })
	p.healFailing(s, live)
	live = slices.DeleteFunc(live, func(m *member) bool { return slices.Contains(p.heal, m) })
	p.update(s, live)
	return p
}

func replicas(spec *poolv1.VirtualMachinePoolSpec) int {
	return max(0, int(ptr.Deref(spec.Replicas, defaultReplicas)))
}

// scale compares the number of VMs with the wanted one. VMs that are being deleted count: their ordinals are free only
// once they are deleted, and fewer other VMs have to be deleted.
func (p *plan) scale(s *state) {
	surplus := len(s.members) - replicas(s.spec)
	if surplus <= 0 {
		p.create = min(-surplus, burst)
		return
	}
	live := slices.DeleteFunc(slices.Clone(s.members), (*member).deleting)
	surplus -= len(s.members) - len(live)
	strategy := s.spec.ScaleInStrategy
	if surplus <= 0 || strategy != nil && (strategy.Unmanaged != nil || strategy.Opportunistic != nil) {
		return
	}
	var policy *poolv1.VirtualMachinePoolSelectionPolicy
	if strategy != nil && strategy.Proactive != nil {
		policy = strategy.Proactive.SelectionPolicy
	}
	candidates, err := selected(live, policy)
	if err != nil {
		p.scaleInErr = fmt.Errorf("spec.scaleInStrategy.proactive.%w", err)
		return
	}
	p.matched = len(candidates)
	p.kept = max(0, surplus-len(candidates))
	p.scaleIn = candidates[:min(surplus, len(candidates), burst)]
}

// healFailing replaces VMs that fail to start, within the budget of VMs that may be unavailable and within healBurst.
func (p *plan) healFailing(s *state, live []*member) {
	recent, pause := s.recent()
	allowed := maxUnavailable(s.spec) - missing(s, len(live))
	failing := slices.Clone(live)
	slices.SortFunc(failing, sorter(poolv1.VirtualMachinePoolSortPolicyAscendingOrder))
	for _, m := range failing {
		at, fails := m.healAt(s.spec.Autohealing)
		wait := at.Sub(s.now)
		if fails && wait <= 0 && recent+len(p.heal) >= healBurst {
			wait = pause
		}
		switch {
		case !fails:
		case wait > 0:
			if p.after == 0 || wait < p.after {
				p.after = wait
			}
		case len(p.heal) < allowed:
			p.heal = append(p.heal, m)
		}
	}
}

// recent returns how many VMs are new or being deleted, and the time until the first of them is not new any more, or
// healPause.
func (s *state) recent() (count int, pause time.Duration) {
	pause = healPause
	for _, m := range s.members {
		age := s.now.Sub(m.vm.CreationTimestamp.Time)
		if age >= healPause && !m.deleting() {
			continue
		}
		count++
		if rest := healPause - age; rest > 0 {
			pause = min(pause, rest)
		}
	}
	return count, pause
}

// missing returns how many VMs are missing.
func missing(s *state, live int) int { return max(0, replicas(s.spec)-live) }

// maxUnavailable returns how many VMs may be unavailable: at least one, and all of them by default.
func maxUnavailable(spec *poolv1.VirtualMachinePoolSpec) int {
	if spec.MaxUnavailable == nil {
		return max(1, replicas(spec))
	}
	count, err := intstr.GetScaledValueFromIntOrPercent(spec.MaxUnavailable, replicas(spec), false)
	if err != nil {
		return 1 // admission rejects it
	}
	return max(1, count)
}

// update brings VMs to the current template. The specs of all are changed at once; guests restart as the budget allows.
func (p *plan) update(s *state, live []*member) {
	candidates, proactive, err := updated(s.spec, live)
	if s.current == "" || err != nil {
		p.updateErr = err
		return
	}
	allowed := maxUnavailable(s.spec) - missing(s, len(live))
	for _, m := range live {
		if m.shouldRun() && !m.ready() {
			allowed--
		}
	}
	for _, m := range candidates {
		recreated := len(p.recreate)
		if proactive && m.vmi != nil && !m.stopping() && !m.vmi.IsFinal() {
			allowed = p.updateInstance(s, m, allowed)
		}
		if len(p.recreate) == recreated {
			p.updateSpec(s, m)
		}
	}
}

// updated returns the VMs that are to follow the template, in the order of their restarts, and whether running ones
// restart.
func updated(spec *poolv1.VirtualMachinePoolSpec, live []*member) (vms []*member, proactive bool, err error) {
	strategy := spec.UpdateStrategy
	if strategy != nil && strategy.Unmanaged != nil {
		return nil, false, nil
	}
	var policy *poolv1.VirtualMachinePoolSelectionPolicy
	if strategy != nil && strategy.Proactive != nil {
		policy = strategy.Proactive.SelectionPolicy
	}
	if vms, err = selected(live, policy); err != nil {
		return nil, false, fmt.Errorf("spec.updateStrategy.proactive.%w", err)
	}
	return vms, strategy == nil || strategy.Opportunistic == nil, nil
}

// compared returns the revisions that an update compares with the current one. Only these are read, because labels of
// VMs can contain any names, and as many as there are VMs.
func compared(spec *poolv1.VirtualMachinePoolSpec, members []*member, current string) map[string]bool {
	live := slices.DeleteFunc(slices.Clone(members), (*member).deleting)
	vms, proactive, err := updated(spec, live)
	if err != nil {
		return nil // the plan reports it
	}
	names := map[string]bool{}
	for _, m := range vms {
		names[m.revision()] = true
		if proactive && m.vmi != nil {
			names[m.runningRevision()] = true
		}
	}
	delete(names, current)
	delete(names, "")
	return names
}

func (p *plan) updateSpec(s *state, m *member) {
	if m.revision() == s.current {
		if m.nextRevision() != s.current { // each new VMI would be restarted
			p.relabel = append(p.relabel, m)
		}
		return
	}
	if from := s.revisions[m.revision()]; from != nil && render(from, m.ordinal).same(render(s.spec, m.ordinal)) {
		p.relabel = append(p.relabel, m)
		return
	}
	p.rewrite = append(p.rewrite, m)
}

// updateInstance restarts a guest that was not created from the current template, and returns how many more may become
// unavailable. A guest that is not ready restarts regardless of that number.
func (p *plan) updateInstance(s *state, m *member, allowed int) int {
	running := m.runningRevision()
	if running == s.current {
		return allowed
	}
	into := &p.restart
	if from := s.revisions[running]; from != nil {
		before, after := render(from, m.ordinal), render(s.spec, m.ordinal)
		switch {
		case !before.sameDisks(after):
			into = &p.recreate
		case before.sameInstance(after):
			p.relabelInstance = append(p.relabelInstance, m)
			return allowed
		}
	}
	if m.ready() {
		if allowed <= 0 {
			return allowed
		}
		allowed--
	}
	*into = append(*into, m)
	return allowed
}

// keepsState reports whether the disks of a deleted VM are kept for the next VM with its ordinal. Online has the same
// effect as Offline.
func keepsState(spec *poolv1.VirtualMachinePoolSpec) bool {
	var policy *poolv1.StatePreservation
	switch strategy := spec.ScaleInStrategy; {
	case strategy == nil:
	case strategy.Opportunistic != nil:
		policy = strategy.Opportunistic.StatePreservation
	case strategy.Proactive != nil:
		policy = strategy.Proactive.StatePreservation
	}
	return ptr.Deref(policy, poolv1.StatePreservationDisabled) != poolv1.StatePreservationDisabled
}
