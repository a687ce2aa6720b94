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
	"github.com/vireo-project/vireo/internal/nodecapabilities"
)

// reportRetry is the pause after a report that could not be written.
const reportRetry = 10 * time.Second

// Reporter keeps the node's capability report up to date. It writes when the report changes and at no other time.
type Reporter struct {
	// Client writes the ConfigMap.
	Client client.Client
	// Reader reads it once, when the agent starts.
	Reader client.Reader
	// Namespace is the install namespace.
	Namespace string
	// Node is the node's name.
	Node string
	// Capabilities is what the launcher image's libvirt said. It is completed with what
	// the functions below say.
	Capabilities nodecapabilities.Report
	// Devices says whether the node's devices can be given to guests now, and whether KVM is one of them.
	Devices func() (usable, kvm bool)
	// WholeCPUs says whether the kubelet gives CPUs away, and Realtime whether the kernel lets realtime threads run. While
	// they fail, the report keeps what they said last.
	WholeCPUs func(context.Context) (bool, error)
	Realtime  func() (bool, error)
	// Changed has a value when one of them may say something else. The kubelet's policy changes only with its restart, at
	// which the devices change.
	Changed <-chan struct{}
}

// Start writes the report and follows the devices until the context ends.
func (r *Reporter) Start(ctx context.Context) error {
	written, err := r.read(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot read the last capability report")
	}
	r.remember(written)
	for {
		var retry <-chan time.Time
		if err := r.update(ctx); err != nil {
			log.FromContext(ctx).Error(err, "The capability report may be old")
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

// remember takes over what an earlier agent found out, for as long as it cannot be found out again. A report that cannot
// be read is none.
func (r *Reporter) remember(written string) {
	var last nodecapabilities.Report
	if err := json.Unmarshal([]byte(written), &last); err == nil {
		r.Capabilities.CPUManager, r.Capabilities.Realtime = last.CPUManager, last.Realtime
	}
}

// update brings what can change up to date.
func (r *Reporter) update(ctx context.Context) error {
	report := &r.Capabilities
	report.Devices, report.KVM = r.Devices()
	whole, errCPUs := r.WholeCPUs(ctx)
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
