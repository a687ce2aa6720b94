// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pull

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/decide/backup"
)

// limits are those of one pull, except nodeRate.
type limits struct {
	// unused is how many connections wait for the exporter to use them, and all how many there are.
	unused, all int
	// dial bounds a connection attempt, and open one to QEMU.
	dial, open time.Duration
	// settled is how long a connection must last to count as one that works, although it is not used.
	settled time.Duration
	// retries are the delays after failures.
	retries wait.Backoff
	// rate limits the attempts that follow successful ones: an exporter may use and close each connection at once.
	// nodeRate limits those of all pulls together: each attempt costs a handshake, and each used connection a request to
	// the broker.
	rate, nodeRate rate.Limit
	// log is the time between two lines of the log about the failures of a pull.
	log time.Duration
}

// defaultLimits allow for as many connections as an exporter reads disks with at the same time. Each takes about 100
// KiB.
var defaultLimits = limits{
	unused: 4, all: 12, dial: 10 * time.Second, open: 10 * time.Second, settled: 10 * time.Second, rate: 20, nodeRate: 100,
	log:     time.Minute,
	retries: wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 8, Cap: 30 * time.Second},
}

// first is how much of what the exporter sends is read before QEMU is connected.
const first = 512

// pull is a running Pull.
type pull struct {
	Pull

	tls    func(serverName string) (*tls.Config, error)
	limits limits
	stop   context.CancelFunc
	// node limits the attempts of all pulls.
	node *rate.Limiter
	// unused and all have one entry for each connection.
	unused, all chan struct{}
	// log limits the lines about failures: an exporter may cause any number of them.
	log rate.Sometimes

	mu      sync.Mutex
	retries wait.Backoff // as far as they are used up
	delay   time.Duration
	// unreached is whether the delay is because the exporter could not be reached.
	unreached bool
}

func newPull(
	want Pull, config func(string) (*tls.Config, error), l limits, node *rate.Limiter, stop context.CancelFunc,
) *pull {
	return &pull{
		Pull: want, tls: config, limits: l, node: node, stop: stop, retries: l.retries, log: rate.Sometimes{Interval: l.log},
		unused: make(chan struct{}, l.unused), all: make(chan struct{}, l.all),
	}
}

// run keeps connections until the context ends, and returns when all are closed.
func (p *pull) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	attempts := rate.NewLimiter(p.limits.rate, p.limits.all)
	for {
		if !acquire(ctx, p.unused) || !acquire(ctx, p.all) || !p.pause(ctx) || attempts.Wait(ctx) != nil ||
			p.node.Wait(ctx) != nil {
			return
		}
		conn, err := p.dial(ctx)
		if err != nil {
			p.fail(ctx, err, true)
			<-p.unused
			<-p.all
			continue
		}
		p.reach()
		wg.Go(func() {
			defer func() { <-p.all }()
			p.serve(ctx, conn)
		})
	}
}

// acquire takes a place. It returns false if the context ends before there is one.
func acquire(ctx context.Context, places chan<- struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case places <- struct{}{}:
		return true
	}
}

// dial connects to the exporter.
func (p *pull) dial(ctx context.Context) (net.Conn, error) {
	config, err := p.tls(p.Exporter.ServerName)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(p.Exporter.IP); err != nil {
		return nil, fmt.Errorf("the address of the exporter of backup %s: %w", p.ID, err)
	}
	bounded, cancel := context.WithTimeout(ctx, p.limits.dial)
	defer cancel()
	dialer := tls.Dialer{Config: config}
	conn, err := dialer.DialContext(bounded, "tcp", net.JoinHostPort(p.Exporter.IP, strconv.Itoa(int(p.Exporter.Port))))
	if err != nil {
		return nil, fmt.Errorf("connect to the exporter of backup %s: %w", p.ID, err)
	}
	if secured, ok := conn.(*tls.Conn); !ok || secured.ConnectionState().NegotiatedProtocol != backup.ExporterProtocol {
		_ = conn.Close()
		return nil, fmt.Errorf("the exporter of backup %s does not have the protocol %s", p.ID, backup.ExporterProtocol)
	}
	return conn, nil
}

// serve waits until the exporter uses a connection, connects QEMU, and copies until one of both closes its connection.
func (p *pull) serve(ctx context.Context, exporter net.Conn) {
	since := time.Now()
	defer func() { _ = exporter.Close() }()
	defer context.AfterFunc(ctx, func() { _ = exporter.Close() })()
	begin := make([]byte, first)
	n, err := exporter.Read(begin)
	// From now on, the exporter has one connection less that is not used.
	<-p.unused
	if n == 0 {
		if time.Since(since) < p.limits.settled {
			p.fail(ctx, errors.Join(errUnused, err), false)
		} else {
			p.succeed()
		}
		return
	}
	bounded, cancel := context.WithTimeout(ctx, p.limits.open)
	qemu, err := p.Open(bounded)
	cancel()
	if err != nil {
		p.fail(ctx, err, false)
		return
	}
	defer func() { _ = qemu.Close() }()
	defer context.AfterFunc(ctx, func() { _ = qemu.Close() })()
	p.succeed()
	join(exporter, io.MultiReader(bytes.NewReader(begin[:n]), exporter), qemu)
}

// join copies in both directions, and closes both connections when one of them ends. NBD does not use half-closed
// connections. A side that does not read only delays the other side: each direction has one buffer. sent is what the
// exporter sends.
func join(exporter net.Conn, sent io.Reader, qemu net.Conn) {
	var wg sync.WaitGroup
	defer wg.Wait()
	transfer := func(to io.Writer, from io.Reader) {
		_, _ = io.Copy(to, from)
		_ = exporter.Close()
		_ = qemu.Close()
	}
	wg.Go(func() { transfer(qemu, sent) })
	wg.Go(func() { transfer(exporter, qemu) })
}

// pause waits after failures. It returns false if the context ends.
func (p *pull) pause(ctx context.Context) bool {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	if delay == 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// fail makes the next attempt wait longer. unreached is whether the exporter could not be reached.
func (p *pull) fail(ctx context.Context, err error, unreached bool) {
	if ctx.Err() != nil {
		return
	}
	p.log.Do(func() {
		log.FromContext(ctx).Info("Cannot connect an exporter to a guest's disks, trying again", "backup", p.ID,
			"exporter", p.Exporter.ServerName, "reason", err.Error())
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unreached, p.delay = unreached, p.retries.Step()
}

// reach ends the delay after failures to reach the exporter, so that all connections follow the first one. It does not
// reset the backoff, so an exporter that accepts and then closes connections is not dialed faster.
func (p *pull) reach() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unreached {
		p.unreached, p.delay = false, 0
	}
}

// succeed makes delays start anew.
func (p *pull) succeed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay, p.retries = 0, p.limits.retries
}
