// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package observe

import (
	"context"
	"encoding/json"
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
	// Capabilities is what the launcher image's libvirt said. It is completed with what Devices says.
	Capabilities nodecapabilities.Report
	// Devices says whether the node's devices can be given to guests now, and whether KVM is one of them.
	Devices func() (usable, kvm bool)
	// Changed has a value when Devices may say something else.
	Changed <-chan struct{}
}

// Start writes the report and follows the devices until the context ends.
func (r *Reporter) Start(ctx context.Context) error {
	written, err := r.read(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot read the last capability report")
	}
	for {
		var retry <-chan time.Time
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

func (r *Reporter) text() (string, error) {
	report := r.Capabilities
	report.Devices, report.KVM = r.Devices()
	data, err := json.Marshal(report)
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
