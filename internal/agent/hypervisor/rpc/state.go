// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirt"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/limits"
)

// nvramPool is the name of libvirt's storage pool with the EFI variables.
const nvramPool = "vm-state-nvram"

// ReadNVRAM reads a file of the Pod with persistent EFI variables.
func (c *Conn) ReadNVRAM(ctx context.Context, name string) ([]byte, error) {
	content, err := c.readNVRAM(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read the EFI variables in %s: %w", name, err)
	}
	return content, nil
}

func (c *Conn) readNVRAM(ctx context.Context, name string) ([]byte, error) {
	within, err := filepath.Rel(launcherpod.StateDir, name)
	if err != nil {
		return nil, err
	}
	f, err := c.options.Broker.OpenFile(ctx, c.pod.UID, launcherpod.StateDir, within)
	if err != nil {
		return nil, err
	}
	read := make(chan []byte, 1)
	err = limits.Access(ctx, c.pod.UID, f, func() error {
		content, err := io.ReadAll(io.LimitReader(f, hypervisor.MaxNVRAM+1))
		if err == nil && (len(content) == 0 || len(content) > hypervisor.MaxNVRAM) {
			err = fmt.Errorf("it has %d bytes or more", len(content))
		}
		read <- content
		return err
	})
	if err != nil {
		return nil, err
	}
	return <-read, nil
}

// KeepState writes the EFI variables of the Pod's guest, which does not run yet, and returns when they and the TPM's
// state are on the claim's disk.
func (c *Conn) KeepState(ctx context.Context, files hypervisor.StateFiles, nvram []byte) error {
	if files.NVRAM != "" {
		if err := c.writeNVRAM(ctx, files.NVRAM, nvram); err != nil {
			return fmt.Errorf("write the EFI variables to %s: %w", files.NVRAM, err)
		}
	}
	if err := c.options.Broker.SyncState(ctx, c.pod.UID, files.TPM); err != nil {
		return fmt.Errorf("write the persistent state to the disk: %w", err)
	}
	return nil
}

// syncState returns when the Pod's persistent state is on the claim's disk. It does nothing if the Pod has no such
// claim.
func (c *Conn) syncState(ctx context.Context) error {
	if err := c.options.Broker.SyncState(ctx, c.pod.UID, ""); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write the persistent state to the disk: %w", err)
	}
	return nil
}

// CheckState returns hypervisor.ErrStateDamaged with the name of a file of the persistent state that exists and is
// empty or has another size than it says. swtpm and QEMU fail with such a file, or QEMU starts with firmware that does
// not find its variables. It is what a snapshot or a crash of the node leaves of a file that was written shortly
// before.
func (c *Conn) CheckState(ctx context.Context, files hypervisor.StateFiles) error {
	if files.NVRAM != "" {
		if err := c.checkFile(ctx, files.NVRAM, variablesDamage); err != nil {
			return err
		}
	}
	if files.TPM != "" {
		return c.checkFile(ctx, path.Join(files.TPM, launcherpod.TPMStateFile), tpmDamage)
	}
	return nil
}

