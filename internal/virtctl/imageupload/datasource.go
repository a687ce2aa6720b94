// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package imageupload

import (
	"context"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/api/cdi/v1beta1"
)

// ensureDataSource creates or updates the DataSource with the volume's name.
func (u *upload) ensureDataSource(ctx context.Context) error {
	target := cdi.DataSourceSource{PVC: &v1beta1.DataVolumeSourcePVC{Namespace: u.namespace, Name: u.name}}
	source := &cdi.DataSource{}
	err := u.objects.Get(ctx, u.key(), source)
	if apierrors.IsNotFound(err) {
		source = &cdi.DataSource{
			ObjectMeta: metav1.ObjectMeta{Namespace: u.namespace, Name: u.name, Labels: u.labels()},
			Spec:       cdi.DataSourceSpec{Source: target},
		}
		if err := u.objects.Create(ctx, source); err != nil {
			return fmt.Errorf("DataSource %s/%s was not created: %w", u.namespace, u.name, err)
		}
		u.printf("Created a new DataSource %s/%s", u.namespace, u.name)
		return nil
	}
	if err != nil {
		return err
	}
	before := source.DeepCopy()
	if source.Labels == nil {
		source.Labels = map[string]string{}
	}
	maps.Copy(source.Labels, u.labels())
	source.Spec.Source = target
	if err := u.objects.Patch(ctx, source, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("DataSource %s/%s was not updated: %w", u.namespace, u.name, err)
	}
	u.printf("Updated an existing DataSource %s/%s", u.namespace, u.name)
	return nil
}
