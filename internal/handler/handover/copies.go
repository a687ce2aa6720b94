// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/migration"
	"github.com/vireo-project/vireo/internal/migrationpolicy"
)

const (
	// lookInterval is the pause between two looks at a copy that goes on.
	lookInterval = 400 * time.Millisecond
	// askInterval is the pause between two questions to an agent that is not ready, and askPatience how long that is borne.
	askInterval = 500 * time.Millisecond
	askPatience = time.Minute
)

// Copies are the guests that this process has libvirt copy. It outlives single reconciles and ends with the process, and with it
// the copies: libvirt then keeps the guests where they are.
type Copies struct {
	peers Peers
	// notify is called when the copy of a VMI has changed.
	notify func(types.NamespacedName)
	// declare records how a guest is going to be copied, before that is so.
	declare func(ctx context.Context, vmi *v1.VirtualMachineInstance, mode v1.MigrationMode) error
	// left is called when a guest was handed over, with what was known when it began.
	left func(ctx context.Context, vmi *v1.VirtualMachineInstance)
	// tell tells the VMI's user what happens to the guest.
	tell Tell
	// detectStalls says whether the feature gate MigrationStallDetection is on.
	detectStalls func() bool
	// sum reads the files of images.
	sum SumFile
	now func() time.Time

	ctx  context.Context // that of the process, which the copies live as long as
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu     sync.Mutex
	copies map[types.UID]*Copy
}

// Tell sends an event. The action says what was done, in one word; recorders of core/v1 events leave it out.
type Tell func(vmi *v1.VirtualMachineInstance, reason v1.SyncEvent, action, message string)

// CopiesOptions is what Copies work with.
type CopiesOptions struct {
	// Peers reaches the targets' agents.
	Peers Peers
	// Notify is called when the copy of a VMI has changed.
	Notify func(types.NamespacedName)
	// Declare records how a guest is going to be copied, before that is so.
	Declare func(ctx context.Context, vmi *v1.VirtualMachineInstance, mode v1.MigrationMode) error
	// Left is called when a guest was handed over, with what was known when it began, on a goroutine of its own.
	Left func(ctx context.Context, vmi *v1.VirtualMachineInstance)
	// DetectStalls says whether the feature gate MigrationStallDetection is on. Nil means no.
	DetectStalls func() bool
	// Sum reads a file of a launcher Pod.
	Sum SumFile
	// Tell tells the VMI's user what is done to bring a migration to an end, why, and what it took: a handful of times at most.
	Tell Tell
}

// NewCopies makes Copies.
func NewCopies(o CopiesOptions) *Copies {
	ctx, stop := context.WithCancel(context.Background())
	return &Copies{
		peers: o.Peers, detectStalls: o.DetectStalls, notify: o.Notify, declare: o.Declare, left: o.Left, tell: o.Tell, sum: o.Sum, now: time.Now, ctx: ctx, stop: stop, copies: map[types.UID]*Copy{},
	}
}

// Start ends the copies when the context ends. It is a Runnable of a manager.
func (c *Copies) Start(ctx context.Context) error {
	<-ctx.Done()
	c.stop()
	c.wg.Wait()
	return nil
}

// NeedLeaderElection says that every agent copies the guests of its node.
func (*Copies) NeedLeaderElection() bool { return false }

// Find is the copy of a migration that this process has begun, or nil.
func (c *Copies) Find(migration types.UID) *Copy {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.copies[migration]
}

// Forget lets go of a copy, as soon as it has ended.
func (c *Copies) Forget(migration types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := c.copies[migration]
	if found == nil {
		return
	}
	found.mu.Lock()
	found.forgotten = true
	ended := !found.state.Running
	found.mu.Unlock()
	if ended {
		delete(c.copies, migration)
	}
}

// Begin copies the guest of a launcher Pod, whose status says that this has begun. Each migration is copied once. Digests are those that
// the Pod's spec names images by.
func (c *Copies) Begin(vmi *v1.VirtualMachineInstance, pod hypervisor.PodRef, digests map[string]string, machine Machine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	uid := vmi.Status.MigrationState.MigrationUID
	if c.copies[uid] != nil || c.ctx.Err() != nil {
		return
	}
	begun := &Copy{vmi: vmi.DeepCopy(), machine: machine, pod: pod, digests: digests, state: CopyState{Running: true}, times: times{began: c.now()}}
	c.copies[uid] = begun
	c.wg.Go(func() { c.run(c.ctx, begun) })
}

