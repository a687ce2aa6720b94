// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/controller/storage/volumesnapshot"
)

// ConfigSource provides the cluster's current configuration. clusterconfig.Store is one.
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

// VolumeSnapshots reads VolumeSnapshots and their classes, and enqueues the objects that depend on them.
// volumesnapshot.Store is one.
type VolumeSnapshots interface {
	volumesnapshot.Reader
	// OnSnapshot enqueues what users returns when a VolumeSnapshot changes.
	OnSnapshot(users func(context.Context, client.ObjectKey) []ctrl.Request) source.Source
	// OnClass enqueues what all returns when the choice of classes may change.
	OnClass(all func(context.Context) []ctrl.Request) source.Source
}
