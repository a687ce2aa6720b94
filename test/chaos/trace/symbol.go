// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package trace

import (
	"debug/elf"
	"fmt"
)

// offsetOf returns the offset of a function in a program's file. QEMU exports its functions for its modules.
func offsetOf(program, function string) (uint64, error) {
	file, err := elf.Open(program)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", program, err)
	}
	defer func() { _ = file.Close() }()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return 0, fmt.Errorf("read the symbols of %s: %w", program, err)
	}
	for _, s := range symbols {
		if s.Name != function || elf.ST_TYPE(s.Info) != elf.STT_FUNC {
			continue
		}
		for _, p := range file.Progs {
			if p.Type == elf.PT_LOAD && s.Value >= p.Vaddr && s.Value < p.Vaddr+p.Filesz {
				return s.Value - p.Vaddr + p.Off, nil
			}
		}
	}
	return 0, fmt.Errorf("%s exports no function %s: it cannot be traced", program, function)
}
