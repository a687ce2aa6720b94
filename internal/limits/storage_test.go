// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package limits

import (
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func TestHangingStorageBlocksFewThreads(t *testing.T) {
	file := io.NopCloser(nil)
	const here, elsewhere = types.UID("here"), types.UID("elsewhere")
	resume, returned := make(chan struct{}), make(chan struct{}, maxHanging)
	calls := 0
	for range 3 * maxHanging {
		ctx, cancel := context.WithCancel(t.Context())
		start := make(chan struct{})
		go func() {
			select {
			case <-start: // It hangs now.
			case <-t.Context().Done():
			}
			cancel()
		}()
		err := Access(ctx, here, file, func() error {
			calls++
			close(start)
			<-resume
			returned <- struct{}{}
			return nil
		})
		cancel()
		if !errors.Is(err, ErrHanging) {
			t.Fatalf("got %v, want %v", err, ErrHanging)
		}
	}
	if calls != maxHanging {
		t.Errorf("%d accesses hang, want %d", calls, maxHanging)
	}
	if err := Access(t.Context(), elsewhere, file, func() error { return nil }); err != nil {
		t.Errorf("another Pod's storage: %v", err)
	}
	close(resume)
	for range maxHanging {
		<-returned
	}
	for deadline := time.Now().Add(20 * time.Second); !enter(here); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("storage that responds again is still blocked")
		}
	}
	leave(here)
}
