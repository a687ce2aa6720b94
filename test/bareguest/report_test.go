// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package bareguest

import (
	"fmt"
	"strings"
	"testing"
)

// output returns what a guest writes that has written 400 pages a second, at each of the seconds.
func output(seconds ...uint32) string {
	var b strings.Builder
	for _, second := range seconds {
		written := 400 * second
		inBlock := min(written, pages)
		var sum uint32
		for page := written - inBlock; page < written; page++ {
			sum += page
		}
		fmt.Fprintf(&b, "guest-bare: second=%d ticks=%d clock=kvmclock cpus=2 written=%d sum=%08x wrong=0\r\n", second,
			100*second, written, sum)
	}
	return b.String()
}

func TestReports(t *testing.T) {
	text := "\r\n" + Ready + "\r\n" + output(1, 2) + "hello" + output(3) + "guest-bare: second=4 ti"
	if got := len(Reports(text)); got != 3 {
		t.Errorf("got %d reports, want 3", got)
	}
	want := Report{Clock: "kvmclock", Second: 3, Ticks: 300, CPUs: 2, Written: 1200, Sum: 719400}
	if got := Last(text); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := Last(Ready); got != (Report{}) {
		t.Errorf("got %+v before the first report", got)
	}
}

func TestCheck(t *testing.T) {
	for name, test := range map[string]struct {
		output  string
		missing int
		want    string
	}{
		"each second, also when all pages were rewritten": {output(1, 2, 3, 4, 5, 6, 7), 0, ""},
		"a missing second":                      {output(1, 2, 4), 0, "reports are missing before {Clock:kvmclock Second:4"},
		"as many missing as allowed":            {output(1, 3, 5), 2, ""},
		"more missing than allowed":             {output(1, 3, 5), 1, "reports are missing before {Clock:kvmclock Second:5"},
		"the same second again":                 {output(1, 2, 2), 0, "the guest's counters have not grown"},
		"a second before":                       {output(3, 2), 3, "the guest's counters have not grown"},
		"a lost page":                           {strings.Replace(output(1), "sum=00", "sum=01", 1), 0, "the guest's memory is wrong"},
		"a word that the guest has not written": {strings.Replace(output(1), "wrong=0", "wrong=1", 1), 0, "the guest's memory is wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Check(Reports(test.output), test.missing)
			if got := fmt.Sprint(err); test.want == "" && err != nil || !strings.Contains(got, test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
