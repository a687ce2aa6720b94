// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/agent/migration"
	"github.com/vireo-project/vireo/internal/agent/migration/peer"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/migration/protocol"
)

// The benchmark measures what an agent costs, so that each side has one in a process of its own: all that moves guests, and no
// Kubernetes. What its status would say is told it.

// agentName is the argv[0] under which the test binary is the agent of a node.
const agentName = "vireo-test-agent"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[0] == agentName {
		if err := runAgent(os.Args[1]); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", agentName, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// agentListener is the descriptor of the socket that an agent listens on.
const agentListener = 3

// agentSetup is what an agent has to know.
type agentSetup struct {
	// Node is its name, and Port that of all agents.
	Node string
	Port int
	// Trust is the directory of authorities; Certificate and Key are the agent's own.
	Trust            string
	Certificate, Key []byte
	// PodsDir and RelayDir are directories as on a node; PID is the Pod's PID 1.
	PodsDir, RelayDir string
	PID               int
}

// agentOrder is what an agent is to do with the migration of a VMI.
type agentOrder struct {
	Do  string
	VMI *v1.VirtualMachineInstance
	// Address and Domain are of the Pod to which it goes.
	Address, Domain string
}

const (
	// orderExpect has the target's agent let the guest come, and orderForget be done with that.
	orderExpect, orderForget = "expect", "forget"
	// orderMove is answered when the guest runs at the target, and libvirt has said that it is gone here.
	orderMove = "move"
)

// agentAnswer follows each order.
type agentAnswer struct{ Error string }

// agentProcess is an agent.
type agentProcess struct {
	agentSetup
	connections *rpc.Manager
	targets     *peer.Targets
	peers       *peer.Client
	transfers   *migration.Transfers
	// wake says that something has changed that an order may wait for.
	wake chan struct{}

	mu       sync.Mutex
	incoming *v1.VirtualMachineInstance
	// over are the migrations whose guest runs at the target.
	over map[types.UID]bool
}

// runAgent is the agent's process. It ends with the one that gives the orders.
func runAgent(setup string) error {
	ctrllog.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	a := &agentProcess{targets: peer.NewTargets(), wake: make(chan struct{}, 1), over: map[types.UID]bool{}}
	if err := json.Unmarshal([]byte(setup), &a.agentSetup); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := a.start(ctx); err != nil {
		return err
	}
	orders, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		order := agentOrder{}
		if err := orders.Decode(&order); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		answer := agentAnswer{}
		if err := a.obey(ctx, &order); err != nil {
			answer.Error = err.Error()
		}
		if err := answers.Encode(answer); err != nil {
			return err
		}
	}
}

// held is a certificate that is there.
type held struct{ tls.Certificate }

// Current implements certificate.Provider.
func (h held) Current() *tls.Certificate { return &h.Certificate }

func (a *agentProcess) start(ctx context.Context) error {
	pair, err := tls.X509KeyPair(a.Certificate, a.Key)
	if err != nil {
		return err
	}
	trust := certificate.Trust(a.Trust)
	if a.connections, err = rpc.NewManager(podOptions(a.PodsDir, a.RelayDir, a.PID), func(types.NamespacedName) {}); err != nil {
		return err
	}
	a.peers = peer.NewClient(func(node string) (*tls.Config, error) { return certificate.MigrationClient(held{pair}, trust, node) }, a.Port)
	a.transfers = migration.NewTransfers(migration.Options{
		Peer: a.peers, OnMigrated: a.left, Enqueue: func(types.NamespacedName) { a.changed() }, Checksum: a.sum, RecordEvent: a.told,
	})
	server, err := peer.NewServer(peer.ServerOptions{
		TLS: certificate.MigrationServer(held{pair}, trust), PeerNode: certificate.PeerNode, Node: a.Node, Incoming: a, Targets: a.targets,
		Open:   func(pod hypervisor.PodRef) (peer.Launcher, error) { return a.connections.Conn(pod) },
		Tunnel: a.connections.Tunnel, Run: a.run, Checksum: a.sum,
	})
	if err != nil {
		return err
	}
	listener, err := net.FileListener(os.NewFile(agentListener, "listener"))
	if err != nil {
		return err
	}
	go func() {
		if err := server.Serve(ctx, listener); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}()
	_, err = a.machine(ctx)
	return err
}

