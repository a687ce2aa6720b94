// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package process

import (
	"os"
	"testing"

	"github.com/vireo-project/vireo/hack/cluster/internal/record"
)

func TestParseStat(t *testing.T) {
	const tail = " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21"
	tests := map[string]struct {
		stat  string
		want  uint64
		fails bool
	}{
		"plain":                  {"7 (etcd) S" + tail, 4242, false},
		"blanks and brackets":    {"7 (a) S (b c) R" + tail, 4242, false},
		"a zombie has ended":     {"7 (etcd) Z" + tail, 0, true},
		"cut off":                {"7 (etcd) S 1 2", 0, true},
		"no name":                {"7 etcd S" + tail, 0, true},
		"start time is a number": {"7 (etcd) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 x 20", 0, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseStat(tt.stat)
			if got != tt.want || (err != nil) != tt.fails {
				t.Errorf("got %d, %v", got, err)
			}
		})
	}
}

func TestARecycledProcessIDIsNotOurs(t *testing.T) {
	pid := os.Getpid()
	start, err := startTime(pid)
	if err != nil {
		t.Fatal(err)
	}
	if !Alive(record.Process{PID: pid, Start: start}) {
		t.Error("we ourselves are not alive")
	}
	if Alive(record.Process{PID: pid, Start: start - 1}) {
		t.Error("a process that started at another time was taken for the recorded one")
	}
}
