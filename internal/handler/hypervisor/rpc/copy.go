// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"libvirt.org/go/libvirt"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/podprocess"
	"github.com/vireo-project/vireo/internal/libvirtrpc"
)

const (
	// finishTimeout bounds the target's answer that it has the guest, which stands still until then. QEMU takes in the state
	// of the devices meanwhile.
	finishTimeout = 30 * time.Second
	// settleTimeout bounds what is done before that.
	settleTimeout = 10 * time.Second
	// endLook is how long a watch for QEMU's end does not notice that nobody needs it any more.
	endLook = 50 * time.Millisecond
	// aliveInterval is the pause between two questions whether a libvirtd is there, and alivePatience how long none may be answered.
	// Both sides are given up then: the one whose call may take hours, and the one that is not asked for anything meanwhile.
	aliveInterval = 10 * time.Second
	alivePatience = time.Minute
	// mebibyte is libvirt's unit of bandwidth.
	mebibyte = 1 << 20
)

// copier makes the requests of one migration (ADR 0023). It has connections of its own: when they end, which is what happens
// to them when this process does, both libvirtds end what they have begun, and nothing but that. It never lets a guest run
// that libvirt left paused.
type copier struct {
	hypervisor.CopyRequest
	source, target *libvirtrpc.Client
	domain         libvirtrpc.Domain
	// begun is called between Begin and Perform.
	begun func(context.Context) error
	// since is when libvirt said last that the guest stopped.
	since func() time.Time
	// cancel ends libvirt's job at the source.
	cancel func(context.Context) error
	// end is that of the source's QEMU, or nil if it cannot be seen.
	end *podprocess.End
	// postCopyAsked says that libvirt was asked for a post-copy. A source that is in one unasked is not believed: it would have its
	// guest run on both sides, and the target asked without a time limit.
	postCopyAsked func() bool
	// keepPaused says that the guest was paused before.
	keepPaused bool
}

// Copy copies a guest to another launcher, where it stays paused, and ends it here as migrated. An error says what went
// wrong and nothing about either guest: ask Source and Target.
func (c *Conn) Copy(ctx context.Context, r hypervisor.CopyRequest) error {
	ctx, end := c.begin(ctx)
	defer end()
	opening, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	source, domain, err := c.direct(opening, r.Domain)
	if err != nil {
		return err
	}
	defer source.Close()
	stream, err := r.Target(opening)
	if err != nil {
		return fmt.Errorf("connect to the target: %w: %w", hypervisor.ErrUnreachable, err)
	}
	target, err := libvirtrpc.Open(opening, stream)
	if err != nil {
		return fromClient("connect to the target's libvirtd", err)
	}
	defer target.Close()
	defer c.notify()
	source.KeepAlive(aliveInterval, alivePatience)
	target.KeepAlive(aliveInterval, alivePatience)
	guestEnd := c.guestEnd(ctx)
	defer guestEnd.Close()
	c.postCopy.Store(false)
	m := copier{
		CopyRequest: r, source: source, target: target, domain: domain, end: guestEnd, since: c.suspendedSince, postCopyAsked: c.postCopy.Load,
		cancel: func(ctx context.Context) error { return c.CancelCopy(ctx, r.Domain) },
		begun: func(ctx context.Context) error {
			if r.MaxDowntime == 0 {
				return nil
			}
			return c.SetMaxDowntime(ctx, r.Domain, r.MaxDowntime)
		},
	}
	return m.run(ctx)
}

// guestEnd watches for the end of the Pod's QEMU, from before it is asked for. Without it everything takes a little longer.
func (c *Conn) guestEnd(ctx context.Context) *podprocess.End {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return nil
	}
	end, err := podprocess.GuestEnd(c.process.Dir)
	if err != nil {
		log.FromContext(ctx).Info("The end of QEMU will not be seen before libvirt tells of it", "error", err.Error())
	}
	return end
}

func (m *copier) run(ctx context.Context) error {
	params, err := m.params()
	if err != nil {
		return err
	}
	flags := m.flags()
	state, _, err := m.state(ctx)
	if err != nil {
		return err
	}
	m.keepPaused = state == libvirtrpc.StatePaused
	cookie, xml, err := m.begin(ctx, params, flags)
	if err != nil {
		return err
	}
	params = with(params, libvirtrpc.ParamXML, xml)
	if cookie, err = m.prepare(ctx, params, cookie, flags); err != nil {
		// The job is ended before this returns, so that the guest is as it was.
		return errors.Join(err, m.confirm(ctx, params, nil, flags, true))
	}
	began := time.Now()
	cookie, err = m.perform(ctx, params, cookie, flags)
	if err != nil {
		_, finishErr := m.finish(ctx, params, nil, flags, true)
		return errors.Join(err, ignoreAnswer(finishErr))
	}
	m.tellStopped(began)
	return m.switchOver(ctx, params, cookie, flags)
}

// suspendedSince is when the guest stopped last.
func (c *Conn) suspendedSince() time.Time { return time.Unix(0, c.suspended.Load()) }

