// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package resize_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const gib = 1 << 30

func size(sockets uint32, memory int64) resize.Size {
	return resize.Size{Sockets: sockets, Memory: memory}
}

// TestSteps follows guests through their changes: what their Pod has to be for, what they may have themselves, and what
// is pending.
func TestSteps(t *testing.T) {
	for _, tc := range []struct {
		name                  string
		desired, current, pod resize.Size
		unapplied             bool
		forPod, forGuest      resize.Size
		cpus, memory          bool
	}{
		{name: "nothing changes", desired: size(1, gib), current: size(1, gib), pod: size(1, gib), forPod: size(1, gib), forGuest: size(1, gib)},
		{
			name: "the Pod grows first", desired: size(2, 2*gib), current: size(1, gib), pod: size(1, gib),
			forPod: size(2, 2*gib), forGuest: size(1, gib), cpus: true, memory: true,
		},
		{
			name: "the kubelet has not resized it", desired: size(2, 2*gib), current: size(1, gib), pod: size(2, 2*gib),
			unapplied: true, forPod: size(2, 2*gib), forGuest: size(1, gib), cpus: true, memory: true,
		},
		{
			name: "then the guest", desired: size(2, 2*gib), current: size(1, gib), pod: size(2, 2*gib),
			forPod: size(2, 2*gib), forGuest: size(2, 2*gib), cpus: true, memory: true,
		},
		{
			name: "each for itself", desired: size(2, 2*gib), current: size(1, gib), pod: size(2, gib),
			forPod: size(2, 2*gib), forGuest: size(2, gib), cpus: true, memory: true,
		},
		{name: "done", desired: size(2, 2*gib), current: size(2, 2*gib), pod: size(2, 2*gib), forPod: size(2, 2*gib), forGuest: size(2, 2*gib)},
		{
			name: "the guest shrinks first", desired: size(2, gib), current: size(2, 2*gib), pod: size(2, 2*gib),
			unapplied: true, forPod: size(2, 2*gib), forGuest: size(2, gib), memory: true,
		},
		{
			name: "a guest that returns only a part", desired: size(2, gib), current: size(2, gib+gib/2), pod: size(2, 2*gib),
			forPod: size(2, gib+gib/2), forGuest: size(2, gib), memory: true,
		},
		{
			name: "then the Pod", desired: size(2, gib), current: size(2, gib), pod: size(2, 2*gib),
			forPod: size(2, gib), forGuest: size(2, gib), memory: true,
		},
		{
			name: "taken back while the Pod is resized", desired: size(1, gib), current: size(1, gib), pod: size(2, 2*gib),
			unapplied: true, forPod: size(1, gib), forGuest: size(1, gib), cpus: true, memory: true,
		},
		{
			name: "CPUs are not removed", desired: size(1, gib), current: size(2, gib), pod: size(2, gib),
			forPod: size(2, gib), forGuest: size(2, gib),
		},
		{
			name: "a guest cannot make its Pod grow", desired: size(1, gib), current: size(4, 9*gib), pod: size(1, gib),
			forPod: size(1, gib), forGuest: size(4, gib), memory: true,
		},
		{name: "what cannot change", desired: size(2, 0), current: size(2, 0), pod: size(2, 0), forPod: size(2, 0), forGuest: size(2, 0)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := launcher("1", "1Gi", "1", "1Gi")
			pod.Annotations = map[string]string{}
			resize.Annotate(pod.Annotations, tc.pod)
			if tc.unapplied {
				pod.Status.ObservedGeneration = pod.Generation - 1
			}
			if got := resize.OfPod(pod, tc.current); got != tc.pod {
				t.Errorf("the Pod is for %v, want %v", got, tc.pod)
			}
			if got := resize.ForPod(tc.desired, tc.current, tc.pod); got != tc.forPod {
				t.Errorf("the Pod has to be for %v, want %v", got, tc.forPod)
			}
			if got := resize.ForGuest(tc.desired, tc.current, pod); got != tc.forGuest {
				t.Errorf("the guest may have %v, want %v", got, tc.forGuest)
			}
			if cpus, memory := resize.Pending(tc.desired, tc.current, tc.current, tc.pod); cpus != tc.cpus ||
				memory != tc.memory {
				t.Errorf("pending: CPUs %t, memory %t, want %t, %t", cpus, memory, tc.cpus, tc.memory)
			}
		})
	}
}

