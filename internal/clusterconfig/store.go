// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Store keeps the current configuration and notifies its subscribers of changes. Create it with NewStore. Call Load
// before the manager starts, so that no reconciler uses defaults that the cluster overrides, and add the Runnable of
// Follow to the manager.
type Store struct {
	options []Option
	current atomic.Pointer[loaded]
	version atomic.Pointer[string]

	mu          sync.Mutex
	subscribers []func(Config)
}

// loaded is a configuration and the error of resolving it.
type loaded struct {
	config Config
	err    error
}

// NewStore returns a Store with the defaults.
func NewStore(options ...Option) *Store {
	s := &Store{options: options}
	config, err := FromKubeVirt(nil, options...)
	s.current.Store(&loaded{config: config, err: err})
	return s
}

// Current returns the current configuration. Read it once per reconciliation and pass the value on.
func (s *Store) Current() Config { return s.current.Load().config }

// Certificates returns the current lifetimes of certificates.
func (s *Store) Certificates() Certificates { return s.Current().Certificates }

// Version returns the resourceVersion of the KubeVirt object that the configuration is from, empty without one.
func (s *Store) Version() string {
	if version := s.version.Load(); version != nil {
		return *version
	}
	return ""
}

// Err returns the errors of invalid fields of the KubeVirt object, which have their default values.
func (s *Store) Err() error { return s.current.Load().err }

// Subscribe calls f with the current configuration and after each change. Calls do not overlap. f must not block and
// must not call Subscribe or Set.
func (s *Store) Subscribe(f func(Config)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscribers = append(s.subscribers, f)
	f(s.Current())
}

// Set makes the configuration of a KubeVirt object current, or the defaults if it is nil. It returns the error of
// FromKubeVirt.
func (s *Store) Set(kv *v1.KubeVirt) error {
	config, err := FromKubeVirt(kv.DeepCopy(), s.options...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.Store(&loaded{config: config, err: err})
	for _, f := range s.subscribers {
		f(config)
	}
	return err
}

// Load reads the KubeVirt object of a namespace and makes its configuration current. Invalid fields are reported by
// Err, and not by Load.
func (s *Store) Load(ctx context.Context, reader client.Reader, namespace string) error {
	list := &v1.KubeVirtList{}
	if err := reader.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("cannot read the KubeVirt object of namespace %q: %w", namespace, err)
	}
	s.load(ctx, Active(list.Items))
	return nil
}

func (s *Store) load(ctx context.Context, kv *v1.KubeVirt) {
	// Set the version last: a client that sees it can rely on the configuration being in use.
	defer s.setVersion(kv)
	if kv != nil && !s.changed(kv) {
		return
	}
	if err := s.Set(kv); err != nil {
		log.FromContext(ctx).Error(err, "KubeVirt object has values that cannot be used, their defaults apply", "kubevirt",
			kv.Name)
	}
}

func (s *Store) setVersion(kv *v1.KubeVirt) {
	version := ""
	if kv != nil {
		version = kv.ResourceVersion
	}
	s.version.Store(&version)
}

// changed reports whether the object may have another configuration than the current one. It is false if only metadata
// or a part of the status that is not configuration has changed.
func (s *Store) changed(kv *v1.KubeVirt) bool {
	current := s.Current()
	if arch := kv.Status.DefaultArchitecture; arch != "" && arch != current.DefaultArchitecture {
		return true
	}
	_, even := kv.Annotations[v1.EmulatorThreadCompleteToEvenParity] // annotations do not change the generation
	return current.KubeVirt != kv.Name || current.UID != kv.UID || current.Generation != kv.Generation ||
		kv.Generation == 0 ||
		current.SkipBackupHooks != podspec.SkipsBackupHooks(kv.Annotations) ||
		current.AlignCPUs != (even && current.FeatureGates.IsEnabled(GateAlignCPUs))
}

// Active returns the KubeVirt object that is used, which is the oldest. It is nil if there is none.
func Active(items []v1.KubeVirt) *v1.KubeVirt {
	if len(items) == 0 {
		return nil
	}
	oldest := slices.MinFunc(items, func(a, b v1.KubeVirt) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return &oldest
}

// Follow returns a Runnable that updates the Store when the KubeVirt object of a namespace changes. It runs on every
// replica.
func (s *Store) Follow(c cache.Cache, namespace string) *Follower {
	return &Follower{store: s, cache: c, namespace: namespace}
}

// Follower updates a Store from a cache.
type Follower struct {
	store     *Store
	cache     cache.Cache
	namespace string
}

// NeedLeaderElection reports that every replica needs the configuration, leader or not.
func (f *Follower) NeedLeaderElection() bool { return false }

// Start follows the KubeVirt object until the context ends.
func (f *Follower) Start(ctx context.Context) error {
	informer, err := f.cache.GetInformer(ctx, &v1.KubeVirt{})
	if err != nil {
		return fmt.Errorf("cannot watch KubeVirt objects: %w", err)
	}
	reload := func(any) {
		if err := f.store.Load(ctx, f.cache, f.namespace); err != nil && !errors.Is(err, context.Canceled) {
			log.FromContext(ctx).Error(err, "Cannot reload the configuration, the last one stays")
		}
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    reload,
		UpdateFunc: func(_, current any) { reload(current) },
		DeleteFunc: reload,
	})
	if err != nil {
		return fmt.Errorf("cannot watch KubeVirt objects: %w", err)
	}
	<-ctx.Done()
	return informer.RemoveEventHandler(registration)
}
