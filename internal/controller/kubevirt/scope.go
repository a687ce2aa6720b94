// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package kubevirt has the phases of the KubeVirt reconciler. Install and Uninstall change the cluster and put
// what they saw into the Scope; Status turns it into the object's status and is pure.
package kubevirt

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/operator"
)

// Finalizer keeps a KubeVirt object until what it installed is gone. KubeVirt's name.
const Finalizer = "kubevirt.io/foregroundDeleteKubeVirt"

// Scope is one reconcile of one KubeVirt object: what is wanted, and what was seen.
type Scope struct {
	// Client reads from the manager's cache.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Namespace is the install namespace.
	Namespace string
	// KubeletRoot is the kubelet's root directory on the nodes.
	KubeletRoot string
	// Now is the time of the reconcile.
	Now time.Time
	// KubeVirt is the object. Only Status changes it.
	KubeVirt *v1.KubeVirt

	// Config is the configuration that the object asks for, and ConfigErr what of it cannot be used.
	Config    clusterconfig.Config
	ConfigErr error

	// Conflict says why this object installs nothing. It is empty for the one that counts.
	Conflict string
	// InstallErr is the error of the installation.
	InstallErr error
	// DeploymentID identifies what is to be installed.
	DeploymentID string
	// Generations is a record of each installed object.
	Generations []v1.GenerationStatus
	// Rollout is how far the node agents and virt-api are.
	Rollout operator.Rollout
	// Agents is the DaemonSet of the node agents as it was seen, and API the Deployment of virt-api.
	Agents *appsv1.DaemonSet
	API    *appsv1.Deployment
	// Look is when the authorities have to be looked at again.
	Look time.Time
	// Overdue are the certificates whose renewal is late, and what to do about each.
	Overdue []string

	// Uninstall is how far the deletion is.
	Uninstall Uninstall
}

// Uninstall is how far the deletion of a KubeVirt object is.
type Uninstall struct {
	// Blocked says why nothing is removed, and what to do.
	Blocked string
	// Waiting says what has still to go.
	Waiting string
	// Done says that everything is gone.
	Done bool
	// Err is what went wrong.
	Err error
}

// CheckConflict finds out whether another object counts instead of this one.
func (s *Scope) CheckConflict(all []v1.KubeVirt) {
	if s.KubeVirt.Namespace != s.Namespace {
		s.Conflict = fmt.Sprintf("this installation is configured by a KubeVirt object in namespace %q: delete this one and create it there", s.Namespace)
		return
	}
	here := slices.DeleteFunc(slices.Clone(all), func(kv v1.KubeVirt) bool { return kv.Namespace != s.Namespace })
	if active := clusterconfig.Active(here); active != nil && active.UID != s.KubeVirt.UID {
		s.Conflict = fmt.Sprintf("KubeVirt object %q already configures this installation: delete this one", active.Namespace+"/"+active.Name)
	}
}

func (s *Scope) installer() operator.Installer {
	return operator.Installer{Client: s.Client, Namespace: s.Namespace}
}

func (s *Scope) overdue(format string, args ...any) {
	s.Overdue = append(s.Overdue, fmt.Sprintf(format, args...))
}

// UntilLook is how long the authorities can be left alone. Zero means that nothing is known about that.
func (s *Scope) UntilLook() time.Duration {
	if s.Look.IsZero() {
		return 0
	}
	return max(s.Look.Sub(s.Now), time.Second)
}
