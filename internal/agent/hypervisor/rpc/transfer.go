// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"libvirt.org/go/libvirt"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

const (
	// finishTimeout bounds the target's completion of the guest, which is paused until then. QEMU loads the state of the
	// devices meanwhile.
	finishTimeout = 30 * time.Second
	// beforeFinishTimeout bounds BeforeFinish and KeepBitmaps.
	beforeFinishTimeout = 10 * time.Second
	// exitPollInterval is how long a watch for QEMU's exit may take to notice that it was stopped.
	exitPollInterval = 50 * time.Millisecond
	// keepAliveInterval is the pause between two keep-alive requests to a libvirtd, and keepAliveTimeout how long it may
	// not respond. Both sides need them: a call to the source may take hours, and the target gets no calls meanwhile.
	keepAliveInterval = 10 * time.Second
	keepAliveTimeout  = time.Minute
	// mebibyte is libvirt's unit of bandwidth.
	mebibyte = 1 << 20
)

// transfer makes the requests of one migration (ADR 0023). It has connections of its own: when they end, as they do
// with this process, both libvirtds undo what they have started, and nothing else. It never resumes a guest that
// libvirt left paused.
type transfer struct {
	hypervisor.TransferRequest
	source, target *libvirtwire.Client
	domain         libvirtwire.Domain
	// onBegun is called between Begin and Perform.
	onBegun func(context.Context) error
	// suspendedSince is when libvirt last reported that the guest was suspended.
	suspendedSince func() time.Time
	// cancel ends libvirt's job at the source.
	cancel func(context.Context) error
	// exit observes the exit of the source's QEMU; nil if it cannot.
	exit *exitWatch
	// postCopyRequested reports whether this process requested a post-copy from libvirt. A report of one without a request
	// is ignored: the guest would run on both sides, and the call to the target would have no time limit.
	postCopyRequested func() bool
	// keepPaused reports whether the guest was already paused before the transfer.
	keepPaused bool
}

// Transfer transfers a guest to another launcher, where it stays paused, and ends it here as migrated. An error does
// not imply the state of either guest: SourceState and TargetState return it.
func (c *Conn) Transfer(ctx context.Context, r hypervisor.TransferRequest) error {
	ctx, end := c.startConversation(ctx)
	defer end()
	opening, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	source, domain, err := c.direct(opening, r.Domain)
	if err != nil {
		return err
	}
	defer source.Close()
	stream, err := r.DialTarget(opening)
	if err != nil {
		return fmt.Errorf("connect to the target: %w: %w", hypervisor.ErrUnreachable, err)
	}
	target, err := libvirtwire.Open(opening, stream)
	if err != nil {
		return fromClient("connect to the target's libvirtd", err)
	}
	defer target.Close()
	defer c.notify()
	silence := cmp.Or(r.Silence, keepAliveTimeout)
	source.KeepAlive(keepAliveInterval, silence)
	target.KeepAlive(keepAliveInterval, silence)
	exit := c.watchGuest(ctx)
	defer exit.Close()
	c.postCopy.Store(false)
	m := transfer{
		TransferRequest: r, source: source, target: target, domain: domain, exit: exit, suspendedSince: c.suspendedSince,
		postCopyRequested: c.postCopy.Load,
		cancel:            func(ctx context.Context) error { return c.CancelTransfer(ctx, r.Domain) },
		onBegun: func(ctx context.Context) error {
			if r.MaxDowntime == 0 {
				return nil
			}
			return c.SetMaxDowntime(ctx, r.Domain, r.MaxDowntime)
		},
	}
	return m.run(ctx)
}

// watchGuest observes the exit of the Pod's QEMU. It returns nil if it cannot: then a migration takes a little longer.
func (c *Conn) watchGuest(ctx context.Context) *exitWatch {
	pidfd, err := c.options.Broker.WatchGuest(ctx, c.pod.UID)
	if err != nil {
		log.FromContext(ctx).Info("The exit of QEMU will not be observed before libvirt reports it", "error", err.Error())
		return nil
	}
	return &exitWatch{pidfd: pidfd}
}