// checkFile reads the beginning of a file of the persistent state, of which damage returns what is wrong with it.
func (c *Conn) checkFile(ctx context.Context, name string, damage func(head []byte, size int64) string) error {
	within := strings.TrimPrefix(name, launcherpod.StateDir+"/")
	f, err := c.options.Broker.OpenFile(ctx, c.pod.UID, launcherpod.StateDir, within)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // It is created with the guest.
	}
	found := make(chan string, 1)
	if err == nil {
		err = limits.Access(ctx, c.pod.UID, f, func() error {
			head, err := io.ReadAll(io.LimitReader(f, stateHead))
			if err != nil {
				return err
			}
			info, err := f.Stat()
			if err == nil && info.Size() == 0 {
				found <- "is empty"
			} else if err == nil {
				found <- damage(head, info.Size())
			}
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("inspect %s: %w", name, err)
	}
	if what := <-found; what != "" {
		return fmt.Errorf("%w: %s %s", hypervisor.ErrStateDamaged, within, what)
	}
	return nil
}

const (
	// tpmHeader is the size of the header of a TPM's state, whose last four bytes are the size of the file. swtpm refuses
	// another size. Source: swtpm src/swtpm/swtpm_nvstore.c, blobheader and SWTPM_NVRAM_CheckHeader.
	tpmHeader = 10
	// volumeSize and volumeSignature are where the header of EFI variables has their size and a signature. Source: UEFI
	// Platform Initialization Specification, volume 3, EFI_FIRMWARE_VOLUME_HEADER.
	volumeSize, volumeSignature = 32, 40
	// stateHead is what is read of a file.
	stateHead = volumeSignature + 4
)

func tpmDamage(head []byte, size int64) string {
	if len(head) < tpmHeader {
		return fmt.Sprintf("has only %d bytes", size)
	}
	if want := int64(binary.BigEndian.Uint32(head[tpmHeader-4:])); want != size {
		return fmt.Sprintf("has %d bytes, and %d according to its header", size, want)
	}
	return ""
}

// variablesDamage accepts a file that is longer than its variables, which some firmware pads, and one that it does not
// know.
func variablesDamage(head []byte, size int64) string {
	if len(head) < stateHead || string(head[volumeSignature:stateHead]) != "_FVH" {
		return ""
	}
	if want := binary.LittleEndian.Uint64(head[volumeSize:]); want > uint64(size) {
		return fmt.Sprintf("has %d bytes, and %d according to its header", size, want)
	}
	return ""
}

// writeNVRAM lets libvirtd write the file, because libvirtd has access to its own Pod only.
func (c *Conn) writeNVRAM(ctx context.Context, file string, content []byte) error {
	pool, err := c.Pool(ctx, nvramPool, path.Dir(file))
	if err != nil {
		return err
	}
	volume := pool.Find(path.Base(file))
	switch {
	case volume == nil:
		return errors.New("libvirt has not created the file")
	case volume.Capacity != uint64(len(content)):
		return fmt.Errorf("the firmware here has room for %d bytes, and there are %d", volume.Capacity, len(content))
	}
	return c.Upload(ctx, nvramPool, volume.Name, content)
}

// GiveHostDir makes the user that QEMU runs as the owner of a directory of the node, if the kubelet created it for this
// Pod. It does nothing with an older directory.
func (c *Conn) GiveHostDir(ctx context.Context, dir string) error {
	return c.options.Broker.GiveHostDir(ctx, c.pod.UID, dir)
}

const (
	// maxPanicked is of how many VMIs panics are counted. A node has fewer guests; those of two days may be more.
	maxPanicked = 1000
	// panicsKept is how long after its last one a guest's panics are counted. KubeVirt's alert is about 24 hours.
	panicsKept = 48 * time.Hour
)

// panics counts the panics of guests' kernels by VMI. They outlast the VMI: the VM gets another one of the same name.
type panics struct {
	mu   sync.Mutex
	seen map[types.NamespacedName]panicked
}

// panicked is how often a guest has panicked, and when it did last.
type panicked struct {
	count uint64
	last  time.Time
}

func (p *panics) add(vmi types.NamespacedName, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expire(now)
	if _, known := p.seen[vmi]; !known && len(p.seen) >= maxPanicked {
		delete(p.seen, p.oldest())
	}
	if p.seen == nil {
		p.seen = map[types.NamespacedName]panicked{}
	}
	p.seen[vmi] = panicked{p.seen[vmi].count + 1, now}
}

func (p *panics) expire(now time.Time) {
	maps.DeleteFunc(p.seen, func(_ types.NamespacedName, s panicked) bool { return now.Sub(s.last) > panicsKept })
}

func (p *panics) oldest() types.NamespacedName {
	var oldest types.NamespacedName
	for vmi, s := range p.seen {
		if first, found := p.seen[oldest]; !found || s.last.Before(first.last) {
			oldest = vmi
		}
	}
	return oldest
}

func (p *panics) counts(now time.Time) map[types.NamespacedName]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expire(now)
	counts := make(map[types.NamespacedName]uint64, len(p.seen))
	for vmi, s := range p.seen {
		counts[vmi] = s.count
	}
	return counts
}

// Panics returns how often the kernels of guests have panicked on this node. A VMI is left out two days after its last
// panic.
func (m *Manager) Panics() map[types.NamespacedName]uint64 { return m.panics.counts(time.Now()) }

// exitWatch reports the exit of one process. It is not affected if the process's pid is reused.
type exitWatch struct{ pidfd *os.File }

// Exited waits for at most limit and reports whether the process has exited: all its threads have, its memory is freed
// and its files are closed.
func (w *exitWatch) Exited(limit time.Duration) (bool, error) {
	raw, err := w.pidfd.SyscallConn()
	if err != nil {
		return false, err
	}
	exited, failed := false, error(nil)
	if err := raw.Control(func(fd uintptr) { exited, failed = poll(int(fd), limit) }); err != nil {
		return false, err
	}
	return exited, failed
}

func poll(pidfd int, limit time.Duration) (bool, error) {
	until := time.Now().Add(limit)
	for {
		left := max(time.Until(until), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return false, fmt.Errorf("wait for the exit of a process: %w", err)
		default:
			return n > 0, nil
		}
	}
}

