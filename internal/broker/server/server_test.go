// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

const (
	podUID   = "0b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11"
	otherUID = "1b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11"
	// patience is the timeout for what must end by itself.
	patience = 20 * time.Second
)

// expectCode checks the code of an error.
func expectCode(t testing.TB, err error, want brokerapi.Code) {
	t.Helper()
	if got := brokerapi.CodeOf(err); got != want {
		t.Errorf("got %v with code %q, want %q", err, got, want)
	}
}

// The kubelet keeps the directory of the broker, and the next broker replaces the socket of one that was killed.
func TestSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first, err := Listen(path, os.Getegid())
	if err != nil {
		t.Fatal(err)
	}
	second, err := Listen(path, os.Getegid())
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o660 {
		t.Errorf("the socket has the mode %s", info.Mode())
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
}

// An error of one connection, or of a moment in which too many files are open, is not the end of the server.
func TestErrorsOfAcceptAreNotTheEnd(t *testing.T) {
	s := New(Options{Program: brokerapi.Broker, Verbs: Verbs{}, ClientUID: uint32(os.Geteuid()), Log: logr.Discard()})
	t.Cleanup(s.Close)
	dir := t.TempDir()
	listener, err := Listen(filepath.Join(dir, "s"), os.Getegid())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	if err := listener.SetDeadline(time.Now()); err != nil { // so that each accept fails
		t.Fatal(err)
	}
	go func() { done <- s.Serve(ctx, listener) }()
	select {
	case err := <-done:
		t.Fatal("the server has ended:", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := listener.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	within, stop := context.WithTimeout(ctx, patience)
	defer stop()
	if _, err := call(within, filepath.Join(dir, "s"), &brokerapi.Request{Verb: brokerapi.Ping}); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// serve runs a server until it is stopped, which is when it has ended.
func serve(t *testing.T, s *Server, socket string) (stop func()) {
	t.Helper()
	t.Cleanup(s.Close)
	listener, err := Listen(socket, os.Getegid())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, listener) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// The programs run as one user. One of them, with its fewer privileges, has no use of those of another.
func TestProgramsRequestFewVerbsOfEachOther(t *testing.T) {
	short, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	socket := brokerapi.Broker.Socket(short)
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	ran := Task{Limit: NewLimiter(1, 0, "busy"), Run: func(context.Context) (Output, error) { return Output{}, nil }}
	verbs := Verbs{}
	for _, verb := range []brokerapi.Verb{brokerapi.ExclusiveCPUs, brokerapi.OpenSocket, brokerapi.AttachVolume} {
		verbs[verb] = With(func(string, None) (Task, error) { return ran, nil })
	}
	s := New(Options{Program: brokerapi.Broker, Verbs: verbs, ClientUID: uint32(os.Geteuid()) + 1, Log: logr.Discard()})
	stop := serve(t, s, socket)
	for verb := range s.Verbs {
		request := &brokerapi.Request{Verb: verb}
		if !verb.OfNode() {
			request.Pod = podUID
		}
		err := Call(t.Context(), brokerapi.Broker, short, request, nil)
		if verb == brokerapi.Ping || verb == brokerapi.ExclusiveCPUs {
			if err != nil {
				t.Errorf("%s: %v", verb, err)
			}
			continue
		}
		if brokerapi.CodeOf(err) != brokerapi.CodeRefused {
			t.Errorf("%s is not refused: %v", verb, err)
		}
	}
	stop()
}

// A program that another needs may be missing, end during a call, or hang. virt-handler learns which it is, and calls
// again.
func TestCallNamesTheProgram(t *testing.T) {
	dir := t.TempDir()
	callPlugin := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := Call(ctx, brokerapi.DevicePlugin, dir, &brokerapi.Request{Verb: brokerapi.ExclusiveCPUs, Pod: podUID}, nil)
		if !errors.Is(brokerapi.FromError(err), brokerapi.ErrUnreachable) ||
			!strings.HasPrefix(err.Error(), "virt-device-plugin of this node") {
			t.Errorf("got %v", err)
		}
		return err
	}
	_ = callPlugin()
	socket := brokerapi.DevicePlugin.Socket(dir)
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := Listen(socket, os.Getegid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	if err := callPlugin(); !strings.Contains(err.Error(), "timeout") {
		t.Errorf("from a program that hangs: %v", err)
	}
	go func() {
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1<<10))
			_ = conn.Close()
		}
	}()
	if err := callPlugin(); !strings.Contains(err.Error(), "EOF") {
		t.Errorf("from a program that ends: %v", err)
	}
}

