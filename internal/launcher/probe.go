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
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

const (
	// probeFailed is the exit code of a probe that has none from the guest.
	probeFailed = 1
	// maxProbeOutput bounds the output of a probe: the kubelet reads no more.
	// Source: kubernetes pkg/probe/exec/exec.go (maxReadLength).
	maxProbeOutput = 10 << 10
	// probeInterval is the interval at which the status of a command is read.
	probeInterval = 100 * time.Millisecond
	// stateTimeout bounds reading the domain's state after the guest's timeout. The kubelet's timeout for a probe is
	// one second longer than the guest's (podspec's agentDelay).
	stateTimeout = 500 * time.Millisecond
)

// Probe runs a command in the guest, or pings the guest agent.
type Probe struct {
	// Domain is the name of the guest's domain.
	Domain string
	// Command is run in the guest. Without one the guest agent is pinged.
	Command []string
	// Timeout bounds the whole probe.
	Timeout time.Duration
}

// agentClient is the part of libvirtwire.Client that a probe needs.
type agentClient interface {
	AgentCommand(ctx context.Context, domain libvirtwire.Domain, command string, wait time.Duration) (string, error)
	Lookup(ctx context.Context, name string) (libvirtwire.Domain, error)
	State(ctx context.Context, domain libvirtwire.Domain) (libvirtwire.State, int32, error)
	JobActive(ctx context.Context, domain libvirtwire.Domain) (bool, error)
	Metadata(ctx context.Context, domain libvirtwire.Domain, namespace string) (string, error)
}

