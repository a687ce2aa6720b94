// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package prometheus

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/rules"
)

// Installer installs and removes the objects. Its client addresses kinds by their URL, because discovery lags behind a
// new CustomResourceDefinition.
type Installer struct {
	Dynamic dynamic.Interface
	// Reader reads namespaces from the API server.
	Reader client.Reader
	// Namespace is the install namespace.
	Namespace string
	// RunbookURL is a template of addresses, as in rules.Settings.
	RunbookURL string
	// Authorize makes Prometheus send its token: the components serve their metrics only to clients that may get them.
	Authorize bool

	watched watched
	// settled is the state in which Apply last found nothing to change.
	settled state
}

// state is what the objects depend on, and the versions of those that exist.
type state struct{ monitor, account, serviceMonitor, versions string }

// Apply installs the objects of the kinds that the cluster has, and removes those that are no longer wanted. It reads
// them only if something has changed.
func (i *Installer) Apply(ctx context.Context, spec *v1.KubeVirtSpec) error {
	now := state{monitor: spec.MonitorNamespace, account: spec.MonitorAccount,
		serviceMonitor: spec.ServiceMonitorNamespace}
	// The versions come first: what changes after that is another version the next time.
	var present bool
	now.versions, present = i.watched.versions()
	if now.monitor == "" && present {
		var err error
		if now.monitor, err = i.monitorNamespace(ctx); err != nil {
			return err
		}
	}
	if now.versions != "" && now == i.settled {
		return nil
	}
	live, err := i.live(ctx)
	if err != nil {
		return err
	}
	desired, err := i.desired(live, now)
	if err != nil {
		return err
	}
	wrote, err := i.sync(ctx, live, desired)
	i.settled = state{}
	if !wrote && err == nil {
		i.settled = now
	}
	return err
}

// desired returns the objects to install of the kinds that the cluster has.
func (i *Installer) desired(
	live map[string]*unstructured.UnstructuredList, now state,
) (map[string]*unstructured.Unstructured, error) {
	scrapes := live["ServiceMonitor"] != nil
	if !scrapes && live["PrometheusRule"] == nil {
		return nil, nil
	}
	desired, err := render(Settings{
		Rules:   rules.Settings{Namespace: i.Namespace, RunbookURL: i.RunbookURL},
		Monitor: now.monitor, Account: now.account, ServiceMonitor: now.serviceMonitor,
		Authorize: i.Authorize,
	})
	if !scrapes {
		// Without a ServiceMonitor, Prometheus would not use these permissions.
		delete(desired, "Role")
		delete(desired, "RoleBinding")
	}
	return desired, err
}

// Remove deletes the objects. They have no finalizers of Vireo and are gone at once.
func (i *Installer) Remove(ctx context.Context) error {
	live, err := i.live(ctx)
	if err != nil {
		return err
	}
	_, err = i.sync(ctx, live, nil)
	return err
}

// monitorNamespace returns the first of DefaultNamespaces that exists, or "".
func (i *Installer) monitorNamespace(ctx context.Context) (string, error) {
	for _, name := range DefaultNamespaces {
		err := i.Reader.Get(ctx, client.ObjectKey{Name: name}, &corev1.Namespace{})
		if err == nil {
			return name, nil
		}
		if !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("cannot read namespace %s: %w", name, err)
		}
	}
	return "", nil
}

// live returns the live objects by kind. A kind that the cluster does not have is not in the map.
func (i *Installer) live(ctx context.Context) (map[string]*unstructured.UnstructuredList, error) {
	all := map[string]*unstructured.UnstructuredList{}
	for _, k := range kinds {
		live, err := i.Dynamic.Resource(k.GroupVersionResource).Namespace(i.of(k)).List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, k.name).String(),
		})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("cannot read %s %q: %w", k.kind, k.name, err)
		default:
			all[k.kind] = live
		}
	}
	return all, nil
}

// of returns the namespace in which the object of a kind may be; "" means all.
func (i *Installer) of(k kind) string {
	if k.everywhere {
		return metav1.NamespaceAll
	}
	return i.Namespace
}

// sync makes the desired objects exist, and no others. Objects of the same name that others have created
// in other namespaces are left alone. It reports whether it has changed anything.
func (i *Installer) sync(
	ctx context.Context, live map[string]*unstructured.UnstructuredList, desired map[string]*unstructured.Unstructured,
) (bool, error) {
	wrote := false
	errs := make([]error, 0, len(kinds))
	for _, k := range kinds {
		if live[k.kind] != nil {
			changed, err := i.syncOne(ctx, k, live[k.kind].Items, desired[k.kind])
			wrote = wrote || changed
			errs = append(errs, err)
		}
	}
	return wrote, errors.Join(errs...)
}

func (i *Installer) syncOne(
	ctx context.Context, k kind, live []unstructured.Unstructured, desired *unstructured.Unstructured,
) (wrote bool, err error) {
	var errs []error
	matches := desired == nil
	for n := range live {
		o := &live[n]
		switch {
		case desired != nil && o.GetNamespace() == desired.GetNamespace():
			if matches, err = manifests.UpToDate(desired, o); err != nil {
				return wrote, err
			}
		case o.GetLabels()[manifests.ManagedByLabel] == manifests.ManagedBy && o.GetDeletionTimestamp() == nil:
			wrote = true
			errs = append(errs, i.remove(ctx, k, o))
		}
	}
	if !matches {
		wrote = true
		errs = append(errs, i.apply(ctx, k, desired))
	}
	return wrote, errors.Join(errs...)
}

func (i *Installer) apply(ctx context.Context, k kind, desired *unstructured.Unstructured) error {
	namespace := desired.GetNamespace()
	_, err := i.Dynamic.Resource(k.GroupVersionResource).Namespace(namespace).Apply(ctx, k.name, desired,
		metav1.ApplyOptions{FieldManager: manifests.FieldManager, Force: true})
	switch {
	case apierrors.IsNotFound(err) && k.everywhere:
		return fmt.Errorf("cannot install %s in namespace %q: create the namespace, or change spec.serviceMonitorNamespace or "+
			"spec.monitorNamespace of the KubeVirt object: %w", k.kind, namespace, err)
	case err != nil:
		return fmt.Errorf("cannot install %s %q: %w", k.kind, k.name, err)
	}
	log.FromContext(ctx).Info("Applied", "kind", k.kind, "object", k.name, "namespace", namespace)
	return nil
}

func (i *Installer) remove(ctx context.Context, k kind, o *unstructured.Unstructured) error {
	uid := o.GetUID()
	err := i.Dynamic.Resource(k.GroupVersionResource).Namespace(o.GetNamespace()).Delete(ctx, k.name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("cannot delete %s %q: %w", k.kind, k.name, err)
	}
	log.FromContext(ctx).Info("Deleted", "kind", k.kind, "object", k.name, "namespace", o.GetNamespace())
	return nil
}
