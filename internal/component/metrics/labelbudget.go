// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// relabelInterval is how long an object keeps its labels in metrics at least. Each change of a label makes new series of all metrics
	// of the object, which Prometheus keeps in memory for hours: a user who changes a label in a loop could exhaust it.
	relabelInterval = 10 * time.Minute
	// labelOverhead is how many bytes a label of a series takes in memory besides its texts: a LabelPair, its pointer, and two strings.
	labelOverhead = 104
	// maxKept is how many bytes the labels of an object may have, including those that are not selected. An object of the API server may
	// have far more, which would be kept for relabelInterval after the object has changed.
	maxKept = 64 << 10
	// LabelCopies is how often the bytes of a LabelBudget are in memory at most: in the metrics that are gathered, those that were
	// gathered before and those of the current page; in a page while it is encoded, whose buffer doubles; and in an older page that is
	// still being sent, both as text and compressed.
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

// LabelBudget decides which objects have labels of users in the metrics of a process. Users choose the number of the objects, of their
// labels and how often these change, so all have a limit.
//
// All labels together have one limit, which depends on the memory of the process. If they exceed it, each namespace gets an equal part,
// and what a namespace does not need is divided among the others. A smaller fixed limit for each namespace would take the labels from a
// fleet in one namespace for which there is enough memory. So a namespace with many labels loses some of its own, before it costs others
// any.
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

// Of returns the labels that the metrics of objects have, in the order of the objects, for LabelFilter.Select: those that each had up to
// ten minutes ago. Objects beyond the limit have none. Which ones have is decided in the order of their UIDs, so that it does not change
// from one scrape to the next.
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

// take takes over the labels of new objects, and those that have changed if the last change is old enough. It forgets objects that are
// gone.
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

// isTooLarge reports whether an object has too many labels for any to be kept: more than fit into the limit for all objects, or more texts
// than the labels of a VM have in practice.
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
	namespaces := slices.SortedFunc(maps.Keys(wanted), func(a, b string) int { return cmp.Or(cmp.Compare(wanted[a], wanted[b]), cmp.Compare(a, b)) })
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
		log.Log.WithName("metrics").Info("Some objects have no labels of users in the metrics, because all labels exceed the limit. "+
			"Choose the labels that you need with the ConfigMap "+LabelsConfigMap,
			"objects", objects, "limitBytes", b.Bytes, "namespaceWithMost", most, "objectsOfIt", missing[most])
	}
	b.short = len(missing) > 0
}
