// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

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
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/migrationtls"
	"github.com/vireo-project/vireo/internal/migration"
)

// oddPeers answer with an empty domain.
type oddPeers struct {
	Peers
	// plain have no certificates.
	plain bool
}

func (p oddPeers) Destination(context.Context, Migration) (*Destination, error) {
	d := &Destination{Address: "10.0.0.7", Domain: "<domain><devices/></domain>"}
	if !p.plain {
		d.TLSName, d.TLS = "migration-m", &migrationtls.Files{}
	}
	return d, nil
}

func (oddPeers) Tunnel(context.Context, Migration) (net.Conn, error) {
	return nil, errors.New("nobody")
}

// deafMachine copies until somebody cancels a job that has begun, and never says how far it is.
type deafMachine struct {
	Machine
	// connected is called before there is a job.
	connected func()
	// hangs says that libvirt takes the cancellation, and QEMU does not.
	hangs bool

	mu       sync.Mutex
	request  *hypervisor.CopyRequest
	begun    bool
	canceled chan struct{}
}

func (*deafMachine) LiveXML(context.Context, string) (*libvirtxml.Domain, error) {
	return &libvirtxml.Domain{Devices: &libvirtxml.DomainDeviceList{}}, nil
}

func (*deafMachine) PutMigrationTLS(context.Context, migrationtls.Files) error { return nil }

func (*deafMachine) RemoveMigrationTLS(context.Context) error { return nil }

func (m *deafMachine) Copy(ctx context.Context, r hypervisor.CopyRequest) error {
	m.mu.Lock()
	m.request = &r
	m.mu.Unlock()
	if m.connected != nil {
		m.connected()
	}
	m.mu.Lock()
	m.begun = true
	m.mu.Unlock()
	select {
	case <-m.canceled:
		return errors.New("libvirt: canceled by client")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (*deafMachine) CopyProgress(context.Context, string) (*hypervisor.CopyProgress, error) {
	return nil, hypervisor.ErrUnreachable
}

func (m *deafMachine) CancelCopy(context.Context, string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.begun && !m.hangs {
		select {
		case <-m.canceled:
		default:
			close(m.canceled)
		}
	}
	return nil
}

func (*deafMachine) Source(context.Context, string) (hypervisor.SourceState, error) {
	return hypervisor.SourceState{Domain: migration.SourceRunning}, nil
}

// copyOf begins to copy a guest, and returns what the copy ended with.
func copyOf(t *testing.T, peers Peers, machine *deafMachine, options *v1.VMIMConfigurationOptions, begun func(*Copies)) error {
	t.Helper()
	notified := make(chan types.NamespacedName, 1)
	copies := NewCopies(CopiesOptions{Peers: peers, Notify: func(key types.NamespacedName) { notified <- key }})
	t.Cleanup(copies.stop)
	vmi := &v1.VirtualMachineInstance{}
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", VMIMConfigurationOptions: options}
	machine.canceled = make(chan struct{})
	begun(copies)
	copies.Begin(vmi, hypervisor.PodRef{UID: "pod"}, nil, machine)
	select {
	case <-notified:
	case <-time.After(time.Minute):
		t.Fatal("the copy does not end")
	}
	return copies.Find("m").State().Err
}

func TestACopyThatIsCanceledBeforeLibvirtHasAJobEnds(t *testing.T) {
	machine := &deafMachine{}
	err := copyOf(t, oddPeers{}, machine, nil, func(copies *Copies) {
		machine.connected = func() { _ = copies.Find("m").Cancel(context.Background(), "enough") }
	})
	var canceled *CanceledError
	if !errors.As(err, &canceled) || canceled.Reason != "enough" {
		t.Errorf("it ended with %v", err)
	}
}

func TestACopyOfWhichNothingIsHeardIsGivenUp(t *testing.T) {
	patience := int64(1)
	err := copyOf(t, oddPeers{}, &deafMachine{}, &v1.VMIMConfigurationOptions{ProgressTimeout: &patience}, func(*Copies) {})
	if err == nil || err.Error() != "Live migration stuck for 1 seconds and has been aborted" {
		t.Errorf("it ended with %v", err)
	}
}

// What the other agent answers does not decide that the guest's memory is sent for all to read.
func TestAGuestIsSentUnencryptedOnlyIfThatIsConfigured(t *testing.T) {
	machine, patience := &deafMachine{}, int64(1)
	if err := copyOf(t, oddPeers{plain: true}, machine, nil, func(*Copies) {}); !errors.Is(err, errPlain) || machine.request != nil {
		t.Errorf("it ended with %v, %+v", err, machine.request)
	}
	disabled := true
	options := &v1.VMIMConfigurationOptions{DisableTLS: &disabled, ProgressTimeout: &patience}
	if err := copyOf(t, oddPeers{plain: true}, machine, options, func(*Copies) {}); errors.Is(err, errPlain) || machine.request == nil || machine.request.TLSName != "" {
		t.Errorf("it ended with %v, %+v", err, machine.request)
	}
}

func TestACopyThatIsNotEndedByLibvirtIsDropped(t *testing.T) {
	machine := &deafMachine{hangs: true}
	err := copyOf(t, oddPeers{}, machine, nil, func(copies *Copies) {
		began := time.Now()
		// A clock by which minutes are tenths of a second.
		copies.now = func() time.Time { return began.Add(600 * time.Since(began)) }
		machine.connected = func() { _ = copies.Find("m").Cancel(context.Background(), "enough") }
	})
	var canceled *CanceledError
	if !errors.As(err, &canceled) || canceled.Reason != "enough" {
		t.Errorf("it ended with %v", err)
	}
}

func TestACopyIsForgottenAsSoonAsItHasEnded(t *testing.T) {
	machine := &deafMachine{canceled: make(chan struct{}), begun: true}
	notified := make(chan types.NamespacedName, 1)
	copies := NewCopies(CopiesOptions{Peers: oddPeers{}, Notify: func(key types.NamespacedName) { notified <- key }})
	t.Cleanup(copies.stop)
	vmi := &v1.VirtualMachineInstance{}
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m"}
	copies.Begin(vmi, hypervisor.PodRef{UID: "pod"}, nil, machine)
	copies.Forget("m")
	begun := copies.Find("m")
	if begun == nil {
		t.Fatal("one that goes on was forgotten: it could begin once more")
	}
	if err := begun.Cancel(t.Context(), "enough"); err != nil {
		t.Fatal(err)
	}
	<-notified
	if copies.Find("m") != nil {
		t.Error("it is not forgotten")
	}
}
