// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cli

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// KubeVirt returns the cluster's KubeVirt object, regardless of its namespace.
func KubeVirt(ctx context.Context, objects client.Client) (*v1.KubeVirt, error) {
	list := &v1.KubeVirtList{}
	if err := objects.List(ctx, list); err != nil {
		return nil, fmt.Errorf("could not list KubeVirt objects across all namespaces: %w", err)
	}
	switch len(list.Items) {
	case 0:
		return nil, errors.New("could not detect a KubeVirt installation: there is no KubeVirt object")
	case 1:
		return &list.Items[0], nil
	default:
		return nil, errors.New("invalid kubevirt installation, more than one KubeVirt object found")
	}
}