// TestUnmarkedPod is that of an earlier version: nothing is known about its resources.
func TestUnmarkedPod(t *testing.T) {
	pod := launcher("1", "1Gi", "1", "1Gi")
	if got := resize.OfPod(pod, size(2, gib)); got != size(2, gib) {
		t.Errorf("it is for %v, want what the guest has", got)
	}
	if got := resize.ForGuest(size(3, gib), size(2, gib), pod); got != size(2, gib) {
		t.Errorf("the guest may have %v", got)
	}
	pod.Annotations = map[string]string{resize.SocketsAnnotation: "many", resize.MemoryAnnotation: "-1"}
	if got := resize.OfPod(pod, size(2, gib)); got != size(2, gib) {
		t.Errorf("with annotations that are none it is for %v, want what the guest has", got)
	}
}

// launcher returns a Pod of generation 2, whose launcher's container has requests and is allocated others.
func launcher(cpu, memory, allocatedCPU, allocatedMemory string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Generation: 2},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: launcherpod.ComputeContainer, Resources: corev1.ResourceRequirements{Requests: list(cpu, memory)},
		}}},
		Status: corev1.PodStatus{
			ObservedGeneration: 2,
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: launcherpod.ComputeContainer, AllocatedResources: list(allocatedCPU, allocatedMemory),
			}},
		},
	}
}

func list(cpu, memory string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, quantity := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
		if quantity != "" {
			out[name] = resource.MustParse(quantity)
		}
	}
	return out
}

func TestProgress(t *testing.T) {
	since := metav1.NewTime(time.Unix(1000, 0))
	with := func(pod *corev1.Pod, kind corev1.PodConditionType, reason string) *corev1.Pod {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: "Node is full.", LastTransitionTime: since,
		})
		return pod
	}
	limited := func(used string) *corev1.Pod {
		pod := launcher("1", "1Gi", "1", "1Gi")
		pod.Spec.Containers[0].Resources.Limits = list("", "2Gi")
		pod.Status.ContainerStatuses[0].Resources = &corev1.ResourceRequirements{Requests: list("999m", ""),
			Limits: list("", used)}
		return pod
	}
	old := launcher("1", "1Gi", "", "")
	old.Status.ObservedGeneration = 0
	unseen := launcher("1", "1Gi", "1", "1Gi")
	unseen.Status.ObservedGeneration = 1
	waiting := launcher("1", "1Gi", "1", "1Gi")
	waiting.Status.ContainerStatuses = nil
	kubelets := resize.Progress{Message: "Node is full.", Since: since.Time}
	saying := func(state resize.State) resize.Progress {
		p := kubelets
		p.State = state
		return p
	}
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want resize.Progress
	}{
		"done":                           {launcher("1", "1Gi", "1", "1Gi"), resize.Progress{State: resize.Done}},
		"a kubelet that reports nothing": {old, resize.Progress{State: resize.Done}},
		"not seen yet":                   {unseen, resize.Progress{State: resize.Working}},
		"no container yet":               {waiting, resize.Progress{State: resize.Working}},
		"CPU not allocated":              {launcher("2", "1Gi", "1", "1Gi"), resize.Progress{State: resize.Working}},
		"memory not allocated":           {launcher("1", "2Gi", "1", "1Gi"), resize.Progress{State: resize.Working}},
		"limit not set":                  {limited("1Gi"), resize.Progress{State: resize.Working}},
		"limit set, shares rounded":      {limited("2Gi"), resize.Progress{State: resize.Done}},
		"deferred":                       {with(launcher("2", "1Gi", "1", "1Gi"), corev1.PodResizePending, corev1.PodReasonDeferred), saying(resize.Deferred)},
		"infeasible":                     {with(launcher("2", "1Gi", "1", "1Gi"), corev1.PodResizePending, corev1.PodReasonInfeasible), saying(resize.Infeasible)},
		"in progress":                    {with(launcher("1", "1Gi", "1", "1Gi"), corev1.PodResizeInProgress, ""), resize.Progress{State: resize.Working}},
		"failing":                        {with(launcher("1", "1Gi", "1", "1Gi"), corev1.PodResizeInProgress, corev1.PodReasonError), saying(resize.Failing)},
	} {
		if diff := cmp.Diff(tc.want, resize.ProgressOf(tc.pod)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got := resize.Applied(tc.pod); got != (tc.want.State == resize.Done) {
			t.Errorf("%s: applied: %t", name, got)
		}
	}
}

