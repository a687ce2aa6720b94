// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/chaos/oracle"
	"github.com/vireo-project/vireo/test/chaos/plan"
	"github.com/vireo-project/vireo/test/chaos/trace"
)

// observer follows what the API server and the kernel tell of the guest.
type observer struct {
	// domain is the guest's name in the command lines of its QEMUs.
	domain string

	mu       sync.Mutex
	vmi      *v1.VirtualMachineInstance
	pods     map[types.UID]*corev1.Pod
	timeline *oracle.Timeline
	// qemus are the Pods of the guest's QEMUs, by their process. One that is not the guest's has none.
	qemus  map[int]types.UID
	course *course
	// broken is why the kernel's trace has ended.
	broken error
	notes  []string
}

// course is what was seen of one migration.
type course struct {
	uid       types.UID
	sourcePod types.UID
	target    string
	reached   map[plan.Phase]chan struct{}
	at        map[plan.Phase]time.Time
	// phase is the migration's as it was last, also when it is gone by now: it goes with the instance that it is about.
	phase v1.VirtualMachineInstanceMigrationPhase
	// stopped and started are when the guest stood still and went on, by the kernel's clock.
	stopped, started time.Duration
}

func newObserver(namespace string) *observer {
	o := &observer{domain: "guest=" + namespace + "_" + guestName + ","}
	o.forget()
	return o
}

// forget begins with another guest.
func (o *observer) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.vmi, o.pods, o.timeline, o.qemus = nil, map[types.UID]*corev1.Pod{}, oracle.NewTimeline(), map[int]types.UID{}
}

func (o *observer) instance() *v1.VirtualMachineInstance {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.vmi
}

// note writes a line into the run's journal.
func (o *observer) note(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.noteLocked(format, args...)
}

func (o *observer) noteLocked(format string, args ...any) {
	o.notes = append(o.notes, time.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// journal are the lines since the run began.
func (o *observer) journal() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.notes)
}

// begin follows another migration. Its UID is not known before it is created, and its first steps may be seen before that is told.
func (o *observer) begin(sourcePod types.UID, target string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.course = &course{sourcePod: sourcePod, target: target, reached: map[plan.Phase]chan struct{}{}, at: map[plan.Phase]time.Time{}}
	for _, p := range plan.Phases() {
		o.course.reached[p] = make(chan struct{})
	}
	o.notes = nil
}

func (o *observer) created(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.course.uid = uid
	o.reach(plan.Asked)
	for _, pod := range o.pods {
		o.sawPod(pod)
	}
	o.sawVMI()
}

// lastPhase is the migration's, as it was seen last.
func (o *observer) lastPhase() v1.VirtualMachineInstanceMigrationPhase {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.course.phase
}

// wait returns when a phase is reached.
func (o *observer) wait(p plan.Phase) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.course.reached[p]
}

func (o *observer) reach(p plan.Phase) {
	if _, before := o.course.at[p]; before {
		return
	}
	o.course.at[p] = time.Now()
	close(o.course.reached[p])
	o.noteLocked("phase %s", p)
}

// follow watches the objects of a namespace until the context ends.
func (o *observer) follow(ctx context.Context, api client.WithWatch, namespace string) {
	for _, list := range []client.ObjectList{&corev1.PodList{}, &v1.VirtualMachineInstanceList{}, &v1.VirtualMachineInstanceMigrationList{}} {
		go func() {
			for ctx.Err() == nil {
				if stream, err := api.Watch(ctx, list, client.InNamespace(namespace)); err == nil {
					for event := range stream.ResultChan() {
						o.saw(event)
					}
				}
				_ = pause(ctx, 100*time.Millisecond)
			}
		}()
	}
}

func (o *observer) saw(event watch.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch object := event.Object.(type) {
	case *v1.VirtualMachineInstance:
		if event.Type == watch.Deleted {
			o.vmi = nil
			return
		}
		o.vmi = object
		o.sawVMI()
	case *v1.VirtualMachineInstanceMigration:
		if o.course != nil && object.UID == o.course.uid && object.Status.Phase != o.course.phase {
			o.course.phase = object.Status.Phase
			o.noteLocked("the migration is %s", object.Status.Phase)
		}
	case *corev1.Pod:
		if event.Type == watch.Deleted {
			object.Status.Phase = podGone
		}
		o.pods[object.UID] = object
		o.sawPod(object)
	}
}

// podGone is the phase of a Pod that is no more.
const podGone corev1.PodPhase = "Gone"

