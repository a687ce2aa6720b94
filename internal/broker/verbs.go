// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/utils/cpuset"

	"github.com/vireo-project/vireo/internal/broker/devicerule"
	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/brokerapi"
)

// largeInAll is how many requests whose response is large are in flight. One takes less than 10 MiB. They are short, as the files of these
// volumes are in memory.
const largeInAll = 8

// Options are the settings of a Broker.
type Options struct {
	// Pods are the launcher Pods of the node.
	Pods *pods.Pods
	// PodLogsDir is the kubelet's directory with the logs of Pods.
	PodLogsDir string
	// DevDir is the path at which the node's /dev is mounted.
	DevDir string
	// PublishedDevices is the directory with the block devices of CSI drivers.
	PublishedDevices string
	// ExclusiveCPUs returns the CPUs that the kubelet has assigned to the guest of a Pod exclusively.
	ExclusiveCPUs func(ctx context.Context, pod string) (cpuset.CPUSet, error)
	// Log is the log.
	Log logr.Logger
}

// Broker does what its verbs want.
type Broker struct {
	Options
	// quick are requests that do not depend on a Pod's storage, volumes those with a large response, and hotplug those that change a Pod's
	// hotplugged volumes.
	quick, volumes, storage, hotplug *server.Limiter
	// rules is held while device rules are read and changed, which is short.
	rules sync.Mutex
	// held are the block devices that the broker has open, or nil for one that it is opening.
	held map[devicerule.Device]*os.File
	// removed receives when the kubelet has removed an attachment Pod's link to its device.
	removed chan struct{}
	// open opens a block device.
	open func(path string) (*os.File, error)
}

// New returns a Broker.
func New(o Options) *Broker {
	return &Broker{
		Options: o,
		held:    map[devicerule.Device]*os.File{}, removed: make(chan struct{}, 1),
		open:    func(path string) (*os.File, error) { return os.OpenFile(filepath.Clean(path), unix.O_NONBLOCK, 0) },
		volumes: server.NewLimiter(2, 256, "too many volumes are being read: retry").InAll(largeInAll),
		quick:   server.NewLimiter(8, 256, "too many requests about this Pod are in flight: retry"),
		// The kernel does not interrupt accesses to storage, and each blocks a thread: with a claim on a server that is gone, each
		// reconciliation would block another one.
		storage: server.NewLimiter(4, 0, "the storage of the launcher Pod does not respond"),
		hotplug: server.NewLimiter(1, 128, "volumes of the launcher Pod are being changed: retry"),
	}
}

// Verbs returns its verbs.
func (b *Broker) Verbs() server.Verbs {
	return server.Verbs{
		brokerapi.OpenSocket:   server.With(b.openSocket),
		brokerapi.WatchGuest:   server.With(b.watchGuest),
		brokerapi.ReadVolume:   server.With(b.readVolume),
		brokerapi.OpenFile:     server.With(b.openFile),
		brokerapi.SyncState:    server.With(b.syncState),
		brokerapi.GiveHostDir:  server.With(b.giveHostDir),
		brokerapi.OwnDevices:   server.With(b.ownDevices),
		brokerapi.Inspect:      server.With(b.inspect),
		brokerapi.CPUs:         server.With(b.cpus),
		brokerapi.SetRealtime:  server.With(b.setRealtime),
		brokerapi.AttachVolume: server.With(b.attachVolume),
		brokerapi.DetachVolume: server.With(b.detachVolume),
	}
}

// ofLibvirtd returns a task that needs the directory in /proc of the Pod's libvirtd.
func (b *Broker) ofLibvirtd(limit *server.Limiter, pod string, do func(ctx context.Context, libvirtd *os.File) (server.Answer, error)) server.Task {
	return server.OfLibvirtd(b.Pods, limit, pod, do)
}

// inRoot returns a task that needs the root directory of the Pod's libvirtd.
func (b *Broker) inRoot(limit *server.Limiter, pod string, do func(root *podprocess.Root) (server.Answer, error)) server.Task {
	return b.ofLibvirtd(limit, pod, func(_ context.Context, libvirtd *os.File) (server.Answer, error) {
		root, err := podprocess.OpenRoot(libvirtd)
		if err != nil {
			return server.Answer{}, fmt.Errorf("open the root directory of launcher Pod %s: %w", pod, err)
		}
		defer func() { _ = root.Close() }()
		return do(root)
	})
}
