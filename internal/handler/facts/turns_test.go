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

	"github.com/vireo-project/vireo/internal/handler/turns"
)

// readerFunc is a reader.
type readerFunc func([]byte) (int, error)

func (r readerFunc) Read(b []byte) (int, error) { return r(b) }

// Storage that hangs keeps others waiting for a while, and then its own read only.
func TestImagesAreReadInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared, answers := turns.New(1), make(chan struct{})
		read := func(ctx context.Context, from readerFunc) chan error {
			done := make(chan error, 1)
			go func() {
				_, err := inTurns{ctx: ctx, namespace: "team", turns: shared, patience: readPatience, from: from}.Read(nil)
				done <- err
			}()
			synctest.Wait()
			return done
		}
		quick := readerFunc(func([]byte) (int, error) { return 0, nil })
		hangs := read(t.Context(), func([]byte) (int, error) {
			<-answers
			return 0, io.EOF
		})
		ctx, cancel := context.WithCancel(t.Context())
		canceled, waits := read(ctx, quick), read(t.Context(), quick)
		cancel()
		if err := <-canceled; err == nil {
			t.Error("it was read for nobody")
		}
		if len(waits) > 0 {
			t.Error("two read at a time")
		}
		since := time.Now()
		if err := <-waits; err != nil || time.Since(since) != readPatience {
			t.Errorf("it was read after %s: %v", time.Since(since), err)
		}
		// It comes to its end after all, and takes nobody's turn away.
		close(answers)
		if err := <-hangs; !errors.Is(err, io.EOF) {
			t.Errorf("the read that hung: %v", err)
		}
		if err := <-read(t.Context(), quick); err != nil {
			t.Error(err)
		}
	})
}