func TestTarget(t *testing.T) {
	requirements := func(cpu, memory, cpuLimit, memoryLimit string) corev1.ResourceRequirements {
		r := corev1.ResourceRequirements{Requests: list(cpu, memory)}
		if cpuLimit != "" || memoryLimit != "" {
			r.Limits = list(cpuLimit, memoryLimit)
		}
		return r
	}
	one, more, taller := size(1, gib), size(2, gib), size(1, 2*gib)
	for name, tc := range map[string]struct {
		now, wanted corev1.ResourceRequirements
		from, to    resize.Size
		want        corev1.ResourceRequirements
	}{
		"CPUs, and memory for them": {
			requirements("100m", "1100Mi", "", ""), requirements("200m", "1103Mi", "", ""), one, more,
			requirements("200m", "1103Mi", "", ""),
		},
		"memory only": {
			requirements("100m", "1100Mi", "", ""), requirements("150m", "2100Mi", "", ""), one, taller,
			requirements("100m", "2100Mi", "", ""),
		},
		"a guest that shrinks": {
			requirements("100m", "2100Mi", "", ""), requirements("100m", "1100Mi", "", ""), taller, one,
			requirements("100m", "1100Mi", "", ""),
		},
		"a Pod with more than a new one": {
			requirements("500m", "3Gi", "", ""), requirements("200m", "1103Mi", "", ""), one, more,
			requirements("500m", "3Gi", "", ""),
		},
		"limits of the VMI": {
			requirements("1", "1100Mi", "1", "1100Mi"), requirements("2", "1103Mi", "2", "1103Mi"), one, more,
			requirements("2", "1103Mi", "2", "1103Mi"),
		},
		"limits of the namespace": {
			requirements("100m", "1Gi", "500m", "2Gi"), requirements("200m", "2Gi", "", ""), one, size(2, 2*gib),
			requirements("200m", "2Gi", "500m", "3Gi"),
		},
		"a CPU limit of the namespace that would be less than the request": {
			requirements("400m", "1Gi", "500m", ""), requirements("800m", "1Gi", "", ""), one, more,
			requirements("800m", "1Gi", "800m", ""),
		},
		"limits are not added": {
			requirements("100m", "1Gi", "", ""), requirements("200m", "1Gi", "2", "2Gi"), one, more,
			requirements("200m", "1Gi", "", ""),
		},
		"nothing changes": {
			requirements("100m", "1Gi", "", ""), requirements("900m", "9Gi", "", ""), one, one,
			requirements("100m", "1Gi", "", ""),
		},
	} {
		before := *tc.now.DeepCopy()
		if diff := cmp.Diff(tc.want, resize.ResizedResources(tc.now, tc.wanted, tc.from, tc.to)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(before, tc.now); diff != "" {
			t.Errorf("%s: the argument was changed:\n%s", name, diff)
		}
		again := resize.ResizedResources(tc.want, tc.wanted, tc.from, tc.to)
		if diff := cmp.Diff(tc.want, again); diff != "" {
			t.Errorf("%s: a second time (-want +got):\n%s", name, diff)
		}
	}
}

func TestJudge(t *testing.T) {
	now := time.Unix(10000, 0)
	full := func(state resize.State, ago time.Duration) resize.Progress {
		return resize.Progress{State: state, Message: "Node didn't have enough resource: memory", Since: now.Add(-ago)}
	}
	for _, tc := range []struct {
		name             string
		view             resize.View
		reason           string
		says             []string
		migrate, restart bool
		again            time.Duration
	}{
		{name: "in progress", view: resize.View{Progress: full(resize.Working, 0)}},
		{name: "the guest follows", view: resize.View{}},
		{
			name: "a full node", view: resize.View{Progress: full(resize.Deferred, time.Minute)},
			reason: resize.ReasonDeferred, says: []string{"Node didn't have enough resource: memory", "keeps its size"},
			again: time.Minute,
		},
		{
			name: "full for too long", view: resize.View{Progress: full(resize.Deferred, resize.Patience)},
			reason: resize.ReasonMigration, migrate: true, says: []string{"Node didn't have enough resource: memory"},
		},
		{
			name:   "full for too long, and tied to it",
			view:   resize.View{Progress: full(resize.Deferred, time.Hour), Unmigratable: "its disk is local"},
			reason: resize.ReasonRestart, restart: true,
			says: []string{"Node didn't have enough resource: memory", "its disk is local"},
		},
		{name: "infeasible", view: resize.View{Progress: full(resize.Infeasible, 0)}, reason: resize.ReasonMigration, migrate: true},
		{
			name: "failing", view: resize.View{Progress: full(resize.Failing, time.Hour)},
			reason: resize.ReasonFailing, says: []string{"Node didn't have enough resource: memory"},
		},
		{
			name: "a quota", view: resize.View{Forbidden: "exceeded quota: team"},
			reason: resize.ReasonForbidden, says: []string{"exceeded quota: team"}, again: 30 * time.Second,
		},
		{name: "an old Kubernetes", view: resize.View{Refused: "not found"}, reason: resize.ReasonMigration, migrate: true, says: []string{"not found"}},
		{
			name: "dedicated CPUs of a guest that stays", view: resize.View{Obstacle: "dedicated", Unmigratable: "no method"},
			reason: resize.ReasonRestart, restart: true, says: []string{"dedicated", "no method"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.view.Now = now
			got := resize.Judge(tc.view)
			if got.Reason != tc.reason || got.Migrate != tc.migrate || got.Restart != tc.restart || got.Again != tc.again {
				t.Errorf("got %+v", got)
			}
			for _, text := range tc.says {
				if !strings.Contains(got.Message, text) {
					t.Errorf("%q does not say %q", got.Message, text)
				}
			}
			if (got.Message == "") != (tc.reason == "") {
				t.Errorf("message %q", got.Message)
			}
		})
	}
}

func TestObstacle(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	one, more := size(1, gib), size(2, 2*gib)
	if got := resize.Obstacle(vmi, one, more); got != "" {
		t.Errorf("an ordinary guest: %q", got)
	}
	vmi.Spec.Domain.CPU = &v1.CPU{DedicatedCPUPlacement: true}
	vmi.Spec.Domain.Memory = &v1.Memory{Hugepages: &v1.Hugepages{PageSize: "2Mi"}}
	if got := resize.Obstacle(vmi, one, one); got != "" {
		t.Errorf("a guest that does not change: %q", got)
	}
	if got := resize.Obstacle(vmi, one, more); !strings.Contains(got, "dedicated CPUs") ||
		!strings.Contains(got, "huge pages") {
		t.Errorf("%q", got)
	}
}

func TestOfVMI(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Domain.CPU = &v1.CPU{Sockets: 2, Cores: 4}
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("1Gi"))}
	if got := resize.Desired(vmi); got != size(0, 0) {
		t.Errorf("a guest that cannot change: %v", got)
	}
	if _, known := resize.Current(vmi); !known {
		t.Error("what cannot change is not needed from the agent")
	}
	vmi.Spec.Domain.CPU.MaxSockets, vmi.Spec.Domain.Memory.MaxGuest = 8, ptr.To(resource.MustParse("4Gi"))
	if got := resize.Desired(vmi); got != size(2, gib) {
		t.Errorf("desired: %v", got)
	}
	if _, known := resize.Current(vmi); known {
		t.Error("the size is known before the agent has reported it")
	}
	vmi.Status.CurrentCPUTopology = &v1.CPUTopology{Sockets: 1, Cores: 4, Threads: 1}
	vmi.Status.Memory = &v1.MemoryStatus{GuestCurrent: ptr.To(resource.MustParse("2Gi"))}
	if got, known := resize.Current(vmi); !known || got != size(1, 2*gib) {
		t.Errorf("current: %v, %t", got, known)
	}
	if got := resize.Granted(vmi, size(1, gib)); got != size(1, gib) {
		t.Errorf("granted, as far as known: %v", got)
	}
	vmi.Status.Memory.GuestRequested = ptr.To(resource.MustParse("3Gi"))
	if got := resize.Granted(vmi, size(1, gib)); got != size(1, 3*gib) {
		t.Errorf("granted: %v", got)
	}
	changed := resize.With(vmi, size(5, 3*gib))
	if got := resize.Desired(changed); got != size(5, 3*gib) {
		t.Errorf("with another size: %v", got)
	}
	if got := resize.Desired(vmi); got != size(2, gib) {
		t.Errorf("the argument was changed to %v", got)
	}
}

