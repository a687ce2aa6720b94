// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// claim is a broker that opens the files of a state claim in a directory.
type claim struct {
	Broker
	dir string
}

func (c claim) OpenFile(_ context.Context, _ types.UID, mount, name string) (*os.File, error) {
	if mount != launcherpod.StateDir {
		return nil, os.ErrPermission
	}
	return os.Open(filepath.Join(c.dir, name))
}

func TestCheckState(t *testing.T) {
	tpm := slices.Concat([]byte{2, 1, 0, 10, 0, 0, 0, 0, 0, 60}, make([]byte, 50))
	variables := make([]byte, 4096)
	binary.LittleEndian.PutUint64(variables[32:], uint64(len(variables)))
	copy(variables[40:], "_FVH")
	const tpmName, variablesName = "swtpm/uuid/tpm2/tpm2-00.permall", "nvram/vm_VARS.fd"
	for name, tc := range map[string]struct {
		file    string
		content []byte
		want    string
	}{
		"no file":                         {file: "other"},
		"a TPM":                           {tpmName, tpm, ""},
		"an empty TPM":                    {tpmName, nil, tpmName + " is empty"},
		"a TPM without all of its header": {tpmName, tpm[:9], tpmName + " has only 9 bytes"},
		"a truncated TPM":                 {tpmName, tpm[:59], tpmName + " has 59 bytes, and 60 according to its header"},
		"a TPM of zeros":                  {tpmName, make([]byte, 60), tpmName + " has 60 bytes, and 0 according to its header"},
		"variables":                       {variablesName, variables, ""},
		"padded variables":                {variablesName, slices.Concat(variables, variables), ""},
		"empty variables":                 {variablesName, nil, variablesName + " is empty"},
		"truncated variables":             {variablesName, variables[:4095], variablesName + " has 4095 bytes, and 4096 according to its header"},
		"variables in another format":     {variablesName, []byte("short"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, tc.file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, tc.content, 0o600)); err != nil {
				t.Fatal(err)
			}
			c := &Conn{options: Options{Broker: claim{dir: dir}}, pod: testPod}
			err := c.CheckState(t.Context(), hypervisor.StateFiles{
				NVRAM: launcherpod.NVRAMStateFile("vm"), TPM: launcherpod.TPMStateDir("uuid"),
			})
			if tc.want == "" && err != nil ||
				tc.want != "" && (!errors.Is(err, hypervisor.ErrStateDamaged) || !strings.HasSuffix(err.Error(), ": "+tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestPanicsAreCounted(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	web, db := types.NamespacedName{Namespace: "ns", Name: "web"}, types.NamespacedName{Namespace: "ns", Name: "db"}
	p := &panics{}
	expect := func(at time.Time, want map[types.NamespacedName]uint64) {
		t.Helper()
		if got := p.counts(at); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", at, got, want)
		}
	}
	expect(noon, nil)
	p.add(web, noon)
	p.add(web, noon.Add(time.Hour))
	p.add(db, noon)
	expect(noon.Add(time.Hour), map[types.NamespacedName]uint64{web: 2, db: 1})
	expect(noon.Add(panicsKept+time.Minute), map[types.NamespacedName]uint64{web: 2})
	p.add(db, noon.Add(panicsKept+2*time.Hour))
	expect(noon.Add(panicsKept+2*time.Hour), map[types.NamespacedName]uint64{db: 1})
}

func TestTheOldestPanicsAreDropped(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	vmi := func(i int) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: strconv.Itoa(i)} }
	p := &panics{}
	for i := range maxPanicked {
		p.add(vmi(i), noon.Add(time.Duration(i)*time.Second))
	}
	now := noon.Add(time.Hour)
	p.add(vmi(0), now) // not the oldest any more
	p.add(vmi(maxPanicked), now)
	got := p.counts(now)
	if len(got) != maxPanicked || got[vmi(0)] != 2 || got[vmi(1)] != 0 || got[vmi(2)] != 1 || got[vmi(maxPanicked)] != 1 {
		t.Errorf("%d VMIs, %d, %d, %d, %d", len(got), got[vmi(0)], got[vmi(1)], got[vmi(2)], got[vmi(maxPanicked)])
	}
}

func TestNoteStart(t *testing.T) {
	var stopped, runs atomic.Int64
	stopped.Store(1)
	if noteStart(&stopped, &runs); stopped.Load() != 1 {
		t.Errorf("it stopped at 1, and again at %d", stopped.Load())
	}
	runs.Store(2)
	if noteStart(&stopped, &runs); stopped.Load() <= 2 {
		t.Errorf("it ran at 2, and has stopped at %d", stopped.Load())
	}
	if noteStart(&runs, new(atomic.Int64)); runs.Load() != 2 {
		t.Errorf("it ran at 2, and again at %d", runs.Load())
	}
}
