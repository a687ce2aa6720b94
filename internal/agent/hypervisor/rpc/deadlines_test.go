// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestWaitingForMemoryDoesNotCountTowardsADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d deadlines
		expired := map[string]bool{}
		stop := d.start(10*time.Second, func() { expired["before"] = true })
		defer stop()
		stopDone := d.start(time.Second, func() { expired["ended"] = true })
		stopDone()
		time.Sleep(9 * time.Second)
		resume := d.pause()
		stopDuring := d.start(10*time.Second, func() { expired["during"] = true })
		defer stopDuring()
		time.Sleep(time.Hour)
		resume()
		synctest.Wait()
		if len(expired) != 0 {
			t.Fatalf("expired during the pause: %v", expired)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if !expired["before"] || len(expired) != 1 {
			t.Errorf("after what was left: %v", expired)
		}
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if !expired["during"] || expired["ended"] {
			t.Errorf("after all: %v", expired)
		}
	})
}
