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
	"github.com/vireo-project/vireo/internal/nodecapabilities"
)

const (
	// renewInterval and leaseDuration are those of the kubelet's own node Lease: an agent counts as gone after 40 s.
	renewInterval        = 10 * time.Second
	leaseDurationSeconds = 40
	// renewTimeout bounds a beat: what was sent into a network that is cut must not hold up the next one.
	renewTimeout = 5 * time.Second
	// retryInterval is the pause after a beat that failed: the sooner an agent knows that it is back, the sooner it ends the guests
	// that were given up meanwhile.
	retryInterval = 3 * time.Second
	// backTimeout bounds Back, so that the Lease does not expire over it.
	backTimeout = 15 * time.Second
	// leaveTimeout bounds the last word of an agent that ends.
	leaveTimeout = 5 * time.Second
)

// Heartbeat renews the agent's Lease, one write each time, and gives it back when the agent ends in order.
type Heartbeat struct {
	// Client writes the Lease.
	Client client.Client
	// Namespace is the install namespace.
	Namespace string
	// Node is the node's name.
	Node string
	// Back is called when a beat succeeds after others failed, again and again until it succeeds. Nil does nothing.
	Back func(context.Context) error
}

// Start renews the Lease until the context ends.
func (h *Heartbeat) Start(ctx context.Context) error {
	lost := false
	for {
		next := renewInterval
		if lost = !h.beat(ctx, lost); lost {
			next = retryInterval
		}
		select {
		case <-ctx.Done():
			// Without a holder the node gets no new guests from now on. Those that run go on.
			leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
			defer cancel()
			if err := h.write(leave, ""); err != nil {
				log.FromContext(ctx).Error(err, "Cannot give the heartbeat Lease back, it expires")
			}
			return nil
		case <-time.After(next):
		}
	}
}

// beat renews the Lease. It says whether the API server knows that the agent lives, and the agent what happened while it did not.
func (h *Heartbeat) beat(ctx context.Context, lost bool) bool {
	bounded, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	err := h.write(bounded, h.Node)
	switch {
	case ctx.Err() != nil:
		return true
	case err != nil && !lost:
		log.FromContext(ctx).Error(err, "Cannot renew the heartbeat Lease, trying again until it succeeds")
		return false
	case err != nil:
		return false
	case !lost || h.Back == nil:
		return true
	}
	log.FromContext(ctx).Info("Renewed the heartbeat Lease again, looking for guests that were given up meanwhile")
	looking, cancelLook := context.WithTimeout(ctx, backTimeout)
	defer cancelLook()
	if err := h.Back(looking); err != nil {
		log.FromContext(ctx).Error(err, "Cannot look for guests that were given up meanwhile")
		return false
	}
	return true
}

// write sets the holder and the time, and makes the Lease when there is none.
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
