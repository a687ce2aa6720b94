// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package explain

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/eventtime"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// defaultClassAnnotation marks the default storage class.
const defaultClassAnnotation = "storageclass.kubernetes.io/is-default-class"

// gatherer reads a snapshot. Areas that the user may not read are omitted and recorded in Hidden.
type gatherer struct {
	client.Client
	*Snapshot
}

// Gather reads a snapshot of a VM from the cluster.
func Gather(ctx context.Context, objects client.Client, namespace, name, program string) (*Snapshot, error) {
	g := &gatherer{Client: objects, Snapshot: &Snapshot{
		Now: time.Now(), Namespace: namespace, Name: name, Program: program,
		Claims: map[string]*corev1.PersistentVolumeClaim{}, Classes: map[string]Class{}, Hidden: map[Area]bool{},
		Install: Install{Controller: -1, API: -1},
	}}
	for _, step := range []func(context.Context) error{g.vm, g.pods, g.migrations, g.claimObjects, g.classes,
		g.install, g.node, g.events} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return g.Snapshot, nil
}

// get reads an object. It returns nil if the object does not exist.
func get[T client.Object](ctx context.Context, c client.Client, namespace, name string, into T) (T, error) {
	var none T
	err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, into)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	return into, nil
}

// hideForbidden records an area as hidden if the user may not read it, and returns other errors.
func (g *gatherer) hideForbidden(area Area, err error) error {
	if apierrors.IsForbidden(err) {
		g.Hidden[area] = true
		return nil
	}
	return err
}

func (g *gatherer) vm(ctx context.Context) error {
	vm, err := get(ctx, g, g.Namespace, g.Name, &v1.VirtualMachine{})
	if err != nil {
		return fmt.Errorf("the VM cannot be read: %w", err)
	}
	vmi, err := get(ctx, g, g.Namespace, g.Name, &v1.VirtualMachineInstance{})
	g.VM, g.VMI = vm, vmi
	return err
}

func (g *gatherer) pods(ctx context.Context) error {
	selector := client.MatchingLabels{v1.VirtualMachineInstanceIDLabel: launcherpod.InstanceID(g.Name)}
	if g.VMI != nil {
		selector = client.MatchingLabels{v1.CreatedByLabel: string(g.VMI.UID)}
	}
	list := &corev1.PodList{}
	if err := g.List(ctx, list, client.InNamespace(g.Namespace), selector); err != nil {
		return g.hideForbidden(AreaPods, err)
	}
	g.Pods = list.Items
	slices.SortFunc(g.Pods, func(a, b corev1.Pod) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	return nil
}

// migrations reads the instance's migrations. The cluster may not have the kind.
func (g *gatherer) migrations(ctx context.Context) error {
	if g.VMI == nil {
		return nil
	}
	list := &v1.VirtualMachineInstanceMigrationList{}
	if err := g.List(ctx, list, client.InNamespace(g.Namespace)); err != nil {
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return nil
		}
		return g.hideForbidden(AreaMigrations, err)
	}
	g.Migrations = slices.DeleteFunc(list.Items, func(m v1.VirtualMachineInstanceMigration) bool {
		return m.Spec.VMIName != g.Name || m.CreationTimestamp.Before(&g.VMI.CreationTimestamp)
	})
	slices.SortFunc(g.Migrations, func(a, b v1.VirtualMachineInstanceMigration) int {
		return b.CreationTimestamp.Compare(a.CreationTimestamp.Time)
	})
	return nil
}

func (g *gatherer) claimObjects(ctx context.Context) error {
	names, _ := g.claims()
	for _, name := range names {
		claim, err := get(ctx, g, g.Namespace, name, &corev1.PersistentVolumeClaim{})
		if err != nil {
			return g.hideForbidden(AreaClaims, err)
		}
		g.Claims[name] = claim
	}
	return nil
}

func (g *gatherer) classes(ctx context.Context) error {
	if len(g.Claims) == 0 {
		return nil
	}
	list := &storagev1.StorageClassList{}
	if err := g.List(ctx, list); err != nil {
		return g.hideForbidden(AreaClasses, err)
	}
	for i := range list.Items {
		class := &list.Items[i]
		waits := class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
		g.Classes[class.Name] = Class{WaitsForConsumer: waits}
		if class.Annotations[defaultClassAnnotation] == "true" {
			g.DefaultClass = class.Name
		}
	}
	return nil
}

func (g *gatherer) install(ctx context.Context) error {
	list := &v1.KubeVirtList{}
	if err := g.List(ctx, list); err != nil {
		if meta.IsNoMatchError(err) {
			return nil
		}
		return g.hideForbidden(AreaInstall, err)
	}
	if len(list.Items) == 0 {
		return nil
	}
	g.Install.KubeVirt = &list.Items[0]
	g.Install.Namespace = list.Items[0].Namespace
	for name, ready := range map[string]*int{"virt-controller": &g.Install.Controller, "virt-api": &g.Install.API} {
		deployment, err := get(ctx, g, g.Install.Namespace, name, &appsv1.Deployment{})
		if err != nil {
			if err = g.hideForbidden(AreaInstall, err); err != nil {
				return err
			}
			delete(g.Hidden, AreaInstall) // The KubeVirt object was read; the number of Pods is a detail.
			return nil
		}
		*ready = 0
		if deployment != nil {
			*ready = int(deployment.Status.ReadyReplicas)
		}
	}
	return nil
}

func (g *gatherer) node(ctx context.Context) error {
	if g.VMI == nil || g.VMI.Status.NodeName == "" {
		return nil
	}
	name := g.VMI.Status.NodeName
	found, err := get(ctx, g, "", name, &corev1.Node{})
	if err != nil {
		return g.hideForbidden(AreaNodes, err)
	}
	g.Node = found
	agents := &corev1.PodList{}
	if err := g.List(ctx, agents, client.InNamespace(g.installNamespace()),
		client.MatchingLabels{"kubevirt.io": "virt-handler"}); err != nil {
		return g.hideForbidden(AreaNodes, err)
	}
	for i := range agents.Items {
		if agents.Items[i].Spec.NodeName == name {
			g.Agent = &agents.Items[i]
		}
	}
	return nil
}

// events reads the events of each object separately, because a namespace may have very many.
func (g *gatherer) events(ctx context.Context) error {
	wanted := map[string][]string{"VirtualMachine": {g.Name}, "VirtualMachineInstance": {g.Name}}
	for i := range g.Pods {
		wanted["Pod"] = append(wanted["Pod"], g.Pods[i].Name)
	}
	for name := range g.Claims {
		wanted["PersistentVolumeClaim"] = append(wanted["PersistentVolumeClaim"], name)
	}
	for kind, names := range wanted {
		for _, name := range names {
			list := &corev1.EventList{}
			selector := client.MatchingFieldsSelector{Selector: fields.SelectorFromSet(
				fields.Set{"involvedObject.kind": kind, "involvedObject.name": name})}
			if err := g.List(ctx, list, client.InNamespace(g.Namespace), selector); err != nil {
				return g.hideForbidden(AreaEvents, err)
			}
			for _, e := range list.Items {
				if e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name {
					g.Events = append(g.Events, e)
				}
			}
		}
	}
	slices.SortStableFunc(g.Events,
		func(a, b corev1.Event) int { return eventtime.LastObserved(&b).Compare(eventtime.LastObserved(&a)) })
	return nil
}
