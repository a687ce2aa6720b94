// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"errors"
	"fmt"
	"testing"

	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

func TestCallAll(t *testing.T) {
	unknown := errors.New("no such user")
	offline := credentialError("password", "root", libvirt.Error{Code: libvirt.ERR_AGENT_UNRESPONSIVE})
	lost := credentialError("password", "root", fmt.Errorf("set a password: %w", hypervisor.ErrUnreachable))
	for _, tc := range []struct {
		name      string
		responses []error
		made      int
		want      string
	}{
		{name: "all of them", responses: []error{nil, nil}, made: 2},
		{name: "one that the guest does not know keeps nothing from the others", responses: []error{unknown, nil, unknown}, made: 3,
			want: "no such user\nno such user"},
		{name: "no guest agent", responses: []error{unknown, offline, nil}, made: 2, want: hypervisor.AgentOffline},
		{name: "no libvirtd", responses: []error{lost, nil}, made: 1, want: lost.Error()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			made := 0
			calls := make([]func() error, 0, len(tc.responses))
			for _, response := range tc.responses {
				calls = append(calls, func() error { made++; return response })
			}
			got := ""
			if err := callAll(calls); err != nil {
				got = err.Error()
			}
			if got != tc.want || made != tc.made {
				t.Errorf("got %q after %d calls, want %q after %d", got, made, tc.want, tc.made)
			}
		})
	}
}

// A guest decides how slowly its agent responds. libvirtd must time out first, with an error response, because a timeout in the
// agent closes the connection.
func TestLibvirtdTimesOutFirst(t *testing.T) {
	const turn, sync, response = 30, 5, 5 // seconds; libvirt's waits for a job and for guest-sync, and the requested timeout
	for what, calls := range map[string]int{"credentials": 1, "guest information": 3} {
		if longest := calls * (turn + sync + response); int(guestTimeout.Seconds()) < longest {
			t.Errorf("%s can take %d s, and the connection is cut after %s", what, longest, guestTimeout)
		}
	}
}
