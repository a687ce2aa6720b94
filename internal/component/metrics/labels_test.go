// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestLabelFilter(t *testing.T) {
	labels := map[string]string{"app": "web", "app.kubernetes.io/name": "shop", "team-a/size": "L"}
	all := map[string]string{"label_app": "web", "label_app_kubernetes_io_name": "shop", "label_team_a_size": "L"}
	for name, tc := range map[string]struct {
		data map[string]string
		want map[string]string
	}{
		"no ConfigMap":        {nil, all},
		"no lists":            {map[string]string{}, all},
		"all":                 {map[string]string{"allowlist": "*"}, all},
		"some":                {map[string]string{"allowlist": " app ,other,"}, map[string]string{"label_app": "web"}},
		"none":                {map[string]string{"allowlist": ""}, map[string]string{}},
		"ignored":             {map[string]string{"ignorelist": "team-a/size,app"}, map[string]string{"label_app_kubernetes_io_name": "shop"}},
		"allowed and ignored": {map[string]string{"allowlist": "app,team-a/size", "ignorelist": "app"}, map[string]string{"label_team_a_size": "L"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := NewLabelFilter()
			if tc.data != nil {
				f.set(&corev1.ConfigMap{Data: tc.data})
			}
			if diff := cmp.Diff(tc.want, f.Select("label_", labels)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLabelsAreCapped(t *testing.T) {
	f, many := NewLabelFilter(), map[string]string{}
	for i := range 10 * MaxLabels {
		many[fmt.Sprintf("k%04d", i)] = strings.Repeat("\x00ü\n", 1000)
	}
	got := f.Select("", many)
	if len(got) != MaxLabels {
		t.Errorf("%d labels", len(got))
	}
	for key, value := range got {
		if utf8.RuneCountInString(value) > maxText || strings.ContainsAny(value, "\x00\n") || key >= "k0064" {
			t.Fatalf("%s: %q", key, value)
		}
	}
	// Two keys that become one name are one label.
	if diff := cmp.Diff(map[string]string{"a_b": "2"},
		f.Select("", map[string]string{"a-b": "1", "a.b": "2"})); diff != "" {
		t.Error(diff)
	}
}

// fleet returns objects of a namespace, each with the same number of labels of 60 bytes.
func fleet(namespace string, count, labels int) []Labeled {
	objects := make([]Labeled, count)
	for i := range objects {
		objects[i] = Labeled{UID: types.UID(fmt.Sprintf("%s-%05d", namespace, i)), Namespace: namespace,
			Labels: map[string]string{}, Series: 1}
		for j := range labels {
			objects[i].Labels[fmt.Sprintf("key-%020d", j)] = strings.Repeat("v", 30)
		}
	}
	return objects
}

// labeled returns how many objects of each namespace have labels.
func labeled(b *LabelBudget, objects []Labeled) map[string]int {
	got := map[string]int{}
	for i, labels := range b.Of(objects) {
		if len(labels) > 0 {
			got[objects[i].Namespace]++
		}
	}
	return got
}

func TestLabelsHaveABudget(t *testing.T) {
	const ofOne = 10 * int64(len("label_")+24+30+labelOverhead)
	budget := func() *LabelBudget {
		return &LabelBudget{Filter: NewLabelFilter(), Prefix: "label_", Bytes: 100 * ofOne}
	}
	for name, tc := range map[string]struct {
		objects []Labeled
		want    map[string]int
	}{
		"all fit":                 {fleet("a", 100, 10), map[string]int{"a": 100}},
		"one namespace":           {fleet("a", 1000, 10), map[string]int{"a": 100}},
		"others keep theirs":      {append(fleet("a", 1000, 10), fleet("b", 20, 10)...), map[string]int{"a": 80, "b": 20}},
		"two with many":           {append(append(fleet("a", 1000, 10), fleet("b", 20, 10)...), fleet("c", 60, 10)...), map[string]int{"a": 40, "b": 20, "c": 40}},
		"none that has no labels": {fleet("a", 1000, 0), map[string]int{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, labeled(budget(), tc.objects)); diff != "" {
				t.Error(diff)
			}
		})
	}
	// Those of which each is in many series.
	b, objects := budget(), fleet("a", 100, 10)
	for i := range objects {
		objects[i].Series = 10
	}
	if got := labeled(b, objects); got["a"] != 10 {
		t.Errorf("%d objects have labels", got["a"])
	}
	// The same ones have labels, in whichever order they are listed.
	first := b.Of(objects)
	objects[0], objects[99] = objects[99], objects[0]
	if second := b.Of(objects); first[0] == nil || second[99] == nil || second[0] != nil {
		t.Error("another order of the objects has changed which ones have labels")
	}
}

func TestLabelsChangeAtMostEveryTenMinutes(t *testing.T) {
	now := clocktesting.NewFakePassiveClock(time.Now())
	b := &LabelBudget{Filter: NewLabelFilter(), Bytes: 1 << 20, Clock: now}
	value := func(changed string) string {
		return b.Of([]Labeled{{UID: "a", Labels: map[string]string{"key": changed}, Series: 1}})[0]["key"]
	}
	for _, step := range []struct {
		after time.Duration
		set   string
		want  string
	}{
		{0, "1", "1"}, {time.Minute, "2", "1"}, {8 * time.Minute, "3", "1"}, {time.Minute, "4", "4"},
		{time.Minute, "4", "4"}, {8 * time.Minute, "5", "4"}, {2 * time.Minute, "6", "6"}, {time.Hour, "6", "6"}, {0, "7", "7"}, {0, "8", "7"},
	} {
		now.SetTime(now.Now().Add(step.after))
		if got := value(step.set); got != step.want {
			t.Errorf("%+v: got %s", step, got)
		}
	}
	b.Of(nil)
	if len(b.taken) != 0 {
		t.Errorf("%d objects that are gone are remembered", len(b.taken))
	}
}

// Labels that are taken over stay in memory for ten minutes after they have changed.
func TestLabelsOfAnySizeAreNotKept(t *testing.T) {
	now := clocktesting.NewFakePassiveClock(time.Now())
	small, large := map[string]string{"key": "value"},
		map[string]string{"hidden": strings.Repeat("x", maxKept), "key": "value"}
	for name, bytes := range map[string]int64{"larger than any": 1 << 20, "more than the limit": 200} {
		b := &LabelBudget{Filter: NewLabelFilter(), Bytes: bytes, Clock: now}
		labels := large
		if bytes < 1<<20 {
			labels = fleet("a", 1, 10)[0].Labels
		}
		got := b.Of([]Labeled{{UID: "a", Labels: labels, Series: 1}, {UID: "b", Labels: small, Series: 1}})
		if got[0] != nil || len(got[1]) != 1 || len(b.taken["a"].labels) != 0 || !b.short {
			t.Errorf("%s: got %d labels, %d are kept, and it is short: %t", name, len(got[0]), len(b.taken["a"].labels), b.short)
		}
		now.SetTime(now.Now().Add(relabelInterval))
		if got := b.Of([]Labeled{{UID: "a", Labels: small, Series: 1}}); len(got[0]) != 1 || b.short {
			t.Errorf("%s: got %v for the labels that replace them", name, got[0])
		}
	}
}

// What a budget counts is at least what is selected.
func TestSizeOfLabels(t *testing.T) {
	f, labels := NewLabelFilter(), map[string]string{"app": "web", "long": strings.Repeat("ü", 200), "team.io/a": ""}
	size := int64(0)
	for name, text := range f.Select("label_", labels) {
		size += int64(len(name) + len(text) + labelOverhead)
	}
	if got := f.size("label_", labels); got < size || got > size+256 {
		t.Errorf("got %d, want about %d", got, size)
	}
	f.lists.Store(&lists{allowed: map[string]bool{"app": true}})
	if got := f.size("label_", labels); got != int64(len("label_app")+len("web")+labelOverhead) {
		t.Errorf("with a list: got %d", got)
	}
}
