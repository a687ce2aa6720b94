// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package limits

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// maxHanging is how many accesses to a Pod's files may hang at a time. The kernel does not interrupt them, and each
// blocks a thread: with a claim on a server that is gone, each reconciliation would block another one.
const maxHanging = 4

// ErrHanging means that a Pod's storage does not respond.
var ErrHanging = errors.New("storage of the launcher Pod does not respond")

var hanging = struct {
	sync.Mutex
	by map[types.UID]int
}{by: map[types.UID]int{}}

// Access calls do with a file of a Pod, and returns when that returns or the context is done. do may still run then, so
// it must not access what the caller uses afterwards. Access closes the file when do has returned. It fails at once if
// too many accesses to the Pod's files hang.
func Access(ctx context.Context, pod types.UID, file io.Closer, do func() error) error {
	if !enter(pod) {
		_ = file.Close()
		return ErrHanging
	}
	done := make(chan error, 1)
	go func() {
		defer leave(pod)
		defer func() { _ = file.Close() }()
		done <- do()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrHanging, ctx.Err())
	}
}

func enter(pod types.UID) bool {
	hanging.Lock()
	defer hanging.Unlock()
	if hanging.by[pod] >= maxHanging {
		return false
	}
	hanging.by[pod]++
	return true
}

func leave(pod types.UID) {
	hanging.Lock()
	defer hanging.Unlock()
	if hanging.by[pod]--; hanging.by[pod] == 0 {
		delete(hanging.by, pod)
	}
}
