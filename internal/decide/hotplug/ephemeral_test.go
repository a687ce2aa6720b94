// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hotplug_test

import (
	"testing"

	"github.com/vireo-project/vireo/internal/decide/hotplug"
)

func TestWithEphemeral(t *testing.T) {
	for _, tc := range []struct {
		name, annotation string
		template         func(*spec)
		instance         func(*vmi)
		want, kept       string
	}{
		{"a volume of the VMI only", `["more"]`, nil, nil, "data=data-claim, more=more-claim, root, disk data, disk more, disk root, disk tray", `["more"]`},
		{"a volume that no one names", "", nil, nil, "data=data-claim, root, disk data, disk root, disk tray", ""},
		{"a text that is no list", `more`, nil, nil, "data=data-claim, root, disk data, disk root, disk tray", `more`},
		{"a volume that is gone", `["gone","more"]`, nil, nil,
			"data=data-claim, more=more-claim, root, disk data, disk more, disk root, disk tray", `["gone","more"]`},
		{"a volume of the Pod", `["root"]`, func(s *spec) { hotplug.Remove(s, "root") }, nil, "data=data-claim, disk data, disk tray", `["root"]`},
		{"a volume that the VM has got", `["more"]`, func(s *spec) { add(s, "more", "more-claim") }, nil,
			"data=data-claim, more=more-claim, root, disk data, disk more, disk root, disk tray", ""},
		{"a medium in a drive of the VM", `["tray"]`, nil, func(v *vmi) { insert(&v.Spec, "tray", "iso") },
			"data=data-claim, root, tray=iso, disk data, disk root, disk tray", `["tray"]`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			template, instance := started()
			add(&instance.Spec, "more", "more-claim")
			instance.Annotations = map[string]string{}
			if tc.annotation != "" {
				instance.Annotations[hotplug.EphemeralAnnotation] = tc.annotation
			}
			if tc.template != nil {
				tc.template(template)
			}
			if tc.instance != nil {
				tc.instance(instance)
			}
			before := template.DeepCopy()
			if got := describe(hotplug.WithEphemeral(instance, template)); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			if got := describe(template); got != describe(before) {
				t.Errorf("the template was changed: %s", got)
			}
			if got := instance.Annotations[hotplug.EphemeralAnnotation]; got != tc.kept {
				t.Errorf("the annotation is %q, want %q", got, tc.kept)
			}
		})
	}
}
