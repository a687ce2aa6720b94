// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinepool

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

var now = time.Unix(1_000_000, 0)

type (
	specChange   func(*poolv1.VirtualMachinePoolSpec)
	memberChange func(*member)
)

// newSpec returns the spec of a pool of VMs with one DataVolume, which always run.
func newSpec(count int32, changes ...specChange) *poolv1.VirtualMachinePoolSpec {
	spec := &poolv1.VirtualMachinePoolSpec{
		Replicas: ptr.To(count),
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		VirtualMachineTemplate: &poolv1.VirtualMachineTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
			Spec: v1.VirtualMachineSpec{
				RunStrategy:         ptr.To(v1.RunStrategyAlways),
				DataVolumeTemplates: []v1.DataVolumeTemplateSpec{{ObjectMeta: metav1.ObjectMeta{Name: "root"}}},
				Template: &v1.VirtualMachineInstanceTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
					Spec: v1.VirtualMachineInstanceSpec{Volumes: []v1.Volume{
						{Name: "root", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root"}}},
					}},
				},
			},
		},
	}
	for _, change := range changes {
		change(spec)
	}
	return spec
}

func hostname(name string) specChange {
	return func(s *poolv1.VirtualMachinePoolSpec) { s.VirtualMachineTemplate.Spec.Template.Spec.Hostname = name }
}

func unavailable(value intstr.IntOrString) specChange {
	return func(s *poolv1.VirtualMachinePoolSpec) { s.MaxUnavailable = &value }
}

func scaleIn(strategy poolv1.VirtualMachinePoolScaleInStrategy) specChange {
	return func(s *poolv1.VirtualMachinePoolSpec) { s.ScaleInStrategy = &strategy }
}

func sorted(policy poolv1.VirtualMachinePoolSortPolicy) poolv1.VirtualMachinePoolScaleInStrategy {
	return poolv1.VirtualMachinePoolScaleInStrategy{Proactive: &poolv1.VirtualMachinePoolProactiveScaleInStrategy{
		SelectionPolicy: &poolv1.VirtualMachinePoolSelectionPolicy{SortPolicy: &policy},
	}}
}

func zone(value string, sort poolv1.VirtualMachinePoolSortPolicy) *poolv1.VirtualMachinePoolSelectionPolicy {
	return &poolv1.VirtualMachinePoolSelectionPolicy{SortPolicy: &sort, Selectors: &poolv1.VirtualMachinePoolSelectors{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"zone": value}},
		NodeSelectorRequirementMatcher: &[]corev1.NodeSelectorRequirement{
			{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{"ssd"}},
		},
	}}
}

func updates(strategy poolv1.VirtualMachinePoolUpdateStrategy) specChange {
	return func(s *poolv1.VirtualMachinePoolSpec) { s.UpdateStrategy = &strategy }
}

func heals(s *poolv1.VirtualMachinePoolSpec) {
	s.Autohealing = &poolv1.VirtualMachinePoolAutohealingStrategy{}
}

// newMember returns a running VM of revision "new", as old as its number in minutes.
func newMember(spec *poolv1.VirtualMachinePoolSpec, ordinal int, changes ...memberChange) *member {
	pool := &poolv1.VirtualMachinePool{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "pool"}, Spec: *spec}
	m := &member{vm: newVM(pool, ordinal, "new"), ordinal: ordinal}
	m.vm.UID = types.UID(fmt.Sprint("vm-", ordinal))
	m.vm.CreationTimestamp = metav1.NewTime(now.Add(-time.Duration(ordinal) * time.Minute))
	m.vmi = &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{
		CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
		Labels:            map[string]string{v1.VirtualMachinePoolRevisionName: "new"},
		OwnerReferences:   []metav1.OwnerReference{*metav1.NewControllerRef(m.vm, v1.VirtualMachineGroupVersionKind)},
	}}
	m.vmi.Status.Phase = v1.Running
	m.vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: v1.VirtualMachineInstanceReady,
		Status: corev1.ConditionTrue}}
	for _, change := range changes {
		change(m)
	}
	return m
}

func notReady(m *member) { m.vmi.Status.Conditions = nil }
func deleted(m *member)  { m.vm.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }
func halted(m *member) {
	m.vmi, m.vm.Spec.RunStrategy = nil, ptr.To(v1.RunStrategyHalted)
}