func (m *transfer) run(ctx context.Context) error {
	params, err := m.params()
	if err != nil {
		return err
	}
	flags := m.flags()
	state, _, err := m.state(ctx)
	if err != nil {
		return err
	}
	m.keepPaused = state == libvirtwire.StatePaused
	cookie, xml, err := m.begin(ctx, params, flags)
	if err != nil {
		return err
	}
	params = withParam(params, libvirtwire.ParamXML, xml)
	if cookie, err = m.prepare(ctx, params, cookie, flags); err != nil {
		// Ends the job before this returns, so that the guest is as it was.
		return errors.Join(err, m.confirm(ctx, params, nil, flags, true))
	}
	performing := time.Now()
	cookie, err = m.perform(ctx, params, cookie, flags)
	if err != nil {
		_, finishErr := m.finish(ctx, params, nil, flags, true)
		return errors.Join(err, ignoreRefusal(finishErr))
	}
	m.reportPaused(performing)
	return m.switchOver(ctx, params, cookie, flags)
}

// suspendedSince is when the guest was suspended last.
func (c *Conn) suspendedSince() time.Time { return time.Unix(0, c.suspended.Load()) }

// reportPaused reports since when the guest is paused: since libvirt's event, or since now if the event is missing.
func (m *transfer) reportPaused(performing time.Time) {
	if m.OnPaused == nil {
		return
	}
	since := m.suspendedSince()
	if since.Before(performing) {
		since = time.Now()
	}
	m.OnPaused(since)
}

func (m *transfer) begin(
	ctx context.Context, params []libvirtwire.Param, flags libvirtwire.MigrateFlags,
) (cookie []byte, xml string, err error) {
	ctx, cancel := context.WithTimeout(ctx, actTimeout)
	defer cancel()
	cookie, xml, err = m.source.MigrateBegin(ctx, m.domain, params, flags|libvirtwire.MigrateProtect)
	if err == nil {
		err = m.onBegun(ctx)
	}
	return cookie, xml, fromClient("begin to migrate", err)
}

// prepare starts the target's QEMU. It ignores the address that the target's libvirtd returns: memory goes to the Pod's
// address only, so that a hostile launcher cannot have it sent elsewhere.
func (m *transfer) prepare(
	ctx context.Context, params []libvirtwire.Param, cookie []byte, flags libvirtwire.MigrateFlags,
) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, actTimeout)
	defer cancel()
	next, _, err := m.target.MigratePrepare(ctx, params, cookie, flags)
	return next, fromClient("prepare the target", err)
}

// perform transfers the guest. It ends when that is done or one of the libvirtds is gone.
func (m *transfer) perform(
	ctx context.Context, params []libvirtwire.Param, cookie []byte, flags libvirtwire.MigrateFlags,
) ([]byte, error) {
	performed := make(chan struct{})
	defer close(performed)
	go func() {
		select {
		case <-performed:
		case <-ctx.Done():
		case <-m.target.Done():
			// The guest cannot be completed at the target any more. libvirt refuses to cancel a post-copy, which continues.
			if err := m.cancel(context.WithoutCancel(ctx)); err != nil {
				log.FromContext(ctx).Info("A migration whose target is unreachable was not canceled", "error", err.Error())
			}
		}
	}()
	next, err := m.source.MigratePerform(ctx, m.domain, params, cookie, flags|libvirtwire.MigrateProtect)
	return next, fromClient("copy the guest", err)
}

// state returns the state of the source's guest and libvirt's reason for it.
func (m *transfer) state(ctx context.Context) (libvirtwire.State, int32, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	state, reason, err := m.source.State(ctx, m.domain)
	return state, reason, fromClient("read the state of the guest", err)
}

