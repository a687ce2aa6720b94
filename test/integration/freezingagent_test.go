// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/brokerclient"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/agent/jobs/snapshotfreeze"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
	"github.com/vireo-project/vireo/test/broker"
)

// freezingAgentName is the argv[0] with which the test binary runs as an agent that freezes a guest, with its broker.
const freezingAgentName = "vireo-test-freezing-agent"

// freezingAgent is the part of an agent that freezes and thaws a guest, in a process of its own that can be killed. Its
// standard input has the intents that virt-controller writes, and its standard output what it writes to the VMI's
// status.
type freezingAgent struct {
	// PodsDir and RelayDir are directories as on a node; PID is the Pod's PID 1.
	PodsDir, RelayDir string
	PID               int
	Domain            string
	// Status is that of the VMI.
	Status v1.VirtualMachineInstanceStatus

	manager *rpc.Manager
	freezes *snapshotfreeze.Freezes
	keeper  snapshotfreeze.Keeper
	// changed gets an element when the VMI is to be reconciled.
	changed chan struct{}
	reports *json.Encoder
	began   bool
}

// freezingRetry is the time between two attempts to reach the guest.
const freezingRetry = 100 * time.Millisecond

// runFreezingAgent runs the agent until its standard input is closed.
func runFreezingAgent(setup string) error {
	ctrllog.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	a := &freezingAgent{changed: make(chan struct{}, 1), reports: json.NewEncoder(os.Stdout)}
	if err := json.Unmarshal([]byte(setup), a); err != nil {
		return err
	}
	if _, err := broker.ServeAt(a.RelayDir, brokerOptions(a.PodsDir, a.PID)); err != nil {
		return err
	}
	var err error
	if a.manager, err = rpc.NewManager(podOptions(brokerclient.New(a.RelayDir), filepath.Join(a.RelayDir, "r")),
		a.enqueue); err != nil {
		return err
	}
	a.freezes = snapshotfreeze.New(clock.RealClock{}, a.enqueue)
	intents := make(chan *v1.SnapshotFreeze)
	go func() {
		defer close(intents)
		for orders := json.NewDecoder(os.Stdin); ; {
			intent := &v1.SnapshotFreeze{}
			if orders.Decode(intent) != nil {
				return
			}
			intents <- intent
		}
	}()
	for {
		delay, err := a.reconcile(context.Background())
		if err != nil {
			return err
		}
		select {
		case <-a.changed:
		case <-time.After(delay):
		case intent, ok := <-intents:
			if !ok {
				return nil
			}
			a.Status.SnapshotFreeze = intent
		}
	}
}

func (a *freezingAgent) enqueue(types.NamespacedName) {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// reconcile does what the agent's reconciler does for a freeze, and returns the time until it is due again.
func (a *freezingAgent) reconcile(ctx context.Context) (time.Duration, error) {
	conn, err := a.manager.Connect(podRef())
	if err != nil {
		return freezingRetry, nil //nolint:nilerr // It is being connected.
	}
	domain, err := conn.Domain(ctx, a.Domain)
	if err != nil {
		return freezingRetry, nil //nolint:nilerr // The next attempt follows.
	}
	delay := a.keeper.Sync(a.freezes, conn, &snapshotfreeze.State{
		VMI: vmiKey, Domain: a.Domain, Intent: freeze.IntentOf(&a.Status), Reported: freeze.RecordOf(&a.Status),
		Observed: domain,
	})
	if delay == 0 {
		delay = time.Hour
	}
	record, err := domain.SnapshotFreeze()
	if err != nil {
		record = nil // As in the reconciler, the status keeps the last one that could be read.
	}
	if a.began && (record == nil || equality.Semantic.DeepEqual(a.Status.SnapshotFreezeRecord, record.Status())) {
		return delay, nil
	}
	if record != nil {
		a.Status.SnapshotFreezeRecord = record.Status()
	}
	a.began = true
	return delay, a.reports.Encode(a.Status)
}
