// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"reflect"
	"strings"
	"time"
)

// Credentials are what the guest agent brings into the guest.
type Credentials struct {
	// Keys are the SSH keys that users have from now on, by the user's name. Those that they had are lost.
	Keys map[string][]string
	// Passwords are the passwords that users have from now on, by the user's name.
	Passwords map[string]string
}

// CredentialsState says whether the guest has the credentials.
type CredentialsState struct {
	// Synchronized says that it has.
	Synchronized bool
	// Message says why it has not, for users.
	Message string
}

// AgentOffline is the message while nobody in the guest could take credentials. KubeVirt's words.
const AgentOffline = "Guest agent is offline"

// credentialsResync is how long credentials are taken for being in the guest, as in KubeVirt: a guest may have been set back
// to a snapshot, or somebody in it may have changed them.
const credentialsResync = 5 * time.Minute

// CredentialsKeeper decides when credentials are brought into a guest again.
type CredentialsKeeper struct {
	applied Credentials
	at      time.Time
}

// Step brings the credentials in if they are due, and says how that went, or nothing if they are not due.
func (k *CredentialsKeeper) Step(now time.Time, read func() (Credentials, error), apply func(Credentials) error) *CredentialsState {
	wanted, err := read()
	if err == nil && !k.at.IsZero() && now.Sub(k.at) < credentialsResync && reflect.DeepEqual(wanted, k.applied) {
		return nil
	}
	if err == nil {
		err = apply(wanted)
	}
	if err != nil {
		// Whatever came in, the next step tries all of it.
		k.at = time.Time{}
		return &CredentialsState{Message: Clean(strings.ReplaceAll(err.Error(), "\n", "; "))}
	}
	k.applied, k.at = wanted, now
	return &CredentialsState{Synchronized: true}
}

// Forget makes the next step bring the credentials in, such as when another agent answers.
func (k *CredentialsKeeper) Forget() { k.at = time.Time{} }
