// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

// MaxNVRAM bounds the file with a guest's EFI variables. Those of OVMF have half a megabyte; QEMU takes flash of up to 8 MiB in all
// (max_fw_size in hw/i386/pc.c).
const MaxNVRAM = 8 << 20

// StateFiles are where a launcher Pod has the state of its machine that lasts.
type StateFiles struct {
	// NVRAM is the file with the EFI variables, empty if they do not last.
	NVRAM string
	// TPM is the directory with the TPM's state, empty if it does not last.
	TPM string
}
