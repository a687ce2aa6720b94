// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"reflect"
	"strings"
	"time"
)

// Credentials are the access credentials that the guest agent sets in the guest.
type Credentials struct {
	// Keys are the users' SSH keys by the user's name. They replace the keys that a user has.
	Keys map[string][]string
	// Passwords are the users' passwords by the user's name.
	Passwords map[string]string
}

// CredentialsState is the result of setting credentials.
type CredentialsState struct {
	// Synchronized reports whether the guest has the credentials.
	Synchronized bool
	// Message is the reason for users why it does not.
	Message string
}

// AgentOffline is KubeVirt's message when no guest agent is connected.
const AgentOffline = "Guest agent is offline"

// credentialsResync is the period after which unchanged credentials are set again, as in KubeVirt: a guest may have been reset to
// a snapshot, or its users may have changed them.
const credentialsResync = 5 * time.Minute

// CredentialsKeeper decides when credentials are set in a guest again.
type CredentialsKeeper struct {
	applied Credentials
	at      time.Time
}

// Step sets the credentials if they are due and returns the result, or nil if they are not due.
func (k *CredentialsKeeper) Step(now time.Time, read func() (Credentials, error), apply func(Credentials) error) *CredentialsState {
	wanted, err := read()
	if err == nil && !k.at.IsZero() && now.Sub(k.at) < credentialsResync && reflect.DeepEqual(wanted, k.applied) {
		return nil
	}
	if err == nil {
		err = apply(wanted)
	}
	if err != nil {
		// Some credentials may have been set; the next step sets all of them.
		k.at = time.Time{}
		return &CredentialsState{Message: Clean(strings.ReplaceAll(err.Error(), "\n", "; "))}
	}
	k.applied, k.at = wanted, now
	return &CredentialsState{Synchronized: true}
}

// Forget makes the next step set the credentials, for example because the guest agent has reconnected.
func (k *CredentialsKeeper) Forget() { k.at = time.Time{} }