func in(zone, disk string) memberChange {
	return func(m *member) {
		metav1.SetMetaDataLabel(&m.vm.Spec.Template.ObjectMeta, "zone", zone)
		m.vm.Spec.Template.Spec.NodeSelector = map[string]string{"disk": disk}
	}
}

func withRevision(revision string) memberChange {
	return func(m *member) {
		setRevision(m.vm, revision)
		if m.vmi != nil {
			m.vmi.Labels[v1.VirtualMachinePoolRevisionName] = revision
		}
	}
}

// nextOf labels the VM's next VMI with a revision.
func nextOf(revision string) memberChange {
	return func(m *member) { m.vm.Spec.Template.ObjectMeta.Labels[v1.VirtualMachinePoolRevisionName] = revision }
}

func aged(age time.Duration) memberChange {
	return func(m *member) { m.vm.CreationTimestamp = metav1.NewTime(now.Add(-age)) }
}

func failing(status v1.VirtualMachinePrintableStatus, since time.Duration) memberChange {
	return func(m *member) {
		m.vmi, m.vm.Status.PrintableStatus = nil, status
		m.vm.Status.Conditions = []v1.VirtualMachineCondition{
			{Type: v1.VirtualMachineReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(now.Add(-since))},
		}
	}
}

func crashed(times int) memberChange {
	return func(m *member) {
		m.vmi, m.vm.Status.StartFailure = nil, &v1.VirtualMachineStartFailure{ConsecutiveFailCount: times}
	}
}

// describe returns what a plan does, each VM by its number.
func describe(p *plan) string {
	var parts []string
	if p.create > 0 {
		parts = append(parts, fmt.Sprintf("create %d", p.create))
	}
	for _, list := range []struct {
		name    string
		members []*member
	}{
		{"scale in", p.scaleIn}, {"heal", p.heal}, {"recreate", p.recreate}, {"rewrite", p.rewrite}, {"relabel", p.relabel},
		{"relabel VMI", p.relabelInstance}, {"restart", p.restart},
	} {
		if len(list.members) == 0 {
			continue
		}
		var numbers []string
		for _, m := range list.members {
			numbers = append(numbers, fmt.Sprint(m.ordinal))
		}
		parts = append(parts, list.name+" "+strings.Join(numbers, " "))
	}
	if p.kept > 0 {
		parts = append(parts, fmt.Sprintf("keep %d", p.kept))
	}
	if p.after > 0 {
		parts = append(parts, "after "+p.after.String())
	}
	return strings.Join(parts, ", ")
}

// members returns VMs with the numbers from 0, each with one of the changes.
func members(changes ...memberChange) []*member {
	spec := newSpec(0)
	var list []*member
	for i, change := range changes {
		list = append(list, newMember(spec, i, change))
	}
	return list
}

func same(*member) {}

func all(changes ...memberChange) memberChange {
	return func(m *member) {
		for _, change := range changes {
			change(m)
		}
	}
}

