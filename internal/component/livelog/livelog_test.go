// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package livelog

import (
	"testing"

	"github.com/vireo-project/vireo/internal/clusterconfig"
)

func TestSubscriber(t *testing.T) {
	for _, c := range []struct {
		name    string
		minimum int
		spec    uint
		enabled map[int]bool
	}{
		{"raised by the KubeVirt object", 0, 4, map[int]bool{4: true, 5: false}},
		{"not below the process's flag", 3, 1, map[int]bool{3: true, 4: false}},
		{"above the maximum", 0, 1 << 40, map[int]bool{100: true}},
	} {
		l, err := New(c.minimum)
		if err != nil {
			t.Fatal(err)
		}
		config := clusterconfig.Default()
		config.Verbosity.API = c.spec
		l.Subscriber(func(v clusterconfig.Verbosity) uint { return v.API })(config)
		for level, want := range c.enabled {
			if got := l.V(level).Enabled(); got != want {
				t.Errorf("%s: level %d enabled: %t", c.name, level, got)
			}
		}
	}
}
