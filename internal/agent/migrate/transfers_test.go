// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migrate

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/agent/migrate/qemutls"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
)

func TestSummary(t *testing.T) {
	began := time.Now()
	end := began.Add(4210 * time.Millisecond)
	p := &hypervisor.TransferProgress{
		Memory: hypervisor.TransferAmount{Processed: 1000, BytesPerSecond: 20},
		Disk:   hypervisor.TransferAmount{Processed: 24, BytesPerSecond: 2}, Iteration: 3, Throttle: 20,
	}
	known, quick, unknown := &State{Progress: p, MaxDirtyRate: 7}, &State{Progress: p}, &State{}
	for want, got := range map[string]string{
		"4210 ms in total": summary(times{started: began}, unknown, end),
		"4210 ms in total, 1024 bytes transferred in 3 passes, 22 bytes/s, the guest changed up to 7 bytes/s, throttled by 20%": summary(
			times{started: began, paused: began.Add(time.Second)}, known, end),
		"4210 ms in total, 1024 bytes transferred in 3 passes, 22 bytes/s, throttled by 20%": summary(times{started: began}, quick, end),
		"4210 ms in total, downtime 180 ms": summary(
			times{started: began, paused: began.Add(4 * time.Second), resumed: began.Add(4180 * time.Millisecond)}, unknown,
			end),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// fakePeer is a target whose domain is empty.
type fakePeer struct {
	Peer
	// plain means that it has no certificates.
	plain bool
}

func (p fakePeer) Destination(context.Context, peer.Attempt) (*peer.Destination, error) {
	d := &peer.Destination{Address: "10.0.0.7", Domain: "<domain><devices/></domain>"}
	if !p.plain {
		d.TLSName, d.TLS = "migration-m", &qemutls.Files{}
	}
	return d, nil
}

func (fakePeer) Tunnel(context.Context, peer.Attempt) (net.Conn, error) {
	return nil, errors.New("no connection")
}

// unresponsiveSource transfers until a job that has started is canceled, and never reports its progress.
type unresponsiveSource struct {
	Source
	// connected is called before there is a job.
	connected func()
	// hangs means that libvirt accepts the cancellation and QEMU does not end.
	hangs bool

	mu       sync.Mutex
	request  *hypervisor.TransferRequest
	started  bool
	canceled chan struct{}
}

func (*unresponsiveSource) LiveXML(context.Context, string) (*libvirtxml.Domain, error) {
	return &libvirtxml.Domain{Devices: &libvirtxml.DomainDeviceList{}}, nil
}

func (*unresponsiveSource) PutMigrationTLS(context.Context, qemutls.Files) error { return nil }

func (*unresponsiveSource) RemoveMigrationTLS(context.Context) error { return nil }

func (s *unresponsiveSource) Transfer(ctx context.Context, r hypervisor.TransferRequest) error {
	s.mu.Lock()
	s.request = &r
	s.mu.Unlock()
	if s.connected != nil {
		s.connected()
	}
	s.mu.Lock()
	s.started = true
	s.mu.Unlock()
	select {
	case <-s.canceled:
		return errors.New("libvirt: canceled by client")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (*unresponsiveSource) TransferProgress(context.Context, string) (*hypervisor.TransferProgress, error) {
	return nil, hypervisor.ErrUnreachable
}

func (s *unresponsiveSource) CancelTransfer(context.Context, string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started && !s.hangs {
		select {
		case <-s.canceled:
		default:
			close(s.canceled)
		}
	}
	return nil
}

func (*unresponsiveSource) SourceState(context.Context, string) (hypervisor.SourceState, error) {
	return hypervisor.SourceState{Domain: protocol.SourceRunning}, nil
}

// transferOf starts a transfer and returns its error.
func transferOf(
	t *testing.T, peers Peer, source *unresponsiveSource, options *v1.VMIMConfigurationOptions, before func(*Transfers),
) error {
	t.Helper()
	enqueued := make(chan types.NamespacedName, 1)
	transfers := NewTransfers(Options{Peer: peers, Enqueue: func(key types.NamespacedName) { enqueued <- key }})
	t.Cleanup(transfers.stop)
	vmi := &v1.VirtualMachineInstance{}
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m",
		VMIMConfigurationOptions: options}
	source.canceled = make(chan struct{})
	before(transfers)
	transfers.StartTransfer(vmi, hypervisor.PodRef{UID: "pod"}, nil, source)
	select {
	case <-enqueued:
	case <-time.After(time.Minute):
		t.Fatal("the transfer does not end")
	}
	return transfers.Find("m").State().Err
}

func TestTransferCanceledBeforeJobEnds(t *testing.T) {
	source := &unresponsiveSource{}
	err := transferOf(t, fakePeer{}, source, nil, func(transfers *Transfers) {
		source.connected = func() { _ = transfers.Find("m").Cancel(context.Background(), "enough") }
	})
	var canceled *CanceledError
	if !errors.As(err, &canceled) || canceled.Reason != "enough" {
		t.Errorf("it ended with %v", err)
	}
}

func TestTransferWithoutReportsIsAborted(t *testing.T) {
	timeout := int64(1)
	err := transferOf(t, fakePeer{}, &unresponsiveSource{}, &v1.VMIMConfigurationOptions{ProgressTimeout: &timeout},
		func(*Transfers) {})
	if err == nil || err.Error() != "Live migration stuck for 1 seconds and has been aborted" {
		t.Errorf("it ended with %v", err)
	}
}

// The other agent does not decide whether the guest's memory is encrypted.
func TestTransferIsPlainOnlyIfConfigured(t *testing.T) {
	source, timeout := &unresponsiveSource{}, int64(1)
	if err := transferOf(t, fakePeer{plain: true}, source, nil, func(*Transfers) {}); !errors.Is(err, errPlain) ||
		source.request != nil {
		t.Errorf("it ended with %v, %+v", err, source.request)
	}
	disabled := true
	options := &v1.VMIMConfigurationOptions{DisableTLS: &disabled, ProgressTimeout: &timeout}
	if err := transferOf(t, fakePeer{plain: true}, source, options, func(*Transfers) {}); errors.Is(err, errPlain) ||
		source.request == nil || source.request.TLSName != "" {
		t.Errorf("it ended with %v, %+v", err, source.request)
	}
}

func TestCanceledTransferThatHangsIsDropped(t *testing.T) {
	source := &unresponsiveSource{hangs: true}
	err := transferOf(t, fakePeer{}, source, nil, func(transfers *Transfers) {
		start := time.Now()
		// A clock by which a minute takes a tenth of a second.
		transfers.now = func() time.Time { return start.Add(600 * time.Since(start)) }
		source.connected = func() { _ = transfers.Find("m").Cancel(context.Background(), "enough") }
	})
	var canceled *CanceledError
	if !errors.As(err, &canceled) || canceled.Reason != "enough" {
		t.Errorf("it ended with %v", err)
	}
}

func TestTransferIsForgottenWhenItEnds(t *testing.T) {
	source := &unresponsiveSource{canceled: make(chan struct{}), started: true}
	enqueued := make(chan types.NamespacedName, 1)
	transfers := NewTransfers(Options{Peer: fakePeer{}, Enqueue: func(key types.NamespacedName) { enqueued <- key }})
	t.Cleanup(transfers.stop)
	vmi := &v1.VirtualMachineInstance{}
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m"}
	transfers.StartTransfer(vmi, hypervisor.PodRef{UID: "pod"}, nil, source)
	transfers.Forget("m")
	transfer := transfers.Find("m")
	if transfer == nil {
		t.Fatal("it was forgotten while it runs: it could be started again")
	}
	if err := transfer.Cancel(t.Context(), "enough"); err != nil {
		t.Fatal(err)
	}
	<-enqueued
	if transfers.Find("m") != nil {
		t.Error("it is not forgotten")
	}
}
