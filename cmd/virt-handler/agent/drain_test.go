// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// vmiCache is a cache with these VMIs. (The fake client does not know the unsigned fields of a VMI.)
type vmiCache struct {
	*informertest.FakeInformers
	mu   sync.Mutex
	vmis []v1.VirtualMachineInstance
}

func (c *vmiCache) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	into, ok := list.(*v1.VirtualMachineInstanceList)
	if !ok {
		return fmt.Errorf("%T is no list of VMIs", list)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	into.Items = slices.Clone(c.vmis)
	return nil
}

func (c *vmiCache) set(vmis ...*v1.VirtualMachineInstance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.vmis = nil
	for _, vmi := range vmis {
		c.vmis = append(c.vmis, *vmi)
	}
}

// migratingTo returns a VMI whose guest migrates from node-a to a node.
func migratingTo(node string) *v1.VirtualMachineInstance {
	return &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "guest"},
		Status: v1.VirtualMachineInstanceStatus{MigrationState: &v1.VirtualMachineInstanceMigrationState{
			StartTimestamp: &metav1.Time{Time: time.Unix(1, 0)}, SourceNode: "node-a", TargetNode: node,
		}},
	}
}

// newDrain returns the drain of node-b, its cache, and the messages that it logs.
func newDrain(
	t *testing.T, limit time.Duration, vmis ...*v1.VirtualMachineInstance,
) (*drain, *vmiCache, <-chan string) {
	t.Helper()
	scheme := apiruntime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	messages := make(chan string, 9)
	c := &vmiCache{FakeInformers: &informertest.FakeInformers{Scheme: scheme}}
	c.set(vmis...)
	log := funcr.New(func(_, args string) { messages <- args }, funcr.Options{})
	return &drain{node: "node-b", limit: limit, log: log, caches: []cache.Cache{c}}, c, messages
}

func TestAnAgentWaitsForItsMigrations(t *testing.T) {
	vmi := migratingTo("node-b")
	d, c, messages := newDrain(t, time.Hour, vmi)
	ctx, stop := context.WithCancel(t.Context())
	until, cancel := d.after(ctx)
	defer cancel()
	stop()
	if message := <-messages; !strings.Contains(message, "Waiting") || !strings.Contains(message, "default/guest") {
		t.Errorf("message %s", message)
	}
	if until.Err() != nil {
		t.Fatal("the agent ends during a migration")
	}
	ended := vmi.DeepCopy()
	ended.Status.MigrationState.Completed = true
	c.set(ended)
	informer, err := c.FakeInformerFor(t.Context(), vmi)
	if err != nil {
		t.Fatal(err)
	}
	informer.Update(vmi, ended)
	<-until.Done()
}

func TestAnAgentEndsWithoutMigrations(t *testing.T) {
	ended, planned := migratingTo("node-b"), migratingTo("node-b")
	ended.Status.MigrationState.Failed = true
	planned.Name, planned.Status.MigrationState.StartTimestamp = "planned", nil
	elsewhere, still := migratingTo("node-c"), migratingTo("")
	elsewhere.Name, still.Name, still.Status.MigrationState = "elsewhere", "still", nil
	d, _, messages := newDrain(t, time.Hour, ended, planned, elsewhere, still)
	ctx, stop := context.WithCancel(t.Context())
	until, cancel := d.after(ctx)
	defer cancel()
	if until.Err() != nil {
		t.Error("the agent ends before it is stopped")
	}
	stop()
	<-until.Done()
	if len(messages) > 0 {
		t.Errorf("it has waited: %s", <-messages)
	}
}

func TestAnAgentDoesNotWaitForEver(t *testing.T) {
	d, _, messages := newDrain(t, time.Nanosecond, migratingTo("node-b"))
	ctx, stop := context.WithCancel(t.Context())
	until, cancel := d.after(ctx)
	defer cancel()
	stop()
	<-until.Done()
	if len(messages) > 0 && !strings.Contains(<-messages, "guest") {
		t.Error("the message does not name the guest")
	}
}

func TestAnAgentThatHasReadNothingDoesNotWait(t *testing.T) {
	d, c, messages := newDrain(t, time.Hour, migratingTo("node-b"))
	gvk := v1.GroupVersion.WithKind("VirtualMachineInstance")
	c.InformersByGVK = map[schema.GroupVersionKind]toolscache.SharedIndexInformer{gvk: controllertest.NewFakeInformer()}
	ctx, stop := context.WithCancel(t.Context())
	until, cancel := d.after(ctx)
	defer cancel()
	stop()
	<-until.Done()
	if len(messages) > 0 {
		t.Errorf("it has waited: %s", <-messages)
	}
}
