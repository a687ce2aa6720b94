// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/vireo-project/vireo/internal/component/printable"
)

const (
	// LabelsConfigMap is the ConfigMap in the install namespace that selects which labels of VMs and VMIs become labels of
	// metrics. KubeVirt's name.
	LabelsConfigMap = "kubevirt-vm-labels-config"
	// maxText is the limit for the value of a label, in characters, if its text comes from a tenant or a guest.
	maxText = 128
	// MaxLabels is how many labels of an object become labels of a metric.
	MaxLabels = 64
)

// Text returns a text of a tenant or a guest as the value of a label: printable, valid UTF-8 of at most 128 characters.
func Text(s string) string { return printable.Text(s, maxText) }

// LabelFilter decides which labels of VMs and VMIs become labels of metrics: those of the allow list that are not in
// the ignore list. Without the ConfigMap, all of them do, as in KubeVirt.
type LabelFilter struct{ lists atomic.Pointer[lists] }

type lists struct {
	all             bool
	allowed, hidden map[string]bool
}

// NewLabelFilter returns a LabelFilter that allows all labels.
func NewLabelFilter() *LabelFilter {
	f := &LabelFilter{}
	f.set(nil)
	return f
}

// set reads the lists of a ConfigMap, or sets the default.
func (f *LabelFilter) set(config *corev1.ConfigMap) {
	read := lists{all: true}
	if config != nil {
		if text, ok := config.Data["allowlist"]; ok {
			read.allowed = keys(text)
			read.all = read.allowed["*"]
		}
		read.hidden = keys(config.Data["ignorelist"])
	}
	f.lists.Store(&read)
}

func keys(text string) map[string]bool {
	out := map[string]bool{}
	for key := range strings.SplitSeq(text, ",") {
		if key = strings.TrimSpace(key); key != "" {
			out[key] = true
		}
	}
	return out
}

// Select returns the selected labels of an object under the names that they have in a metric: the prefix and the key,
// in which an underscore replaces each character that Prometheus does not allow. If two keys have the same name, the
// last in alphabetical order wins. Of more than 64 keys, the first in that order are selected.
func (f *LabelFilter) Select(prefix string, labels map[string]string) map[string]string {
	use := f.lists.Load()
	selected := make([]string, 0, len(labels))
	for key := range labels {
		if use.selects(key) {
			selected = append(selected, key)
		}
	}
	slices.Sort(selected)
	out := make(map[string]string, len(selected))
	for _, key := range selected[:min(len(selected), MaxLabels)] {
		out[prefix+labelName(key)] = Text(labels[key])
	}
	return out
}

// size returns how many bytes the selected labels take in a series. It counts all labels of an object with more than
// 64, and selects none: the labels of all objects together may be too large for the memory.
func (f *LabelFilter) size(prefix string, labels map[string]string) int64 {
	use, size := f.lists.Load(), 0
	for key, value := range labels {
		if use.selects(key) {
			size += len(prefix) + len(key) + min(len(value), maxText*utf8.UTFMax) + labelOverhead
		}
	}
	return int64(size)
}

func (l *lists) selects(key string) bool { return (l.all || l.allowed[key]) && !l.hidden[key] }

func labelName(key string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, key)
}

// AddLabelFilter returns a LabelFilter that follows the ConfigMap in the install namespace, with a cache of its own
// that contains nothing else.
func AddLabelFilter(mgr ctrl.Manager, namespace string) (*LabelFilter, error) {
	objects, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {
			Namespaces: map[string]cache.Config{namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name",
				LabelsConfigMap)}},
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make a cache for the ConfigMap %s: %w", LabelsConfigMap, err)
	}
	filter := NewLabelFilter()
	for _, runnable := range []manager.Runnable{objects, &labelFollower{filter, objects}} {
		if err := mgr.Add(runnable); err != nil {
			return nil, err
		}
	}
	return filter, nil
}

// labelFollower keeps a LabelFilter up to date with the ConfigMap in a cache.
type labelFollower struct {
	filter *LabelFilter
	cache  cache.Cache
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: every process follows the ConfigMap.
func (*labelFollower) NeedLeaderElection() bool { return false }

// Start follows the ConfigMap until the context ends.
func (l *labelFollower) Start(ctx context.Context) error {
	informer, err := l.cache.GetInformer(ctx, &corev1.ConfigMap{})
	if err != nil {
		return fmt.Errorf("watch the ConfigMap %s: %w", LabelsConfigMap, err)
	}
	set := func(object any) {
		if config, ok := object.(*corev1.ConfigMap); ok {
			l.filter.set(config)
		}
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: set, UpdateFunc: func(_, now any) { set(now) }, DeleteFunc: func(any) { l.filter.set(nil) },
	})
	if err != nil {
		return fmt.Errorf("watch the ConfigMap %s: %w", LabelsConfigMap, err)
	}
	<-ctx.Done()
	return informer.RemoveEventHandler(registration)
}

const (
	// relabelInterval is how long an object keeps its labels in metrics at least. Each change of a label makes new series
	// of all metrics of the object, which Prometheus keeps in memory for hours: a user who changes a label in a loop could
	// exhaust it.
	relabelInterval = 10 * time.Minute
	// labelOverhead is how many bytes a label of a series takes in memory besides its texts: a LabelPair, its pointer, and
	// two strings.
	labelOverhead = 104
	// maxKept is how many bytes the labels of an object may have, including those that are not selected. An object of the
	// API server may have far more, which would be kept for relabelInterval after the object has changed.
	maxKept = 64 << 10
	// LabelCopies is how often the bytes of a LabelBudget are in memory at most: in the metrics that are gathered, those
	// that were gathered before and those of the current page; in a page while it is encoded, whose buffer doubles; and in
	// an older page that is still being sent, both as text and compressed.
	LabelCopies = 8
)

