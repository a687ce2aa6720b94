// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// expirations are the names of the calls whose deadline has passed; each timer calls back from its own goroutine.
type expirations struct {
	sync.Mutex
	names []string
}

func (e *expirations) of(name string) func() {
	return func() {
		e.Lock()
		defer e.Unlock()
		e.names = append(e.names, name)
	}
}

func (e *expirations) expect(t *testing.T, when string, names ...string) {
	t.Helper()
	synctest.Wait()
	e.Lock()
	defer e.Unlock()
	if !slices.Equal(e.names, names) {
		t.Errorf("%s: expired %v, want %v", when, e.names, names)
	}
}

func TestWaitingForMemoryDoesNotCountTowardsADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d deadlines
		var expired expirations
		stop := d.start(10*time.Second, expired.of("before"))
		defer stop()
		stopDone := d.start(time.Second, expired.of("ended"))
		stopDone()
		time.Sleep(9 * time.Second)
		resume := d.pause()
		stopDuring := d.start(10*time.Second, expired.of("during"))
		defer stopDuring()
		time.Sleep(time.Hour)
		resume()
		expired.expect(t, "during the pause")
		time.Sleep(time.Second)
		expired.expect(t, "after what was left", "before")
		time.Sleep(9 * time.Second)
		expired.expect(t, "after all", "before", "during")
	})
}

func TestLargeResponsesPauseTheDeadlinesWhileTheyWaitForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r relay
		var expired expirations
		defer r.deadlines.start(time.Second, expired.of("call"))()
		r.large.set(func() error {
			time.Sleep(time.Hour)
			return nil
		})
		defer r.large.set(nil)
		if err := r.large.admit(&r); err != nil {
			t.Fatal(err)
		}
		expired.expect(t, "while the response waited")
		time.Sleep(time.Second)
		expired.expect(t, "once it may be received", "call")
	})
}
