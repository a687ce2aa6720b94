// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package kubevirt has the phases of the KubeVirt reconciler. Install and Remove change the cluster and put
// what they observed into the Scope; Status turns it into the object's status and is pure.
package kubevirt

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/prometheus"
)

// Finalizer keeps a KubeVirt object until what it installed is removed. KubeVirt's name.
const Finalizer = "kubevirt.io/foregroundDeleteKubeVirt"

// Scope is one reconciliation of one KubeVirt object: its inputs, and what was observed.
type Scope struct {
	// Client reads from the manager's cache.
	Client client.Client
	// APIReader reads from the API server.
	APIReader client.Reader
	// Monitoring installs the objects for Prometheus, unless it is nil.
	Monitoring *prometheus.Installer
	// Namespace is the install namespace.
	Namespace string
	// KubeletRoot is the kubelet's root directory on the nodes.
	KubeletRoot string
	// MetricsAuthorization restricts the metrics of what is installed.
	MetricsAuthorization bool
	// Now is the time of the reconciliation.
	Now time.Time
	// KubeVirt is the object. Only Status changes it.
	KubeVirt *v1.KubeVirt

	// Config is the object's configuration, and ConfigErr names the fields of it that are invalid.
	Config    clusterconfig.Config
	ConfigErr error

	// Conflict is why this object installs nothing. It is empty for the active object.
	Conflict string
	// InstallErr is the error of the installation.
	InstallErr error
	// DeploymentID identifies what is to be installed.
	DeploymentID string
	// ControllerImage is the image that virt-controller's own Deployment should have. It is empty if virt-controller runs
	// without one.
	ControllerImage string
	// Generations is a record of each installed object.
	Generations []v1.GenerationStatus
	// Rollout is the progress of the rollout of the brokers, the node agents, virt-controller, virt-exportproxy and
	// virt-api, and Crash why a Pod of it cannot run.
	Rollout manifests.Rollout
	Crash   string
	// Brokers and Agents are the DaemonSets of the node agents as they were read, and API the Deployment of virt-api.
	Brokers, Agents *appsv1.DaemonSet
	API             *appsv1.Deployment
	// Proxy is virt-exportproxy's Deployment as it was read, nil if there is none.
	Proxy *appsv1.Deployment
	// CommonForeign are objects with the names of common instance types and preferences that belong to another client, and
	// CommonErr is why the common ones could not be applied or removed.
	CommonForeign []string
	CommonErr     error
	// RecheckAt is when authorities, pending and missing requests, and the Pods of a rollout have to be checked again.
	// Zero means never.
	RecheckAt time.Time
	// Overdue are the certificates whose renewal is late, and what to do about each.
	Overdue []string

	// Uninstall is how far the deletion is.
	Uninstall Uninstall
}

// Uninstall is how far the deletion of a KubeVirt object is.
type Uninstall struct {
	// Blocked is why nothing is removed, and what to do.
	Blocked string
	// Waiting is what still has to be removed.
	Waiting string
	// Done is true when everything is removed.
	Done bool
	// Err is what went wrong.
	Err error
}

// CheckConflict sets Conflict if another object is the active one.
func (s *Scope) CheckConflict(all []v1.KubeVirt) {
	if s.KubeVirt.Namespace != s.Namespace {
		s.Conflict = fmt.Sprintf(
			"this installation is configured by a KubeVirt object in namespace %q: delete this one and create it there",
			s.Namespace)
		return
	}
	here := slices.DeleteFunc(slices.Clone(all), func(kv v1.KubeVirt) bool { return kv.Namespace != s.Namespace })
	if active := clusterconfig.Active(here); active != nil && active.UID != s.KubeVirt.UID {
		s.Conflict = fmt.Sprintf("KubeVirt object %q already configures this installation: delete this one",
			active.Namespace+"/"+active.Name)
	}
}

func (s *Scope) installer() manifests.Installer {
	return manifests.Installer{Client: s.Client, Namespace: s.Namespace}
}

func (s *Scope) overdue(format string, args ...any) {
	s.Overdue = append(s.Overdue, fmt.Sprintf(format, args...))
}

// recheck makes the next reconciliation start at a time at the latest.
func (s *Scope) recheck(at time.Time) {
	if s.RecheckAt.IsZero() || at.Before(s.RecheckAt) {
		s.RecheckAt = at
	}
}

// UntilRecheck returns the time until RecheckAt, at least a second, or zero if that is not set.
func (s *Scope) UntilRecheck() time.Duration {
	if s.RecheckAt.IsZero() {
		return 0
	}
	return max(s.RecheckAt.Sub(s.Now), time.Second)
}
