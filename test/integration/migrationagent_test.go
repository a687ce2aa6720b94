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
	"github.com/vireo-project/vireo/internal/agent/brokerclient"
	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/agent/migrate"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/broker"
)

// The benchmark measures the cost of an agent. Each side has an agent in its own process, with all parts that migrate
// guests and without Kubernetes: the benchmark sends it the VMI's status.

// agentName is the argv[0] with which the test binary runs as the agent of a node.
const agentName = "vireo-test-agent"

func TestMain(m *testing.M) {
	run := map[string]func(setup string) error{agentName: runAgent, freezingAgentName: runFreezingAgent}[os.Args[0]]
	if len(os.Args) != 2 || run == nil {
		os.Exit(m.Run())
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[0], err)
		os.Exit(1)
	}
	os.Exit(0)
}

// agentListener is the descriptor of the socket that an agent listens on.
const agentListener = 3

// agentSetup is the configuration of an agent.
type agentSetup struct {
	// Node is the node's name, and Port the port of all agents.
	Node string
	Port int
	// Trust is the directory of authorities; Certificate and Key are the agent's own.
	Trust            string
	Certificate, Key []byte
	// PodsDir and RelayDir are directories as on a node; PID is the Pod's PID 1.
	PodsDir, RelayDir string
	PID               int
}

// agentOrder is a command to an agent about the migration of a VMI.
type agentOrder struct {
	Do  string
	VMI *v1.VirtualMachineInstance
	// Address and Domain are the target Pod's.
	Address, Domain string
}

const (
	// orderExpect prepares the target's agent for the guest, and orderForget ends that.
	orderExpect, orderForget = "expect", "forget"
	// orderMigrate starts the migration. The response is sent when the guest runs on the target and libvirt has reported
	// its end on the source.
	orderMigrate = "migrate"
)

// agentResponse is the response to an order.
type agentResponse struct{ Error string }

// agentProcess is the agent in a process.
type agentProcess struct {
	agentSetup
	broker      *brokerclient.Client
	connections *rpc.Manager
	targets     *peer.Targets
	peers       *peer.Client
	transfers   *migrate.Transfers
	// changed gets an element when something has changed that an order may wait for.
	changed chan struct{}

	mu       sync.Mutex
	incoming *v1.VirtualMachineInstance
	// migrated contains the migrations whose guest runs on the target.
	migrated map[types.UID]bool
}

// runAgent runs the agent until its standard input is closed.
func runAgent(setup string) error {
	ctrllog.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	a := &agentProcess{targets: peer.NewTargets(), changed: make(chan struct{}, 1), migrated: map[types.UID]bool{}}
	if err := json.Unmarshal([]byte(setup), &a.agentSetup); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := a.start(ctx); err != nil {
		return err
	}
	orders, responses := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		order := agentOrder{}
		if err := orders.Decode(&order); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		response := agentResponse{}
		if err := a.execute(ctx, &order); err != nil {
			response.Error = err.Error()
		}
		if err := responses.Encode(response); err != nil {
			return err
		}
	}
}

// fixedCertificate is a certificate without rotation.
type fixedCertificate struct{ tls.Certificate }

// Current implements certificate.Provider.
func (h fixedCertificate) Current() *tls.Certificate { return &h.Certificate }

