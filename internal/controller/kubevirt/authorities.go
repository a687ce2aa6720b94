// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
)

// authorities brings the authority of each role to what it should be now, each on its own. It returns what is to be trusted for
// each role and when to look again. The error joins those of the roles that failed; for these, what was trusted stays trusted.
func authorities(ctx context.Context, s *Scope) (bundles map[string][]byte, look time.Time, err error) {
	bundles = map[string][]byte{}
	var errs []error
	for _, role := range certificate.Roles() {
		authority, next, err := ensureAuthority(ctx, s, role)
		bundle := authority.Bundle()
		if err != nil {
			errs = append(errs, fmt.Errorf("authority of %s: %w", role.Signer(), err))
		}
		if len(bundle) == 0 {
			// Nothing is known of it. A key that is published is not withdrawn for that.
			published, err := publishedBundle(ctx, s, role)
			if err != nil {
				return nil, time.Time{}, errors.Join(append(errs, err)...)
			}
			bundle = published
		}
		if len(bundle) > 0 {
			bundles[role.Name] = bundle
		}
		if !next.IsZero() && (look.IsZero() || next.Before(look)) {
			look = next
		}
	}
	return bundles, look, errors.Join(errs...)
}

// publishedBundle is what the components are told to trust for a role, or nil if they are told nothing yet.
func publishedBundle(ctx context.Context, s *Scope, role certificate.Role) ([]byte, error) {
	published := &corev1.ConfigMap{}
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: certificate.BundleName}, published)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("cannot read ConfigMap %s: %w", certificate.BundleName, err)
	}
	return []byte(published.Data[role.Name]), nil
}

// ensureAuthority makes or rotates the authority of a role if it is time to. With an error it returns the authority as it is
// stored, or an empty one if that is not known.
func ensureAuthority(ctx context.Context, s *Scope, role certificate.Role) (current certificate.Authority, next time.Time, err error) {
	secret := &corev1.Secret{}
	err = s.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: role.AuthoritySecret()}, secret)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return certificate.Authority{}, time.Time{}, err
	}
	found, err := certificate.AuthorityFrom(role, secret.Data)
	stored := found
	if end, overdue := stored.End(s.Now, s.Config.Certificates); overdue {
		defer func() {
			if err != nil {
				s.overdue("Secret %q: its authority has no successor and ends at %s: see the log of virt-controller, and whether it may update the Secret",
					role.AuthoritySecret(), end.UTC().Format(time.RFC3339))
			}
		}()
	}
	if err != nil {
		// Nothing can be signed with it. Those who trust it get another one to trust.
		log.FromContext(ctx).Error(err, "The authority cannot be used, making another", "secret", role.AuthoritySecret())
		stored = certificate.Authority{}
	}
	authority, changed, look, err := found.Advance(s.Now, s.Config.Certificates)
	if err != nil {
		return stored, time.Time{}, err
	}
	if !changed {
		return authority, look, nil
	}
	data, err := authority.Data()
	if err != nil {
		return stored, time.Time{}, err
	}
	if missing {
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: s.Namespace, Name: role.AuthoritySecret(),
				Labels: map[string]string{v1.AppLabel: certificate.AuthorityLabelValue},
			},
			Type: corev1.SecretTypeTLS, Data: data,
		}
		err = s.Client.Create(ctx, secret)
	} else {
		// The version that was read is written over, and no other: a key that signs is never lost to a stale cache.
		changed := secret.DeepCopy()
		changed.Data = data
		err = s.Client.Update(ctx, changed)
	}
	if err != nil {
		return stored, time.Time{}, fmt.Errorf("cannot write Secret %q: %w", role.AuthoritySecret(), err)
	}
	log.FromContext(ctx).Info("Made or rotated an authority", "secret", role.AuthoritySecret())
	return authority, look, nil
}

// removeAuthorities deletes the authorities and gives those that are still there.
func removeAuthorities(ctx context.Context, s *Scope) ([]string, error) {
	var remaining []string
	for _, role := range certificate.Roles() {
		secret := &corev1.Secret{}
		err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: role.AuthoritySecret()}, secret)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err == nil && secret.DeletionTimestamp == nil {
			err = client.IgnoreNotFound(s.Client.Delete(ctx, secret))
		}
		if err != nil {
			return nil, fmt.Errorf("cannot delete Secret %q: %w", role.AuthoritySecret(), err)
		}
		remaining = append(remaining, "Secret "+secret.Name)
	}
	return remaining, nil
}
