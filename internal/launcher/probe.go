// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/libvirtrpc"
)

const (
	// probeFailed is the exit code of a probe to which the guest gave none.
	probeFailed = 1
	// maxProbeOutput bounds what a probe prints of a command's output: the kubelet shows no more of it.
	// Source: kubernetes pkg/probe/exec/exec.go (maxReadLength).
	maxProbeOutput = 10 << 10
	// probeInterval is the pause between two questions whether a command has ended.
	probeInterval = 100 * time.Millisecond
	// stateTimeout bounds the question how the domain is doing, after the guest's own time is over. The kubelet gives a probe
	// one second more than the guest has (podspec's agentDelay).
	stateTimeout = 500 * time.Millisecond
)

// Probe looks into the guest once, by its agent.
type Probe struct {
	// Domain is the name of the guest's domain.
	Domain string
	// Command is run in the guest. Without one the agent is asked for an answer.
	Command []string
	// Timeout is how long the guest may take in all.
	Timeout time.Duration
}

// prober is what a probe asks of libvirtd. libvirtrpc.Client is one.
type prober interface {
	AgentCommand(ctx context.Context, domain libvirtrpc.Domain, command string, wait time.Duration) (string, error)
	Lookup(ctx context.Context, name string) (libvirtrpc.Domain, error)
	State(ctx context.Context, domain libvirtrpc.Domain) (libvirtrpc.State, int32, error)
	JobActive(ctx context.Context, domain libvirtrpc.Domain) (bool, error)
	Metadata(ctx context.Context, domain libvirtrpc.Domain, namespace string) (string, error)
}

