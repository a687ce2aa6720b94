// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package driver

import (
	"context"
	"math"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
)

func TestSizeFor(t *testing.T) {
	for name, test := range map[string]struct {
		required, limit, least int64
		filesystem             bool
		want                   int64
		code                   codes.Code
	}{
		"default":               {want: gib},
		"default below a limit": {limit: 5000, want: 4096},
		"of the source":         {least: 3 * gib, want: 3 * gib},
		"rounded up":            {required: 4097, want: 8192},
		"exact":                 {required: 8192, limit: 8192, want: 8192},
		"larger than source":    {required: 2 * gib, least: gib, want: 2 * gib},
		"small filesystem":      {required: 10 * mib, filesystem: true, want: 32 * mib},
		"smaller than source":   {required: gib, least: 2 * gib, code: codes.OutOfRange},
		"source above limit":    {limit: gib, least: 2 * gib, code: codes.OutOfRange},
		"no room to round":      {required: 4097, limit: 4098, code: codes.OutOfRange},
		"filesystem too small":  {limit: 10 * mib, filesystem: true, code: codes.OutOfRange},
		"required above limit":  {required: 2, limit: 1, code: codes.InvalidArgument},
		"largest number":        {required: math.MaxInt64, code: codes.OutOfRange},
		"negative":              {required: -1, code: codes.InvalidArgument},
		"negative limit":        {limit: -1, code: codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := sizeFor(&csi.CapacityRange{RequiredBytes: test.required, LimitBytes: test.limit}, !test.filesystem,
				test.least)
			expectCode(t, err, test.code)
			if got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

func TestParseUses(t *testing.T) {
	ext4 := capability(false, once)
	ext4.GetMount().FsType = "ext4"
	for name, test := range map[string]struct {
		list  []*csi.VolumeCapability
		block bool
		code  codes.Code
	}{
		"filesystem":       {list: []*csi.VolumeCapability{capability(false, once), capability(false, many)}},
		"block":            {list: []*csi.VolumeCapability{capability(true, many)}, block: true},
		"none":             {code: codes.InvalidArgument},
		"nil":              {list: []*csi.VolumeCapability{nil}, code: codes.InvalidArgument},
		"both":             {list: []*csi.VolumeCapability{capability(false, once), capability(true, once)}, code: codes.InvalidArgument},
		"no access type":   {list: []*csi.VolumeCapability{{AccessMode: capability(true, once).GetAccessMode()}}, code: codes.InvalidArgument},
		"no mode":          {list: []*csi.VolumeCapability{{AccessType: capability(true, once).GetAccessType()}}, code: codes.InvalidArgument},
		"mode of tomorrow": {list: []*csi.VolumeCapability{capability(true, 4711)}, code: codes.InvalidArgument},
		"other filesystem": {list: []*csi.VolumeCapability{ext4}, code: codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			block, err := parseUses(test.list)
			expectCode(t, err, test.code)
			if block != test.block {
				t.Errorf("block is %v", block)
			}
		})
	}
}

func TestPage(t *testing.T) {
	itself := func(s string) string { return s }
	items := []string{"a", "b", "c", "d"}
	for name, test := range map[string]struct {
		token string
		limit int32
		want  []string
		next  string
	}{
		"all":           {want: items},
		"first":         {limit: 2, want: []string{"a", "b"}, next: "b"},
		"second":        {limit: 2, token: "b", want: []string{"c", "d"}},
		"rest":          {token: "a", want: []string{"b", "c", "d"}},
		"deleted token": {limit: 1, token: "bb", want: []string{"c"}, next: "c"},
		"past the end":  {token: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			got, next, err := page(items, itself, test.token, test.limit)
			if err != nil || next != test.next || len(got) != len(test.want) || len(got) > 0 && !cmp.Equal(got, test.want) {
				t.Errorf("got %v, next %q, %v", got, next, err)
			}
		})
	}
	_, _, err := page(items, itself, "", -1)
	expectCode(t, err, codes.InvalidArgument)
}

func TestMayAttach(t *testing.T) {
	for name, test := range map[string]struct {
		nodes map[string]string
		mode  csi.VolumeCapability_AccessMode_Mode
		code  codes.Code
	}{
		"unattached":            {mode: once},
		"again":                 {nodes: map[string]string{"a": once.String()}, mode: once},
		"again in another mode": {nodes: map[string]string{"a": once.String()}, mode: many, code: codes.AlreadyExists},
		"elsewhere":             {nodes: map[string]string{"b": once.String()}, mode: once, code: codes.FailedPrecondition},
		"shared":                {nodes: map[string]string{"b": many.String()}, mode: many},
		"shared by others":      {nodes: map[string]string{"b": many.String()}, mode: once, code: codes.FailedPrecondition},
		"shared by us":          {nodes: map[string]string{"b": once.String()}, mode: many, code: codes.FailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) { expectCode(t, mayAttach(test.nodes, "a", test.mode), test.code) })
	}
}

func TestKeys(t *testing.T) {
	var k keys
	release, err := k.lock(t.Context(), "b", "", "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = k.lock(ended, "0", "b")
	expectCode(t, err, codes.Aborted)
	other, err := k.lock(ended, "0", "c")
	if err != nil {
		t.Errorf("a key that nobody has: %v", err)
	}
	got := make(chan func())
	go func() {
		waited, err := k.lock(t.Context(), "a")
		if err != nil {
			t.Error(err)
		}
		got <- waited
	}()
	release()
	(<-got)()
	other()
	if len(k.held) != 0 {
		t.Errorf("%d keys are held", len(k.held))
	}
}