// tellStopped says since when the guest stands still. Where the event is not there, it is as long as that is known for sure.
func (m *copier) tellStopped(began time.Time) {
	if m.Stopped == nil {
		return
	}
	since := m.since()
	if since.Before(began) {
		since = time.Now()
	}
	m.Stopped(since)
}

func (m *copier) begin(ctx context.Context, params []libvirtrpc.Param, flags libvirtrpc.MigrateFlags) (cookie []byte, xml string, err error) {
	ctx, cancel := context.WithTimeout(ctx, actTimeout)
	defer cancel()
	cookie, xml, err = m.source.MigrateBegin(ctx, m.domain, params, flags|libvirtrpc.MigrateProtect)
	if err == nil {
		err = m.begun(ctx)
	}
	return cookie, xml, fromClient("begin to migrate", err)
}

// prepare starts the target's QEMU. The address to which its libvirtd would have the memory sent is not used: that is the Pod's, and
// a launcher must not send a guest's memory elsewhere.
func (m *copier) prepare(ctx context.Context, params []libvirtrpc.Param, cookie []byte, flags libvirtrpc.MigrateFlags) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, actTimeout)
	defer cancel()
	next, _, err := m.target.MigratePrepare(ctx, params, cookie, flags)
	return next, fromClient("prepare the target", err)
}

// perform copies the guest, for as long as that takes and both libvirtds are there.
func (m *copier) perform(ctx context.Context, params []libvirtrpc.Param, cookie []byte, flags libvirtrpc.MigrateFlags) ([]byte, error) {
	performed := make(chan struct{})
	defer close(performed)
	go func() {
		select {
		case <-performed:
		case <-ctx.Done():
		case <-m.target.Done():
			// Nobody can complete the guest there. libvirt refuses it in a post-copy, which goes on without.
			if err := m.cancel(context.WithoutCancel(ctx)); err != nil {
				log.FromContext(ctx).Info("A migration whose target is out of reach was not canceled", "error", err.Error())
			}
		}
	}()
	next, err := m.source.MigratePerform(ctx, m.domain, params, cookie, flags|libvirtrpc.MigrateProtect)
	return next, fromClient("copy the guest", err)
}

// state is that of the source's guest, and libvirt's reason for it.
func (m *copier) state(ctx context.Context) (libvirtrpc.State, int32, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	state, reason, err := m.source.State(ctx, m.domain)
	return state, reason, fromClient("look at the guest", err)
}

// switchOver completes the target's guest and then ends the source's. What happens to the source's guest if the target does
// not answer is not decided here.
func (m *copier) switchOver(ctx context.Context, params []libvirtrpc.Param, cookie []byte, flags libvirtrpc.MigrateFlags) error {
	postCopy, err := m.inPostCopy(ctx)
	if err != nil {
		return err
	}
	if settled, err := m.settle(ctx, params, flags, postCopy); !settled {
		return err
	}
	finishing := flags | libvirtrpc.MigratePaused
	if postCopy && !m.keepPaused {
		// The source's guest can never run again: libvirt knows no way back from here.
		finishing = flags
	}
	if !postCopy {
		limited, cancel := context.WithTimeout(ctx, finishTimeout)
		defer cancel()
		ctx = limited
	}
	next, err := m.finish(ctx, params, cookie, finishing, false)
	var answer *libvirtrpc.Error
	switch {
	case err == nil && postCopy:
		return m.confirm(ctx, params, next, flags, false)
	case err == nil:
		stop := m.watchEnd()
		defer stop()
		return m.confirm(ctx, params, next, flags, false)
	case errors.As(err, &answer):
		// The target's libvirtd has ended its guest.
		return errors.Join(err, m.confirm(ctx, params, nil, flags, true))
	default:
		return err
	}
}

// settle has done what has to be done while nobody runs the guest, and otherwise ends the migration: it says whether to go on.
func (m *copier) settle(ctx context.Context, params []libvirtrpc.Param, flags libvirtrpc.MigrateFlags, postCopy bool) (bool, error) {
	if m.Settle == nil {
		return true, nil
	}
	limited, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	err := m.Settle(limited)
	switch {
	case err == nil:
		return true, nil
	case postCopy:
		log.FromContext(ctx).Error(err, "What was to be done before a post-copy ends was not done")
		return true, nil
	}
	// The target's guest is ended first. What it is told is true whatever its answer: it was never asked to complete the guest.
	_, finishErr := m.finish(ctx, params, nil, flags, true)
	return false, errors.Join(err, ignoreAnswer(finishErr), m.confirm(ctx, params, nil, flags, true))
}

