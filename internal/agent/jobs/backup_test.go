// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package jobs

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/decide/backup"
)

// copied is a guest whose disks were copied to a directory that cannot be read for a while.
type copied struct {
	diskBackuper
	err error
}

func (copied) BackupJob(context.Context, string) (backup.Job, error) {
	return backup.Job{State: backup.JobSucceeded}, nil
}

func (c copied) HasImages(context.Context, string, string, []string) (bool, error) {
	return c.err == nil, c.err
}

func (copied) RecordBackup(context.Context, string, backup.Record) error { return nil }

func (copied) ForgetPool(context.Context, string) error { return nil }

func TestBackupHasNotFailedWhileItIsUnknownWhetherItsImagesExist(t *testing.T) {
	errRead := errors.New("the directory cannot be read")
	for name, tc := range map[string]struct {
		// until is for how long the directory cannot be read.
		until   time.Duration
		stage   backup.Stage
		problem string
	}{
		"a moment": {maxUnread - time.Second, backup.Succeeded, ""},
		"for ever": {time.Hour, backup.Failed, errRead.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			s := (&Jobs{}).Of(&phase.Scope{Now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}, &State{})
			start := s.Now
			run := &backupRun{scope: s}
			run.view.Intent = &backup.Intent{ID: "a", Volumes: []string{"root"}}
			run.view.Record = backup.Record{ID: "a", Stage: backup.Running}
			for ; !run.view.Record.Ended(); s.Now = s.Now.Add(30 * time.Second) {
				run.guest = copied{}
				if s.Now.Sub(start) < tc.until {
					run.guest = copied{err: errRead}
				}
				acted, err := run.act(t.Context())
				if acted != (err == nil) || err != nil && !errors.Is(err, errRead) {
					t.Fatalf("acted: %t, error: %v", acted, err)
				}
			}
			if got := run.view.Record; got.Stage != tc.stage || !strings.Contains(got.Problem, tc.problem) {
				t.Errorf("the record is %+v", got)
			}
			if tc.stage == backup.Failed && s.Now.Sub(start) < maxUnread {
				t.Errorf("it failed after %s", s.Now.Sub(start))
			}
		})
	}
}
