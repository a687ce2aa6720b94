// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/devicerule"
	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

const (
	// sweepInterval is how often the broker checks the rules for devices when the kernel reports nothing.
	sweepInterval = 30 * time.Second
	// openTimeout is how long the start of the broker waits for devices to open, which storage may delay.
	openTimeout = 10 * time.Second
)

// attachments calls a function with the namespace and the UID of each attachment Pod of the node.
func (b *Broker) attachments(visit func(namespace, pod string)) error {
	entries, err := os.ReadDir(b.PodLogsDir)
	for _, entry := range entries {
		if parts := strings.Split(entry.Name(), "_"); len(parts) == 3 && layout.IsAttachmentPod(parts[1]) {
			visit(parts[0], parts[2])
		}
	}
	return err
}

func (b *Broker) claimDevice(attachment string) (*os.File, devicerule.Device, error) {
	reference, number, err := b.Pods.ClaimDevice(attachment, b.PublishedDevices, b.DevDir)
	return reference, devicerule.Device{Major: unix.Major(number), Minor: unix.Minor(number)}, err
}

// keepOpen opens the device of an attachment Pod, and returns the device's number. The device stays open until the
// kubelet has removed its link to it. Nothing is read from it: while a device is open, the kernel gives its number to
// no other, so a rule for the number applies to this device only.
func (b *Broker) keepOpen(attachment string) (devicerule.Device, error) {
	reference, device, err := b.claimDevice(attachment)
	if err != nil {
		return device, err
	}
	defer func() { _ = reference.Close() }()
	b.rules.Lock()
	if b.opened[device] == nil {
		b.opened[device] = nil // until it is open
	}
	err = b.setOwnDevices()
	b.rules.Unlock()
	if err != nil {
		return device, err
	}
	opened, err := b.open(podprocess.Reopen(reference)) // waits for the storage
	if err != nil {
		return device, fmt.Errorf("open the device of attachment Pod %s: %w", attachment, err)
	}
	b.rules.Lock()
	defer b.rules.Unlock()
	_ = b.opened[device].Close()
	b.opened[device] = opened
	return device, nil
}

// setOwnDevices lets the container of the broker itself open the devices in opened, and no others.
func (b *Broker) setOwnDevices() error {
	err := devicerule.Set(nil, pods.IsAnyCgroup, func(current []devicerule.Device) ([]devicerule.Device, error) {
		// In their order, so that nothing is written if nothing changes.
		others := maps.Clone(b.opened)
		want := slices.DeleteFunc(current,
			func(d devicerule.Device) bool { _, wanted := others[d]; delete(others, d); return !wanted })
		return slices.AppendSeq(want, maps.Keys(others)), nil
	})
	if errors.Is(err, devicerule.ErrNotInPod) { // as in tests: nothing denies it a device
		return nil
	}
	return err
}

// attached returns the namespaces of the attachment Pods of the node by their devices. The Pod with the UID in except
// does not count.
func (b *Broker) attached(except string) (map[devicerule.Device][]string, error) {
	namespaces := map[devicerule.Device][]string{}
	return namespaces, b.attachments(func(namespace, pod string) {
		// A Pod that has ended, or whose claim has a file system, has no device.
		if reference, device, err := b.claimDevice(pod); err == nil {
			_ = reference.Close()
			if pod != except {
				namespaces[device] = append(namespaces[device], namespace)
			}
		}
	})
}

// permitted returns those of the devices that a launcher Pod may open: the broker has them open, and attachment Pods of
// its namespace have them. It relies on nothing that a launcher can change.
func (b *Broker) permitted(
	pod string, devices []devicerule.Device, attached map[devicerule.Device][]string,
) ([]devicerule.Device, error) {
	if len(devices) == 0 {
		return nil, nil
	}
	namespace, _, err := pods.Name(b.PodLogsDir, pod)
	if errors.Is(err, fs.ErrNotExist) {
		b.Log.Error(err, "A launcher Pod may not open its block devices any more")
		return nil, nil
	}
	return slices.DeleteFunc(devices, func(d devicerule.Device) bool {
		return b.opened[d] == nil || !slices.Contains(attached[d], namespace)
	}), err
}

// setDevices removes the rules for devices that no attachment Pod but except has in the launcher Pod's namespace, and
// adds one unless it is nil.
func (b *Broker) setDevices(h *hotplugDir, except string, added *devicerule.Device) error {
	b.rules.Lock()
	defer b.rules.Unlock()
	attached, err := b.attached(except)
	if err != nil {
		return err
	}
	inPod := func(element string) bool { return pods.IsCgroup(element, h.pod) }
	return devicerule.Set(h.process, inPod, func(current []devicerule.Device) ([]devicerule.Device, error) {
		if added != nil && !slices.Contains(current, *added) {
			current = append(current, *added)
		}
		want, err := b.permitted(h.pod, current, attached)
		if err == nil && added != nil && !slices.Contains(want, *added) {
			err = brokerapi.Refused("the kubelet has removed the device from the attachment Pod")
		}
		return want, err
	})
}

// Start opens the devices of all attachment Pods of the node, and removes the rules for other devices that an earlier
// process has left. It has to return before a request is served.
func (b *Broker) Start() {
	if err := b.Pods.WatchDevices(b.removed); err != nil {
		b.Log.Error(err, "Detached block devices are released later")
	}
	var opening sync.WaitGroup
	err := b.attachments(func(_, pod string) {
		opening.Go(func() {
			if _, err := b.keepOpen(pod); err != nil && !errors.Is(err, fs.ErrNotExist) {
				b.Log.Error(err, "Launcher Pods may not open a block device any more")
			}
		})
	})
	opened := make(chan struct{})
	go func() {
		opening.Wait()
		close(opened)
	}()
	select {
	case <-opened:
	case <-time.After(openTimeout):
	}
	b.logSweep(errors.Join(err, b.sweepDevices()))
}

// Sweep removes the rules for devices whose attachment Pod is gone, in every launcher Pod, until the context is done.
func (b *Broker) Sweep(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.removed:
		case <-time.After(sweepInterval):
		}
		b.logSweep(b.sweepDevices())
	}
}

func (b *Broker) logSweep(err error) {
	if err != nil {
		b.Log.Error(err, "Cannot check the devices of launcher Pods")
	}
}

// sweepDevices removes rules, and closes devices once no rule for them is left. It waits for nothing that a Pod can
// delay: neither for its libvirtd, its files, nor other requests about it.
func (b *Broker) sweepDevices() error {
	launchers, err := fs.Glob(os.DirFS(b.Pods.Dir()), "*/"+pods.EmptyDirs+layout.HotplugDisksVolume)
	if err != nil {
		return err
	}
	for i := range launchers {
		launchers[i], _, _ = strings.Cut(launchers[i], "/")
	}
	b.rules.Lock()
	defer b.rules.Unlock()
	attached, err := b.attached("")
	if err != nil {
		return err
	}
	err = devicerule.Sweep(nil, launchers, pods.IsCgroup,
		func(pod string, current []devicerule.Device) ([]devicerule.Device, error) {
			return b.permitted(pod, current, attached)
		})
	if err != nil {
		return err
	}
	for device, opened := range b.opened {
		if attached[device] == nil {
			delete(b.opened, device)
			go func() { _ = opened.Close() }() // waits for the storage
		}
	}
	return b.setOwnDevices()
}
