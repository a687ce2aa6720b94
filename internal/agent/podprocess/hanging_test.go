// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess

import (
	"context"
	"errors"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestHangingStorageBlocksFewThreads(t *testing.T) {
	self, err := os.Open("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = self.Close() }()
	root := func() *Root {
		r, err := OpenRoot(self)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
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
		err := root().Do(ctx, here, func(*Root) error {
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
	if err := root().Do(t.Context(), elsewhere, func(*Root) error { return nil }); err != nil {
		t.Errorf("another Pod's storage: %v", err)
	}
	close(resume)
	for range maxHanging {
		<-returned
	}
	for !acquire(here) {
		if t.Context().Err() != nil {
			t.Fatal("storage that responds again is still blocked")
		}
	}
	release(here)
}