// switchOver completes the target's guest and then ends the source's. If the target does not respond, the source's
// guest stays suspended: package protocol decides about it.
func (m *transfer) switchOver(
	ctx context.Context, params []libvirtwire.Param, cookie []byte, flags libvirtwire.MigrateFlags,
) error {
	postCopy, err := m.inPostCopy(ctx)
	if err != nil {
		return err
	}
	if proceed, err := m.beforeFinish(ctx, params, flags, postCopy); !proceed {
		return err
	}
	finishing := flags | libvirtwire.MigratePaused
	if postCopy && !m.keepPaused {
		// The source's guest can never run again: libvirt cannot undo a post-copy.
		finishing = flags
	}
	if !postCopy {
		limited, cancel := context.WithTimeout(ctx, finishTimeout)
		defer cancel()
		ctx = limited
	}
	next, err := m.finish(ctx, params, cookie, finishing, false)
	var refused *libvirtwire.Error
	switch {
	case err == nil && postCopy:
		return m.confirm(ctx, params, next, flags, false)
	case err == nil:
		stop := m.watchExit()
		defer stop()
		return m.confirm(ctx, params, next, flags, false)
	case errors.As(err, &refused):
		// The target's libvirtd has ended its guest.
		return errors.Join(err, m.confirm(ctx, params, nil, flags, true))
	default:
		return err
	}
}

// beforeFinish calls BeforeFinish and KeepBitmaps, and ends the migration if that fails. It reports whether to proceed.
func (m *transfer) beforeFinish(
	ctx context.Context, params []libvirtwire.Param, flags libvirtwire.MigrateFlags, postCopy bool,
) (bool, error) {
	limited, cancel := context.WithTimeout(ctx, beforeFinishTimeout)
	defer cancel()
	var err error
	if m.BeforeFinish != nil {
		err = m.BeforeFinish(limited)
	}
	if m.KeepBitmaps != nil && err == nil && !postCopy {
		err = m.KeepBitmaps(limited)
	}
	switch {
	case err == nil:
		return true, nil
	case postCopy:
		log.FromContext(ctx).Error(err, "A step before the end of a post-copy failed")
		return true, nil
	}
	// Ends the target's guest first. This is safe even without a response: the target never had to complete the guest.
	_, finishErr := m.finish(ctx, params, nil, flags, true)
	return false, errors.Join(err, ignoreRefusal(finishErr), m.confirm(ctx, params, nil, flags, true))
}

