// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func lease(renewed time.Time, change func(*coordinationv1.LeaseSpec)) *coordinationv1.Lease {
	l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
		HolderIdentity: ptr.To("n1"), RenewTime: &metav1.MicroTime{Time: renewed}, LeaseDurationSeconds: ptr.To[int32](60),
	}}
	if change != nil {
		change(&l.Spec)
	}
	return l
}

func TestHeartbeats(t *testing.T) {
	ahead := start.Add(24 * time.Hour)
	cases := []struct {
		name  string
		first *coordinationv1.Lease
		then  *coordinationv1.Lease
		after time.Duration
		alive bool
	}{
		{"fresh", lease(start, nil), nil, 59 * time.Second, true},
		{"expired", lease(start, nil), nil, 60 * time.Second, false},
		{"clock behind, at the first observation", lease(start.Add(-time.Hour), nil), nil, 59 * time.Second, true},
		{"clock behind, not renewed", lease(start.Add(-time.Hour), nil), nil, 60 * time.Second, false},
		{"renewed", lease(start, nil), lease(start.Add(time.Second), nil), 59 * time.Second, true},
		{"clock ahead, not renewed", lease(ahead, nil), nil, 61 * time.Second, false},
		{"clock behind, renewing", lease(start.Add(-time.Hour), nil), lease(start.Add(-time.Hour+time.Second), nil), 30 * time.Second, true},
		{"released", lease(start, func(s *coordinationv1.LeaseSpec) { s.HolderIdentity = ptr.To("") }), nil, Timeout - time.Second, true},
		{"released long ago", lease(start, func(s *coordinationv1.LeaseSpec) { s.HolderIdentity = ptr.To("") }), nil, Timeout, false},
		{"boundless duration is capped", lease(start, func(s *coordinationv1.LeaseSpec) { s.LeaseDurationSeconds = ptr.To[int32](1 << 30) }), nil, Timeout, false},
		{"never renewed", lease(start, func(s *coordinationv1.LeaseSpec) { s.RenewTime = nil }), nil, 0, false},
		{"no lease", nil, nil, 0, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var h Heartbeats
			last, at := c.first, start
			h.Observe("n1", last, nil, at)
			if c.then != nil {
				last, at = c.then, start.Add(time.Minute)
				h.Observe("n1", last, nil, at)
			}
			if got := h.Observe("n1", last, nil, at.Add(c.after)); got.Alive != c.alive {
				t.Errorf("alive %t, %+v", got.Alive, got)
			}
		})
	}
}

// What a leader concludes from the Lease and from what the leader before it has written to the Node.
func TestHeartbeatsAfterAnotherLeader(t *testing.T) {
	stopped := func(s *coordinationv1.LeaseSpec) { s.HolderIdentity = ptr.To("") }
	at := func(d time.Duration) string { return start.Add(d).Format(time.RFC3339) }
	for name, c := range map[string]struct {
		renewed     time.Duration
		change      func(*coordinationv1.LeaseSpec)
		annotations map[string]string
		after       time.Duration
		alive       bool
	}{
		"alive, its clock is behind":  {-time.Hour, nil, map[string]string{HeartbeatAnnotation: at(-time.Minute)}, 59 * time.Second, true},
		"alive, and then not renewed": {-time.Hour, nil, map[string]string{HeartbeatAnnotation: at(-time.Minute)}, time.Minute, false},
		"silent, its clock is right":  {-time.Hour, nil, map[string]string{UnresponsiveAnnotation: at(-time.Hour)}, 0, false},
		"silent, its clock is ahead":  {time.Hour, nil, map[string]string{UnresponsiveAnnotation: at(-time.Minute)}, 0, false},
		"silent, the value is wrong":  {0, nil, map[string]string{UnresponsiveAnnotation: "?"}, 0, false},
		"released a while ago":        {0, stopped, map[string]string{HeartbeatAnnotation: at(-4 * time.Minute)}, 61 * time.Second, false},
		"released just now":           {-time.Hour, stopped, map[string]string{HeartbeatAnnotation: at(-time.Minute)}, 3 * time.Minute, true},
		"released, without heartbeat": {-time.Hour, stopped, nil, Timeout - time.Second, true},
	} {
		var h Heartbeats
		l := lease(start.Add(c.renewed), c.change)
		h.Observe("n1", l, c.annotations, start)
		if got := h.Observe("n1", l, c.annotations, start.Add(c.after)); got.Alive != c.alive {
			t.Errorf("%s: alive %t, %+v", name, got.Alive, got)
		}
		if got := h.Observe("n1", lease(start.Add(c.renewed+time.Second), nil), c.annotations,
			start.Add(c.after)); !got.Alive {
			t.Errorf("%s: not alive after the next renewal, %+v", name, got)
		}
	}
}