// Labeled is an object with labels of users.
type Labeled struct {
	UID       types.UID
	Namespace string
	Labels    map[string]string
	// Series is how many series have the labels.
	Series int
}

// LabelBudget decides which objects have labels of users in the metrics of a process. Users choose the number of the
// objects, of their labels and how often these change, so all have a limit.
//
// All labels together have one limit, which depends on the memory of the process. If they exceed it, each namespace
// gets an equal part, and what a namespace does not need is divided among the others. A smaller fixed limit for each
// namespace would take the labels from a fleet in one namespace for which there is enough memory. So a namespace with
// many labels loses some of its own, before it costs others any.
type LabelBudget struct {
	// Filter and Prefix are those of LabelFilter.Select.
	Filter *LabelFilter
	Prefix string
	// Bytes is the limit for the labels of all series.
	Bytes int64
	// Clock replaces the time in tests.
	Clock clock.PassiveClock

	mu    sync.Mutex
	taken map[types.UID]takenLabels
	// short reports whether some objects had no labels the last time.
	short bool
}

// takenLabels are the labels of an object that its metrics have, and since when.
type takenLabels struct {
	labels map[string]string
	since  time.Time
	// tooLarge reports whether there are none because the object has too many.
	tooLarge bool
}

// Of returns the labels that the metrics of objects have, in the order of the objects, for LabelFilter.Select: those
// that each had up to ten minutes ago. Objects beyond the limit have none. Which ones have is decided in the order of
// their UIDs, so that it does not change from one scrape to the next.
func (b *LabelBudget) Of(objects []Labeled) []map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.take(objects)
	sizes, wanted := make([]int64, len(objects)), map[string]int64{}
	order := make([]int, len(objects))
	for i := range objects {
		o := &objects[i]
		sizes[i] = int64(o.Series) * b.Filter.size(b.Prefix, b.taken[o.UID].labels)
		wanted[o.Namespace] += sizes[i]
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(objects[i].UID, objects[j].UID) })
	left, out, missing := shares(wanted, b.Bytes), make([]map[string]string, len(objects)), map[string]int{}
	for _, i := range order {
		o := &objects[i]
		if b.taken[o.UID].tooLarge || sizes[i] > left[o.Namespace] {
			missing[o.Namespace]++
			continue
		}
		left[o.Namespace] -= sizes[i]
		out[i] = b.taken[o.UID].labels
	}
	b.report(missing)
	return out
}

// take takes over the labels of new objects, and those that have changed if the last change is old enough. It forgets
// objects that are gone.
func (b *LabelBudget) take(objects []Labeled) {
	now, taken := time.Now(), make(map[types.UID]takenLabels, len(objects))
	if b.Clock != nil {
		now = b.Clock.Now()
	}
	for i := range objects {
		o := &objects[i]
		t, known := b.taken[o.UID]
		switch {
		case known && !t.tooLarge && maps.Equal(t.labels, o.Labels):
			t.labels = o.Labels // not those of an older version of the object, which can be freed
		case !known || now.Sub(t.since) >= relabelInterval:
			t = takenLabels{labels: o.Labels, since: now}
			if b.isTooLarge(o) {
				t.labels, t.tooLarge = nil, true
			}
		}
		taken[o.UID] = t
	}
	b.taken = taken
}

// isTooLarge reports whether an object has too many labels for any to be kept: more than fit into the limit for all
// objects, or more texts than the labels of a VM have in practice.
func (b *LabelBudget) isTooLarge(o *Labeled) bool {
	texts := 0
	for key, value := range o.Labels {
		texts += len(key) + len(value)
	}
	return texts > maxKept || int64(o.Series)*b.Filter.size(b.Prefix, o.Labels) > b.Bytes
}

// shares divides bytes among namespaces: each gets what it wants, or as much as all others that want more.
func shares(wanted map[string]int64, bytes int64) map[string]int64 {
	out := make(map[string]int64, len(wanted))
	namespaces := slices.SortedFunc(maps.Keys(wanted),
		func(a, b string) int { return cmp.Or(cmp.Compare(wanted[a], wanted[b]), cmp.Compare(a, b)) })
	for i, namespace := range namespaces {
		out[namespace] = min(wanted[namespace], bytes/int64(len(namespaces)-i))
		bytes -= out[namespace]
	}
	return out
}

// report logs that objects have no labels, once until all have them again.
func (b *LabelBudget) report(missing map[string]int) {
	if !b.short && len(missing) > 0 {
		most, objects := "", 0
		for namespace, count := range missing {
			objects += count
			if count > missing[most] || count == missing[most] && namespace < most {
				most = namespace
			}
		}
		log.Log.WithName("metrics").Info(
			"Some objects have no labels of users in the metrics, because all labels exceed the limit. "+
				"Choose the labels that you need with the ConfigMap "+LabelsConfigMap,
			"objects", objects, "limitBytes", b.Bytes, "namespaceWithMost", most, "objectsOfIt", missing[most])
	}
	b.short = len(missing) > 0
}