func TestDecide(t *testing.T) {
	type sort = poolv1.VirtualMachinePoolSortPolicy
	const (
		ascending, descending = poolv1.VirtualMachinePoolSortPolicyAscendingOrder,
			poolv1.VirtualMachinePoolSortPolicyDescendingOrder
		newest, oldest = poolv1.VirtualMachinePoolSortPolicyNewest, poolv1.VirtualMachinePoolSortPolicyOldest
	)
	unmanaged := poolv1.VirtualMachinePoolScaleInStrategy{Unmanaged: &poolv1.VirtualMachinePoolUnmanagedStrategy{}}
	opportunistic := poolv1.VirtualMachinePoolScaleInStrategy{
		Opportunistic: &poolv1.VirtualMachinePoolOpportunisticScaleInStrategy{}}
	ssd := poolv1.VirtualMachinePoolScaleInStrategy{Proactive: &poolv1.VirtualMachinePoolProactiveScaleInStrategy{
		SelectionPolicy: zone("a", ascending),
	}}
	ordered := func(policy sort) specChange {
		return updates(poolv1.VirtualMachinePoolUpdateStrategy{Proactive: &poolv1.VirtualMachinePoolProactiveUpdateStrategy{
			SelectionPolicy: &poolv1.VirtualMachinePoolSelectionPolicy{SortPolicy: &policy},
		}})
	}
	old, oldDisks := withRevision("old"), withRevision("old disks")
	inProgress := []memberChange{old, old, old, old}
	for _, tc := range []struct {
		name    string
		spec    *poolv1.VirtualMachinePoolSpec
		members []*member
		want    string
	}{
		{"nothing to do", newSpec(2), members(same, same), ""},
		{"the default is one", newSpec(0, func(s *poolv1.VirtualMachinePoolSpec) { s.Replicas = nil }), nil, "create 1"},
		{"scale out", newSpec(3), members(same), "create 2"},
		{"at most 250", newSpec(300), nil, "create 250"},
		{"a VM that is being deleted is replaced when it is gone", newSpec(2), members(same, deleted), ""},

		{"scale in", newSpec(1, scaleIn(sorted(ascending))), members(same, same, same), "scale in 0 1"},
		{"VMs that are being deleted count as scaled in", newSpec(1, scaleIn(sorted(ascending))), members(same, same, deleted), "scale in 0"},
		{"descending", newSpec(1, scaleIn(sorted(descending))), members(same, same, same), "scale in 2 1"},
		{"newest", newSpec(1, scaleIn(sorted(newest))), members(same, same, same), "scale in 0 1"},
		{"oldest", newSpec(1, scaleIn(sorted(oldest))), members(same, same, same), "scale in 2 1"},
		{"by default those that are not ready", newSpec(2), members(same, notReady, same), "scale in 1"},
		{"both selectors match", newSpec(2, scaleIn(ssd)), members(in("a", "hdd"), in("b", "ssd"), in("a", "ssd")), "scale in 2"},
		{"selectors match too few", newSpec(0, scaleIn(ssd)), members(same, in("a", "ssd"), same), "scale in 1, keep 2"},
		{"unmanaged", newSpec(0, scaleIn(unmanaged)), members(same, same), ""},
		{"opportunistic", newSpec(0, scaleIn(opportunistic)), members(same, deleted), ""},

		{"proactive by default, all at once", newSpec(4), members(inProgress...), "rewrite 3 2 1 0, restart 3 2 1 0"},
		{"25 % of 4 is one", newSpec(4, unavailable(intstr.FromString("25%")), ordered(ascending)), members(inProgress...),
			"rewrite 0 1 2 3, restart 0"},
		{"10 % of 4 is one", newSpec(4, unavailable(intstr.FromString("10%")), ordered(descending)), members(inProgress...),
			"rewrite 3 2 1 0, restart 3"},
		{"none while another one is not ready", newSpec(4, unavailable(intstr.FromInt32(1)), ordered(ascending)),
			members(all(withRevision("new"), notReady), old, old, old), "rewrite 1 2 3"},
		{"none while one is missing", newSpec(5, unavailable(intstr.FromInt32(1)), ordered(ascending)), members(inProgress...),
			"create 1, rewrite 0 1 2 3"},
		{"one that is not ready does not count", newSpec(4, unavailable(intstr.FromInt32(1)), ordered(ascending)),
			members(old, old, all(old, notReady), old), "rewrite 0 1 2 3, restart 2"},
		{"halted VMs are not unavailable", newSpec(4, unavailable(intstr.FromInt32(1)), ordered(ascending)),
			members(all(old, halted), all(old, halted), old, old), "rewrite 0 1 2 3, restart 2"},
		{"a VMI that is being deleted is unavailable", newSpec(2, unavailable(intstr.FromInt32(1)), ordered(ascending)),
			members(old, all(old, func(m *member) { m.vmi.DeletionTimestamp = ptr.To(metav1.NewTime(now)) })), "rewrite 0 1"},
		{"a VMI whose stop was requested is unavailable", newSpec(2, unavailable(intstr.FromInt32(1)), ordered(ascending)),
			members(old, all(old, func(m *member) {
				m.vmi.UID = "vmi"
				m.vm.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{{Action: v1.StopRequest, UID: &m.vmi.UID}}
			})), "rewrite 0 1"},
		{"VMs of the new template, VMIs of the old one", newSpec(2, ordered(ascending)),
			members(all(old, func(m *member) { setRevision(m.vm, "new") }), same), "restart 0"},
		{"other disks", newSpec(2, ordered(ascending)), members(oldDisks, same), "recreate 0"},
		{"other disks of a stopped VM", newSpec(1, ordered(ascending)), members(all(oldDisks, halted)), "rewrite 0"},
		{"an equal revision", newSpec(1), members(withRevision("equal")), "relabel 0, relabel VMI 0"},
		{"a lost revision", newSpec(1), members(withRevision("lost")), "rewrite 0, restart 0"},
		{"a label of VMs", newSpec(1), members(withRevision("other label")), "rewrite 0, relabel VMI 0"},
		{"a template that names another revision", newSpec(1), members(nextOf("old")), "relabel 0"},
		{"also while its VMI restarts", newSpec(1), members(all(nextOf("old"), func(m *member) { m.vmi.Labels = m.vm.Spec.Template.ObjectMeta.Labels })),
			"relabel 0, restart 0"},
		{"opportunistic update", newSpec(2, updates(poolv1.VirtualMachinePoolUpdateStrategy{
			Opportunistic: &poolv1.VirtualMachineOpportunisticUpdateStrategy{},
		})), members(old, same), "rewrite 0"},
		{"unmanaged update", newSpec(2, updates(poolv1.VirtualMachinePoolUpdateStrategy{
			Unmanaged: &poolv1.VirtualMachinePoolUnmanagedStrategy{},
		})), members(old, same), ""},
		{"selected updates", newSpec(2, updates(poolv1.VirtualMachinePoolUpdateStrategy{
			Proactive: &poolv1.VirtualMachinePoolProactiveUpdateStrategy{SelectionPolicy: zone("a", ascending)},
		})), members(old, all(old, in("a", "ssd"))), "rewrite 1, restart 1"},
		{"VMs that are scaled in are not updated", newSpec(1, scaleIn(sorted(ascending))), members(old, same), "scale in 0"},

		{"no healing by default", newSpec(1), members(crashed(9)), ""},
		{"three failed starts", newSpec(2, heals), members(crashed(3), crashed(2)), "heal 0"},
		{"failing for five minutes", newSpec(1, heals), members(failing(v1.VirtualMachineStatusErrImagePull, 5*time.Minute)), "heal 0"},
		{"failing for three minutes", newSpec(2, heals), members(
			failing(v1.VirtualMachineStatusPvcNotFound, 3*time.Minute),
			failing(v1.VirtualMachineStatusDataVolumeError, time.Minute)), "after 2m0s"},
		{"starting for an hour", newSpec(1, heals), members(failing(v1.VirtualMachineStatusStarting, time.Hour)), ""},
		{"unschedulable for an hour", newSpec(1, heals), members(failing(v1.VirtualMachineStatusUnschedulable, time.Hour)), ""},
		{"stopped for an hour, started a minute ago", newSpec(1, heals), members(func(m *member) {
			vmi := m.vmi
			failing(v1.VirtualMachineStatusErrImagePull, time.Hour)(m)
			m.vmi = vmi
			notReady(m)
			m.vmi.CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
		}), "after 4m0s"},
		{"healing has the budget", newSpec(4, heals, unavailable(intstr.FromInt32(1))), members(crashed(3), crashed(3), same, same), "heal 0"},
		{"healing waits for the replacement", newSpec(4, heals, unavailable(intstr.FromInt32(1))),
			members(deleted, crashed(3), same, same), ""},
		{"healing and updates share the budget", newSpec(4, heals, unavailable(intstr.FromInt32(1)), ordered(ascending)),
			members(crashed(3), old, old, old), "heal 0, rewrite 1 2 3"},
		{"healing replaces ten at a time", newSpec(12, heals), members(slices.Repeat([]memberChange{all(crashed(3), aged(time.Hour))}, 12)...),
			"heal 0 1 2 3 4 5 6 7 8 9, after 1m0s"},
		{"healing waits while ten are new", newSpec(11, heals, func(s *poolv1.VirtualMachinePoolSpec) {
			s.Autohealing.MinFailingToStartDuration = &metav1.Duration{}
		}), members(slices.Repeat([]memberChange{all(failing(v1.VirtualMachineStatusPvcNotFound, 0), aged(20*time.Second))},
			11)...), "after 40s"},
		{"healing counts VMs that are being deleted", newSpec(11, heals), members(append(
			slices.Repeat([]memberChange{all(deleted, aged(time.Hour))}, 10), all(crashed(3), aged(time.Hour)))...),
			"after 1m0s"},
		{"a failing VM that is too many is not healed", newSpec(1, heals), members(crashed(3), same), "scale in 0"},
		{"other limits", newSpec(2, func(s *poolv1.VirtualMachinePoolSpec) {
			s.Autohealing = &poolv1.VirtualMachinePoolAutohealingStrategy{
				StartUpFailureThreshold: ptr.To(uint32(5)), MinFailingToStartDuration: &metav1.Duration{Duration: time.Minute},
			}
		}), members(crashed(4), failing(v1.VirtualMachineStatusImagePullBackOff, time.Minute)), "heal 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := describe(decide(&state{
				spec: tc.spec, now: now, members: tc.members, current: "new",
				revisions: map[string]*poolv1.VirtualMachinePoolSpec{
					"old": newSpec(9, hostname("old")), "equal": newSpec(7), "lost": nil,
					"old disks": newSpec(1, func(s *poolv1.VirtualMachinePoolSpec) {
						s.VirtualMachineTemplate.Spec.DataVolumeTemplates[0].Labels = map[string]string{"os": "old"}
					}),
					"other label": newSpec(1, func(s *poolv1.VirtualMachinePoolSpec) { s.VirtualMachineTemplate.ObjectMeta.Labels["tier"] = "x" }),
				},
			}))
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestCompared(t *testing.T) {
	unmanaged := updates(poolv1.VirtualMachinePoolUpdateStrategy{Unmanaged: &poolv1.VirtualMachinePoolUnmanagedStrategy{}})
	opportunistic := updates(
		poolv1.VirtualMachinePoolUpdateStrategy{Opportunistic: &poolv1.VirtualMachineOpportunisticUpdateStrategy{}})
	vmi := func(m *member) { m.vmi.Labels[v1.VirtualMachinePoolRevisionName] = "vmi" }
	ssd := updates(poolv1.VirtualMachinePoolUpdateStrategy{Proactive: &poolv1.VirtualMachinePoolProactiveUpdateStrategy{
		SelectionPolicy: zone("a", poolv1.VirtualMachinePoolSortPolicyAscendingOrder),
	}})
	for name, tc := range map[string]struct {
		spec    *poolv1.VirtualMachinePoolSpec
		members []*member
		want    []string
	}{
		"the current revision":                {newSpec(1), members(same), nil},
		"VMs and VMIs":                        {newSpec(2), members(withRevision("vm"), vmi), []string{"vm", "vmi"}},
		"a VM without a VMI or a label":       {newSpec(2), members(all(withRevision("vm"), halted), withRevision("")), []string{"vm"}},
		"guests run on":                       {newSpec(2, opportunistic), members(withRevision("vm"), vmi), []string{"vm"}},
		"VMs are not updated":                 {newSpec(2, unmanaged), members(withRevision("vm"), vmi), nil},
		"VMs that are being deleted":          {newSpec(1), members(all(withRevision("vm"), deleted)), nil},
		"VMs that the selectors do not match": {newSpec(2, ssd), members(withRevision("vm"), all(withRevision("selected"), in("a", "ssd"))), []string{"selected"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := slices.Sorted(maps.Keys(compared(tc.spec, tc.members, "new"))); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestInvalidSelectors(t *testing.T) {
	bad := &poolv1.VirtualMachinePoolSelectionPolicy{Selectors: &poolv1.VirtualMachinePoolSelectors{
		NodeSelectorRequirementMatcher: &[]corev1.NodeSelectorRequirement{{Key: "disk", Operator: "Near"}},
	}}
	spec := newSpec(0, scaleIn(poolv1.VirtualMachinePoolScaleInStrategy{
		Proactive: &poolv1.VirtualMachinePoolProactiveScaleInStrategy{SelectionPolicy: bad},
	}), updates(poolv1.VirtualMachinePoolUpdateStrategy{
		Proactive: &poolv1.VirtualMachinePoolProactiveUpdateStrategy{SelectionPolicy: bad},
	}))
	p := decide(&state{spec: spec, now: now, members: members(withRevision("lost")), current: "new"})
	if !p.isEmpty() || p.scaleInErr == nil || p.updateErr == nil {
		t.Errorf("got %q, %v, %v; want nothing but both errors", describe(p), p.scaleInErr, p.updateErr)
	}
	want := `spec.scaleInStrategy.proactive.selectionPolicy.selectors.nodeSelectorRequirementMatcher: "Near" is not a valid operator`
	if p.scaleInErr.Error() != want {
		t.Errorf("got %q, want %q", p.scaleInErr, want)
	}
}