// watchEnd calls Dead when the source's QEMU has ended, which libvirt looks for in steps of 200 ms (virProcessKillPainfully in
// src/util/virprocess.c) while the guest stands still. It returns what ends the watch.
func (m *copier) watchEnd() func() {
	if m.end == nil || m.Dead == nil {
		return func() {}
	}
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			dead, err := m.end.Within(endLook)
			if dead && err == nil {
				m.Dead()
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

// inPostCopy says that the copying has ended with the target's guest fetching what it needs.
func (m *copier) inPostCopy(ctx context.Context) (bool, error) {
	if !m.PostCopy || !m.postCopyAsked() {
		return false, nil
	}
	state, reason, err := m.state(ctx)
	if err != nil {
		return false, err
	}
	paused := libvirt.DomainPausedReason(reason)
	return state == libvirtrpc.StatePaused &&
		(paused == libvirt.DOMAIN_PAUSED_POSTCOPY || paused == libvirt.DOMAIN_PAUSED_POSTCOPY_FAILED), nil
}

func (m *copier) finish(ctx context.Context, params []libvirtrpc.Param, cookie []byte, flags libvirtrpc.MigrateFlags, canceled bool) ([]byte, error) {
	if canceled {
		limited, cancel := context.WithTimeout(ctx, finishTimeout)
		defer cancel()
		ctx = limited
	}
	next, err := m.target.MigrateFinish(ctx, params, cookie, flags, canceled)
	return next, fromClient("complete the guest at the target", err)
}

func (m *copier) confirm(ctx context.Context, params []libvirtrpc.Param, cookie []byte, flags libvirtrpc.MigrateFlags, canceled bool) error {
	// The last word is said even if nobody waits for it any more: it is known to be true.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), actTimeout)
	defer cancel()
	err := m.source.MigrateConfirm(ctx, m.domain, params, cookie, flags|libvirtrpc.MigrateProtect, canceled)
	return fromClient("end the migration", err)
}

// ignoreAnswer leaves the errors of the way to the target: a target that was told of a failure answers with an error.
func ignoreAnswer(err error) error {
	var answer *libvirtrpc.Error
	if errors.As(err, &answer) {
		return nil
	}
	return err
}

func (m *copier) flags() libvirtrpc.MigrateFlags {
	flags := libvirtrpc.MigrateLive | libvirtrpc.MigratePersist
	for flag, on := range map[libvirtrpc.MigrateFlags]bool{
		libvirtrpc.MigrateCopyDisks: len(m.CopyDisks) > 0, libvirtrpc.MigrateUnsafe: m.Unsafe, libvirtrpc.MigrateCompressed: m.Compression != "",
		libvirtrpc.MigrateAutoConverge: m.AutoConverge, libvirtrpc.MigratePostCopy: m.PostCopy, libvirtrpc.MigrateTLS: m.TLSName != "",
		libvirtrpc.MigrateParallel: m.Parallel > 0,
	} {
		if on {
			flags |= flag
		}
	}
	return flags
}

func (m *copier) params() ([]libvirtrpc.Param, error) {
	xml, err := m.XML.Marshal()
	if err != nil {
		return nil, fmt.Errorf("write the domain's XML: %w", err)
	}
	params := []libvirtrpc.Param{
		{Name: libvirtrpc.ParamName, Value: m.Domain},
		{Name: libvirtrpc.ParamXML, Value: xml},
		{Name: libvirtrpc.ParamPersistentXML, Value: xml},
		{Name: libvirtrpc.ParamURI, Value: "tcp://" + net.JoinHostPort(m.Address, strconv.Itoa(int(port(m.MemoryPort, hypervisor.MigrationMemoryPort))))},
		{Name: libvirtrpc.ParamListenAddress, Value: m.Address},
	}
	if m.TLSName != "" {
		params = append(params, libvirtrpc.Param{Name: libvirtrpc.ParamTLSDestination, Value: m.TLSName})
	}
	if m.Bandwidth > 0 {
		params = append(params, libvirtrpc.Param{Name: libvirtrpc.ParamBandwidth, Value: mebibytes(m.Bandwidth)})
	}
	if m.Parallel > 0 {
		params = append(params, libvirtrpc.Param{Name: libvirtrpc.ParamParallelConnections, Value: int32(min(m.Parallel, 255))})
	}
	if m.Compression != "" {
		params = append(params, libvirtrpc.Param{Name: libvirtrpc.ParamCompression, Value: m.Compression})
	}
	for _, disk := range m.CopyDisks {
		params = append(params, libvirtrpc.Param{Name: libvirtrpc.ParamDisks, Value: disk})
	}
	if len(m.CopyDisks) > 0 {
		params = append(params, libvirtrpc.Param{Name: libvirtrpc.ParamDisksPort, Value: int32(port(m.DisksPort, hypervisor.MigrationDisksPort))})
	}
	return params, nil
}

func port(asked, otherwise uint16) uint16 {
	if asked == 0 {
		return otherwise
	}
	return asked
}

// mebibytes is at least one, as none would mean that there is no limit.
func mebibytes(bytes uint64) uint64 { return max((bytes+mebibyte-1)/mebibyte, 1) }

// with replaces the value of a parameter.
func with(params []libvirtrpc.Param, name, value string) []libvirtrpc.Param {
	out := append([]libvirtrpc.Param(nil), params...)
	for i := range out {
		if out[i].Name == name {
			out[i].Value = value
		}
	}
	return out
}
