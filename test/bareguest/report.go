// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package bareguest reads what the guest without an operating system (images/guest-bare) writes to its serial port.
package bareguest

import (
	"fmt"
	"regexp"
	"strconv"
)

// What the guest writes, and the keys that it reads.
const (
	// Ready is written when the guest starts to count.
	Ready = "guest-bare: ready"
	// PoweringOff is written before the guest powers off, for the machine's power button too.
	PoweringOff = "guest-bare: powering off"
	// KeyPowerOff makes the guest power off.
	KeyPowerOff = "q"
	// KeyPanic makes the guest panic.
	KeyPanic = "p"
	// KeyInternalError makes the guest execute what KVM cannot emulate.
	KeyInternalError = "x"
)

// pages is the number of pages that the guest writes again and again.
const pages = 2048

// Report is a line that the guest writes each second. images/guest-bare/main.c explains its fields.
type Report struct {
	Clock                                    string
	Second, Ticks, CPUs, Written, Sum, Wrong uint32
}

var line = regexp.MustCompile(
	`guest-bare: second=(\d+) ticks=(\d+) clock=(\w+) cpus=(\d+) written=(\d+) sum=([0-9a-f]{8}) wrong=(\d+)\r?\n`)

// Reports returns the reports in the guest's output. Incomplete lines are ignored.
func Reports(output string) []Report {
	lines := line.FindAllStringSubmatch(output, -1)
	reports := make([]Report, 0, len(lines))
	for _, found := range lines {
		number := func(group, base int) uint32 {
			// The pattern allows digits only. The guest's numbers have 32 bits: a larger one is not its own.
			value, _ := strconv.ParseUint(found[group], base, 32)
			return uint32(value)
		}
		reports = append(reports, Report{
			Second: number(1, 10), Ticks: number(2, 10), Clock: found[3], CPUs: number(4, 10), Written: number(5, 10),
			Sum: number(6, 16), Wrong: number(7, 10),
		})
	}
	return reports
}

// Last returns the last report in the guest's output, or a zero one if there is none.
func Last(output string) Report {
	reports := Reports(output)
	if len(reports) == 0 {
		return Report{}
	}
	return reports[len(reports)-1]
}

// Check returns an error unless the counters of the reports grow, no report but at most `missing` is missing, and the
// guest's memory has what the guest has written.
func Check(reports []Report, missing int) error {
	var last Report
	for _, r := range reports {
		if r.Second <= last.Second || r.Ticks <= last.Ticks || r.Written <= last.Written {
			return fmt.Errorf("the guest's counters have not grown: %+v after %+v", r, last)
		}
		if missing -= int(r.Second - last.Second - 1); missing < 0 {
			return fmt.Errorf("reports are missing before %+v: the last one was %+v", r, last)
		}
		inBlock := min(r.Written, pages)
		if sum := inBlock*r.Written - inBlock*(inBlock+1)/2; r.Sum != sum || r.Wrong != 0 {
			return fmt.Errorf("the guest's memory is wrong: %+v, the sum should be %08x", r, sum)
		}
		last = r
	}
	return nil
}