// sum reads a file of an image in the Pod.
func (a *agentProcess) sum(ctx context.Context, pod hypervisor.PodRef, mount, name string) (peer.Checksum, error) {
	conn, err := a.connections.Conn(pod)
	if err != nil {
		return peer.Checksum{}, err
	}
	size, crc, err := facts.PodFiles{Process: conn.Process()}.Sum(ctx, "default", mount, name)
	return peer.Checksum{Size: size, CRC32: crc}, err
}

// machine is the connection to the Pod's libvirtd, once it is there.
func (a *agentProcess) machine(ctx context.Context) (*rpc.Conn, error) {
	for {
		conn, err := a.connections.Conn(podRef())
		if err == nil || !errors.Is(err, hypervisor.ErrConnecting) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (a *agentProcess) obey(ctx context.Context, order *agentOrder) error {
	conn, err := a.machine(ctx)
	if err != nil {
		return err
	}
	m := order.VMI.Status.MigrationState
	switch order.Do {
	case orderExpect:
		a.mu.Lock()
		a.incoming = order.VMI
		a.mu.Unlock()
		a.targets.Put(m.MigrationUID, peer.Target{
			Pod: podRef(), Address: order.Address, Domain: order.Domain, Plain: migration.IsPlain(m.VMIMConfigurationOptions),
		})
		return nil
	case orderForget:
		a.targets.Forget(agentPodUID, m.MigrationUID)
		return conn.RemoveMigrationTLS(ctx)
	case orderMove:
		a.transfers.StartTransfer(order.VMI, podRef(), nil, conn)
		return a.moved(ctx, m.MigrationUID)
	default:
		return fmt.Errorf("no order: %q", order.Do)
	}
}

// moved waits for the end of a migration.
func (a *agentProcess) moved(ctx context.Context, uid types.UID) error {
	for {
		state := a.transfers.Find(uid).State()
		a.mu.Lock()
		over := a.over[uid]
		a.mu.Unlock()
		if !state.Running && (over || state.Err != nil) {
			a.transfers.Forget(uid)
			return state.Err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.wake:
		}
	}
}

func (a *agentProcess) changed() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// told hears of the end of a migration: that is said when its guest runs at the target.
func (a *agentProcess) told(vmi *v1.VirtualMachineInstance, reason v1.SyncEvent, _, message string) {
	ctrllog.Log.Info("Told", "reason", reason.String(), "message", message)
	if reason != v1.Migrated {
		return
	}
	a.mu.Lock()
	a.over[vmi.Status.MigrationState.MigrationUID] = true
	a.mu.Unlock()
	a.changed()
}

// left releases the target's agent, as the reconciler does.
func (a *agentProcess) left(ctx context.Context, vmi *v1.VirtualMachineInstance) {
	m := peer.AttemptOf(vmi)
	for ctx.Err() == nil {
		if runs, err := a.peers.Release(ctx, m); err == nil {
			a.transfers.SetTargetRunning(m.UID, runs)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// run lets a guest run that was released, by the decision that the reconciler asks for.
func (a *agentProcess) run(ctx context.Context, _ types.NamespacedName, uid types.UID) (time.Duration, error) {
	conn, err := a.machine(ctx)
	if err != nil {
		return 0, err
	}
	a.mu.Lock()
	name := launcherpod.DomainName(a.incoming.Namespace, a.incoming.Name)
	a.mu.Unlock()
	state, err := conn.TargetState(ctx, name)
	if err != nil {
		return 0, err
	}
	view := protocol.TargetView{Record: protocol.Record{Started: true}, Domain: state, Released: a.targets.IsReleased(uid)}
	for _, action := range protocol.DecideTarget(view) {
		if action == protocol.Run {
			return 0, conn.ResumeTarget(ctx, name)
		}
	}
	return 0, errors.New("the guest has not arrived as a whole")
}

// Get implements client.Reader for the one VMI that is on its way.
func (a *agentProcess) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	vmi, ok := into.(*v1.VirtualMachineInstance)
	if !ok || a.incoming == nil || key != client.ObjectKeyFromObject(a.incoming) {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	a.incoming.DeepCopyInto(vmi)
	return nil
}

// List implements client.Reader.
func (*agentProcess) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("nobody lists")
}
