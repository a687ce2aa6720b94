// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package backup

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/vireo-project/vireo/api/v1"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestDecide(t *testing.T) {
	open, canceled, other := &Intent{ID: "a"}, &Intent{ID: "a", Canceled: true}, &Intent{ID: "b"}
	requested, running := Record{ID: "a", Stage: Requested, StartedAt: now},
		Record{ID: "a", Stage: Running, StartedAt: now}
	pull, pullCanceled := &Intent{ID: "a", Pull: true}, &Intent{ID: "a", Pull: true, Canceled: true}
	served := Record{ID: "a", Stage: Running, StartedAt: now, Pull: true}
	requestedPull, canceledPull, fullPull := served, served, served
	requestedPull.Stage, canceledPull.Canceled, fullPull.Problem = Requested, true, "full"
	ended := func(r Record, stage Stage, problem string) Record {
		r.Stage, r.EndedAt, r.Problem = stage, now, problem
		return r
	}
	since := func(r Record, checkpoint, because string) Record {
		r.Since, r.FullBecause = checkpoint, because
		return r
	}
	for name, tc := range map[string]struct {
		view   View
		action Action
		record Record
	}{
		"nothing is wanted":                 {View{}, Wait, Record{}},
		"a backup is wanted":                {View{Intent: open}, Request, requested},
		"its volume is not there":           {View{Intent: open, Blocked: true}, Wait, Record{}},
		"another job runs":                  {View{Intent: open, Job: Job{State: JobOther}}, Wait, Record{}},
		"a backup without a record runs":    {View{Intent: open, Job: Job{State: JobActive}}, Abort, Record{}},
		"an earlier result":                 {View{Intent: open, Job: Job{State: JobSucceeded}}, Request, requested},
		"canceled before the start":         {View{Intent: canceled}, Write, ended(requested, Failed, problemCanceled)},
		"a backup that has ended":           {View{Intent: open, Record: ended(running, Succeeded, "")}, Wait, ended(running, Succeeded, "")},
		"the next one":                      {View{Intent: other, Record: ended(running, Failed, "no")}, Request, Record{ID: "b", Stage: Requested, StartedAt: now}},
		"requested":                         {View{Intent: open, Record: requested}, Begin, requested},
		"requested, but its volume is gone": {View{Intent: open, Record: requested, Blocked: true}, Wait, requested},
		"libvirt refuses":                   {View{Intent: open, Record: requested, Problem: "no"}, Write, ended(requested, Failed, "no")},
		"libvirt refuses an incremental one": {
			View{Intent: open, Record: since(requested, "c", ""), Problem: "broken", Only: true}, Write,
			since(requested, "", "libvirt refused an incremental one: broken"),
		},
		"libvirt refuses an incremental one, and may begin it later": {
			View{Intent: open, Record: since(requested, "c", ""), Problem: "broken"}, Write,
			ended(since(requested, "c", ""), Failed, "broken"),
		},
		"libvirt refuses a full one, too": {
			View{Intent: open, Record: since(requested, "", "why"), Problem: "no", Only: true}, Write,
			ended(since(requested, "", "why"), Failed, "no"),
		},
		"requested and canceled":                 {View{Intent: canceled, Record: requested}, Write, ended(requested, Failed, problemCanceled)},
		"requested and runs":                     {View{Intent: open, Record: requested, Job: Job{State: JobActive}}, Write, running},
		"requested and complete":                 {View{Intent: open, Record: requested, Job: Job{State: JobSucceeded}}, Write, ended(requested, Succeeded, "")},
		"requested, canceled and runs":           {View{Intent: canceled, Record: requested, Job: Job{State: JobActive}}, Abort, requested},
		"runs":                                   {View{Intent: open, Record: running, Job: Job{State: JobActive}}, Wait, running},
		"runs without an intent":                 {View{Record: running, Job: Job{State: JobActive}}, Abort, running},
		"runs for another intent":                {View{Intent: other, Record: running, Job: Job{State: JobActive}}, Abort, running},
		"has run":                                {View{Intent: open, Record: running, Job: Job{State: JobSucceeded}}, Write, ended(running, Succeeded, "")},
		"has run, but there are no images":       {View{Intent: open, Record: running, Job: Job{State: JobSucceeded}}, Write, ended(running, Failed, problemMissing)},
		"has run, and was canceled too late":     {View{Intent: canceled, Record: running, Job: Job{State: JobSucceeded}}, Write, ended(running, Succeeded, "")},
		"has failed":                             {View{Intent: open, Record: running, Job: Job{State: JobFailed, Problem: "no"}}, Write, ended(running, Failed, "no")},
		"has failed for no reason":               {View{Intent: open, Record: running, Job: Job{State: JobFailed}}, Write, ended(running, Failed, problemFailed)},
		"has run, but nobody knows how it ended": {View{Intent: open, Record: running}, Write, ended(running, Failed, problemLost)},

		"a pull is wanted":                      {View{Intent: pull}, Request, requestedPull},
		"a pull is canceled before the start":   {View{Intent: pullCanceled}, Write, ended(requestedPull, Failed, problemCanceled)},
		"a pull is requested and runs":          {View{Intent: pull, Record: requestedPull, Job: Job{State: JobActive}}, Write, served},
		"a pull is requested, another job runs": {View{Intent: pull, Record: requestedPull, Job: Job{State: JobActive}, Foreign: true}, Abort, requestedPull},
		"a pull, requested, canceled and runs":  {View{Intent: pullCanceled, Record: requestedPull, Job: Job{State: JobActive}}, Abort, requestedPull},
		"a pull, requested, ended by others":    {View{Intent: pull, Record: requestedPull, Job: Job{State: JobSucceeded}}, Write, ended(requestedPull, Failed, problemStopped)},
		"a pull, requested, canceled and ended": {View{Intent: pullCanceled, Record: requestedPull, Job: Job{State: JobSucceeded}}, Write, ended(requestedPull, Failed, problemCanceled)},
		"a pull runs":                           {View{Intent: pull, Record: served, Job: Job{State: JobActive}}, Wait, served},
		"a pull runs and is canceled":           {View{Intent: pullCanceled, Record: served, Job: Job{State: JobActive}}, Write, canceledPull},
		"a pull that is to be ended":            {View{Intent: pullCanceled, Record: canceledPull, Job: Job{State: JobActive}}, Abort, canceledPull},
		"a pull was ended":                      {View{Intent: pullCanceled, Record: canceledPull, Job: Job{State: JobSucceeded}}, Write, ended(canceledPull, Succeeded, "")},
		"a pull was ended, and an old VMI read": {View{Record: canceledPull, Job: Job{State: JobSucceeded}}, Write, ended(canceledPull, Succeeded, "")},
		"a pull was ended, nobody knows how":    {View{Intent: pullCanceled, Record: canceledPull}, Write, ended(canceledPull, Succeeded, "")},
		"a pull was ended, and then it failed":  {View{Intent: pullCanceled, Record: canceledPull, Job: Job{State: JobFailed}}, Write, ended(canceledPull, Succeeded, "")},
		"a pull was ended, another job runs":    {View{Intent: pullCanceled, Record: canceledPull, Job: Job{State: JobOther}}, Wait, canceledPull},
		"a pull whose end nobody knows":         {View{Intent: pullCanceled, Record: served}, Write, ended(served, Failed, problemLost)},
		"a pull without an intent":              {View{Record: served, Job: Job{State: JobActive}}, Abort, served},
		"a pull was ended by others":            {View{Intent: pull, Record: served, Job: Job{State: JobSucceeded}}, Write, ended(served, Failed, problemStopped)},
		"a pull has no room":                    {View{Intent: pull, Record: served, Job: Job{State: JobActive}, NoRoom: "full"}, Write, fullPull},
		"a pull without room is to be ended":    {View{Intent: pull, Record: fullPull, Job: Job{State: JobActive}}, Abort, fullPull},
		"a pull without room was ended":         {View{Intent: pullCanceled, Record: fullPull, Job: Job{State: JobSucceeded}}, Write, ended(fullPull, Failed, "full")},
		"a pull without room, nobody knows how": {View{Intent: pull, Record: fullPull}, Write, ended(fullPull, Failed, "full")},
		"a copy is requested, a late pull runs": {View{Intent: open, Record: requested, Job: Job{State: JobActive}, Foreign: true}, Abort, requested},
	} {
		tc.view.Now, tc.view.Images = now, !strings.HasSuffix(name, "no images")
		action, record := Decide(tc.view)
		if action != tc.action {
			t.Errorf("%s: the action is %d, not %d", name, action, tc.action)
		}
		if diff := cmp.Diff(tc.record, record); diff != "" {
			t.Errorf("%s: record (-want +got):\n%s", name, diff)
		}
	}
}

