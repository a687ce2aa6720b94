// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller_test

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	. "github.com/vireo-project/vireo/test/controllersuite"
)

// countLists returns a reader of the API server that counts the lists of one kind.
func countLists[L client.ObjectList]() (client.Reader, *int) {
	count := 0
	return interceptor.NewClient(AsController, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, is := list.(L); is {
				count++
			}
			return c.List(ctx, list, opts...)
		},
	}), &count
}
