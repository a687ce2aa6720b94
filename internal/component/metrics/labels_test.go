// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
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
	if diff := cmp.Diff(map[string]string{"a_b": "2"}, f.Select("", map[string]string{"a-b": "1", "a.b": "2"})); diff != "" {
		t.Error(diff)
	}
}
