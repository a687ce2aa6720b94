// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package broker serves the verbs of the programs of virt-broker's Pod in the process of a test, over unix sockets as
// on a node.
package broker

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/utils/cpuset"

	"github.com/vireo-project/vireo/internal/agent/brokerclient"
	"github.com/vireo-project/vireo/internal/broker"
	"github.com/vireo-project/vireo/internal/broker/device"
	"github.com/vireo-project/vireo/internal/broker/network"
	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// T is the part of testing.TB, and of Ginkgo's, that Start needs.
type T interface {
	Helper()
	Fatal(arguments ...any)
	Cleanup(do func())
}

// Options are the settings of the programs.
type Options struct {
	// PodsDir, PodLogsDir and PodResourcesDir are directories of the kubelet, and DevDir is that with devices.
	PodsDir, PodLogsDir, PodResourcesDir, DevDir string
	// PublishedDevices is the directory with the block devices of CSI drivers.
	PublishedDevices string
	// Devices are the node's devices. The default is those of a node without KVM.
	Devices device.Devices
	// CheckPeer replaces the check of the process behind a Pod's socket.
	CheckPeer pods.CheckPeer
}

// tun is a node with the device that every guest needs.
type tun struct{}

func (tun) Usable() (usable, kvm, known bool) { return true, false, true }

func (tun) Changed() <-chan struct{} { return nil }

// AnyPeer accepts this process as the process of every Pod.
func AnyPeer(*net.UnixConn, string) (*os.File, error) { return os.Open("/proc/self") }

// Start serves the verbs until the test ends, and returns a client. The user of the test is the client's.
func Start(t T, o Options) *brokerclient.Client {
	t.Helper()
	// A socket's path has at most 108 bytes.
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	stop, err := ServeAt(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return brokerclient.New(dir)
}

// ServeAt serves the verbs on sockets in a directory until stop is called.
func ServeAt(dir string, o Options) (stop func(), err error) {
	if o.Devices == nil {
		o.Devices = tun{}
	}
	found := pods.New(o.PodsDir, o.CheckPeer)
	kubelet := device.PodResources{Dir: o.PodResourcesDir}
	b := broker.New(broker.Options{
		Pods: found, PodLogsDir: o.PodLogsDir, DevDir: o.DevDir, PublishedDevices: o.PublishedDevices, Log: logr.Discard(),
		ExclusiveCPUs: func(context.Context, string) (cpuset.CPUSet, error) { return cpuset.New(), nil },
	})
	var serving sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	stop = func() {
		cancel()
		serving.Wait()
		found.Close()
	}
	b.Start()
	serving.Go(func() { _ = b.Sweep(ctx) })
	for program, verbs := range map[brokerapi.Program]server.Verbs{
		brokerapi.Broker: b.Verbs(), brokerapi.NetworkBroker: network.Verbs(found),
		brokerapi.DevicePlugin: device.Verbs(o.Devices, kubelet, o.PodLogsDir),
	} {
		served := server.New(server.Options{Program: program, Verbs: verbs, ClientUID: uint32(os.Geteuid()),
			Log: logr.Discard()})
		var listener *net.UnixListener
		err := os.MkdirAll(filepath.Dir(program.Socket(dir)), 0o755)
		if err == nil {
			listener, err = server.Listen(program.Socket(dir), os.Getegid())
		}
		if err != nil {
			served.Close()
			stop()
			return nil, err
		}
		serving.Go(func() {
			defer served.Close()
			_ = served.Serve(ctx, listener)
		})
	}
	return stop, nil
}
