// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package imageupload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

const (
	// uploadReady is the phase of a DataVolume that is ready for an upload.
	uploadReady cdi.DataVolumePhase = "UploadReady"
	// processingTimeout limits the wait for CDI's processing of an upload. KubeVirt's value.
	processingTimeout = 24 * time.Hour
	// Reasons of events of Kubernetes' volume controller and of CDI after which waiting is pointless.
	reasonProvisioningFailed = "ProvisioningFailed"
	reasonClaimNotValid      = "ErrClaimNotValid"
	// conflictMessage is part of the event of a provisioner that retries after a conflict.
	conflictMessage = "the object has been modified; please apply your changes to the latest version and try again"
)

// waitReady waits until the volume is ready for the upload.
func (u *upload) waitReady(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, time.Duration(u.waitSeconds)*time.Second)
	defer cancel()
	announced := false
	state := "its state is not known"
	err := cli.Poll(limited, func(ctx context.Context) (bool, error) {
		ready, now, err := u.ready(ctx)
		if err != nil {
			return false, err
		}
		state = now
		if !ready {
			if err := u.failedEvent(ctx); err != nil {
				return false, err
			}
			if !announced {
				u.printf("Waiting for PVC %s upload pod to be ready...", u.name)
			}
			announced = true
		}
		return ready, nil
	})
	switch {
	case err != nil && ctx.Err() == nil && limited.Err() != nil:
		return fmt.Errorf("PVC %s was not ready for the upload within %d seconds (--wait-secs): %s",
			u.name, u.waitSeconds, state)
	case err != nil:
		return err
	case announced:
		u.printf("Pod now ready")
	}
	return nil
}

// ready reports whether the volume is ready for the upload, and describes its state.
func (u *upload) ready(ctx context.Context) (bool, string, error) {
	if u.claimOnly {
		claim := &corev1.PersistentVolumeClaim{}
		if err := u.objects.Get(ctx, u.key(), claim); err != nil {
			return false, "", err
		}
		ready, _ := strconv.ParseBool(claim.Annotations[annPodReady])
		state := fmt.Sprintf("the claim is %s and CDI's upload Pod is not ready", claim.Status.Phase)
		if claim.Status.Phase == corev1.ClaimPending && !u.forceBind {
			state += "; if its storage class waits for a first consumer, use --force-bind"
		}
		return ready, state, nil
	}
	volume := &cdi.DataVolume{}
	if err := u.objects.Get(ctx, u.key(), volume); err != nil {
		return false, "", err
	}
	switch phase := volume.Status.Phase; phase {
	case cdi.DataVolumeFailed:
		return false, "", errors.New(describe(volume))
	case cdi.DataVolumeWaitForFirstConsumer, cdi.DataVolumePendingPopulation:
		if !u.forceBind {
			return false, "", fmt.Errorf(
				"cannot upload to DataVolume in %s phase, make sure the PVC is Bound, or use force-bind flag", phase)
		}
	case uploadReady:
		return true, "", nil
	}
	return false, describe(volume), nil
}

// describe returns a DataVolume's phase and the messages of its conditions.
func describe(volume *cdi.DataVolume) string {
	text := fmt.Sprintf("the DataVolume is in phase %q", volume.Status.Phase)
	for _, kind := range []cdi.DataVolumeConditionType{cdi.DataVolumeBound, cdi.DataVolumeRunning} {
		if c := volume.Status.Condition(kind); c != nil && c.Status != corev1.ConditionTrue && c.Message != "" {
			text += "; " + c.Message
		}
	}
	return text
}

// failedEvent returns an event of the claim or the DataVolume after which waiting is pointless, as an error.
func (u *upload) failedEvent(ctx context.Context) error {
	uids := map[types.UID]bool{}
	for _, object := range []client.Object{&corev1.PersistentVolumeClaim{}, &cdi.DataVolume{}} {
		if err := u.objects.Get(ctx, u.key(), object); err == nil {
			uids[object.GetUID()] = true
		}
	}
	events := &corev1.EventList{}
	selector := client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("involvedObject.name", u.name)}
	err := u.objects.List(ctx, events, client.InNamespace(u.namespace), selector)
	if apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for i := range events.Items {
		event := &events.Items[i]
		// Events of a deleted object with the same name are ignored.
		if !uids[event.InvolvedObject.UID] {
			continue
		}
		switch {
		case event.InvolvedObject.Kind == "PersistentVolumeClaim" && event.Reason == reasonProvisioningFailed &&
			!strings.Contains(event.Message, conflictMessage):
			return fmt.Errorf("provisioning failed: %s", event.Message)
		case event.InvolvedObject.Kind == "DataVolume" && event.Reason == reasonClaimNotValid:
			return fmt.Errorf("claim not valid: %s", event.Message)
		}
	}
	return nil
}

