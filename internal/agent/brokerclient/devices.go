// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package brokerclient

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

const (
	// firstRetry and maxRetry bound the delay before another attempt to reach the broker, which doubles each time.
	firstRetry = 100 * time.Millisecond
	maxRetry   = 5 * time.Second
	// pingEvery is the interval of the pings to a connected program, and pingTimeout how long a ping, and its first
	// response, may take.
	pingEvery   = 10 * time.Second
	pingTimeout = 5 * time.Second
)

// Devices follows the state of the node's devices, which virt-device-plugin advertises to the kubelet, and whether each
// program of the broker's Pod responds.
type Devices struct {
	client *Client
	// onConnect is called when all programs respond again.
	onConnect func()
	changed   chan struct{}
	// pingEvery and pingTimeout are those above, except in tests.
	pingEvery, pingTimeout time.Duration

	mu    sync.Mutex
	state brokerapi.DevicesResult
	// responds has the programs that respond.
	responds map[brokerapi.Program]bool
}

// NewDevices returns Devices. onConnect is called each time that all programs respond after one did not; it must not
// block.
func NewDevices(client *Client, onConnect func()) *Devices {
	return &Devices{
		client: client, onConnect: onConnect, changed: make(chan struct{}, 1), pingEvery: pingEvery, pingTimeout: pingTimeout,
		responds: map[brokerapi.Program]bool{},
	}
}

// Changed receives a value when the result of Usable may have changed.
func (d *Devices) Changed() <-chan struct{} { return d.changed }

// Usable reports whether the device that every guest needs is available, whether KVM is, and whether both are known.
// They are not known until the kubelet has accepted the devices. While the broker is restarted, the last result
// remains.
func (d *Devices) Usable() (usable, kvm, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state.Usable, d.state.KVM, d.state.Known
}

// Ready returns an error while a program does not respond. It is a check of virt-handler's readiness: without one of
// them, no guest can be started or migrated.
func (d *Devices) Ready(*http.Request) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, program := range brokerapi.Programs {
		if !d.responds[program] {
			return fmt.Errorf("%s of this node does not respond: see the container of that name in the Pod of virt-broker",
				program)
		}
	}
	return nil
}

// Responds reports whether all programs respond.
func (d *Devices) Responds() bool { return d.Ready(nil) == nil }

func (d *Devices) setResponds(program brokerapi.Program, responds bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.responds[program] = responds
}

// Start follows the programs until the context is done.
func (d *Devices) Start(ctx context.Context) error {
	var followed sync.WaitGroup
	for _, program := range brokerapi.Programs {
		followed.Go(func() { d.keepFollowing(ctx, program) })
	}
	followed.Wait()
	return nil
}

func (d *Devices) keepFollowing(ctx context.Context, program brokerapi.Program) {
	retry, reported := firstRetry, false
	for ctx.Err() == nil {
		err := d.follow(ctx, program, func() {
			retry, reported = firstRetry, false
			if d.setResponds(program, true); d.Responds() {
				d.onConnect()
			}
		})
		d.setResponds(program, false)
		if ctx.Err() == nil && !reported {
			log.FromContext(ctx).Error(err, "A program of the broker's Pod does not respond, retrying until it does", "program",
				program)
			reported = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
		retry = min(2*retry, maxRetry)
	}
}

// follow follows a program, and the devices with the one that has them, until the connection ends or the program does
// not respond to another request. It calls connected after the first response.
func (d *Devices) follow(ctx context.Context, program brokerapi.Program, connected func()) error {
	verb := brokerapi.WatchProgram
	if program == brokerapi.WatchDevices.Program() {
		verb = brokerapi.WatchDevices
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := d.client.send(ctx, program, &brokerapi.Request{Verb: verb})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetReadDeadline(time.Now().Add(d.pingTimeout)); err != nil {
		return unreachable(ctx, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	for first := true; ; first = false {
		state := brokerapi.DevicesResult{}
		var result any
		if verb == brokerapi.WatchDevices {
			result = &state
		}
		file, err := receive(ctx, conn, result)
		if file != nil {
			_ = file.Close()
		}
		if err != nil {
			return err
		}
		if first {
			if err := conn.SetReadDeadline(time.Time{}); err != nil {
				return unreachable(ctx, err)
			}
			connected()
			go d.keepPinging(ctx, program, cancel)
		}
		if result != nil {
			d.set(state)
		}
	}
}

// keepPinging calls hangs when a program does not respond: one that hangs, and has not ended, keeps its connections.
func (d *Devices) keepPinging(ctx context.Context, program brokerapi.Program, hangs context.CancelCauseFunc) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(d.pingEvery):
		}
		bounded, cancel := context.WithTimeout(ctx, d.pingTimeout)
		err := d.client.Ping(bounded, program)
		cancel()
		if err != nil && brokerapi.CodeOf(err) == "" { // an error that it sent is a response
			hangs(fmt.Errorf("%w: it does not respond to a ping: %w", brokerapi.ErrUnreachable, err))
			return
		}
	}
}

// set stores a state. One that is not known does not replace one that is: the broker was restarted, and the kubelet has
// not accepted the devices again yet.
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

// sysBlock has a directory per block device of the node, by its number. Every container has it.
const sysBlock = "/sys/dev/block"

// blockSizes returns the block sizes of a disk: a device's from sysfs, a file's from its file system, which has one
// size.
func blockSizes(sys string, disk brokerapi.InspectResult) facts.BlockSizes {
	if disk.Mode&unix.S_IFMT == unix.S_IFBLK {
		return deviceSizes(sys, disk.Major, disk.Minor)
	}
	return facts.BlockSizes{Logical: disk.BlockSize, Physical: disk.BlockSize, Discard: disk.BlockSize}
}

// sectorBytes is the unit of the size in sysfs, whatever the device's block size. Source: Linux
// Documentation/ABI/stable/sysfs-block.
const sectorBytes = 512

// deviceBytes returns the size of a block device or a partition, or 0 if the file is neither.
func deviceBytes(sys string, file brokerapi.InspectResult) uint64 {
	if file.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0
	}
	text, err := os.ReadFile(filepath.Join(sys, fmt.Sprintf("%d:%d", file.Major, file.Minor), "size")) //nolint:gosec // of the kernel, by a device's number
	if err != nil {
		return 0
	}
	sectors, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 54)
	if err != nil {
		return 0
	}
	return sectors * sectorBytes
}

// deviceSizes reads the limits of a device's queue. A partition uses the queue of its disk, one directory above.
// Source: Linux Documentation/ABI/stable/sysfs-block.
func deviceSizes(sys string, major, minor uint32) facts.BlockSizes {
	device := filepath.Join(sys, fmt.Sprintf("%d:%d", major, minor))
	read := func(limit string) uint {
		for _, dir := range []string{device, device + "/.."} {
			// Not filepath.Join: ".." is relative to the target of the symlink.
			text, err := os.ReadFile(dir + "/queue/" + limit) //nolint:gosec // of the kernel, by a device's number
			if err != nil {
				continue
			}
			if size, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32); err == nil {
				return uint(size)
			}
		}
		return 0
	}
	return facts.BlockSizes{Logical: read("logical_block_size"), Physical: read("physical_block_size"),
		Discard: read("discard_granularity")}
}