func (c *Copies) run(ctx context.Context, begun *Copy) {
	m := Of(begun.vmi)
	ctx = log.IntoContext(ctx, log.Log.WithName("migration").WithValues("vmi", m.VMI, "migration", m.UID, "target", m.TargetNode))
	err := c.copyGuest(ctx, begun, m)
	handedOver := begun.State().HandedOver || c.isHandedOver(ctx, begun, err)
	if !handedOver && err == nil {
		err = errors.New("libvirt ended the copying and kept the guest")
	}
	if handedOver {
		err = nil
	}
	begun.mu.Lock()
	if err != nil && begun.cancel != "" {
		err = &CanceledError{Reason: begun.cancel}
	}
	begun.state.Running, begun.state.Err = false, err
	forgotten := begun.forgotten
	begun.mu.Unlock()
	if forgotten {
		c.Forget(m.UID)
	}
	if ctx.Err() != nil {
		// The process ends. The next one finds out.
		return
	}
	if handedOver {
		c.giveAway(ctx, begun)
	} else {
		log.FromContext(ctx).Info("The guest was not handed over", "error", err.Error())
	}
	c.notify(m.VMI)
}

// giveAway has the target take over what was handed over to it, once.
func (c *Copies) giveAway(ctx context.Context, begun *Copy) {
	begun.mu.Lock()
	known := begun.state.HandedOver
	begun.state.HandedOver = true
	begun.mu.Unlock()
	if known || ctx.Err() != nil {
		return
	}
	c.wg.Go(func() {
		c.left(ctx, begun.vmi)
		if ctx.Err() == nil {
			c.sayFigures(ctx, begun)
		}
		c.notify(Of(begun.vmi).VMI)
	})
}

// isHandedOver asks libvirt, whatever the copying returned: an answer can get lost.
func (c *Copies) isHandedOver(ctx context.Context, begun *Copy, copied error) bool {
	// Also when the process is about to end, and its connections with it: then nothing is said.
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	state, err := begun.machine.Source(ctx, domainOf(begun.vmi))
	if err != nil {
		// The launcher ends with its guest, and may be gone already. That libvirt has confirmed it was its last word.
		return copied == nil
	}
	return state.Domain == migration.SourceHandedOver || (state.Domain == migration.SourceEnded && copied == nil)
}

func domainOf(vmi *v1.VirtualMachineInstance) string {
	return launcherpod.DomainName(vmi.Namespace, vmi.Name)
}

// copyGuest asks where to, and has libvirt copy.
func (c *Copies) copyGuest(ctx context.Context, begun *Copy, m Migration) error {
	destination, err := c.ask(ctx, begun, m)
	if err != nil {
		return err
	}
	live, err := begun.machine.LiveXML(ctx, domainOf(begun.vmi))
	if err != nil {
		return err
	}
	request, err := c.request(ctx, begun, m, destination, live)
	if err != nil {
		return err
	}
	if err := c.verifyImages(ctx, begun, m, destination, live); err != nil {
		return err
	}
	request.Dead = func() { c.giveAway(ctx, begun) }
	request.Stopped = func(since time.Time) { c.stopped(ctx, begun, since) }
	if destination.TLS != nil {
		if err := begun.machine.PutMigrationTLS(ctx, *destination.TLS); err != nil {
			return fmt.Errorf("give QEMU its certificate: %w", err)
		}
		defer func() {
			if err := begun.machine.RemoveMigrationTLS(ctx); err != nil {
				log.FromContext(ctx).V(3).Info("The certificate of a migration that has ended was not removed", "error", err.Error())
			}
		}()
	}
	if begun.isCanceled() {
		return errors.New("canceled")
	}
	// The watch ends with the copying, and may end it.
	copying, stop := context.WithCancel(ctx)
	defer stop()
	c.wg.Go(func() { c.watch(copying, begun, stop) })
	return begun.machine.Copy(copying, *request)
}

// ask waits for the target's agent, which may be starting again.
func (c *Copies) ask(ctx context.Context, begun *Copy, m Migration) (*Destination, error) {
	var destination *Destination
	err := c.patiently(ctx, begun, func() (err error) {
		destination, err = c.peers.Destination(ctx, m)
		return err
	})
	return destination, err
}

// patiently asks the target's agent again as long as it may be starting, for askPatience from the first failure on.
func (c *Copies) patiently(ctx context.Context, begun *Copy, ask func() error) error {
	var until time.Time
	for {
		err := ask()
		if until.IsZero() {
			until = c.now().Add(askPatience)
		}
		if err == nil || !isPassing(err) || begun.isCanceled() || !c.now().Before(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(askInterval):
		}
	}
}

