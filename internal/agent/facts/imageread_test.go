// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package facts

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vireo-project/vireo/internal/limits"
)

type readerFunc func([]byte) (int, error)

func (r readerFunc) Read(b []byte) (int, error) { return r(b) }

// A read from storage that hangs blocks other reads for the timeout only.
func TestHangingReadBlocksOthersForTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue, recovered := limits.NewQueue(1), make(chan struct{})
		read := func(ctx context.Context, from readerFunc) chan error {
			done := make(chan error, 1)
			go func() {
				_, err := queuedReader{ctx: ctx, namespace: "team", queue: queue, timeout: readTimeout, from: from}.Read(nil)
				done <- err
			}()
			synctest.Wait()
			return done
		}
		quick := readerFunc(func([]byte) (int, error) { return 0, nil })
		hangs := read(t.Context(), func([]byte) (int, error) {
			<-recovered
			return 0, io.EOF
		})
		ctx, cancel := context.WithCancel(t.Context())
		canceled, waits := read(ctx, quick), read(t.Context(), quick)
		cancel()
		if err := <-canceled; err == nil {
			t.Error("a canceled read succeeded")
		}
		if len(waits) > 0 {
			t.Error("two reads at a time")
		}
		since := time.Now()
		if err := <-waits; err != nil || time.Since(since) != readTimeout {
			t.Errorf("the next read returned after %s: %v", time.Since(since), err)
		}
		// When the read that hung returns after all, its slot is not released twice.
		close(recovered)
		if err := <-hangs; !errors.Is(err, io.EOF) {
			t.Errorf("the read that hung: %v", err)
		}
		if err := <-read(t.Context(), quick); err != nil {
			t.Error(err)
		}
	})
}
