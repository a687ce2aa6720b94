// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
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

// LabelFilter decides which labels of VMs and VMIs become labels of metrics: those of the allow list that are not in the ignore
// list. Without the ConfigMap, all of them do, as in KubeVirt.
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

// Select returns the selected labels of an object under the names that they have in a metric: the prefix and the key, in which an
// underscore replaces each character that Prometheus does not allow. If two keys have the same name, the last in alphabetical order
// wins. Of more than 64 keys, the first in that order are selected.
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

// size returns how many bytes the selected labels take in a series. It counts all labels of an object with more than 64, and selects none:
// the labels of all objects together may be too large for the memory.
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

// AddLabelFilter returns a LabelFilter that follows the ConfigMap in the install namespace, with a cache of its own that contains
// nothing else.
func AddLabelFilter(mgr ctrl.Manager, namespace string) (*LabelFilter, error) {
	objects, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {
			Namespaces: map[string]cache.Config{namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name", LabelsConfigMap)}},
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
