// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	instancetypev1beta1 "github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// startTimeout is how long all starts of a step may take before the benchmark gives up.
const startTimeout = 5 * time.Minute

// settle is how long the benchmark waits between steps, so that the end of one does not slow down the next.
const settle = 3 * time.Second

// bench contains the connection and what was observed.
type bench struct {
	options
	api  client.WithWatch
	rest *rest.Config
	log  *sightings
}

func newBench(ctx context.Context, o options) (*bench, error) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, fmt.Errorf("KUBECONFIG must name the cluster to measure: %w", err)
	}
	config.QPS, config.Burst = 500, 1000
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	if err := v1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	if err := instancetypev1beta1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	api, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	b := &bench{options: o, api: api, rest: config, log: newSightings()}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.namespace}}
	if err := api.Create(ctx, namespace); err != nil {
		return nil, fmt.Errorf("make namespace %s: %w", o.namespace, err)
	}
	return b, b.follow(ctx)
}

// cleanUp removes the namespace with all that is in it, also after an interrupt.
func (b *bench) cleanUp() {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	_ = b.api.DeleteAllOf(ctx, &v1.VirtualMachine{}, client.InNamespace(b.namespace))
	if err := b.api.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.namespace}}); err != nil {
		fmt.Fprintf(os.Stderr, "bench: remove namespace %s: %v\n", b.namespace, err)
	}
}

// follow records when each object is first seen in a state, through watches: the API's own stamps are whole seconds.
func (b *bench) follow(ctx context.Context) error {
	for _, list := range []client.ObjectList{&corev1.PodList{}, &v1.VirtualMachineInstanceList{}, &corev1.EventList{}} {
		stream, err := b.api.Watch(ctx, list, client.InNamespace(b.namespace))
		if err != nil {
			return err
		}
		go func() {
			for event := range stream.ResultChan() {
				if event.Type != watch.Error {
					b.log.record(event.Object, time.Now())
				}
			}
		}()
	}
	return nil
}

func (b *bench) pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To(int64(1)),
			Containers: []corev1.Container{{
				Name: "tools", Image: b.podImage, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"serve"},
			}},
		},
	}
}

func (b *bench) vm(name string, memoryMiB int64) *v1.VirtualMachine {
	return &v1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: name},
		Spec: v1.VirtualMachineSpec{
			RunStrategy: ptr.To(v1.RunStrategyAlways),
			Template: &v1.VirtualMachineInstanceTemplateSpec{Spec: v1.VirtualMachineInstanceSpec{
				TerminationGracePeriodSeconds: ptr.To(int64(0)),
				Domain: v1.DomainSpec{
					Memory: &v1.Memory{Guest: resource.NewQuantity(memoryMiB<<20, resource.BinarySI)},
					Devices: v1.Devices{
						Disks: []v1.Disk{{Name: "root", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}}},
						Interfaces: []v1.Interface{{
							Name:                   "default",
							InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}},
						}},
					},
				},
				Networks: []v1.Network{{Name: "default", NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}}},
				Volumes: []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{
					Image: b.guestImage, ImagePullPolicy: corev1.PullIfNotPresent,
				}}}},
			}},
		},
	}
}

// started is when each of a set of objects was created and seen running.
type started struct {
	created, running map[string]time.Time
}

func (s started) durations() []time.Duration {
	all := make([]time.Duration, 0, len(s.running))
	for name, end := range s.running {
		all = append(all, end.Sub(s.created[name]))
	}
	return all
}

func newStarted() started {
	return started{created: map[string]time.Time{}, running: map[string]time.Time{}}
}

// start creates objects and waits until each was seen in a state.
func (b *bench) start(ctx context.Context, state string, objects ...client.Object) (started, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s := newStarted()
	for _, object := range objects {
		s.created[object.GetName()] = time.Now()
		if err := b.api.Create(ctx, object); err != nil {
			return s, err
		}
	}
	for _, object := range objects {
		when, err := b.log.wait(ctx, object.GetName(), state)
		if err != nil {
			return s, fmt.Errorf("%s was not seen %s: %w", object.GetName(), state, err)
		}
		s.running[object.GetName()] = when
	}
	return s, nil
}

// oneByOne starts objects one after the other. Each is examined and removed before the next one starts: a booting guest
// uses a whole CPU, which would slow down the next start.
func (b *bench) oneByOne(
	ctx context.Context, state string, examine func(context.Context) error, objects ...client.Object,
) (started, error) {
	all := newStarted()
	for _, object := range objects {
		s, err := b.start(ctx, state, object)
		if err != nil {
			return all, err
		}
		maps.Copy(all.created, s.created)
		maps.Copy(all.running, s.running)
		time.Sleep(settle) // its last writes belong to its start
		if err := examine(ctx); err != nil {
			return all, err
		}
		if err := b.remove(ctx, object); err != nil {
			return all, err
		}
	}
	return all, nil
}

// remove deletes objects and waits until they are gone.
func (b *bench) remove(ctx context.Context, objects ...client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for _, object := range objects {
		if err := b.api.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	for _, object := range objects {
		for {
			if err := b.api.Get(ctx, client.ObjectKeyFromObject(object), object); client.IgnoreNotFound(err) != nil {
				return err
			} else if err != nil {
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	time.Sleep(settle)
	return nil
}

// sightings remembers when an object was first seen in a state.
type sightings struct {
	mutex   sync.Mutex
	changed chan struct{}
	first   map[string]time.Time
}

func newSightings() *sightings {
	return &sightings{changed: make(chan struct{}), first: map[string]time.Time{}}
}

func (s *sightings) see(name, state string, when time.Time) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if _, known := s.first[name+"\x00"+state]; !known {
		s.first[name+"\x00"+state] = when
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

func (s *sightings) at(name, state string) (time.Time, bool, <-chan struct{}) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	when, ok := s.first[name+"\x00"+state]
	return when, ok, s.changed
}

func (s *sightings) wait(ctx context.Context, name, state string) (time.Time, error) {
	for {
		when, ok, changed := s.at(name, state)
		if ok {
			return when, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}

// record records the states that an object of a watch has reached. A launcher Pod counts for the VM that its annotation
// names.
func (s *sightings) record(object runtime.Object, when time.Time) {
	switch o := object.(type) {
	case *corev1.Pod:
		name, prefix := o.Name, ""
		if domain, ok := o.Annotations[v1.DomainAnnotation]; ok {
			name, prefix = domain, "pod "
			s.see(name, "pod created", when)
		}
		if o.Spec.NodeName != "" {
			s.see(name, prefix+"scheduled", when)
		}
		if o.Status.Phase == corev1.PodRunning {
			s.see(name, prefix+"running", when)
		}
	case *v1.VirtualMachineInstance:
		s.see(o.Name, "vmi created", when)
		s.see(o.Name, "vmi "+string(o.Status.Phase), when)
		for _, c := range o.Status.Conditions {
			if c.Type == v1.VirtualMachineInstanceReady && c.Status == corev1.ConditionTrue {
				s.see(o.Name, "vmi Ready", when)
			}
		}
	}
}
