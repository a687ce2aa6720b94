// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcherpod"
	rpc "github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

func TestOutcome(t *testing.T) {
	event := func(kind rpc.EventType, detail int32) rpc.Event { return rpc.Event{Type: kind, Detail: detail} }
	started := event(rpc.EventStarted, 0)
	cases := map[string]struct {
		events          []rpc.Event
		stop, destroyed bool
		reason          string
		code            int
	}{
		"never started":                      {nil, true, false, launcherpod.OutcomeNotStarted, 0},
		"start failed":                       {[]rpc.Event{event(rpc.EventStopped, rpc.StoppedFailed)}, true, false, launcherpod.OutcomeNotStarted, 0},
		"powered off":                        {[]rpc.Event{started, event(rpc.EventShutdown, rpc.ShutdownGuest), event(rpc.EventStopped, rpc.StoppedShutdown)}, false, false, launcherpod.OutcomeShutdown, 0},
		"powered off on request":             {[]rpc.Event{started, event(rpc.EventStopped, rpc.StoppedShutdown)}, true, false, launcherpod.OutcomeShutdown, 0},
		"grace period over":                  {[]rpc.Event{started, event(rpc.EventStopped, rpc.StoppedDestroyed)}, true, true, launcherpod.OutcomeDestroyed, 0},
		"destroyed by the agent":             {[]rpc.Event{started, event(rpc.EventStopped, rpc.StoppedDestroyed)}, true, false, launcherpod.OutcomeDestroyed, 0},
		"destroyed by a stranger":            {[]rpc.Event{started, event(rpc.EventStopped, rpc.StoppedDestroyed)}, false, false, launcherpod.OutcomeKilled, 1},
		"QEMU got a signal and ended":        {[]rpc.Event{started, event(rpc.EventShutdown, rpc.ShutdownHost), event(rpc.EventStopped, rpc.StoppedShutdown)}, false, false, launcherpod.OutcomeKilled, 1},
		"QEMU died":                          {[]rpc.Event{started, event(rpc.EventStopped, rpc.StoppedFailed)}, false, false, launcherpod.OutcomeCrashed, 1},
		"QEMU crashed during a stop":         {[]rpc.Event{started, event(rpc.EventStopped, rpc.StoppedCrashed)}, true, false, launcherpod.OutcomeCrashed, 1},
		"panicked":                           {[]rpc.Event{started, event(rpc.EventCrashed, rpc.CrashedPanicked), event(rpc.EventStopped, rpc.StoppedCrashed)}, false, false, launcherpod.OutcomePanicked, 1},
		"migrated":                           {[]rpc.Event{started, event(rpc.EventStopped, rpc.StoppedMigrated)}, false, false, launcherpod.OutcomeMigrated, 0},
		"paused and resumed changes nothing": {[]rpc.Event{started, event(rpc.EventSuspended, 0), event(rpc.EventResumed, 0), event(rpc.EventStopped, rpc.StoppedShutdown)}, false, false, launcherpod.OutcomeShutdown, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			g := guest{stopRequested: c.stop, destroyed: c.destroyed}
			for _, event := range c.events {
				g.observe(event)
			}
			outcome, code := g.outcome(nil)
			if outcome.Reason != c.reason || code != c.code || outcome.Message == "" {
				t.Errorf("got %+v and %d, want %s and %d", outcome, code, c.reason, c.code)
			}
		})
	}
}

func TestSetState(t *testing.T) {
	cases := map[string]struct {
		state          rpc.State
		reason         rpc.ShutoffReason
		before         bool
		started, ended bool
		end            int32
	}{
		"runs":                      {rpc.StateRunning, 0, false, true, false, 0},
		"paused":                    {rpc.StatePaused, 0, false, true, false, 0},
		"defined only":              {rpc.StateShutoff, rpc.ShutoffUnknown, false, false, false, 0},
		"start failed":              {rpc.StateShutoff, rpc.ShutoffFailed, false, false, false, 0},
		"ended while not watched":   {rpc.StateShutoff, rpc.ShutoffShutdown, false, true, true, rpc.StoppedShutdown},
		"crashed while not watched": {rpc.StateShutoff, rpc.ShutoffCrashed, true, true, true, rpc.StoppedCrashed},
		"ended for no known reason": {rpc.StateShutoff, rpc.ShutoffUnknown, true, true, true, rpc.StoppedFailed},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			g := guest{started: c.before}
			g.setState(c.state, int32(c.reason))
			if g.started != c.started || g.ended != c.ended || g.end != c.end {
				t.Errorf("got %+v", g)
			}
		})
	}
}

func TestCrashNamesTheSignal(t *testing.T) {
	g := guest{started: true, ended: true, end: rpc.StoppedFailed}
	status := unix.WaitStatus(unix.SIGKILL)
	if outcome, _ := g.outcome(&status); !strings.Contains(outcome.Message, "SIGKILL") ||
		!strings.Contains(outcome.Message, "memory") {
		t.Errorf("the message is %q", outcome.Message)
	}
}

func TestLogFormat(t *testing.T) {
	var out bytes.Buffer
	log := logr.FromSlogHandler(NewLogHandler(&out, slog.LevelInfo))
	log.Error(errors.New("broken"), "Cannot do it", "pid", 7)
	log.V(1).Info("hidden")
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%q: %v", out.String(), err)
	}
	if line["level"] != "error" || line["msg"] != "Cannot do it" || line["error"] != "broken" || line["pid"] != 7.0 {
		t.Errorf("the line is %v", line)
	}
	if _, err := time.Parse(time.RFC3339Nano, line["ts"].(string)); err != nil {
		t.Error(err)
	}
}

func TestValidateOptions(t *testing.T) {
	good := Options{Name: "a", Namespace: "b"}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for want, o := range map[string]Options{
		"--name":                 {Namespace: "b"},
		"--namespace":            {Name: "a"},
		"--grace-period-seconds": {Name: "a", Namespace: "b", GracePeriod: -time.Second},
	} {
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error about %s", err, want)
		}
	}
}

func TestNotDefinedDomainHasEndedIfItRan(t *testing.T) {
	ran, fresh := guest{started: true}, guest{}
	ran.notDefined()
	fresh.notDefined()
	if outcome, code := ran.outcome(nil); !ran.ended || outcome.Reason != launcherpod.OutcomeCrashed || code == 0 {
		t.Errorf("a guest that ran: %+v, %+v", ran, outcome)
	}
	if fresh.ended {
		t.Error("a guest that never ran has ended")
	}
}
