// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/datavolume"
)

// ConfigSource gives the cluster's current configuration. clusterconfig.Store is one.
type ConfigSource interface {
	Current() clusterconfig.Config
}

// ConfigFeed is a ConfigSource that reports changes. clusterconfig.Store is one.
type ConfigFeed interface {
	ConfigSource
	// Subscribe calls f at once and after each change, one call at a time.
	Subscribe(f func(clusterconfig.Config))
}

// DataVolumes reads the DataVolumes of the importer and enqueues the objects that use them. datavolume.Store is one.
type DataVolumes interface {
	datavolume.Reader
	// Source enqueues what users returns for a change.
	Source(users func(context.Context, datavolume.Change) []ctrl.Request) *datavolume.Source
}
