// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package livelog

import (
	"testing"

	"github.com/vireo-project/vireo/internal/clusterconfig"
)

func TestFollow(t *testing.T) {
	for _, c := range []struct {
		name  string
		least int
		asked uint
		on    map[int]bool
	}{
		{"the object raises it", 0, 4, map[int]bool{4: true, 5: false}},
		{"never below what the process was started with", 3, 1, map[int]bool{3: true, 4: false}},
		{"more than there is", 0, 1 << 40, map[int]bool{100: true}},
	} {
		l, err := New(c.least)
		if err != nil {
			t.Fatal(err)
		}
		config := clusterconfig.Default()
		config.Verbosity.API = c.asked
		l.Follow(func(v clusterconfig.Verbosity) uint { return v.API })(config)
		for level, want := range c.on {
			if got := l.V(level).Enabled(); got != want {
				t.Errorf("%s: level %d is on: %t", c.name, level, got)
			}
		}
	}
}