// Run connects to the Pod's libvirtd and runs the probe. It returns the command's exit code, and an error if there is
// none.
func (p Probe) Run(ctx context.Context, out io.Writer) (int, error) {
	if p.Domain == "" || p.Timeout <= 0 {
		return probeFailed, errors.New("a probe needs --domain, and a --timeout-seconds of 1 or more")
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	client, err := libvirtwire.Dial(ctx, launcherpod.LibvirtSocket)
	if err != nil {
		return probeFailed, fmt.Errorf("connect to libvirtd: %w", err)
	}
	defer client.Close()
	return p.runWith(ctx, client, out)
}

func (p Probe) runWith(ctx context.Context, guest agentClient, out io.Writer) (int, error) {
	domain, err := guest.Lookup(ctx, p.Domain)
	if err != nil {
		return probeFailed, fmt.Errorf("find the guest: %w", err)
	}
	call := func(execute string, arguments, result any) error {
		return p.agentCommand(ctx, guest, domain, execute, arguments, result)
	}
	if len(p.Command) == 0 {
		return p.ping(ctx, guest, domain, out)
	}
	var started struct {
		PID int64 `json:"pid"`
	}
	// Arguments of guest-exec and guest-exec-status. Source: qemu qga/qapi-schema.json.
	if err := call("guest-exec", map[string]any{"path": p.Command[0], "arg": p.Command[1:], "capture-output": true},
		&started); err != nil {
		return probeFailed, fmt.Errorf("run %s in the guest: %w", p.Command[0], err)
	}
	for {
		var status execStatus
		if err := call("guest-exec-status", map[string]any{"pid": started.PID}, &status); err != nil {
			return probeFailed, fmt.Errorf("follow %s in the guest: %w", p.Command[0], err)
		}
		if status.Exited {
			return status.print(out)
		}
		select {
		case <-ctx.Done():
			return probeFailed, fmt.Errorf("%s in the guest does not end within %s", p.Command[0], p.Timeout)
		case <-time.After(probeInterval):
		}
	}
}

// ping pings the guest agent, unless an annotation of the VMI disables that. The probe succeeds if the guest cannot
// respond because it is paused or being migrated: otherwise the kubelet would kill it if the probe is a livenessProbe.
// The state is read before and after the ping, because it may change meanwhile.
func (p Probe) ping(ctx context.Context, guest agentClient, domain libvirtwire.Domain, out io.Writer) (int, error) {
	// Without the metadata libvirt returns an error. On any error, the agent is pinged.
	if note, err := guest.Metadata(ctx, domain, launcherpod.ProbesURI); err == nil && note != "" {
		_, err := fmt.Fprintln(out, "no ping: guestAgentPing probes are paused")
		return 0, err
	}
	if reason := skipReason(ctx, guest, domain); reason != "" {
		_, err := fmt.Fprintf(out, "no ping: the guest is %s\n", reason)
		return 0, err
	}
	err := p.agentCommand(ctx, guest, domain, "guest-ping", nil, nil)
	if err == nil {
		return 0, nil
	}
	if reason := skipReason(context.WithoutCancel(ctx), guest, domain); reason != "" {
		_, err := fmt.Fprintf(out, "no response: the guest is %s\n", reason)
		return 0, err
	}
	return probeFailed, fmt.Errorf("the guest agent does not respond: %w", err)
}

// skipReason returns why the guest cannot be expected to respond, "" if it can. It returns "" if the domain's state
// cannot be read.
func skipReason(ctx context.Context, guest agentClient, domain libvirtwire.Domain) string {
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	state, reason, err := guest.State(ctx, domain)
	if err != nil {
		return ""
	}
	switch {
	case state == libvirtwire.StatePaused:
		return wantedPauses[libvirtwire.PausedReason(reason)]
	case state != libvirtwire.StateRunning:
		return ""
	case libvirtwire.RunningReason(reason) == libvirtwire.RunningPostcopy:
		return "in post-copy"
	}
	if active, err := guest.JobActive(ctx, domain); err == nil && active {
		return "being migrated"
	}
	return ""
}

// wantedPauses are the reasons for an intended pause. The probe fails for a guest that was paused by an I/O error, that
// has stopped by itself, or that libvirt could not resume, also if a later libvirt has another reason for it.
var wantedPauses = map[libvirtwire.PausedReason]string{
	libvirtwire.PausedUser:           "paused",
	libvirtwire.PausedMigration:      "being migrated",
	libvirtwire.PausedSave:           "being saved",
	libvirtwire.PausedDump:           "being dumped",
	libvirtwire.PausedFromSnapshot:   "being restored",
	libvirtwire.PausedSnapshot:       "being snapshotted",
	libvirtwire.PausedStartingUp:     "being started",
	libvirtwire.PausedPostcopy:       "in post-copy",
	libvirtwire.PausedPostcopyFailed: "in post-copy",
}

// agentCommand sends a command to the guest agent and decodes the result.
func (p Probe) agentCommand(
	ctx context.Context, guest agentClient, domain libvirtwire.Domain, execute string, arguments, result any,
) error {
	command := map[string]any{"execute": execute}
	if arguments != nil {
		command["arguments"] = arguments
	}
	text, err := json.Marshal(command)
	if err != nil {
		return err
	}
	response, err := guest.AgentCommand(ctx, domain, string(text), p.Timeout)
	if err != nil || result == nil {
		return err
	}
	if err := json.Unmarshal([]byte(response), &struct {
		Return any `json:"return"`
	}{result}); err != nil {
		return fmt.Errorf("read the response of the guest agent: %w", err)
	}
	return nil
}

// execStatus is the status of a command in the guest.
type execStatus struct {
	Exited   bool   `json:"exited"`
	ExitCode *int   `json:"exitcode"`
	Signal   *int   `json:"signal"`
	Out      []byte `json:"out-data"`
	Err      []byte `json:"err-data"`
}

// print prints the command's output, within the limit, and returns its exit code.
func (s *execStatus) print(out io.Writer) (int, error) {
	text := slices.Concat(s.Out, s.Err)
	if _, err := out.Write(text[:min(len(text), maxProbeOutput)]); err != nil {
		return probeFailed, fmt.Errorf("print the command's output: %w", err)
	}
	switch {
	case s.ExitCode == nil && s.Signal != nil:
		return probeFailed, fmt.Errorf("the command was ended by signal %d", *s.Signal)
	case s.ExitCode == nil:
		return probeFailed, errors.New("the guest agent does not report how the command ended")
	case *s.ExitCode < 0 || *s.ExitCode > 255:
		return probeFailed, fmt.Errorf("the command ended with code %d", *s.ExitCode)
	default:
		return *s.ExitCode, nil
	}
}