// request is what libvirt is told.
func (c *Copies) request(ctx context.Context, begun *Copy, m Migration, d *Destination, live *libvirtxml.Domain) (*hypervisor.CopyRequest, error) {
	if _, err := netip.ParseAddr(d.Address); err != nil {
		// It becomes a part of a URI.
		return nil, fmt.Errorf("the address of the target's launcher Pod: %w", err)
	}
	options := begun.vmi.Status.MigrationState.VMIMConfigurationOptions
	if (d.TLS == nil || d.TLSName == "") && !IsPlain(options) {
		return nil, errPlain
	}
	built := &libvirtxml.Domain{}
	if err := hypervisor.ReadXML(ctx, d.Domain, built); err != nil {
		return nil, fmt.Errorf("read the domain that the target's agent built: %w", err)
	}
	there, err := domain.ForTarget(live, built)
	if err != nil {
		return nil, fmt.Errorf("describe the guest as it is to be at the target: %w", err)
	}
	r := &hypervisor.CopyRequest{
		Domain: domainOf(begun.vmi), XML: there, Address: d.Address, TLSName: d.TLSName,
		Target:    tunnelTo(c.peers, m),
		CopyDisks: disksToCopy(begun.vmi, live),
	}
	configure(r, begun.vmi, options)
	begun.rules = rulesOf(options)
	begun.rules.most = migrationpolicy.MostToCopy(begun.vmi)
	if c.detectStalls != nil && c.detectStalls() {
		begun.rules.stall = stallOptionsOf(options)
	}
	if r.PostCopy && !d.PostCopy {
		// QEMU there would refuse the whole migration.
		r.PostCopy = false
		begun.rules = begun.rules.withoutPostCopy()
		c.say(begun.vmi, v1.Migrating, "ForgoPostCopy", fmt.Sprintf(
			"The migration goes on without post-copy: launcher Pod %s on node %s has no %s, which Linux has since 6.1.",
			begun.vmi.Status.MigrationState.TargetPod, m.TargetNode, launcherpod.PostCopyDevice))
	}
	if r.Compression != "" {
		c.say(begun.vmi, v1.Migrating, "Compress", fmt.Sprintf("The guest's memory is compressed (%s): %s.", r.Compression, whyCompressed(options)))
	}
	r.Settle = c.settle(begun, m)
	r.MaxDowntime = newConvergence(begun.rules, c.now()).downtime
	return r, nil
}

// errPlain ends a migration whose target would take the guest's memory unencrypted though nobody has said disableTLS.
var errPlain = errors.New("the target's agent has no certificates for the guest's memory, and the migration's configuration does not disable TLS")

// configure adds what the migration's configuration says.
func configure(r *hypervisor.CopyRequest, vmi *v1.VirtualMachineInstance, options *v1.VMIMConfigurationOptions) {
	if options == nil {
		return
	}
	r.AutoConverge, r.PostCopy = isTrue(options.AllowAutoConverge), isTrue(options.AllowPostCopy)
	r.Unsafe = isTrue(options.UnsafeMigrationOverride)
	if q := options.BandwidthPerMigration; q != nil && q.Sign() > 0 {
		r.Bandwidth = uint64(q.Value())
	}
	// QEMU refuses several connections together with a post-copy (migrate_caps_check in migration/options.c, up to 10.0), which is
	// the surer help.
	if r.PostCopy {
		return
	}
	method := v1.MigrationCompressionNone
	if asked := askedCompression(options); asked != nil {
		method = *asked
	} else if r.Bandwidth >= compressedFrom && r.Bandwidth <= compressedUpTo && !vmi.IsCPUDedicated() {
		method = v1.MigrationCompressionZstd
	}
	if method == v1.MigrationCompressionNone {
		return
	}
	// Only what comes over connections of its own can be compressed so.
	r.Compression, r.Parallel = string(method), compressedChannels
	if r.Bandwidth > 0 {
		r.Parallel, r.Bandwidth = 1, inPackets(r.Bandwidth)
	}
}

const (
	// compressedChannels is how many connections take memory that is compressed. QEMU's default of multifd-channels.
	compressedChannels = 2
	// compressedFrom and compressedUpTo are the bandwidths in bytes a second between which the link is taken for what makes a migration
	// slow: memory is compressed faster than it may be sent. ADR 0034 has the figures.
	compressedFrom, compressedUpTo = 2 * packets, 128 << 20
	// packets is what one packet of 512 KiB every 100 ms comes to.
	packets = 5 << 20
)

// inPackets is the limit that keeps QEMU 10.0 to a bandwidth over a connection of such packets (migration/multifd.c). Every 100 ms it
// sends until that was too much, and the packet that waits as well.
func inPackets(bandwidth uint64) uint64 {
	return max(bandwidth/packets, 2)*packets - packets
}

