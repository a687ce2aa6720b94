// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package installation has the commands of virt-controller that install and uninstall: they create and delete the
// KubeVirt object. The hooks of the Helm chart run them, because Helm cannot create an object whose CRD is part of the
// same release, and does not wait for the end of an object with a finalizer before it removes what handles the
// finalizer.
package installation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
)

// The commands.
const (
	// Apply creates or changes the KubeVirt object that a file contains.
	Apply = "apply-kubevirt"
	// Delete deletes the KubeVirt objects of a namespace and waits until they are gone, and with them all that they
	// installed.
	Delete = "delete-kubevirt"
)

const (
	// fieldOwner owns the fields that Apply sets. A field that is no longer in the file is removed, others are kept.
	fieldOwner = "vireo-installation"
	// timeout bounds a command, with the grace periods of the guests that are shut down.
	timeout = 10 * time.Minute
	// retryInterval is the time between attempts while the CRD is not established, or virt-controller does not serve its
	// webhooks yet. Nothing reports the moment at which the API server can use both.
	retryInterval = 2 * time.Second
)

// IsCommand reports whether the arguments of virt-controller are one of the commands.
func IsCommand(arguments []string) bool {
	return len(arguments) > 0 && !strings.HasPrefix(arguments[0], "-")
}

// Run runs a command.
func Run(ctx context.Context, config *rest.Config, arguments []string) error {
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		return err
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	switch {
	case len(arguments) == 2 && arguments[0] == Apply:
		return apply(ctx, c, arguments[1])
	case len(arguments) == 2 && arguments[0] == Delete:
		return remove(ctx, c, arguments[1])
	}
	return fmt.Errorf("use %s FILE or %s NAMESPACE, or only flags to run virt-controller", Apply, Delete)
}

// apply creates or changes the object in a file.
func apply(ctx context.Context, c client.Client, file string) error {
	content, err := os.ReadFile(file) //nolint:gosec // the caller names the file
	if err != nil {
		return err
	}
	object := &unstructured.Unstructured{}
	if err := yaml.UnmarshalStrict(content, &object.Object); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if object.GroupVersionKind() != v1.GroupVersion.WithKind("KubeVirt") {
		return fmt.Errorf("%s contains a %s and no KubeVirt of %s", file, object.GroupVersionKind(), v1.GroupVersion)
	}
	var last error
	err = wait.PollUntilContextCancel(ctx, retryInterval, true, func(ctx context.Context) (bool, error) {
		last = c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object.DeepCopy()), client.FieldOwner(fieldOwner),
			client.ForceOwnership)
		if last == nil || !isTransient(last) {
			return true, last
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("apply KubeVirt %s: %w", client.ObjectKeyFromObject(object), errors.Join(last, ctx.Err()))
	}
	return nil
}

// isTransient reports whether an error is expected while CRDs and webhooks are being installed.
func isTransient(err error) bool {
	return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) || apierrors.IsInternalError(err) ||
		apierrors.IsServiceUnavailable(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err)
}

// remove deletes the KubeVirt objects of a namespace and waits until they are gone.
func remove(ctx context.Context, c client.WithWatch, namespace string) error {
	list := &v1.KubeVirtList{}
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return nil // without its CRD there is no such object
		}
		return err
	}
	for i := range list.Items {
		if kv := &list.Items[i]; conditions.IsTrue(kv.Status.Conditions, v1.KubeVirtConditionWaiting) {
			return fmt.Errorf("KubeVirt %s is not deleted, because KubeVirt's own operator is installed, which would delete all "+
				"VirtualMachines%s", client.ObjectKeyFromObject(kv), reasons(kv))
		}
	}
	for i := range list.Items {
		if err := c.Delete(ctx, &list.Items[i]); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete KubeVirt %s: %w", client.ObjectKeyFromObject(&list.Items[i]), err)
		}
	}
	for {
		if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return err
		}
		if len(list.Items) == 0 {
			return nil
		}
		if err := awaitChange(ctx, c, list); err != nil {
			return fmt.Errorf("KubeVirt %s is not gone: %w%s", client.ObjectKeyFromObject(&list.Items[0]), err,
				reasons(&list.Items[0]))
		}
	}
}

// awaitChange returns at the next change after a list.
func awaitChange(ctx context.Context, c client.WithWatch, list *v1.KubeVirtList) error {
	changes, err := c.Watch(ctx, &v1.KubeVirtList{}, &client.ListOptions{
		Namespace: list.Items[0].Namespace, Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion},
	})
	if err != nil {
		return err
	}
	defer changes.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-changes.ResultChan(): // or the watch has ended
		return nil
	}
}

// reasons returns what the conditions of an object say about its deletion.
func reasons(kv *v1.KubeVirt) string {
	var text strings.Builder
	for _, c := range kv.Status.Conditions {
		if c.Message != "" && c.Status != corev1.ConditionUnknown {
			fmt.Fprintf(&text, "; %s: %s", c.Type, c.Message)
		}
	}
	return text.String()
}
