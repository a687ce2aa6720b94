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

func TestStorageThatHangsTakesFewThreads(t *testing.T) {
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
	answers, ended := make(chan struct{}), make(chan struct{}, maxHanging)
	began := 0
	for range 3 * maxHanging {
		ctx, cancel := context.WithCancel(t.Context())
		start := make(chan struct{})
		go func() {
			select {
			case <-start: // It hangs from here on.
			case <-t.Context().Done():
			}
			cancel()
		}()
		err := root().Do(ctx, here, func(*Root) error {
			began++
			close(start)
			<-answers
			ended <- struct{}{}
			return nil
		})
		cancel()
		if !errors.Is(err, ErrHanging) {
			t.Fatalf("got %v, want %v", err, ErrHanging)
		}
	}
	if began != maxHanging {
		t.Errorf("%d wait for storage that hangs, want %d", began, maxHanging)
	}
	if err := root().Do(t.Context(), elsewhere, func(*Root) error { return nil }); err != nil {
		t.Errorf("another Pod's storage: %v", err)
	}
	close(answers)
	for range maxHanging {
		<-ended
	}
	for !enter(here) {
		if t.Context().Err() != nil {
			t.Fatal("storage that answers again stays shut off")
		}
	}
	leave(here)
}
