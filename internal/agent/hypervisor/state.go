// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import "errors"

// MaxNVRAM is the limit for a file with EFI variables in bytes. OVMF's has half a megabyte; QEMU accepts flash of up to 8 MiB in
// all (max_fw_size in hw/i386/pc.c).
const MaxNVRAM = 8 << 20

// StateFiles are the paths of the persistent state of a VM in its launcher Pod.
type StateFiles struct {
	// NVRAM is the file with the EFI variables, empty if they are not persistent.
	NVRAM string
	// TPM is the directory with the TPM's state, empty if it is not persistent.
	TPM string
}

// ErrStateDamaged means that a file of the persistent state of TPM and EFI cannot be used.
var ErrStateDamaged = errors.New("the persistent state is damaged")
