// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package content

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBackups(t *testing.T) {
	for raw, want := range map[string]string{
		`{"export":"e","volumes":null,"backup":{"volumes":["root"],"client":"node.virt-handler-backup","ca":"x"}}`: "",
		`{"export":"e","backup":{"volumes":["../root"],"client":"c"}}`:                                             `"../root"`,
		`{"export":"e","backup":{"volumes":["root"]}}`:                                                             "no client",
		`{"export":"e","volumes":[{"name":"root"}],"backup":{"volumes":["root"],"client":"c"}}`:                    "both",
	} {
		_, err := Parse([]byte(raw))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", raw, err)
		}
	}
	if MapPath("root") != "/exports/root/map" || DataPath("root") != "/exports/root/data" {
		t.Error("the paths are not KubeVirt's")
	}
}

func TestReports(t *testing.T) {
	var unread []string
	for i := range 200 {
		unread = append(unread, fmt.Sprintf("%s-%d", strings.Repeat("v", 59), i))
	}
	for _, report := range []Report{NewReport(3, nil), NewReport(3, unread[:1]), NewReport(200, unread),
		{Volumes: 1, Unread: 1, Names: unread[:1], Forgot: true}} {
		message, err := report.Message()
		if err != nil || len(message) > maxReport {
			t.Fatalf("a report has %d bytes: %v", len(message), err)
		}
		got, err := ParseReport(string(message))
		if err != nil || !cmp.Equal(got, report) {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	for _, message := range []string{
		"", "panic: no", `{"volumes":0}`, `{"volumes":1,"unread":-1}`, `{"volumes":1,"unread":2}`, `{"volumes":1,"names":["a"]}`,
		`{"volumes":1,"unread":1,"names":["<b>"]}`, strings.Repeat(" ", maxReport) + `{"volumes":1}`,
	} {
		if report, err := ParseReport(message); err == nil {
			t.Errorf("%.40q is accepted: %+v", message, report)
		}
	}
}
