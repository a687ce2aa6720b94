// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// concerned lists the objects that a change of something else concerns, to look at each of them. Of a list that fails only the
// log tells, unless the process ends.
func concerned(ctx context.Context, reader client.Reader, list client.ObjectList, options ...client.ListOption) []ctrl.Request {
	var requests []ctrl.Request
	err := reader.List(ctx, list, options...)
	if err == nil {
		err = meta.EachListItem(list, func(item runtime.Object) error {
			object, err := meta.Accessor(item)
			if err == nil {
				requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKey{Namespace: object.GetNamespace(), Name: object.GetName()}})
			}
			return err
		})
	}
	if err != nil && ctx.Err() == nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list the objects that a change concerns", "list", fmt.Sprintf("%T", list))
	}
	return requests
}
