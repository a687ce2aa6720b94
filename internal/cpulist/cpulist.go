// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package cpulist reads and writes sets of CPUs as the kernel and libvirt do, such as 0-3,8.
package cpulist

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxCPUs is the largest number of CPUs that Linux can be built for. Source: Linux arch/x86/Kconfig, NR_CPUS_RANGE_END.
const maxCPUs = 8192

// Parse reads a list. An empty one has no CPU.
func Parse(list string) ([]uint, error) {
	var cpus []uint
	if list = strings.TrimSpace(list); list == "" {
		return nil, nil
	}
	for term := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(term, "-")
		if !isRange {
			to = from
		}
		first, err := parse(from)
		if err != nil {
			return nil, fmt.Errorf("CPU list %.80q: %w", list, err)
		}
		last, err := parse(to)
		if err != nil {
			return nil, fmt.Errorf("CPU list %.80q: %w", list, err)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
		if len(cpus) > maxCPUs {
			return nil, fmt.Errorf("CPU list %.80q: more than %d CPUs", list, maxCPUs)
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}

func parse(text string) (uint, error) {
	cpu, err := strconv.ParseUint(text, 10, 32)
	switch {
	case err != nil:
		return 0, errors.Unwrap(err) // Without the text, which has any length.
	case cpu >= maxCPUs:
		return 0, fmt.Errorf("CPU %d is beyond %d", cpu, maxCPUs-1)
	}
	return uint(cpu), nil
}

// Format writes CPUs one by one, in the order in which they are given.
func Format(cpus ...uint) string {
	text := make([]string, 0, len(cpus))
	for _, cpu := range cpus {
		text = append(text, strconv.FormatUint(uint64(cpu), 10))
	}
	return strings.Join(text, ",")
}
