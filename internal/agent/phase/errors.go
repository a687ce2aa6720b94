// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package phase

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// ReasonInvalidDomain is the reason of the condition Synchronized if the spec cannot be turned into a domain.
const ReasonInvalidDomain = "InvalidDomain"

// ReasonSynchronizing is the reason of the condition Synchronized for a failure that is retried. KubeVirt's.
const ReasonSynchronizing = "Synchronizing with the Domain failed."

// brokerRetry is the delay before an attempt to reach the broker again. An event triggers a reconciliation earlier if
// the broker was restarted.
const brokerRetry = 5 * time.Second

// FromBroker makes an error about a broker that does not respond or is busy a Retry. It also covers an error of an
// additional connection to libvirtd: while the first connection works, no event would trigger a retry.
func FromBroker(phaseErr error) error {
	return outcome.Map(phaseErr, func(err error) error {
		var connecting *UnreachableError
		if !isBrokerAway(err) || errors.As(err, &connecting) {
			return err
		}
		// Only the message: the error may be a Wait too.
		return &outcome.Retry{Reason: ReasonSynchronizing, After: brokerRetry, Err: errors.New(err.Error())}
	})
}

// isBrokerAway reports whether the broker does not respond or is busy.
func isBrokerAway(err error) bool {
	return errors.Is(err, brokerapi.ErrUnreachable) || brokerapi.CodeOf(err) == brokerapi.CodeBusy
}

// Failures returns the outcomes of a phase that mean that the spec could not be satisfied.
func Failures(phaseErr error) []error {
	return slices.DeleteFunc(outcome.Split(phaseErr), func(err error) bool {
		var wait *outcome.Wait
		var requeue *outcome.Requeue
		return errors.As(err, &wait) || errors.As(err, &requeue)
	})
}

// IsFailure reports whether an outcome of a phase means that the spec could not be satisfied.
func IsFailure(phaseErr error) bool { return len(Failures(phaseErr)) > 0 }

// DescribeFailures returns the reason of the condition for failures, and their messages.
func DescribeFailures(failed []error) (reason, message string) {
	reason = ReasonSynchronizing
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

// UnreachableError is a Wait for the hypervisor that the status reports to the user.
type UnreachableError struct{ Err error }

// Error returns why the hypervisor cannot be reached.
func (u *UnreachableError) Error() string { return u.Err.Error() }

// Unwrap makes it a Wait.
func (u *UnreachableError) Unwrap() []error {
	return []error{&outcome.Wait{Reason: "a response of the launcher Pod's libvirtd"}, u.Err}
}

// FromConnection makes an error about a broken connection, which is reconnected without a retry of the reconciliation,
// a Wait.
func FromConnection(err error) error {
	return outcome.Map(err, func(err error) error {
		if errors.Is(err, hypervisor.ErrUnreachable) {
			return fmt.Errorf("%w: %w", &outcome.Wait{Reason: "the connection to libvirtd"}, err)
		}
		return err
	})
}
