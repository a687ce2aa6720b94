// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"fmt"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Timeouts of the leader election, as in KubeVirt's virt-controller.
const (
	leaderElectionID = componentName
	leaseDuration    = 15 * time.Second
	renewDeadline    = 10 * time.Second
	retryPeriod      = 2 * time.Second
)

// newLease returns the lock of the leader election. controller-runtime's own would have a holder that is no Pod's name.
// The election records no events, so that a restart writes nothing: the Lease names the leader and when it became that.
func newLease(config *rest.Config, o *Options) (*resourcelock.LeaseLock, error) {
	identity, err := leaderIdentity(o.PodName)
	if err != nil {
		return nil, err
	}
	// The renewal must not wait for other requests, nor for one that hangs until it is too late to try again.
	own := rest.AddUserAgent(rest.CopyConfig(config), "leader-election")
	own.Timeout = renewDeadline / 2
	leases, err := coordinationv1client.NewForConfig(own)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client: %w", err)
	}
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: o.Namespace, Name: leaderElectionID},
		Client:     leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}, nil
}

// leaderIdentity returns the holder of the Lease: the Pod's name, as in KubeVirt, whose clients read the Pod with that
// name. No two processes may have the same holder, since each would take the Lease for its own. Two containers of one
// Pod with one name never run at once, and a restarted one continues at once with the Lease that it had. The host's
// name would not do in place of the Pod's: a patch of the Deployment can give all its Pods the same.
func leaderIdentity(podName string) (string, error) {
	if podName != "" {
		return podName, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("cannot name the holder of the Lease %s: %w", leaderElectionID, err)
	}
	return host + "_" + string(uuid.NewUUID()), nil
}