func (o *observer) sawPod(pod *corev1.Pod) {
	if o.isTarget(pod) {
		o.reach(plan.Scheduling)
	}
}

// takesPart reports whether a Pod is the source's or the target's.
func (o *observer) takesPart(pod *corev1.Pod) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return pod.UID == o.course.sourcePod || o.isTarget(pod)
}

// isTarget reports whether a Pod is the one that the migration goes to.
func (o *observer) isTarget(pod *corev1.Pod) bool {
	return pod != nil && o.course != nil && o.course.uid != "" && pod.Labels[v1.MigrationJobLabel] == string(o.course.uid)
}

func (o *observer) sawVMI() {
	if o.course == nil || o.course.uid == "" || o.vmi == nil {
		return
	}
	m := o.vmi.Status.MigrationState
	if m == nil || m.MigrationUID != o.course.uid {
		return
	}
	if m.TargetNodeAddress != "" && len(m.TargetDirectMigrationNodePorts) > 0 {
		o.reach(plan.Prepared)
	}
	if m.StartTimestamp != nil {
		o.reach(plan.Begun)
	}
	if o.vmi.Status.NodeName == o.course.target {
		o.reach(plan.Owned)
	}
}

// hear takes what the kernel tells, until that ends.
func (o *observer) hear(t *trace.Trace) {
	for event := range t.Events() {
		o.heard(event)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.broken = t.Err(); o.broken == nil {
		o.broken = os.ErrClosed
	}
}

// words are how events are told in the journal. Writes are too many.
var words = map[oracle.Kind]string{oracle.Started: "started", oracle.Stopped: "stopped", oracle.Sending: "sends", oracle.Ended: "ended"}

func (o *observer) heard(e oracle.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	pod, mine := o.podOf(e)
	if !mine && e.Kind != oracle.Wrote && e.Kind != oracle.Lost {
		return
	}
	o.timeline.See(e)
	if e.Kind != oracle.Wrote {
		o.noteLocked("%.6f QEMU %d of Pod %s %s (state %d)", e.At.Seconds(), e.Process, pod, words[e.Kind], e.Detail)
	}
	if o.course != nil {
		o.advance(e, pod)
	}
	if e.Kind == oracle.Ended {
		delete(o.qemus, e.Process)
	}
}

func (o *observer) advance(e oracle.Event, pod types.UID) {
	_, switched := o.course.at[plan.Switching]
	source := pod == o.course.sourcePod
	switch {
	case e.Kind == oracle.Sending && source:
		o.reach(plan.Copying)
	case e.Kind == oracle.Stopped && source:
		o.course.stopped = e.At
		o.reach(plan.Switching)
	case e.Kind == oracle.Ended && source && switched:
		o.reach(plan.Releasing)
	case e.Kind == oracle.Started && o.isTarget(o.pods[pod]):
		o.course.started = e.At
		o.reach(plan.Running)
	}
}

// podInCgroup finds a Pod's UID in the names of its cgroups, as drivers of cgroups write it.
var podInCgroup = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})`)

// podOf is the Pod of a process, if that is one of the guest's QEMUs: it has the guest's name in its command line.
func (o *observer) podOf(e oracle.Event) (types.UID, bool) {
	pod, known := o.qemus[e.Process]
	if known || e.Kind == oracle.Ended || e.Kind == oracle.Lost {
		return pod, pod != ""
	}
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", e.Process))
	if err == nil && strings.Contains(string(command), o.domain) {
		cgroup, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", e.Process))
		if found := podInCgroup.FindSubmatch(cgroup); found != nil {
			pod = types.UID(strings.ReplaceAll(string(found[1]), "_", "-"))
		}
	}
	o.qemus[e.Process] = pod
	return pod, pod != ""
}

// proceedings are what the kernel's trace says now, with what must not have been.
type proceedings struct {
	executing []int
	pods      map[int]types.UID
	failures  []string
	writer    int
	downtime  time.Duration
}

func (o *observer) proceedings() proceedings {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := proceedings{executing: o.timeline.Executing(), pods: maps.Clone(o.qemus), failures: o.timeline.Failures()}
	p.writer, _ = o.timeline.Writer()
	if o.broken != nil {
		p.failures = append(p.failures, "the kernel's trace has ended: "+o.broken.Error())
	}
	if o.course != nil && o.course.stopped > 0 && o.course.started > o.course.stopped {
		p.downtime = o.course.started - o.course.stopped
	}
	return p
}

// everyPod are the launcher Pods that were seen so far, as they were last.
func (o *observer) everyPod() []*corev1.Pod {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Values(o.pods))
}
