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

// observer follows the guest through API watches and the kernel's trace.
type observer struct {
	// domain is the guest's name in the command lines of its QEMUs.
	domain string

	mu       sync.Mutex
	vmi      *v1.VirtualMachineInstance
	pods     map[types.UID]*corev1.Pod
	timeline *oracle.Timeline
	// qemus maps processes to the Pods of the guest's QEMUs. The Pod of any other process is empty.
	qemus    map[int]types.UID
	progress *progress
	// traceErr is why the kernel's trace has ended.
	traceErr error
	notes    []string
}

// progress is what was observed of one migration.
type progress struct {
	uid       types.UID
	sourcePod types.UID
	target    string
	reached   map[plan.Phase]chan struct{}
	at        map[plan.Phase]time.Time
	// phase is the last known phase of the migration, which is deleted together with its VMI.
	phase v1.VirtualMachineInstanceMigrationPhase
	// stopped and started are when the source's CPUs were stopped and the target's started, by the kernel's clock.
	stopped, started time.Duration
}

func newObserver(namespace string) *observer {
	o := &observer{domain: "guest=" + namespace + "_" + guestName + ","}
	o.forget()
	return o
}

// forget clears everything that was observed of the previous guest.
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

// note adds a line to the journal of the run.
func (o *observer) note(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.noteLocked(format, args...)
}

func (o *observer) noteLocked(format string, args ...any) {
	o.notes = append(o.notes, time.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// journal returns the lines since the run began.
func (o *observer) journal() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.notes)
}

// begin starts to follow another migration. Its UID is set by created; events before that are evaluated again there.
func (o *observer) begin(sourcePod types.UID, target string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.progress = &progress{sourcePod: sourcePod, target: target, reached: map[plan.Phase]chan struct{}{},
		at: map[plan.Phase]time.Time{}}
	for _, p := range plan.Phases() {
		o.progress.reached[p] = make(chan struct{})
	}
	o.notes = nil
}

func (o *observer) created(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.progress.uid = uid
	o.reach(plan.Requested)
	for _, pod := range o.pods {
		o.handlePod(pod)
	}
	o.handleVMI()
}

// lastPhase is the last known phase of the migration.
func (o *observer) lastPhase() v1.VirtualMachineInstanceMigrationPhase {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.progress.phase
}

// wait returns a channel that is closed when a phase is reached.
func (o *observer) wait(p plan.Phase) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.progress.reached[p]
}

func (o *observer) reach(p plan.Phase) {
	if _, before := o.progress.at[p]; before {
		return
	}
	o.progress.at[p] = time.Now()
	close(o.progress.reached[p])
	o.noteLocked("phase %s", p)
}

// follow watches the objects of a namespace until the context ends.
func (o *observer) follow(ctx context.Context, api client.WithWatch, namespace string) {
	for _, list := range []client.ObjectList{&corev1.PodList{}, &v1.VirtualMachineInstanceList{},
		&v1.VirtualMachineInstanceMigrationList{}} {
		go func() {
			for ctx.Err() == nil {
				if stream, err := api.Watch(ctx, list, client.InNamespace(namespace)); err == nil {
					for event := range stream.ResultChan() {
						o.handle(event)
					}
				}
				_ = pause(ctx, 100*time.Millisecond)
			}
		}()
	}
}

func (o *observer) handle(event watch.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch object := event.Object.(type) {
	case *v1.VirtualMachineInstance:
		if event.Type == watch.Deleted {
			o.vmi = nil
			return
		}
		o.vmi = object
		o.handleVMI()
	case *v1.VirtualMachineInstanceMigration:
		if o.progress != nil && object.UID == o.progress.uid && object.Status.Phase != o.progress.phase {
			o.progress.phase = object.Status.Phase
			o.noteLocked("the migration is %s", object.Status.Phase)
		}
	case *corev1.Pod:
		if event.Type == watch.Deleted {
			object.Status.Phase = podGone
		}
		o.pods[object.UID] = object
		o.handlePod(object)
	}
}

// podGone stands for the phase of a deleted Pod.
const podGone corev1.PodPhase = "Gone"