func TestLabels(t *testing.T) {
	got, err := Labels(&agentapi.Capabilities{
		MachineTypes: []string{"q35", "pc-q35-10.0"}, HostModel: "EPYC", Vendor: "AMD",
		HostModelFeatures: []string{"svm"}, CPUModels: []string{"EPYC", "qemu64"}, CPUFeatures: []string{"aes"},
		HypervFeatures: []string{"vpindex"}, CPUManager: true, Realtime: true,
	}, map[string]bool{"qemu64": true, "Opteron_G1": true})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, key := range []string{
		"machine-type.node.kubevirt.io/q35", "machine-type.node.kubevirt.io/pc-q35-10.0",
		"host-model-cpu.node.kubevirt.io/EPYC",
		"cpu-model.node.kubevirt.io/EPYC", "cpu-model-migration.node.kubevirt.io/EPYC", "cpu-vendor.node.kubevirt.io/AMD",
		"cpu-feature.node.kubevirt.io/aes", "host-model-required-features.node.kubevirt.io/svm",
		"hyperv.node.kubevirt.io/vpindex", "kubevirt.io/cpumanager", "kubevirt.io/realtime",
	} {
		want[key] = "true"
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// A node without a report about its CPU manager is labeled as one without dedicated CPUs.
	plain, err := Labels(&agentapi.Capabilities{}, nil)
	if diff := cmp.Diff(map[string]string{"kubevirt.io/cpumanager": "false"}, plain); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
}

func TestHostileReports(t *testing.T) {
	many := make([]string, 10000)
	for i := range many {
		many[i] = fmt.Sprint("f", i)
	}
	labels, err := Labels(&agentapi.Capabilities{
		CPUModels: []string{"../../kubernetes.io/hostname", "a b", strings.Repeat("x", 64), "ok"}, CPUFeatures: many,
		HostModel: "Conroe",
	}, map[string]bool{"Conroe": true})
	if err == nil || !strings.Contains(err.Error(), "makes no label") || !strings.Contains(err.Error(), "only 512") {
		t.Errorf("error %v", err)
	}
	if labels[cpuModelPrefix+"ok"] != "true" || labels[ObsoleteHostModelLabel] != "true" || len(labels) > maxPerGroup+8 {
		t.Errorf("%d labels, ok: %q", len(labels), labels[cpuModelPrefix+"ok"])
	}
	for key := range labels {
		if !owned(key) {
			t.Errorf("label %s would never be removed", key)
		}
	}
	for name, data := range map[string]map[string]string{
		"no key": {}, "no JSON": {agentapi.CapabilitiesKey: "["}, "too large": {agentapi.CapabilitiesKey: strings.Repeat(" ", maxReport) + "{}"},
	} {
		if _, err := Report(&corev1.ConfigMap{Data: data}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestApply(t *testing.T) {
	alive := State{Known: true, Ready: true, Pulse: Pulse{Alive: true, Last: start},
		Labels: map[string]string{cpuModelPrefix + "EPYC": "true"}}
	stamp := func(age time.Duration) string { return start.Add(-age).Format(time.RFC3339) }
	type meta = metav1.ObjectMeta
	cases := []struct {
		name         string
		before, want meta
		state        State
	}{
		{
			"first observation", meta{Labels: map[string]string{"a": "b"}},
			meta{Labels: map[string]string{"a": "b", SchedulableLabel: "true", cpuModelPrefix + "EPYC": "true"},
				Annotations: map[string]string{HeartbeatAnnotation: stamp(0)}}, alive,
		},
		{
			"stale capability is removed, recent heartbeat stays",
			meta{Labels: map[string]string{cpuModelPrefix + "Haswell": "true", "kubevirt.io/other": ""},
				Annotations: map[string]string{HeartbeatAnnotation: stamp(59 * time.Second)}},
			meta{Labels: map[string]string{"kubevirt.io/other": "", SchedulableLabel: "true", cpuModelPrefix + "EPYC": "true"},
				Annotations: map[string]string{HeartbeatAnnotation: stamp(59 * time.Second)}}, alive,
		},
		{
			"heartbeat after a minute",
			meta{Annotations: map[string]string{HeartbeatAnnotation: stamp(time.Minute), SkipAnnotation: ""}},
			meta{Labels: map[string]string{SchedulableLabel: "true"},
				Annotations: map[string]string{HeartbeatAnnotation: stamp(0), SkipAnnotation: ""}}, alive,
		},
		{
			"never renewed", meta{Labels: map[string]string{SchedulableLabel: "true", cpuModelPrefix + "EPYC": "true"}},
			meta{Labels: map[string]string{SchedulableLabel: "false", cpuModelPrefix + "EPYC": "true"}},
			State{Known: true, Ready: true},
		},
		{
			"not renewed in time", meta{Labels: map[string]string{SchedulableLabel: "true"}},
			meta{Labels: map[string]string{SchedulableLabel: "false"},
				Annotations: map[string]string{UnresponsiveAnnotation: stamp(0)}},
			State{Known: true, Ready: true, Pulse: Pulse{Last: start}},
		},
		{
			"released long ago", meta{Labels: map[string]string{SchedulableLabel: "true"},
				Annotations: map[string]string{UnresponsiveAnnotation: stamp(0), "c": "d"}},
			meta{Labels: map[string]string{SchedulableLabel: "false"}, Annotations: map[string]string{"c": "d"}},
			State{Known: true, Ready: true, Pulse: Pulse{Last: start, Released: true}},
		},
		{
			"renewed again", meta{Annotations: map[string]string{UnresponsiveAnnotation: stamp(0),
				HeartbeatAnnotation: stamp(0)}},
			meta{Labels: map[string]string{SchedulableLabel: "true", cpuModelPrefix + "EPYC": "true"},
				Annotations: map[string]string{HeartbeatAnnotation: stamp(0)}}, alive,
		},
		{
			"no devices", meta{},
			meta{Labels: map[string]string{SchedulableLabel: "false"},
				Annotations: map[string]string{HeartbeatAnnotation: stamp(0)}},
			State{Known: true, Pulse: Pulse{Alive: true, Last: start}},
		},
		{
			"agent removed", meta{Labels: map[string]string{"a": "b", SchedulableLabel: "true", cpuModelPrefix + "EPYC": "true"},
				Annotations: map[string]string{HeartbeatAnnotation: stamp(0), "c": "d"}},
			meta{Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}}, State{},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := c.before.DeepCopy()
			Apply(got, c.state)
			if diff := cmp.Diff(c.want, *got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			again := got.DeepCopy()
			Apply(again, c.state)
			if diff := cmp.Diff(got, again); diff != "" {
				t.Errorf("the second time it differs:\n%s", diff)
			}
		})
	}
}
