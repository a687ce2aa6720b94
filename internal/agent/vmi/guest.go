// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/devices"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// guestObserver observes a running guest.
type guestObserver interface {
	devices.DiskMeter
	credentialsSetter
	// Guest returns the guest agent's last report, or nil. The VMI is enqueued when the report changes.
	Guest(domain string) *hypervisor.GuestInfo
	// KeepThaw thaws the guest's file systems at the time that the freeze has; nil cancels that.
	KeepThaw(domain string, freeze *hypervisor.Freeze)
}

// observeGuest reads what a running guest reports. It never fails.
func (r *Reconciler) observeGuest(ctx context.Context, s *scope, guest guestObserver) error {
	s.devices.Measure(ctx, guest)
	if s.Domain.AgentConnected() {
		s.guest = guest.Guest(s.DomainName())
	}
	s.credentials = r.syncCredentials(s, guest)
	guest.KeepThaw(s.DomainName(), s.Domain.Freeze())
	return nil
}

// Reasons of events about access credentials. KubeVirt's names.
const (
	reasonCredentialsSynced = "AccessCredentialsSyncSuccess"
	reasonCredentialsFailed = "AccessCredentialsSyncFailed"
)

// credentialsSetter sets access credentials in the guest.
type credentialsSetter interface {
	// Credentials returns whether the guest has the credentials that read returns, or nil if that was not tried yet.
	// The VMI is enqueued when the state changes.
	Credentials(domain string, read func() (hypervisor.Credentials, error)) *hypervisor.CredentialsState
}

// syncCredentials makes the guest agent set SSH keys and passwords in the guest.
func (r *Reconciler) syncCredentials(s *scope, guest credentialsSetter) *hypervisor.CredentialsState {
	if s.VMI == nil || !s.Domain.Active() || !slices.ContainsFunc(s.VMI.Spec.AccessCredentials, byAgent) {
		return nil
	}
	if !s.Domain.AgentConnected() {
		return &hypervisor.CredentialsState{Message: hypervisor.AgentOffline}
	}
	// A VMI's spec never changes.
	credentials, content := s.VMI.Spec.AccessCredentials, r.Content(s.Pod.UID)
	return guest.Credentials(s.DomainName(), func() (hypervisor.Credentials, error) {
		return ReadCredentials(credentials, content)
	})
}

// byAgent reports whether the guest agent sets a credential, and not cloud-init.
func byAgent(c v1.AccessCredential) bool {
	return c.SSHPublicKey != nil && c.SSHPublicKey.PropagationMethod.QemuGuestAgent != nil ||
		c.UserPassword != nil && c.UserPassword.PropagationMethod.QemuGuestAgent != nil
}

// maxCredentials is the limit for all credentials of a guest in bytes: a spec may name any number of Secrets.
const maxCredentials = 4 << 20

// ReadCredentials reads the Secrets of the credentials that the guest agent sets, as they are on the node now. A user
// gets the keys of all credentials that name the user. In a Secret with passwords, the keys are the users' names.
func ReadCredentials(credentials []v1.AccessCredential, content media.Content) (hypervisor.Credentials, error) {
	wanted := hypervisor.Credentials{Keys: map[string][]string{}, Passwords: map[string]string{}}
	left := maxCredentials
	for i := range credentials {
		credential := &credentials[i]
		secret := credential.SecretName()
		if !byAgent(*credential) || secret == "" {
			continue
		}
		files, err := content.Files(media.SecretVolume, launcherpod.CredentialsVolume(secret))
		if err != nil {
			return wanted, fmt.Errorf("read Secret %s: %w", secret, err)
		}
		for _, file := range files {
			left -= len(file)
		}
		if left < 0 {
			return wanted, fmt.Errorf("the Secrets of accessCredentials have more than %d bytes in all: shorten them",
				maxCredentials)
		}
		names := slices.Sorted(maps.Keys(files))
		if credential.UserPassword != nil {
			for _, user := range names {
				// As in KubeVirt: a Secret that was made of a file often ends with a line feed.
				if password := strings.TrimSpace(string(files[user])); password != "" {
					wanted.Passwords[user] = password
				}
			}
			continue
		}
		for _, user := range credential.SSHPublicKey.PropagationMethod.QemuGuestAgent.Users {
			for _, name := range names {
				wanted.Keys[user] = append(wanted.Keys[user], keysIn(files[name])...)
			}
		}
	}
	return wanted, nil
}

// keysIn returns the SSH keys in a file, one for each line. The guest agent rejects a key with a line feed.
func keysIn(file []byte) []string {
	var keys []string
	for line := range strings.Lines(string(file)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			keys = append(keys, line)
		}
	}
	return keys
}

// setCredentials sets the condition that reports whether the guest has its credentials.
func setCredentials(s *scope, now metav1.Time) {
	credentials := s.report().credentials
	if credentials == nil {
		return
	}
	condition := v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceAccessCredentialsSynchronized, Status: corev1.ConditionFalse,
		Message: hypervisor.CleanLine(credentials.Message, phase.MaxMessage),
	}
	if credentials.Synchronized {
		condition.Status = corev1.ConditionTrue
	}
	vmistatus.SetCondition(&s.VMI.Status, condition, now)
}

// probePauser pauses probes.
type probePauser interface {
	// PauseProbes sets in the running domain whether guestAgentPing probes are paused.
	PauseProbes(ctx context.Context, domain string, paused bool) error
}

// pauseProbes makes guestAgentPing probes succeed without a response of the guest agent while the VMI's annotation
// requests it, as during maintenance of the guest. The setting is in the domain's metadata, which libvirt does not
// change during a migration.
func (r *Reconciler) pauseProbes(ctx context.Context, s *scope, guest probePauser) error {
	if s.VMI == nil || !s.Domain.Active() {
		return nil
	}
	if vmistatus.Migrating(&s.VMI.Status) {
		return nil
	}
	paused, err := strconv.ParseBool(s.VMI.Annotations[v1.PauseGuestAgentProbesAnnotation])
	if paused = paused && err == nil; paused == s.Domain.ProbesPaused() {
		return nil
	}
	return s.Attempt("pause probes", phase.ReasonSynchronizing, func() error {
		return phase.FromConnection(guest.PauseProbes(ctx, s.DomainName(), paused))
	})
}