// waitProcessed waits until CDI has written the upload to the volume.
func (u *upload) waitProcessed(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, processingTimeout)
	defer cancel()
	err := cli.Poll(limited, u.processed)
	if err != nil && limited.Err() != nil {
		return fmt.Errorf("stopped waiting for post upload processing to complete, please check upload pod status for progress: %w", err)
	}
	return err
}

func (u *upload) processed(ctx context.Context) (bool, error) {
	claim := &corev1.PersistentVolumeClaim{}
	if err := u.objects.Get(ctx, u.key(), claim); err != nil {
		return false, fmt.Errorf("the volume cannot be read while the upload is processed: %w", err)
	}
	if claim.Annotations[annPodPhase] == string(corev1.PodSucceeded) {
		return true, nil
	}
	if u.claimOnly {
		return false, nil
	}
	volume := &cdi.DataVolume{}
	err := u.objects.Get(ctx, u.key(), volume)
	switch {
	case apierrors.IsNotFound(err):
		// CDI can be configured to delete completed DataVolumes. The claim shows when it has finished.
		return false, nil
	case err != nil:
		return false, err
	case volume.Status.Phase == cdi.DataVolumeFailed:
		return false, errors.New(describe(volume))
	}
	return volume.Status.Phase == cdi.DataVolumeSucceeded, nil
}

const (
	// redrawInterval is the time between updates of the line on a terminal.
	redrawInterval = 200 * time.Millisecond
	// Other outputs get a line every lineInterval and after every linePercent percent.
	lineInterval = 30 * time.Second
	linePercent  = 10
)

// progress prints the progress of an upload: on a terminal as one line that is updated, elsewhere as a few lines.
type progress struct {
	out      io.Writer
	terminal bool
	size     int64
	now      func() time.Time

	mu          sync.Mutex
	start, last time.Time
	sent, shown int64
	finished    bool
}

func newProgress(out io.Writer, size int64, now func() time.Time) *progress {
	_, isTerminal := cli.Terminal(out)
	start := now()
	return &progress{out: out, terminal: isTerminal, size: size, now: now, start: start, last: start}
}

// watch returns a reader that counts what is read.
func (p *progress) watch(from io.Reader) io.Reader { return &watched{from, p} }

type watched struct {
	from     io.Reader
	progress *progress
}

// Read implements io.Reader.
func (w *watched) Read(into []byte) (int, error) {
	n, err := w.from.Read(into)
	w.progress.add(int64(n))
	return n, err
}

func (p *progress) add(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished || n == 0 {
		return
	}
	p.sent += n
	since := p.now().Sub(p.last)
	switch {
	case p.sent == p.size:
	case p.terminal && since >= redrawInterval:
	case !p.terminal && (since >= lineInterval || p.percent(p.sent)/linePercent > p.percent(p.shown)/linePercent):
	default:
		return
	}
	p.show()
}

func (p *progress) percent(sent int64) int64 { return sent * 100 / p.size }

func (p *progress) show() {
	p.last, p.shown = p.now(), p.sent
	line := fmt.Sprintf("%s of %s, %d %%, %s/s", formatBytes(p.sent), formatBytes(p.size), p.percent(p.sent),
		formatBytes(p.rate()))
	if p.terminal {
		// Overwrite the line.
		_, _ = fmt.Fprintf(p.out, "\r%s\x1b[K", line)
		return
	}
	_, _ = fmt.Fprintln(p.out, line)
}

// rate returns the average number of bytes per second.
func (p *progress) rate() int64 {
	seconds := p.now().Sub(p.start).Seconds()
	if seconds <= 0 {
		return p.sent
	}
	return int64(float64(p.sent) / seconds)
}

// finish prints the last line. Later reads by the transport are ignored.
func (p *progress) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sent > 0 && p.sent != p.shown {
		p.show()
	}
	if p.terminal && p.sent > 0 {
		_, _ = fmt.Fprintln(p.out)
	}
	p.finished = true
}

// formatBytes returns a number of bytes with a binary unit.
func formatBytes(n int64) string {
	value, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	unit := 0
	for value >= 1024 && unit < len(units)-1 {
		value /= 1024
		unit++
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}
