// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package memorylimit

import (
	"runtime/debug"
	"testing"
)

func TestApply(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	for _, tc := range []struct {
		env, goEnv string
		percentage int64
		want       int64
		fails      bool
	}{
		{env: "", want: before},
		{env: "1000000000", percentage: PureGo, want: 900000000},
		{env: "1000000000", percentage: WithLibvirt, want: 700000000},
		{env: "1000000000", goEnv: "1GiB", want: before},
		{env: "1Gi", want: before, fails: true},
		{env: "0", want: before, fails: true},
	} {
		debug.SetMemoryLimit(before)
		t.Setenv(Env, tc.env)
		t.Setenv("GOMEMLIMIT", tc.goEnv)
		err := Apply(tc.percentage)
		if got := debug.SetMemoryLimit(-1); got != tc.want || (err != nil) != tc.fails {
			t.Errorf("%+v: got %d, %v", tc, got, err)
		}
	}
}
