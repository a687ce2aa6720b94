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
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
)

// authorities creates or rotates the authority of each role, independently of the others. It returns the certificates
// to trust for each role and when to check again. The error joins those of the roles that failed; their trusted
// certificates stay.
func authorities(ctx context.Context, s *Scope) (bundles map[string][]byte, recheck time.Time, err error) {
	bundles = map[string][]byte{}
	var errs []error
	for _, role := range certificate.Authorities() {
		authority, next, err := ensureAuthority(ctx, s, role)
		bundle := authority.Bundle()
		if err != nil {
			errs = append(errs, fmt.Errorf("authority of %s: %w", role.Signer(), err))
		}
		if len(bundle) == 0 {
			// The authority cannot be read: keep the certificates that are published.
			published, err := publishedBundle(ctx, s, role)
			if err != nil {
				return nil, time.Time{}, errors.Join(append(errs, err)...)
			}
			bundle = published
		}
		if len(bundle) > 0 {
			bundles[role.Name] = bundle
		}
		if !next.IsZero() && (recheck.IsZero() || next.Before(recheck)) {
			recheck = next
		}
	}
	controller, err := controllerBundle(ctx, s)
	if err != nil {
		errs = append(errs, err)
	}
	if len(controller) > 0 {
		bundles[certificate.ControllerServing.Name] = controller
	}
	return bundles, recheck, errors.Join(errs...)
}

// controllerBundle returns the CA certificates of virt-controller's own server, with which virt-api verifies it.
// Another reconciler writes their Secret.
func controllerBundle(ctx context.Context, s *Scope) ([]byte, error) {
	secret := &corev1.Secret{}
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: certificate.WebhooksSecret}, secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("cannot read Secret %s: %w", certificate.WebhooksSecret, err)
	}
	if found, err := certificate.WebhooksFrom(secret.Data); err == nil && len(found.Bundle()) > 0 {
		return found.Bundle(), nil
	}
	return publishedBundle(ctx, s, certificate.ControllerServing)
}

// publishedBundle returns the certificates that are published for a role, or nil if there are none yet.
func publishedBundle(ctx context.Context, s *Scope, role certificate.Role) ([]byte, error) {
	published := &corev1.ConfigMap{}
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: certificate.BundleName}, published)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("cannot read ConfigMap %s: %w", certificate.BundleName, err)
	}
	return []byte(published.Data[role.Name]), nil
}

// publishedBundles returns the CA certificates that verifiers of a role have: those that are published for the
// components and, for virt-api, those that the API server has. It reads them only while there is a successor.
func publishedBundles(
	ctx context.Context, s *Scope, role certificate.Role, authority certificate.Authority,
) ([][]byte, error) {
	if !authority.HasSuccessor() {
		return nil, nil
	}
	bundle, err := publishedBundle(ctx, s, role)
	if err != nil {
		return nil, err
	}
	bundles := [][]byte{bundle}
	if role.Name == certificate.APIServing.Name {
		aggregated, err := manifests.APIServiceBundles(ctx, s.Client)
		if err != nil {
			return nil, err
		}
		bundles = append(bundles, aggregated...)
	}
	return bundles, nil
}

// ensureAuthority creates or rotates the authority of a role when that is due. With an error it returns the authority
// as it is stored, or an empty one if it cannot be read.
func ensureAuthority(
	ctx context.Context, s *Scope, role certificate.Role,
) (current certificate.Authority, next time.Time, err error) {
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
		// It cannot sign: replace it, and publish the new one.
		log.FromContext(ctx).Error(err, "The authority cannot be used, making another", "secret", role.AuthoritySecret())
		stored = certificate.Authority{}
	}
	published, err := publishedBundles(ctx, s, role, found)
	if err != nil {
		return stored, time.Time{}, err
	}
	authority, changed, recheck, err := found.Advance(s.Now, s.Config.Certificates, published...)
	if err != nil {
		return stored, time.Time{}, err
	}
	duration := s.Config.Certificates.CADuration.String()
	if !changed && secret.Annotations[certificate.DurationAnnotation] == duration {
		return authority, recheck, nil
	}
	data, err := authority.Data()
	if err != nil {
		return stored, time.Time{}, err
	}
	if missing {
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: s.Namespace, Name: role.AuthoritySecret(),
				Labels:      map[string]string{v1.AppLabel: certificate.AuthorityLabelValue},
				Annotations: map[string]string{certificate.DurationAnnotation: duration},
			},
			Type: corev1.SecretTypeTLS, Data: data,
		}
		err = s.Client.Create(ctx, secret)
	} else {
		// Update only the version that was read, so that a stale cache never overwrites a signing key.
		changed := secret.DeepCopy()
		changed.Data = data
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, certificate.DurationAnnotation, duration)
		err = s.Client.Update(ctx, changed)
	}
	if err != nil {
		return stored, time.Time{}, fmt.Errorf("cannot write Secret %q: %w", role.AuthoritySecret(), err)
	}
	log.FromContext(ctx).Info("Made or rotated an authority", "secret", role.AuthoritySecret())
	return authority, recheck, nil
}

// removeAuthorities deletes the authorities and returns those that still exist.
func removeAuthorities(ctx context.Context, s *Scope) ([]string, error) {
	var remaining []string
	for _, role := range certificate.Authorities() {
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