// TestResourcesOfReturnedMemory checks that the Pod of a guest that has yet to return memory keeps resources for it,
// also those that the spec sets itself.
func TestResourcesOfReturnedMemory(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("1Gi")),
		MaxGuest: ptr.To(resource.MustParse("4Gi"))}
	vmi.Spec.Domain.Resources = v1.ResourceRequirements{Requests: list("1", "512Mi"), Limits: list("2", "2Gi")}
	got := resize.With(vmi, size(0, 3*gib)).Spec.Domain.Resources
	want := v1.ResourceRequirements{Requests: list("1", "2560Mi"), Limits: list("2", "4Gi")}
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if limit := vmi.Spec.Domain.Resources.Limits.Memory().String(); limit != "2Gi" {
		t.Errorf("the argument was changed to %s", limit)
	}
	vmi.Spec.Domain.Resources = v1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(
		"2")}}
	if got := resize.With(vmi, size(0, 3*gib)).Spec.Domain.Resources; !equality.Semantic.DeepEqual(got,
		vmi.Spec.Domain.Resources) {
		t.Errorf("resources that the spec does not set: %v", got)
	}
}

// TestAlignment checks what multiple of memory a guest needs, which depends on the size of its pages.
func TestAlignment(t *testing.T) {
	for _, tc := range []struct{ page, guest, most, want string }{
		{"", "1026Mi", "4Gi", ""},
		{"", "1025Mi", "4Gi", "Guest memory must be 2Mi aligned"},
		{"", "1Gi", "4095Mi", "MaxGuest must be 2Mi aligned"},
		{"2Mi", "1026Mi", "4Gi", ""},
		{"1Gi", "2Gi", "4Gi", ""},
		{"1Gi", "2050Mi", "4Gi", "Guest memory must be 1Gi aligned"},
		{"1Gi", "2Gi", "4098Mi", "MaxGuest must be 1Gi aligned"},
	} {
		spec := &v1.VirtualMachineInstanceSpec{}
		if tc.page != "" {
			spec.Domain.Memory = &v1.Memory{Hugepages: &v1.Hugepages{PageSize: tc.page}}
		}
		got := ""
		if problem := resize.CheckMemory(spec, "amd64", resource.MustParse(tc.guest),
			resource.MustParse(tc.most)); problem != nil {
			got = problem.Message
		}
		if got != tc.want {
			t.Errorf("%s of %s with pages of %q: got %q, want %q", tc.guest, tc.most, tc.page, got, tc.want)
		}
	}
}

