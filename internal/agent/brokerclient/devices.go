// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package brokerclient

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/brokerapi"
)

const (
	// firstRetry and maxRetry bound the delay before another attempt to reach the broker, which doubles each time.
	firstRetry = 100 * time.Millisecond
	maxRetry   = 5 * time.Second
)

// Devices follows the state of the node's devices, which the broker advertises to the kubelet.
type Devices struct {
	client *Client
	// onConnect is called when the broker responds again.
	onConnect func()
	changed   chan struct{}

	mu    sync.Mutex
	state brokerapi.DevicesResult
	// responds reports whether the broker responds.
	responds bool
}

// NewDevices returns Devices. onConnect is called each time that the broker responds after it did not; it must not block.
func NewDevices(client *Client, onConnect func()) *Devices {
	return &Devices{client: client, onConnect: onConnect, changed: make(chan struct{}, 1)}
}

// Changed receives a value when the result of Usable may have changed.
func (d *Devices) Changed() <-chan struct{} { return d.changed }

// Usable reports whether the device that every guest needs is available, whether KVM is, and whether both are known. They are not known
// until the kubelet has accepted the devices. While the broker is restarted, the last result remains.
func (d *Devices) Usable() (usable, kvm, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state.Usable, d.state.KVM, d.state.Known
}

// errSilent means that the broker does not respond.
var errSilent = errors.New("virt-broker of this node does not respond: see its Pod")

// Ready returns an error while the broker does not respond. It is a check of virt-handler's readiness: without the broker, no guest can be
// started, reached or migrated.
func (d *Devices) Ready(*http.Request) error {
	if !d.Responds() {
		return errSilent
	}
	return nil
}

// Responds reports whether the broker responds.
func (d *Devices) Responds() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.responds
}

func (d *Devices) setResponds(responds bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.responds = responds
}

// Start follows the devices until the context is done.
func (d *Devices) Start(ctx context.Context) error {
	retry, reported := firstRetry, false
	for ctx.Err() == nil {
		err := d.follow(ctx, func() {
			retry, reported = firstRetry, false
			d.setResponds(true)
			d.onConnect()
		})
		d.setResponds(false)
		if ctx.Err() == nil && !reported {
			log.FromContext(ctx).Error(err, "Cannot follow the node's devices, retrying until it succeeds")
			reported = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
		retry = min(2*retry, maxRetry)
	}
	return nil
}

// follow follows the devices until the connection ends. It calls connected after the first response.
func (d *Devices) follow(ctx context.Context, connected func()) error {
	conn, err := d.client.send(ctx, brokerapi.WatchDevices, "", nil)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	for first := true; ; first = false {
		state := brokerapi.DevicesResult{}
		file, err := receive(ctx, conn, &state)
		if file != nil {
			_ = file.Close()
		}
		if err != nil {
			return err
		}
		if first {
			connected()
		}
		d.set(state)
	}
}

// set stores a state. One that is not known does not replace one that is: the broker was restarted, and the kubelet has not accepted the
// devices again yet.
func (d *Devices) set(state brokerapi.DevicesResult) {
	d.mu.Lock()
	if state.Known || !d.state.Known {
		d.state = state
	}
	d.mu.Unlock()
	select {
	case d.changed <- struct{}{}:
	default:
	}
}