func (o *observer) handlePod(pod *corev1.Pod) {
	if o.isTarget(pod) {
		o.reach(plan.Scheduling)
	}
}

// takesPart reports whether a Pod is the source or the target of the migration.
func (o *observer) takesPart(pod *corev1.Pod) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return pod.UID == o.progress.sourcePod || o.isTarget(pod)
}

// isTarget reports whether a Pod is the target of the migration.
func (o *observer) isTarget(pod *corev1.Pod) bool {
	return pod != nil && o.progress != nil && o.progress.uid != "" &&
		pod.Labels[v1.MigrationJobLabel] == string(o.progress.uid)
}

func (o *observer) handleVMI() {
	if o.progress == nil || o.progress.uid == "" || o.vmi == nil {
		return
	}
	m := o.vmi.Status.MigrationState
	if m == nil || m.MigrationUID != o.progress.uid {
		return
	}
	if m.TargetNodeAddress != "" && len(m.TargetDirectMigrationNodePorts) > 0 {
		o.reach(plan.Prepared)
	}
	if m.StartTimestamp != nil {
		o.reach(plan.Started)
	}
	if o.vmi.Status.NodeName == o.progress.target {
		o.reach(plan.Owned)
	}
}

// readTrace handles the events of the kernel until the trace ends.
func (o *observer) readTrace(t *trace.Trace) {
	for event := range t.Events() {
		o.handleTrace(event)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.traceErr = t.Err(); o.traceErr == nil {
		o.traceErr = os.ErrClosed
	}
}

// verbs are the kinds of events in the journal, without the writes, which are too many.
var verbs = map[oracle.Kind]string{oracle.Started: "started", oracle.Stopped: "stopped", oracle.Sending: "sends memory",
	oracle.Ended: "ended"}

func (o *observer) handleTrace(e oracle.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	pod, mine := o.podOf(e)
	if !mine && e.Kind != oracle.Wrote && e.Kind != oracle.Lost {
		return
	}
	o.timeline.Add(e)
	if e.Kind != oracle.Wrote {
		o.noteLocked("%.6f QEMU %d of Pod %s %s (state %d)", e.At.Seconds(), e.Process, pod, verbs[e.Kind], e.Detail)
	}
	if o.progress != nil {
		o.advance(e, pod)
	}
	if e.Kind == oracle.Ended {
		delete(o.qemus, e.Process)
	}
}

func (o *observer) advance(e oracle.Event, pod types.UID) {
	_, switched := o.progress.at[plan.Switching]
	source := pod == o.progress.sourcePod
	switch {
	case e.Kind == oracle.Sending && source:
		o.reach(plan.Transferring)
	case e.Kind == oracle.Stopped && source:
		o.progress.stopped = e.At
		o.reach(plan.Switching)
	case e.Kind == oracle.Ended && source && switched:
		o.reach(plan.Releasing)
	case e.Kind == oracle.Started && o.isTarget(o.pods[pod]):
		o.progress.started = e.At
		o.reach(plan.Running)
	}
}

// podInCgroup matches the UID of a Pod in the name of a cgroup, for both cgroup drivers.
var podInCgroup = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})`)

// podOf returns the Pod of a process and true if the process is a QEMU of the guest, which has the guest's name in its
// command line.
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

// traced is the current state by the kernel's trace, with the violations since the last call.
type traced struct {
	executing []int
	pods      map[int]types.UID
	failures  []string
	writer    int
	downtime  time.Duration
}

func (o *observer) traced() traced {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := traced{executing: o.timeline.Executing(), pods: maps.Clone(o.qemus), failures: o.timeline.Failures()}
	p.writer, _ = o.timeline.Writer()
	if o.traceErr != nil {
		p.failures = append(p.failures, "the kernel's trace has ended: "+o.traceErr.Error())
	}
	if o.progress != nil && o.progress.stopped > 0 && o.progress.started > o.progress.stopped {
		p.downtime = o.progress.started - o.progress.stopped
	}
	return p
}

// launcherPods returns the last known state of all launcher Pods so far.
func (o *observer) launcherPods() []*corev1.Pod {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Values(o.pods))
}