func (a *agentProcess) start(ctx context.Context) error {
	pair, err := tls.X509KeyPair(a.Certificate, a.Key)
	if err != nil {
		return err
	}
	trust := certificate.Trust(a.Trust)
	if err := a.startBroker(); err != nil {
		return err
	}
	if a.connections, err = rpc.NewManager(podOptions(a.broker, a.RelayDir), func(types.NamespacedName) {}); err != nil {
		return err
	}
	a.peers = peer.NewClient(func(node string) (*tls.Config, error) {
		return certificate.MigrationClient(fixedCertificate{pair}, trust, node)
	}, a.Port)
	a.transfers = migrate.NewTransfers(migrate.Options{
		Peer: a.peers, OnMigrated: a.release, Enqueue: func(types.NamespacedName) { a.notify() }, Checksum: a.sum,
		RecordEvent: a.recordEvent,
	})
	server, err := peer.NewServer(peer.ServerOptions{
		TLS: certificate.MigrationServer(fixedCertificate{pair}, trust), PeerNode: certificate.PeerNode, Node: a.Node,
		Incoming: a, Targets: a.targets,
		Open:   func(pod hypervisor.PodRef) (peer.Launcher, error) { return a.connections.Connect(pod) },
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
	_, err = a.connect(ctx)
	return err
}

// startBroker starts a broker that runs as long as the process.
func (a *agentProcess) startBroker() error {
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		return err
	}
	_, err = broker.ServeAt(dir, brokerOptions(a.PodsDir, a.PID))
	a.broker = brokerclient.New(dir)
	return err
}

// sum reads a file of an image in the Pod.
func (a *agentProcess) sum(ctx context.Context, pod hypervisor.PodRef, mount, name string) (peer.Checksum, error) {
	size, crc, err := facts.Sum(ctx, a.broker, pod, mount, name)
	return peer.Checksum{Size: size, CRC32: crc}, err
}

// connect waits for the connection to the Pod's libvirtd.
func (a *agentProcess) connect(ctx context.Context) (*rpc.Conn, error) {
	for {
		conn, err := a.connections.Connect(podRef())
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

func (a *agentProcess) execute(ctx context.Context, order *agentOrder) error {
	conn, err := a.connect(ctx)
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
			Pod: podRef(), Address: order.Address, Domain: order.Domain, Plain: migrate.IsPlain(m.VMIMConfigurationOptions),
		})
		return nil
	case orderForget:
		a.targets.Forget(agentPodUID, m.MigrationUID)
		return conn.RemoveMigrationTLS(ctx)
	case orderMigrate:
		a.transfers.StartTransfer(order.VMI, podRef(), nil, conn)
		return a.waitMigrated(ctx, m.MigrationUID)
	default:
		return fmt.Errorf("no order: %q", order.Do)
	}
}

// waitMigrated waits for the end of a migration.
func (a *agentProcess) waitMigrated(ctx context.Context, uid types.UID) error {
	for {
		state := a.transfers.Find(uid).State()
		a.mu.Lock()
		migrated := a.migrated[uid]
		a.mu.Unlock()
		if !state.Running && (migrated || state.Err != nil) {
			a.transfers.Forget(uid)
			return state.Err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.changed:
		}
	}
}

func (a *agentProcess) notify() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// recordEvent gets the events of migrations. Migrated means that the guest runs on the target.
func (a *agentProcess) recordEvent(vmi *v1.VirtualMachineInstance, reason v1.SyncEvent, _, message string) {
	ctrllog.Log.Info("Event", "reason", reason.String(), "message", message)
	if reason != v1.Migrated {
		return
	}
	a.mu.Lock()
	a.migrated[vmi.Status.MigrationState.MigrationUID] = true
	a.mu.Unlock()
	a.notify()
}

// release releases the guest to the target's agent, as the reconciler does.
func (a *agentProcess) release(ctx context.Context, vmi *v1.VirtualMachineInstance) {
	m := peer.AttemptOf(vmi)
	for ctx.Err() == nil {
		if runs, err := a.peers.Release(ctx, m); err == nil {
			a.transfers.SetTargetRunning(m.UID, runs)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// run resumes a released guest if the protocol decides so, as the reconciler does.
func (a *agentProcess) run(ctx context.Context, _ types.NamespacedName, uid types.UID) (time.Duration, error) {
	conn, err := a.connect(ctx)
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
	return 0, errors.New("the guest's transfer is not complete")
}

// Get implements client.Reader for the one incoming VMI.
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
	return errors.New("not implemented")
}