// Run connects to the Pod's libvirtd and looks. It returns the command's exit code, and an
// error if there is none.
func (p Probe) Run(ctx context.Context, out io.Writer) (int, error) {
	if p.Domain == "" || p.Timeout <= 0 {
		return probeFailed, errors.New("a probe needs --domain, and a --timeout-seconds of 1 or more")
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	client, err := libvirtrpc.Dial(ctx, launcherpod.LibvirtSocket)
	if err != nil {
		return probeFailed, fmt.Errorf("connect to libvirtd: %w", err)
	}
	defer client.Close()
	return p.runWith(ctx, client, out)
}

func (p Probe) runWith(ctx context.Context, guest prober, out io.Writer) (int, error) {
	domain, err := guest.Lookup(ctx, p.Domain)
	if err != nil {
		return probeFailed, fmt.Errorf("find the guest: %w", err)
	}
	ask := func(execute string, arguments, answer any) error {
		return p.ask(ctx, guest, domain, execute, arguments, answer)
	}
	if len(p.Command) == 0 {
		return p.ping(ctx, guest, domain, out)
	}
	var started struct {
		PID int64 `json:"pid"`
	}
	// Arguments of guest-exec and guest-exec-status. Source: qemu qga/qapi-schema.json.
	if err := ask("guest-exec", map[string]any{"path": p.Command[0], "arg": p.Command[1:], "capture-output": true}, &started); err != nil {
		return probeFailed, fmt.Errorf("run %s in the guest: %w", p.Command[0], err)
	}
	for {
		var status execStatus
		if err := ask("guest-exec-status", map[string]any{"pid": started.PID}, &status); err != nil {
			return probeFailed, fmt.Errorf("follow %s in the guest: %w", p.Command[0], err)
		}
		if status.Exited {
			return status.report(out)
		}
		select {
		case <-ctx.Done():
			return probeFailed, fmt.Errorf("%s in the guest does not end within %s", p.Command[0], p.Timeout)
		case <-time.After(probeInterval):
		}
	}
}

// ping asks the agent for an answer, unless the VMI's annotation pauses that. A guest that cannot give one because it is paused or being migrated passes: the kubelet would
// end it otherwise, when the probe is a livenessProbe. The state is read on both sides of the question, because a pause may begin or
// end while the agent is being waited for.
func (p Probe) ping(ctx context.Context, guest prober, domain libvirtrpc.Domain, out io.Writer) (int, error) {
	// Without the note libvirt answers with an error: whatever it is, the guest is asked.
	if note, err := guest.Metadata(ctx, domain, launcherpod.ProbesURI); err == nil && note != "" {
		_, err := fmt.Fprintln(out, "not asked: probes by guestAgentPing are paused")
		return 0, err
	}
	if why := excuse(ctx, guest, domain); why != "" {
		_, err := fmt.Fprintf(out, "not asked: the guest is %s\n", why)
		return 0, err
	}
	err := p.ask(ctx, guest, domain, "guest-ping", nil, nil)
	if err == nil {
		return 0, nil
	}
	if why := excuse(context.WithoutCancel(ctx), guest, domain); why != "" {
		_, err := fmt.Fprintf(out, "no answer: the guest is %s\n", why)
		return 0, err
	}
	return probeFailed, fmt.Errorf("the guest's agent does not answer: %w", err)
}

// excuse says why a guest need not answer, "" if it must: a domain whose state cannot be read has no excuse.
func excuse(ctx context.Context, guest prober, domain libvirtrpc.Domain) string {
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	state, reason, err := guest.State(ctx, domain)
	if err != nil {
		return ""
	}
	switch {
	case state == libvirtrpc.StatePaused:
		return pauses[libvirtrpc.PausedReason(reason)]
	case state != libvirtrpc.StateRunning:
		return ""
	case libvirtrpc.RunningReason(reason) == libvirtrpc.RunningPostcopy:
		return "in post-copy"
	}
	if active, err := guest.JobActive(ctx, domain); err == nil && active {
		return "being migrated"
	}
	return ""
}

// pauses are the reasons for a pause that somebody wanted. A guest that an I/O error, a watchdog or a crash stopped is not well, and
// fails.
var pauses = map[libvirtrpc.PausedReason]string{
	libvirtrpc.PausedUser:           "paused",
	libvirtrpc.PausedMigration:      "being migrated",
	libvirtrpc.PausedSave:           "being saved",
	libvirtrpc.PausedDump:           "being dumped",
	libvirtrpc.PausedFromSnapshot:   "being restored",
	libvirtrpc.PausedSnapshot:       "being snapshotted",
	libvirtrpc.PausedStartingUp:     "being started",
	libvirtrpc.PausedPostcopy:       "in post-copy",
	libvirtrpc.PausedPostcopyFailed: "in post-copy",
}

// ask gives the agent a command and reads what it returns.
func (p Probe) ask(ctx context.Context, guest prober, domain libvirtrpc.Domain, execute string, arguments, answer any) error {
	command := map[string]any{"execute": execute}
	if arguments != nil {
		command["arguments"] = arguments
	}
	text, err := json.Marshal(command)
	if err != nil {
		return err
	}
	said, err := guest.AgentCommand(ctx, domain, string(text), p.Timeout)
	if err != nil || answer == nil {
		return err
	}
	if err := json.Unmarshal([]byte(said), &struct {
		Return any `json:"return"`
	}{answer}); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	return nil
}

// execStatus is how a command in the guest is doing.
type execStatus struct {
	Exited   bool   `json:"exited"`
	ExitCode *int   `json:"exitcode"`
	Signal   *int   `json:"signal"`
	Out      []byte `json:"out-data"`
	Err      []byte `json:"err-data"`
}

// report prints what the command printed, as far as anybody sees it, and returns its code.
func (s *execStatus) report(out io.Writer) (int, error) {
	text := slices.Concat(s.Out, s.Err)
	if _, err := out.Write(text[:min(len(text), maxProbeOutput)]); err != nil {
		return probeFailed, fmt.Errorf("print the command's output: %w", err)
	}
	switch {
	case s.ExitCode == nil && s.Signal != nil:
		return probeFailed, fmt.Errorf("the command was ended by signal %d", *s.Signal)
	case s.ExitCode == nil:
		return probeFailed, errors.New("the guest's agent does not say how the command ended")
	case *s.ExitCode < 0 || *s.ExitCode > 255:
		return probeFailed, fmt.Errorf("the command ended with code %d", *s.ExitCode)
	default:
		return *s.ExitCode, nil
	}
}
