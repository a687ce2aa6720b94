// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// brokerRetry is the delay before an attempt to reach the broker again. An event triggers a reconciliation earlier if the broker was
// restarted.
const brokerRetry = 5 * time.Second

// fromBroker makes an error about a broker that does not respond or is busy a Retry. It also covers an error of an additional
// connection to libvirtd: while the first connection works, no event would trigger a retry.
func fromBroker(phaseErr error) error {
	return outcome.Map(phaseErr, func(err error) error {
		var connecting *unreachable
		if !isBrokerAway(err) || errors.As(err, &connecting) {
			return err
		}
		// Only the message: the error may be a Wait too.
		return &outcome.Retry{Reason: reasonSynchronizing, After: brokerRetry, Err: errors.New(err.Error())}
	})
}

// isBrokerAway reports whether the broker does not respond or is busy.
func isBrokerAway(err error) bool {
	return errors.Is(err, brokerapi.ErrUnreachable) || brokerapi.CodeOf(err) == brokerapi.CodeBusy
}

// failures returns the outcomes of a phase that mean that the spec could not be satisfied.
func failures(phaseErr error) []error {
	return slices.DeleteFunc(outcome.Split(phaseErr), func(err error) bool {
		var wait *outcome.Wait
		var requeue *outcome.Requeue
		return errors.As(err, &wait) || errors.As(err, &requeue)
	})
}

// isFailure reports whether an outcome of a phase means that the spec could not be satisfied.
func isFailure(phaseErr error) bool { return len(failures(phaseErr)) > 0 }

// describeFailures returns the reason of the condition for failures, and their messages.
func describeFailures(failed []error) (reason, message string) {
	reason = reasonSynchronizing
	messages := make([]string, 0, len(failed))
	var terminal *outcome.Terminal
	var retry *outcome.Retry
	for _, err := range failed {
		switch {
		case terminal != nil:
		case errors.As(err, &terminal):
			reason = terminal.Reason
		case retry == nil && errors.As(err, &retry):
			reason = retry.Reason
		}
		messages = append(messages, err.Error())
	}
	return reason, strings.Join(messages, "; ")
}
