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

// Store holds the current configuration and tells its subscribers when it changes. The zero value is not
// usable: make one with NewStore. Load it once before the manager starts, so that no reconciler ever acts
// on defaults that the cluster overrides, and add Follow's Runnable to the manager for changes.
type Store struct {
	options []Option
	current atomic.Pointer[loaded]
	version atomic.Pointer[string]

	mu          sync.Mutex
	subscribers []func(Config)
}

// loaded is a configuration and what was wrong with the object that it comes from.
type loaded struct {
	config Config
	err    error
}

// NewStore makes a Store that holds the defaults.
func NewStore(options ...Option) *Store {
	s := &Store{options: options}
	config, err := FromKubeVirt(nil, options...)
	s.current.Store(&loaded{config: config, err: err})
	return s
}

// Current is the configuration now. Read it once per reconcile and pass the value on.
func (s *Store) Current() Config { return s.current.Load().config }

// Version is the resourceVersion of the KubeVirt object that the configuration is up to, empty without one.
func (s *Store) Version() string {
	if version := s.version.Load(); version != nil {
		return *version
	}
	return ""
}

// Err says what is wrong with the KubeVirt object. While it is not nil, the fields that it names have their
// default values.
func (s *Store) Err() error { return s.current.Load().err }

// Subscribe calls f with the configuration now and after each change. Calls never overlap; f must not block
// and must not call Subscribe or Set.
func (s *Store) Subscribe(f func(Config)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscribers = append(s.subscribers, f)
	f(s.Current())
}

// Set resolves a KubeVirt object, or none when it is nil, and makes it current.
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

// Load reads the KubeVirt object of a namespace and makes it current. A field that cannot be used is kept in
// Err and is not an error of Load.
func (s *Store) Load(ctx context.Context, reader client.Reader, namespace string) error {
	list := &v1.KubeVirtList{}
	if err := reader.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("cannot read the KubeVirt object of namespace %q: %w", namespace, err)
	}
	s.load(ctx, Active(list.Items))
	return nil
}

func (s *Store) load(ctx context.Context, kv *v1.KubeVirt) {
	// After the configuration, so that whoever sees the version can rely on the configuration being in use.
	defer s.reached(kv)
	if kv != nil && !s.changes(kv) {
		return
	}
	if err := s.Set(kv); err != nil {
		log.FromContext(ctx).Error(err, "KubeVirt object has values that cannot be used, their defaults apply", "kubevirt", kv.Name)
	}
}

func (s *Store) reached(kv *v1.KubeVirt) {
	version := ""
	if kv != nil {
		version = kv.ResourceVersion
	}
	s.version.Store(&version)
}

// changes is false for a new version of the object that differs in status or metadata only.
func (s *Store) changes(kv *v1.KubeVirt) bool {
	current := s.Current()
	_, even := kv.Annotations[v1.EmulatorThreadCompleteToEvenParity] // annotations have no generation
	return current.KubeVirt != kv.Name || current.Generation != kv.Generation || kv.Generation == 0 ||
		current.SkipBackupHooks != podspec.SkipsBackupHooks(kv.Annotations) || current.AlignCPUs != (even && current.FeatureGates.IsEnabled(GateAlignCPUs))
}

// Active is the KubeVirt object that counts: the oldest. It is nil when there is none.
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

// Follow gives a Runnable that keeps the Store at the KubeVirt object of a namespace. It runs on every
// replica, elected or not.
func (s *Store) Follow(c cache.Cache, namespace string) *Follower {
	return &Follower{store: s, cache: c, namespace: namespace}
}

// Follower keeps a Store current from a cache.
type Follower struct {
	store     *Store
	cache     cache.Cache
	namespace string
}

// NeedLeaderElection is false: every replica serves webhooks and logs by the configuration.
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
