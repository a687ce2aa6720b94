// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package libnbd replaces the binding of libnbd, which the importer uses for one source only: disks of VMware's VDDK
// library. An import from there fails with the error of Create. All other sources read through nbdkit and qemu-img and
// need no binding.
package libnbd

import "errors"

// Constants of the NBD protocol.
const (
	CMD_FLAG_REQ_ONE = 1 << 3 //nolint:revive // the binding's name
	STATE_HOLE       = 1 << 0 //nolint:revive // the binding's name
	STATE_ZERO       = 1 << 1 //nolint:revive // the binding's name
)

var errUnsupported = errors.New(
	"this importer was built without libnbd and cannot import from VMware (source.vddk): use another source")

// Libnbd is never made.
type Libnbd struct{}

// LibnbdError has the message of a failed call.
type LibnbdError struct{ message string }

// ExtentCallback receives the state of extents.
type ExtentCallback func(metacontext string, offset uint64, entries []uint32, err *int) int

// BlockStatusOptargs are the options of BlockStatus.
type BlockStatusOptargs struct {
	FlagsSet bool
	Flags    uint32
}

// PreadOptargs are the options of Pread.
type PreadOptargs struct{}

// Error returns the message.
func (e *LibnbdError) Error() string { return e.message }

// Create returns an error.
func Create() (*Libnbd, error) { return nil, errUnsupported }

// AddMetaContext returns an error.
func (*Libnbd) AddMetaContext(string) error { return errUnsupported }

// ConnectUri returns an error.
func (*Libnbd) ConnectUri(string) error { return errUnsupported } //nolint:revive // the binding's name

// GetSize returns an error.
func (*Libnbd) GetSize() (uint64, error) { return 0, errUnsupported }

// Pread returns an error.
func (*Libnbd) Pread([]byte, uint64, *PreadOptargs) error { return errUnsupported }

// BlockStatus returns an error.
func (*Libnbd) BlockStatus(uint64, uint64, ExtentCallback, *BlockStatusOptargs) error {
	return errUnsupported
}

// Close returns an error.
func (*Libnbd) Close() *LibnbdError { return &LibnbdError{message: errUnsupported.Error()} }
