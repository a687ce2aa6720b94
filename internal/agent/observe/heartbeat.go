// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package observe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

const (
	// renewInterval and leaseDurationSeconds are those of the kubelet's node Lease.
	renewInterval        = 10 * time.Second
	leaseDurationSeconds = 40
	// renewTimeout bounds one renewal: a request into a broken network must not delay the next one.
	renewTimeout = 5 * time.Second
	// retryInterval is the interval after a failed renewal: an agent that reconnects must soon stop the guests that were
	// given up meanwhile.
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
		Namespace: h.Namespace, Name: agentapi.ObjectName(h.Node),
	}}
	after := before.DeepCopy()
	after.Labels = map[string]string{v1.AppLabel: agentapi.LabelValue}
	after.Spec = coordinationv1.LeaseSpec{
		HolderIdentity: &holder, LeaseDurationSeconds: ptr.To[int32](leaseDurationSeconds),
		RenewTime: ptr.To(metav1.NowMicro()),
	}
	err := h.Client.Patch(ctx, after.DeepCopy(), client.MergeFrom(before))
	if apierrors.IsNotFound(err) {
		return h.Client.Create(ctx, after)
	}
	return err
}

// reportRetry is the delay after a report could not be written.
const reportRetry = 10 * time.Second

// Reporter keeps the node's capability report up to date. It writes the report only when it changes.
type Reporter struct {
	// Client writes the ConfigMap.
	Client client.Client
	// Reader reads the ConfigMap once, when the agent starts.
	Reader client.Reader
	// Namespace is the install namespace.
	Namespace string
	// Node is the node's name.
	Node string
	// Capabilities is what the launcher image's libvirt reported. The results of the functions below are added to it.
	Capabilities agentapi.Capabilities
	// Devices reports whether the node's devices are available to guests, and whether KVM is one of them. While that is
	// not known, as when the agent has just started, the report keeps the last results.
	Devices func() (usable, kvm, known bool)
	// StaticCPUPolicy reports whether the kubelet assigns exclusive CPUs, and Realtime whether the node can run realtime
	// guests. While they fail, the report keeps their last results.
	StaticCPUPolicy func(context.Context) (bool, error)
	Realtime        func() (bool, error)
	// Changed receives a value when one of the results may have changed. The kubelet's policy changes only with its
	// restart, with which the devices change.
	Changed <-chan struct{}
}

// Start writes the report, and again after each change, until the context is done.
func (r *Reporter) Start(ctx context.Context) error {
	written, err := r.read(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot read the last capability report")
	}
	r.remember(written)
	for {
		var retry <-chan time.Time
		if err := r.update(ctx); err != nil {
			log.FromContext(ctx).Error(err, "The capability report may be outdated")
			retry = time.After(reportRetry)
		}
		text, err := r.text()
		if err != nil {
			return err
		}
		if text != written {
			if err := r.write(ctx, text); err != nil {
				log.FromContext(ctx).Error(err, "Cannot write the capability report")
				retry = time.After(reportRetry)
			} else {
				written = text
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.Changed:
		case <-retry:
		}
	}
}

// remember keeps the results of an earlier agent until there are new ones. It ignores an invalid report.
func (r *Reporter) remember(written string) {
	var last agentapi.Capabilities
	if err := json.Unmarshal([]byte(written), &last); err == nil {
		r.Capabilities.Devices, r.Capabilities.KVM = last.Devices, last.KVM
		r.Capabilities.CPUManager, r.Capabilities.Realtime = last.CPUManager, last.Realtime
	}
}

// update updates the part of the report that can change.
func (r *Reporter) update(ctx context.Context) error {
	report := &r.Capabilities
	if usable, kvm, known := r.Devices(); known {
		report.Devices, report.KVM = usable, kvm
	}
	whole, errCPUs := r.StaticCPUPolicy(ctx)
	if errCPUs == nil {
		report.CPUManager = whole
	}
	realtime, errRealtime := r.Realtime()
	if errRealtime == nil {
		report.Realtime = realtime
	}
	return errors.Join(errCPUs, errRealtime)
}

func (r *Reporter) text() (string, error) {
	data, err := json.Marshal(r.Capabilities)
	if err != nil {
		return "", fmt.Errorf("write the capability report: %w", err)
	}
	return string(data), nil
}

func (r *Reporter) object() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: r.Namespace, Name: agentapi.ObjectName(r.Node),
	}}
}

func (r *Reporter) read(ctx context.Context) (string, error) {
	current := r.object()
	if err := r.Reader.Get(ctx, client.ObjectKeyFromObject(current), current); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	return current.Data[agentapi.CapabilitiesKey], nil
}

func (r *Reporter) write(ctx context.Context, text string) error {
	after := r.object()
	after.Labels = map[string]string{v1.AppLabel: agentapi.LabelValue}
	after.Data = map[string]string{agentapi.CapabilitiesKey: text}
	err := r.Client.Patch(ctx, after.DeepCopy(), client.MergeFrom(r.object()))
	if apierrors.IsNotFound(err) {
		return r.Client.Create(ctx, after)
	}
	return err
}
