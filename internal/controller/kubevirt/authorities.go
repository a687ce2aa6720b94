// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"context"
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

// authorities makes the authority of each role as it should be now, and gives what is trusted for each and when to look again.
func authorities(ctx context.Context, s *Scope) (bundles map[string][]byte, look time.Time, err error) {
	bundles = map[string][]byte{}
	for _, role := range certificate.Roles() {
		authority, next, err := ensureAuthority(ctx, s, role)
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("authority of %s: %w", role.Signer(), err)
		}
		bundles[role.Name] = authority.Bundle()
		if look.IsZero() || next.Before(look) {
			look = next
		}
	}
	return bundles, look, nil
}

func ensureAuthority(ctx context.Context, s *Scope, role certificate.Role) (certificate.Authority, time.Time, error) {
	secret := &corev1.Secret{}
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: role.AuthoritySecret()}, secret)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return certificate.Authority{}, time.Time{}, err
	}
	found, err := certificate.AuthorityFrom(role, secret.Data)
	if err != nil {
		// Nothing can be signed with it. Those who trust it get another one to trust.
		log.FromContext(ctx).Error(err, "The authority cannot be used, making another", "secret", role.AuthoritySecret())
	}
	authority, changed, look, err := found.Advance(s.Now, s.Config.Certificates)
	if err != nil || !changed {
		return authority, look, err
	}
	data, err := authority.Data()
	if err != nil {
		return authority, look, err
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
	if err == nil {
		log.FromContext(ctx).Info("Made or rotated an authority", "secret", role.AuthoritySecret())
	}
	return authority, look, err
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
