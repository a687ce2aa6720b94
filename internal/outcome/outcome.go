// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package outcome says how a phase of a reconciliation ends, and what follows if several phases end differently.
//
// A phase returns nil, one of the types below, or another error. All of them are errors, so they are returned, wrapped
// with %w and joined with errors.Join like any other error:
//
//	outcome                  is a failure   the reconciliation is repeated
//	nil, *Wait               no             when something is observed
//	*Requeue                 no             after its delay
//	conflict, nothing else   no             after the queue's delay, which doubles
//	*Terminal                yes            when something is observed
//	*Retry                   yes            after its delay
//	another error            yes            after the queue's delay, which doubles; it is logged and counted
//
// Split takes joined outcomes apart, and Result joins what follows from each: every failure is logged, errors are
// returned, and the soonest repetition wins. No outcome hides another one. ADR 111 has the reasons.
package outcome

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Wait ends a reconciliation until an event triggers the next one. It is not a failure.
type Wait struct { //nolint:errname // it ends the phases as an error does
	// Reason is what the reconciliation waits for.
	Reason string
}

// Error returns what the reconciliation waits for.
func (w *Wait) Error() string { return "waiting for " + w.Reason }

// Requeue ends a reconciliation that must be repeated after a delay even if no event arrives. It is not a failure.
type Requeue struct { //nolint:errname // it ends the phases as an error does
	// After is the delay.
	After time.Duration
}

// Error returns when the reconciliation is repeated.
func (r *Requeue) Error() string { return fmt.Sprintf("continuing after %s", r.After) }

// Terminal is a failure that a retry does not fix: the object's spec cannot be satisfied.
type Terminal struct { //nolint:errname // it ends the phases as an error does
	// Reason is the condition's reason.
	Reason string
	// Err is the cause.
	Err error
}

// Error returns the message of the cause.
func (t *Terminal) Error() string { return t.Err.Error() }

// Unwrap returns the cause.
func (t *Terminal) Unwrap() error { return t.Err }

// Retry is a failure whose cause may go away without a change of the object and without an event.
type Retry struct { //nolint:errname // it ends the phases as an error does
	// Reason is the condition's reason.
	Reason string
	// After is the delay before the retry.
	After time.Duration
	// Err is the cause.
	Err error
	// Verbosity is that of the log line about it.
	Verbosity int
}

// Error returns the message of the cause.
func (r *Retry) Error() string { return r.Err.Error() }

// Unwrap returns the cause.
func (r *Retry) Unwrap() error { return r.Err }

// kind is what an outcome is. The first one that applies decides.
type kind int

const (
	wait kind = iota
	requeue
	conflict
	terminal
	retry
	other
)

// kindOf returns the kind of one outcome.
func kindOf(err error) kind {
	switch {
	case is[*Wait](err):
		return wait
	case is[*Requeue](err):
		return requeue
	case IsConflict(err):
		return conflict
	case is[*Terminal](err):
		return terminal
	case is[*Retry](err):
		return retry
	default:
		return other
	}
}

func is[T error](err error) bool {
	var target T
	return errors.As(err, &target)
}

// IsConflict reports whether an error is a conflict and nothing else: an error that is joined or wrapped with it makes
// it another error.
func IsConflict(err error) bool {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if several, ok := e.(interface{ Unwrap() []error }); ok {
			return !slices.ContainsFunc(several.Unwrap(), func(err error) bool { return !IsConflict(err) })
		}
		if _, ok := e.(apierrors.APIStatus); ok {
			return apierrors.IsConflict(e)
		}
	}
	return false
}

// joinError is the type of errors that errors.Join returns. Another error that wraps several is one outcome, such as a
// Wait and its cause.
var joinError = reflect.TypeOf(errors.Join(errors.ErrUnsupported))

// Split returns the outcomes that are joined in an error. A wrapped join of errors of one kind is one outcome, so that
// its text is complete.
func Split(err error) []error {
	for e := err; e != nil; e = errors.Unwrap(e) {
		switch e.(type) { //nolint:errorlint // the error itself, not what it wraps
		case *Wait, *Requeue, *Terminal, *Retry:
			return []error{err}
		}
		if reflect.TypeOf(e) != joinError {
			continue
		}
		var all []error
		for _, part := range e.(interface{ Unwrap() []error }).Unwrap() {
			all = append(all, Split(part)...)
		}
		if e != err && (areAll(all, other) || areAll(all, conflict)) { //nolint:errorlint // whether it is wrapped
			return []error{err}
		}
		return all
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// areAll reports whether all outcomes are of one kind.
func areAll(outcomes []error, of kind) bool {
	return !slices.ContainsFunc(outcomes, func(err error) bool { return kindOf(err) != of })
}

// Map applies a function to each outcome that is joined in an error.
func Map(err error, change func(error) error) error {
	all := Split(err)
	for i := range all {
		all[i] = change(all[i])
	}
	return join(all)
}

// Failure returns the failures that are joined in an error, joined, or nil. A conflict is not a failure: the next
// reconciliation starts from the API server's version.
func Failure(err error) error {
	return join(slices.DeleteFunc(Split(err), func(err error) bool {
		switch kindOf(err) {
		case wait, requeue, conflict:
			return true
		default:
			return false
		}
	}))
}

// join joins errors. A single one stays as it is.
func join(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// Sooner returns the shorter of two delays, of which 0 means never.
func Sooner(a, b time.Duration) time.Duration {
	switch {
	case b <= 0:
		return max(a, 0)
	case a <= 0:
		return b
	default:
		return min(a, b)
	}
}
