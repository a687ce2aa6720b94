// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"context"
	"slices"
	"time"

	"github.com/go-logr/logr"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// drainLimit is how long an agent that is stopped waits for migrations. The DaemonSet's terminationGracePeriodSeconds
// is longer. KubeVirt's agents wait as long.
const drainLimit = 300 * time.Second

// drain delays the end of an agent until the transfers that it takes part in have ended, because they end with it.
type drain struct {
	node  string
	limit time.Duration
	log   logr.Logger
	// caches contain the VMIs that run on the node and those that migrate to it.
	caches []cache.Cache
}

// after returns a context that ends after ctx: when no guest migrates from or to the node, at the latest after the
// limit.
func (d *drain) after(ctx context.Context) (context.Context, context.CancelFunc) {
	until, cancel := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer cancel()
		select {
		case <-ctx.Done():
			d.wait(until)
		case <-until.Done():
		}
	}()
	return until, cancel
}

// wait returns when no guest migrates.
func (d *drain) wait(ctx context.Context) {
	ctx, stop := context.WithTimeout(ctx, d.limit)
	defer stop()
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	for _, c := range d.caches {
		informer, err := c.GetInformer(ctx, &v1.VirtualMachineInstance{}, cache.BlockUntilSynced(false))
		if err != nil || !informer.HasSynced() {
			return // The cache was never filled, so that the agent has started no transfer.
		}
		registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			UpdateFunc: func(any, any) { notify() }, DeleteFunc: func(any) { notify() },
		})
		if err != nil {
			return
		}
		defer func() { _ = informer.RemoveEventHandler(registration) }()
	}
	for {
		name := d.migrating(ctx)
		if name == "" {
			return
		}
		d.log.Info("Waiting for a migration before the end", "vmi", name)
		select {
		case <-changed:
		case <-ctx.Done():
			d.log.Info("A migration has not ended in time", "vmi", name)
			return
		}
	}
}

// migrating returns a VMI whose guest is being transferred from or to the node, or nothing.
func (d *drain) migrating(ctx context.Context) string {
	for _, c := range d.caches {
		list := &v1.VirtualMachineInstanceList{}
		if err := c.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return ""
		}
		at := slices.IndexFunc(list.Items, func(vmi v1.VirtualMachineInstance) bool { return isTransferred(&vmi, d.node) })
		if at >= 0 {
			return list.Items[at].Namespace + "/" + list.Items[at].Name
		}
	}
	return ""
}

func isTransferred(vmi *v1.VirtualMachineInstance, node string) bool {
	m := vmi.Status.MigrationState
	return m != nil && m.StartTimestamp != nil && !vmistatus.HasEnded(m) && (m.SourceNode == node || m.TargetNode == node)
}
