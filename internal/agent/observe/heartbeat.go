// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package observe

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agentapi/nodecapabilities"
)

const (
	// renewInterval and leaseDurationSeconds are those of the kubelet's node Lease.
	renewInterval        = 10 * time.Second
	leaseDurationSeconds = 40
	// renewTimeout bounds one renewal: a request into a broken network must not delay the next one.
	renewTimeout = 5 * time.Second
	// retryInterval is the interval after a failed renewal: an agent that reconnects must soon stop the guests that were given up
	// meanwhile.
	retryInterval = 3 * time.Second
	// reconnectTimeout bounds OnReconnect, so that the Lease does not expire meanwhile.
	reconnectTimeout = 15 * time.Second
	// releaseTimeout bounds the release of the Lease when the agent stops.
	releaseTimeout = 5 * time.Second
)

// Heartbeat renews the agent's Lease, with one write each time, and releases it when the agent stops.
type Heartbeat struct {
	// Client writes the Lease.
	Client client.Client
	// Namespace is the install namespace.
	Namespace string
	// Node is the node's name.
	Node string
	// OnReconnect is called when a renewal succeeds after others failed, and again until it succeeds. It may be nil.
	OnReconnect func(context.Context) error
}

// Start renews the Lease until the context is done.
func (h *Heartbeat) Start(ctx context.Context) error {
	disconnected := false
	for {
		next := renewInterval
		if disconnected = !h.renew(ctx, disconnected); disconnected {
			next = retryInterval
		}
		select {
		case <-ctx.Done():
			// Without a holder the Lease lasts until a successor has had time to start. Running guests are not affected.
			release, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
			defer cancel()
			if err := h.write(release, ""); err != nil {
				log.FromContext(ctx).Error(err, "Cannot release the heartbeat Lease, it expires")
			}
			return nil
		case <-time.After(next):
		}
	}
}

// renew renews the Lease, and calls OnReconnect if the agent was disconnected. It reports whether both have succeeded.
func (h *Heartbeat) renew(ctx context.Context, disconnected bool) bool {
	bounded, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	err := h.write(bounded, h.Node)
	switch {
	case ctx.Err() != nil:
		return true
	case err != nil && !disconnected:
		log.FromContext(ctx).Error(err, "Cannot renew the heartbeat Lease, retrying until it succeeds")
		return false
	case err != nil:
		return false
	case !disconnected || h.OnReconnect == nil:
		return true
	}
	log.FromContext(ctx).Info("Renewed the heartbeat Lease again, checking for guests that were given up meanwhile")
	checking, cancelCheck := context.WithTimeout(ctx, reconnectTimeout)
	defer cancelCheck()
	if err := h.OnReconnect(checking); err != nil {
		log.FromContext(ctx).Error(err, "Cannot check for guests that were given up meanwhile")
		return false
	}
	return true
}

// write sets the holder and the time. It creates the Lease if there is none.
func (h *Heartbeat) write(ctx context.Context, holder string) error {
	before := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: h.Namespace, Name: nodecapabilities.ObjectName(h.Node),
	}}
	after := before.DeepCopy()
	after.Labels = map[string]string{v1.AppLabel: nodecapabilities.LabelValue}
	after.Spec = coordinationv1.LeaseSpec{
		HolderIdentity: &holder, LeaseDurationSeconds: ptr.To[int32](leaseDurationSeconds), RenewTime: ptr.To(metav1.NowMicro()),
	}
	err := h.Client.Patch(ctx, after.DeepCopy(), client.MergeFrom(before))
	if apierrors.IsNotFound(err) {
		return h.Client.Create(ctx, after)
	}
	return err
}
