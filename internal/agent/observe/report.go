// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package observe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agentapi/nodecapabilities"
)

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
	Capabilities nodecapabilities.Report
	// Devices reports whether the node's devices are available to guests, and whether KVM is one of them. While that is not known,
	// as when the agent has just started, the report keeps the last results.
	Devices func() (usable, kvm, known bool)
	// StaticCPUPolicy reports whether the kubelet assigns exclusive CPUs, and Realtime whether the node can run realtime guests.
	// While they fail, the report keeps their last results.
	StaticCPUPolicy func(context.Context) (bool, error)
	Realtime        func() (bool, error)
	// Changed receives a value when one of the results may have changed. The kubelet's policy changes only with its restart, with
	// which the devices change.
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
	var last nodecapabilities.Report
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
		Namespace: r.Namespace, Name: nodecapabilities.ObjectName(r.Node),
	}}
}

func (r *Reporter) read(ctx context.Context) (string, error) {
	current := r.object()
	if err := r.Reader.Get(ctx, client.ObjectKeyFromObject(current), current); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	return current.Data[nodecapabilities.DataKey], nil
}

func (r *Reporter) write(ctx context.Context, text string) error {
	after := r.object()
	after.Labels = map[string]string{v1.AppLabel: nodecapabilities.LabelValue}
	after.Data = map[string]string{nodecapabilities.DataKey: text}
	err := r.Client.Patch(ctx, after.DeepCopy(), client.MergeFrom(r.object()))
	if apierrors.IsNotFound(err) {
		return r.Client.Create(ctx, after)
	}
	return err
}