func TestStatus(t *testing.T) {
	intent := &Intent{ID: "a", UtilityVolume: "target", Directory: "vm/b-1", FilePrefix: "b-", Volumes: []string{"root"},
		Canceled:   true,
		Checkpoint: "c", Since: "b", Kept: []string{"a", "b"}, Pull: true,
		Exporter: Exporter{IP: "10.0.0.1", Port: ExporterPort, ServerName: "virt-export-b.shop.svc", UID: "u"}}
	record := Record{ID: "a", Stage: Failed, StartedAt: now, EndedAt: now.Add(time.Minute), Problem: "no", Checkpoint: "c",
		Since: "b", FullBecause: "why",
		Pull: true, Canceled: true}
	raw, err := json.Marshal(
		v1.VirtualMachineInstanceStatus{DiskBackup: intent.Status(), DiskBackupRecord: record.Status()})
	if err != nil {
		t.Fatal(err)
	}
	stored := &v1.VirtualMachineInstanceStatus{}
	if err := json.Unmarshal(raw, stored); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(intent, IntentOf(stored)); diff != "" {
		t.Errorf("intent (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(record, RecordOf(stored)); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	if got := intent.File("root"); got != "vm/b-1/b-root.scratch.qcow2" {
		t.Errorf("the file is %s", got)
	}
	var none *Intent
	empty := &v1.VirtualMachineInstanceStatus{}
	if none.Status() != nil || IntentOf(empty) != nil || RecordOf(empty) != (Record{}) || (Record{}).Status() != nil {
		t.Error("something out of nothing")
	}
}

func TestInProgress(t *testing.T) {
	for name, tc := range map[string]struct {
		intent *Intent
		record Record
		want   bool
	}{
		"none":                  {nil, Record{}, false},
		"wanted":                {&Intent{ID: "a"}, Record{}, true},
		"canceled":              {&Intent{ID: "a", Canceled: true}, Record{}, false},
		"running":               {&Intent{ID: "a"}, Record{ID: "a", Stage: Running}, true},
		"running and canceled":  {&Intent{ID: "a", Canceled: true}, Record{ID: "a", Stage: Running}, true},
		"running and forgotten": {nil, Record{ID: "a", Stage: Running}, true},
		"ended":                 {&Intent{ID: "a"}, Record{ID: "a", Stage: Failed}, false},
		"the next one":          {&Intent{ID: "b"}, Record{ID: "a", Stage: Failed}, true},
	} {
		status := &v1.VirtualMachineInstanceStatus{DiskBackup: tc.intent.Status(), DiskBackupRecord: tc.record.Status()}
		if got := InProgress(status); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