// watchExit calls OnQEMUExit when the source's QEMU has exited. libvirt polls for that every 200 ms
// (virProcessKillPainfully in src/util/virprocess.c) while the guest is paused. It returns what stops the watch.
func (m *transfer) watchExit() func() {
	if m.exit == nil || m.OnQEMUExit == nil {
		return func() {}
	}
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			exited, err := m.exit.Exited(exitPollInterval)
			if exited && err == nil {
				m.OnQEMUExit()
				return
			}
			select {
			case <-stopped:
				return
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	return func() {
		close(stopped)
		<-done
	}
}

// inPostCopy reports whether the migration has become a post-copy that this process requested.
func (m *transfer) inPostCopy(ctx context.Context) (bool, error) {
	if !m.PostCopy || !m.postCopyRequested() {
		return false, nil
	}
	state, reason, err := m.state(ctx)
	if err != nil {
		return false, err
	}
	paused := libvirt.DomainPausedReason(reason)
	return state == libvirtwire.StatePaused &&
		(paused == libvirt.DOMAIN_PAUSED_POSTCOPY || paused == libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED), nil
}

func (m *transfer) finish(
	ctx context.Context, params []libvirtwire.Param, cookie []byte, flags libvirtwire.MigrateFlags, canceled bool,
) ([]byte, error) {
	if canceled {
		limited, cancel := context.WithTimeout(ctx, finishTimeout)
		defer cancel()
		ctx = limited
	}
	next, err := m.target.MigrateFinish(ctx, params, cookie, flags, canceled)
	return next, fromClient("complete the guest at the target", err)
}

func (m *transfer) confirm(
	ctx context.Context, params []libvirtwire.Param, cookie []byte, flags libvirtwire.MigrateFlags, canceled bool,
) error {
	// Confirms even if the caller's context has ended: the outcome is known.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), actTimeout)
	defer cancel()
	err := m.source.MigrateConfirm(ctx, m.domain, params, cookie, flags|libvirtwire.MigrateProtect, canceled)
	return fromClient("end the migration", err)
}

// ignoreRefusal drops an error that the target's libvirtd returned, as it does when a migration is canceled. Errors of
// the connection stay.
func ignoreRefusal(err error) error {
	var refused *libvirtwire.Error
	if errors.As(err, &refused) {
		return nil
	}
	return err
}

func (m *transfer) flags() libvirtwire.MigrateFlags {
	flags := libvirtwire.MigrateLive | libvirtwire.MigratePersist
	for flag, on := range map[libvirtwire.MigrateFlags]bool{
		libvirtwire.MigrateCopyDisks: len(m.CopyDisks) > 0, libvirtwire.MigrateUnsafe: m.Unsafe,
		libvirtwire.MigrateCompressed:   m.Compression != "",
		libvirtwire.MigrateAutoConverge: m.AutoConverge, libvirtwire.MigratePostCopy: m.PostCopy,
		libvirtwire.MigrateTLS: m.TLSName != "", libvirtwire.MigrateParallel: m.Parallel > 0,
	} {
		if on {
			flags |= flag
		}
	}
	return flags
}

func (m *transfer) params() ([]libvirtwire.Param, error) {
	xml, err := m.XML.Marshal()
	if err != nil {
		return nil, fmt.Errorf("write the domain's XML: %w", err)
	}
	params := []libvirtwire.Param{
		{Name: libvirtwire.ParamName, Value: m.Domain},
		{Name: libvirtwire.ParamXML, Value: xml},
		{Name: libvirtwire.ParamPersistentXML, Value: xml},
		{Name: libvirtwire.ParamURI, Value: "tcp://" + net.JoinHostPort(m.Address, strconv.Itoa(int(port(m.MemoryPort, hypervisor.MigrationMemoryPort))))},
		{Name: libvirtwire.ParamListenAddress, Value: m.Address},
	}
	if m.TLSName != "" {
		params = append(params, libvirtwire.Param{Name: libvirtwire.ParamTLSDestination, Value: m.TLSName})
	}
	if m.Bandwidth > 0 {
		params = append(params, libvirtwire.Param{Name: libvirtwire.ParamBandwidth, Value: mebibytes(m.Bandwidth)})
	}
	if m.Parallel > 0 {
		params = append(params,
			libvirtwire.Param{Name: libvirtwire.ParamParallelConnections, Value: int32(min(m.Parallel, 255))})
	}
	if m.Compression != "" {
		params = append(params, libvirtwire.Param{Name: libvirtwire.ParamCompression, Value: m.Compression})
	}
	for _, disk := range m.CopyDisks {
		params = append(params, libvirtwire.Param{Name: libvirtwire.ParamDisks, Value: disk})
	}
	if len(m.CopyDisks) > 0 {
		params = append(params,
			libvirtwire.Param{Name: libvirtwire.ParamDisksPort, Value: int32(port(m.DisksPort, hypervisor.MigrationDisksPort))})
	}
	return params, nil
}

func port(requested, fallback uint16) uint16 {
	if requested == 0 {
		return fallback
	}
	return requested
}

// mebibytes rounds up to at least one: zero would mean no limit.
func mebibytes(bytes uint64) uint64 { return max((bytes+mebibyte-1)/mebibyte, 1) }

// withParam returns a copy of the parameters with one value replaced.
func withParam(params []libvirtwire.Param, name, value string) []libvirtwire.Param {
	out := slices.Clone(params)
	for i := range out {
		if out[i].Name == name {
			out[i].Value = value
		}
	}
	return out
}