// The arguments of a large request take memory until it has ended, so that the limit for their number holds until then.
func TestFewLargeRequestsAtATime(t *testing.T) {
	short, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	socket := filepath.Join(short, "s")
	running, resume := make(chan struct{}, 2*largeRequests), make(chan struct{})
	task := Task{Limit: NewLimiter(inAll, 0, "busy"), Run: func(context.Context) (Output, error) {
		running <- struct{}{}
		<-resume
		return Output{}, nil
	}}
	verbs := Verbs{brokerapi.ChangeNetwork: With(func(string, []string) (Task, error) { return task, nil })}
	s := New(Options{Program: brokerapi.NetworkBroker, Verbs: verbs, ClientUID: uint32(os.Geteuid()), Log: logr.Discard()})
	stop := serve(t, s, socket)
	responses := make(chan error, 2*largeRequests)
	request := func(size int) {
		text, err := json.Marshal([]string{strings.Repeat("x", size)})
		if err != nil {
			t.Error(err)
		}
		bounded, end := context.WithTimeout(t.Context(), patience)
		defer end()
		response, err := call(bounded, socket,
			&brokerapi.Request{Verb: brokerapi.ChangeNetwork, Pod: podUID, Arguments: text})
		if err == nil && response.Error != nil {
			err = response.Error
		}
		responses <- err
	}
	for range largeRequests {
		go request(brokerapi.SmallRequest)
	}
	for range largeRequests {
		<-running
	}
	go request(brokerapi.SmallRequest) // waits
	go request(1)
	<-running // the small one
	time.Sleep(100 * time.Millisecond)
	if len(running) > 0 || len(s.large) != largeRequests {
		t.Errorf("%d large requests are in flight, and %d more run", len(s.large), len(running))
	}
	close(resume)
	for range largeRequests + 2 {
		if err := <-responses; err != nil {
			t.Error(err)
		}
	}
	stop()
	if len(s.large) > 0 {
		t.Errorf("%d large requests are left", len(s.large))
	}
}

// Storage that hangs blocks as many threads of a Pod as the limit says, and nothing else.
func TestHangingStorage(t *testing.T) {
	s := New(Options{Verbs: Verbs{}, Log: logr.Discard()})
	defer s.Close()
	storage, other := NewLimiter(4, 0, "it does not respond"), NewLimiter(8, 256, "busy")
	resume, running := make(chan struct{}), make(chan struct{}, 10)
	hangs := Task{Limit: storage, Run: func(context.Context) (Output, error) {
		running <- struct{}{}
		<-resume
		f, err := os.Open("/dev/null")
		return Output{File: f}, err
	}}
	for range storage.perPod {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := s.run(ctx, podUID, hangs)
			done <- err
		}()
		<-running
		cancel()
		expectCode(t, <-done, brokerapi.CodeTimeout)
	}
	_, err := s.run(t.Context(), podUID, hangs)
	expectCode(t, err, brokerapi.CodeBusy)
	quick := func(context.Context) (Output, error) { return Output{}, nil }
	do := func(pod string, limit *Limiter) error {
		got, err := s.run(t.Context(), pod, Task{Limit: limit, Run: quick})
		got.Close()
		return err
	}
	if err := do(otherUID, storage); err != nil {
		t.Errorf("the storage of another Pod: %v", err)
	}
	if err := do(podUID, other); err != nil {
		t.Errorf("another verb about the Pod: %v", err)
	}
	close(resume)
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if err := do(podUID, storage); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("storage that responds again is still blocked")
		}
	}
}

func TestLimiterLeavesRoomForOtherPods(t *testing.T) {
	l := NewLimiter(inAll, 0, "busy")
	var releases []func()
	for {
		release, err := l.acquire(t.Context(), "greedy")
		if err != nil {
			break
		}
		releases = append(releases, release)
	}
	if got := len(releases); got != inAll-reserved {
		t.Errorf("one Pod gets %d, want %d", got, inAll-reserved)
	}
	for i := range reserved {
		release, err := l.acquire(t.Context(), fmt.Sprint(i))
		if err != nil {
			t.Fatalf("Pod %d gets none: %v", i, err)
		}
		releases = append(releases, release)
	}
	if _, err := l.acquire(t.Context(), "late"); err == nil {
		t.Error("there are more than the limit")
	}
	for _, release := range releases {
		release()
		release() // has no effect
	}
	if l.total != 0 || len(l.pods) != 0 {
		t.Errorf("%d are left, of %d Pods", l.total, len(l.pods))
	}
}

func TestLimiterWaits(t *testing.T) {
	l := NewLimiter(1, 1, "busy")
	release, err := l.acquire(t.Context(), "pod")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	wait := func(ctx context.Context) {
		end, err := l.acquire(ctx, "pod")
		if err == nil {
			end()
		}
		second <- err
	}
	waiting := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.pods["pod"].waiting
	}
	go wait(ctx)
	for waiting() == 0 {
		time.Sleep(time.Millisecond)
	}
	_, err = l.acquire(t.Context(), "pod")
	expectCode(t, err, brokerapi.CodeBusy)
	cancel()
	expectCode(t, <-second, brokerapi.CodeBusy)
	go wait(t.Context())
	for waiting() == 0 {
		time.Sleep(time.Millisecond)
	}
	release()
	if err := <-second; err != nil {
		t.Error(err)
	}
	if l.total != 0 || len(l.pods) != 0 {
		t.Errorf("%d are left, of %d Pods", l.total, len(l.pods))
	}
}