// Close stops the watch. A nil exitWatch may be closed.
func (w *exitWatch) Close() {
	if w != nil {
		_ = w.pidfd.Close()
	}
}

// initLibvirt prepares libvirt's client library once, before its first connection. It registers and runs the library's
// event loop, which serves all connections until the process ends.
var initLibvirt = sync.OnceValue(func() error {
	// The client must not start a libvirtd of its own. It reads this variable in each connect and has no other setting for
	// a session's libvirtd, so it is set here, where no thread of the library can read the environment yet. Source:
	// libvirt src/remote/remote_driver.c.
	if err := os.Setenv("LIBVIRT_AUTOSTART", "0"); err != nil {
		return fmt.Errorf("keep libvirt's client from starting a libvirtd: %w", err)
	}
	if err := libvirt.EventRegisterDefaultImpl(); err != nil {
		return fmt.Errorf("register libvirt's event loop: %w", err)
	}
	go func() {
		for {
			if err := libvirt.EventRunDefaultImpl(); err != nil {
				log.Log.Error(err, "libvirt's event loop failed, running it again")
				// If it keeps failing, it must not use up the CPU.
				<-time.After(time.Second)
			}
		}
	}()
	return nil
})

// noteStart stores when a state started, unless the guest is in that state already: libvirt repeats events when a
// post-copy starts and ends. other is the start of the state that ends this one.
func noteStart(state, other *atomic.Int64) {
	if since := state.Load(); since == 0 || since < other.Load() {
		state.Store(time.Now().UnixNano())
	}
}

// Watch calls notify after each event that can change what the agent reports about the domain. It is called once per
// connection, before Guest. notify must not block, because all connections share one event loop. It gets no details of
// the event: the receiver reads the state.
func (c *Conn) Watch(ctx context.Context, notify func()) error {
	c.notify = notify
	return c.call(ctx, queryTimeout, "register for events", func(l *libvirt.Connect) error {
		for _, register := range []func() (int, error){
			func() (int, error) {
				return l.DomainEventLifecycleRegister(nil,
					func(_ *libvirt.Connect, d *libvirt.Domain, e *libvirt.DomainEventLifecycle) {
						switch e.Event {
						case libvirt.DOMAIN_EVENT_SUSPENDED:
							noteStart(&c.suspended, &c.resumed)
						case libvirt.DOMAIN_EVENT_RESUMED:
							noteStart(&c.resumed, &c.suspended)
							if name, err := d.GetName(); err == nil {
								c.guestResumed(name)
							}
						case libvirt.DOMAIN_EVENT_CRASHED:
							// A panic, also of a guest that goes on with its crash kernel. QEMU's end without one is another event.
							c.options.Panicked(c.pod.VMI)
						}
						notify()
					})
			},
			func() (int, error) {
				return l.DomainEventAgentLifecycleRegister(nil,
					func(*libvirt.Connect, *libvirt.Domain, *libvirt.DomainEventAgentLifecycle) {
						c.guestConnected()
						notify()
					})
			},
			func() (int, error) {
				return l.DomainEventIOErrorReasonRegister(nil,
					func(*libvirt.Connect, *libvirt.Domain, *libvirt.DomainEventIOErrorReason) { notify() })
			},
			func() (int, error) {
				// The hooks of a backup freeze and thaw the guest from inside the Pod and write that to the metadata.
				return l.DomainEventMetadataChangeRegister(nil,
					func(*libvirt.Connect, *libvirt.Domain, *libvirt.DomainEventMetadataChange) { notify() })
			},
			func() (int, error) {
				return l.DomainEventBalloonChangeRegister(nil,
					func(*libvirt.Connect, *libvirt.Domain, *libvirt.DomainEventBalloonChange) { notify() })
			},
			func() (int, error) {
				return l.DomainEventDeviceRemovedRegister(nil,
					func(*libvirt.Connect, *libvirt.Domain, *libvirt.DomainEventDeviceRemoved) { notify() })
			},
			func() (int, error) {
				return l.DomainEventMemoryDeviceSizeChangeRegister(nil,
					func(*libvirt.Connect, *libvirt.Domain, *libvirt.DomainEventMemoryDeviceSizeChange) { notify() })
			},
		} {
			if _, err := register(); err != nil {
				return err
			}
		}
		return nil
	})
}

// missedEvents handles events that were dropped because there were too many: it acts as after each kind of event, once.
func (c *Conn) missedEvents() {
	c.guestConnected()
	c.notify()
}
