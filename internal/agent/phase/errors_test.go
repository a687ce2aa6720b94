// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package phase

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

func TestBrokerIsRetried(t *testing.T) {
	gone := fmt.Errorf("open a file: %w", brokerapi.ErrUnreachable)
	for name, err := range map[string]error{
		"a verb":              gone,
		"another program":     fmt.Errorf("set: %w", &brokerapi.Error{Code: brokerapi.CodeUnreachable, Message: "virt-broker's other program"}),
		"a busy one":          fmt.Errorf("set: %w", &brokerapi.Error{Code: brokerapi.CodeBusy, Message: "virt-broker is busy"}),
		"a second connection": FromConnection(fmt.Errorf("%w: %w", hypervisor.ErrUnreachable, gone)),
	} {
		var retry *outcome.Retry
		if got := FromBroker(err); !errors.As(got, &retry) || retry.After != brokerRetry || !IsFailure(got) ||
			!strings.Contains(got.Error(), "virt-broker") {
			t.Errorf("%s: got %#v", name, got)
		}
	}
	// The connection is made again by itself, and its loss is reported as before.
	lost := &UnreachableError{Err: fmt.Errorf("%w: %w", hypervisor.ErrUnreachable, gone)}
	for name, err := range map[string]error{"no connection": lost, "another error": errors.New("other"),
		"a wait": &outcome.Wait{Reason: "it"}} {
		if got := FromBroker(err); got != err { //nolint:errorlint // the same error
			t.Errorf("%s: got %#v", name, got)
		}
	}
}
