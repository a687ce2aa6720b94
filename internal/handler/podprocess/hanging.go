// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// maxHanging is how many accesses to a Pod's files may wait for storage at a time. The kernel ends none of them before the storage
// answers, and each has a thread: a claim on a server that is gone would cost the agent one more with each reconcile.
const maxHanging = 4

// ErrHanging means that storage of a Pod does not answer, and that enough waits for it already.
var ErrHanging = errors.New("storage of the launcher Pod does not answer")

var hanging = struct {
	sync.Mutex
	by map[types.UID]int
}{by: map[types.UID]int{}}

// Do does something with the files of a Pod, and returns when that is done or the context ends. What was
// begun goes on then: it must not touch what the caller goes on with. The root is closed when it is done.
func (r *Root) Do(ctx context.Context, pod types.UID, do func(*Root) error) error {
	if !enter(pod) {
		_ = r.Close()
		return ErrHanging
	}
	done := make(chan error, 1)
	go func() {
		defer leave(pod)
		defer func() { _ = r.Close() }()
		done <- do(r)
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