func TestSockets(t *testing.T) {
	for name, tc := range map[string]struct {
		spec v1.DomainSpec
		want uint32
	}{
		"none":         {v1.DomainSpec{}, 1},
		"resources":    {v1.DomainSpec{Resources: v1.ResourceRequirements{Requests: list("3", "")}}, 3},
		"topology":     {v1.DomainSpec{CPU: &v1.CPU{Cores: 2}, Resources: v1.ResourceRequirements{Requests: list("3", "")}}, 1},
		"sockets":      {v1.DomainSpec{CPU: &v1.CPU{Sockets: 4}}, 4},
		"only a model": {v1.DomainSpec{CPU: &v1.CPU{Model: "host-model"}, Resources: v1.ResourceRequirements{Limits: list("2500m", "")}}, 3},
	} {
		if got := resize.Sockets(&tc.spec); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

// A guest may get more while the target Pod of its migration starts.
func TestOutgrown(t *testing.T) {
	pod := func(size resize.Size) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}}
		resize.Annotate(pod.Annotations, size)
		return pod
	}
	for name, c := range map[string]struct {
		current, own, target resize.Size
		want                 bool
	}{
		"the same":                       {size(2, gib), size(2, gib), size(2, gib), false},
		"the target is for more":         {size(1, gib), size(1, gib), size(2, 2*gib), false},
		"more memory":                    {size(1, 2*gib), size(1, 2*gib), size(1, gib), true},
		"more CPUs":                      {size(2, gib), size(2, gib), size(1, gib), true},
		"a report of more than it may":   {size(4, 8*gib), size(1, gib), size(1, gib), false},
		"a target of an earlier version": {size(2, 2*gib), size(2, 2*gib), size(0, 0), false},
	} {
		vmi := &v1.VirtualMachineInstance{}
		vmi.Spec.Domain.CPU = &v1.CPU{Sockets: 1, MaxSockets: 8}
		vmi.Spec.Domain.Memory = &v1.Memory{Guest: resource.NewQuantity(gib, resource.BinarySI),
			MaxGuest: resource.NewQuantity(16*gib, resource.BinarySI)}
		vmi.Status.CurrentCPUTopology = &v1.CPUTopology{Sockets: c.current.Sockets}
		vmi.Status.Memory = &v1.MemoryStatus{GuestCurrent: resource.NewQuantity(c.current.Memory, resource.BinarySI)}
		if got := resize.Outgrown(vmi, pod(c.own), pod(c.target)); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
