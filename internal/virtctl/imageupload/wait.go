// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package imageupload

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
)

const (
	// uploadReady is the phase of a DataVolume that takes an upload.
	uploadReady cdi.DataVolumePhase = "UploadReady"
	// processingSeconds bounds the wait for what CDI does after an upload. It is KubeVirt's.
	processingSeconds = 24 * 60 * 60
	// Reasons of events that say that waiting is of no use: of Kubernetes' volume controller, and of CDI's.
	reasonProvisioningFailed = "ProvisioningFailed"
	reasonClaimNotValid      = "ErrClaimNotValid"
	// conflictMessage is in an event of a provisioner that lost a race and tries again.
	conflictMessage = "the object has been modified; please apply your changes to the latest version and try again"
)

// poll asks again and again until done: often at first, as most clusters need a second or two, then every two seconds.
func poll(ctx context.Context, done func(context.Context) (bool, error)) error {
	backoff := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 1.5, Steps: 100, Cap: 2 * time.Second}
	return backoff.DelayFunc().Until(ctx, true, false, done)
}

// waitReady waits until the volume takes data.
func (u *upload) waitReady(ctx context.Context) error {
	limited, cancel := within(ctx, u.waitSeconds)
	defer cancel()
	said := false
	state := "nothing is known of it"
	err := poll(limited, func(ctx context.Context) (bool, error) {
		ready, now, err := u.ready(ctx)
		if err != nil {
			return false, err
		}
		state = now
		if !ready {
			if err := u.failedEvent(ctx); err != nil {
				return false, err
			}
			if !said {
				u.say("Waiting for PVC %s upload pod to be ready...", u.name)
			}
			said = true
		}
		return ready, nil
	})
	switch {
	case err != nil && ctx.Err() == nil && limited.Err() != nil:
		return fmt.Errorf("PVC %s took no upload within %d seconds (--wait-secs): %s", u.name, u.waitSeconds, state)
	case err != nil:
		return err
	case said:
		u.say("Pod now ready")
	}
	return nil
}

// ready says whether the volume takes data, and in words how far it is.
func (u *upload) ready(ctx context.Context) (bool, string, error) {
	if u.claimOnly {
		claim := &corev1.PersistentVolumeClaim{}
		if err := u.objects.Get(ctx, u.key(), claim); err != nil {
			return false, "", err
		}
		ready, _ := strconv.ParseBool(claim.Annotations[annPodReady])
		state := fmt.Sprintf("the claim is %s and CDI's upload Pod is not ready", claim.Status.Phase)
		if claim.Status.Phase == corev1.ClaimPending && !u.forceBind {
			state += "; where storage waits for a first consumer, --force-bind helps"
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
			return false, "", fmt.Errorf("cannot upload to DataVolume in %s phase, make sure the PVC is Bound, or use force-bind flag", phase)
		}
	case uploadReady:
		return true, "", nil
	}
	return false, describe(volume), nil
}

// describe says in what phase a DataVolume is, and what its conditions say about that.
func describe(volume *cdi.DataVolume) string {
	text := fmt.Sprintf("the DataVolume is in phase %q", volume.Status.Phase)
	for _, kind := range []cdi.DataVolumeConditionType{cdi.DataVolumeBound, cdi.DataVolumeRunning} {
		if c := volume.Status.Condition(kind); c != nil && c.Status != corev1.ConditionTrue && c.Message != "" {
			text += "; " + c.Message
		}
	}
	return text
}

// failedEvent is an event of the claim or of the DataVolume that says that waiting is of no use.
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
		// An object of the same name that is gone may have left events.
		if !uids[event.InvolvedObject.UID] {
			continue
		}
		switch {
		case event.InvolvedObject.Kind == "PersistentVolumeClaim" && event.Reason == reasonProvisioningFailed && !strings.Contains(event.Message, conflictMessage):
			return fmt.Errorf("provisioning failed: %s", event.Message)
		case event.InvolvedObject.Kind == "DataVolume" && event.Reason == reasonClaimNotValid:
			return fmt.Errorf("claim not valid: %s", event.Message)
		}
	}
	return nil
}

// waitProcessed waits until what was uploaded is on the volume.
func (u *upload) waitProcessed(ctx context.Context) error {
	limited, cancel := within(ctx, processingSeconds)
	defer cancel()
	err := poll(limited, u.processed)
	if err != nil && limited.Err() != nil {
		return fmt.Errorf("stopped waiting for post upload processing to complete, please check upload pod status for progress: %w", err)
	}
	return err
}

func (u *upload) processed(ctx context.Context) (bool, error) {
	claim := &corev1.PersistentVolumeClaim{}
	if err := u.objects.Get(ctx, u.key(), claim); err != nil {
		return false, fmt.Errorf("the volume is lost while the upload is processed: %w", err)
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
		// CDI may be told to remove DataVolumes that are complete: the claim tells.
		return false, nil
	case err != nil:
		return false, err
	case volume.Status.Phase == cdi.DataVolumeFailed:
		return false, errors.New(describe(volume))
	}
	return volume.Status.Phase == cdi.DataVolumeSucceeded, nil
}