// askedCompression is what the configuration says itself.
func askedCompression(options *v1.VMIMConfigurationOptions) *v1.MigrationCompression {
	if options.ExperimentalMigrationOptions == nil {
		return nil
	}
	return options.ExperimentalMigrationOptions.Compression
}

// whyCompressed is why memory is compressed, in words.
func whyCompressed(options *v1.VMIMConfigurationOptions) string {
	if askedCompression(options) != nil {
		return "the migration's configuration says so"
	}
	return fmt.Sprintf("no more than %s may be sent a second", options.BandwidthPerMigration)
}

// cancelPatience is how long libvirt may take to end a copy that was canceled. After it this process ends its connections, as its own
// end would: what becomes of the guest is asked of libvirt, whenever that answers.
const cancelPatience = 2 * time.Minute

// watch looks at the copy until it has ended, and does what helps it to. The last thing that helps is to drop it.
func (c *Copies) watch(ctx context.Context, begun *Copy, drop func()) {
	logger := log.FromContext(ctx)
	convergence := newConvergence(begun.rules, c.now())
	throttled, canceled := false, time.Time{}
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if begun.isCanceled() {
			// What was canceled before libvirt had a job for it begins all the same, and libvirt may not have been reached.
			if err := begun.machine.CancelCopy(context.WithoutCancel(ctx), domainOf(begun.vmi)); err != nil && ctx.Err() == nil {
				logger.Info("The migration is not canceled yet", "error", err.Error())
			}
			if canceled.IsZero() {
				canceled = c.now()
			}
			// In a post-copy the target's guest runs already, and needs the connections.
			if c.now().Sub(canceled) > cancelPatience && convergence.mode != v1.MigrationPostCopy {
				logger.Info("The copying is dropped: libvirt does not end it")
				drop()
			}
			continue
		}
		progress := c.look(ctx, begun)
		if progress.Throttle > 0 && !throttled {
			throttled = true
			c.say(begun.vmi, v1.Migrating, "SlowDown", fmt.Sprintf("The guest is slowed down, by %d%% at first: %s.", progress.Throttle, rates(progress)))
		}
		step, why := convergence.judge(c.now(), progress)
		if step == goOn || begun.isPerformed() {
			continue
		}
		logger.Info("The migration is helped to an end", "step", step.String(), "reason", why)
		if err := c.take(ctx, begun, convergence, step, why); err != nil {
			logger.Error(err, "The migration cannot be helped to an end", "step", step.String())
		} else if step != giveUp {
			// The end of a migration that is given up has its reason in the status.
			c.say(begun.vmi, v1.Migrating, convergence.action(step), fmt.Sprintf("The migration needs help (%s): %s.", step, why))
		}
	}
}

// look asks libvirt how far the copy is. If it does not say, that is where it was: a copy of which nothing is heard does not move.
func (c *Copies) look(ctx context.Context, begun *Copy) *hypervisor.CopyProgress {
	// To its end, also when the copying ends meanwhile: a call to libvirt that is given up takes the connection with it, by
	// which the next thing is to see where the guest is.
	progress, err := begun.machine.CopyProgress(context.WithoutCancel(ctx), domainOf(begun.vmi))
	if err != nil || progress == nil {
		if known := begun.State().Progress; known != nil {
			return known
		}
		return &hypervisor.CopyProgress{}
	}
	begun.change(func(s *CopyState) { s.Progress, s.Dirtied = progress, max(s.Dirtied, progress.DirtyBytesPerSecond) })
	return progress
}

func (c *Copies) take(ctx context.Context, begun *Copy, convergence *convergence, s step, why string) error {
	name := domainOf(begun.vmi)
	switch s {
	case allowMore:
		return begun.machine.SetMaxDowntime(ctx, name, convergence.downtime)
	case postCopy:
		// First: virt-controller keeps a source's Pod that serves pages, and must know before the target owns the guest.
		if err := c.declare(ctx, begun.vmi, v1.MigrationPostCopy); err != nil {
			return err
		}
		convergence.asked = true
		if err := begun.machine.StartPostCopy(ctx, name); err != nil {
			return err
		}
		convergence.mode = v1.MigrationPostCopy
	case stopAndCopy:
		if err := c.declare(ctx, begun.vmi, v1.MigrationPaused); err != nil {
			return err
		}
		if err := begun.machine.SetMaxDowntime(ctx, name, maxDowntime); err != nil {
			return err
		}
		convergence.mode = v1.MigrationPaused
	case giveUp:
		return begun.Cancel(ctx, why)
	case goOn:
		return nil
	}
	return nil
}
