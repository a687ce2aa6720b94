// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// large is XML that is not small after it is parsed, although its text is short.
var large = "<domain><devices>" + strings.Repeat("<disk/>", hypervisor.SmallXML/512) + "</devices></domain>"

// canceled returns a context with which nothing waits.
func canceled(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}

func TestNamespaceCannotUseWholeBudget(t *testing.T) {
	budget := hypervisor.NewResponseBudget()
	conversations, ends := []context.Context{}, []func(){}
	for range hypervisor.ResponseBudgetPerNamespace / hypervisor.ConversationBytes {
		ctx, end := budget.StartConversation(t.Context(), "hostile")
		// A conversation reserves memory only once.
		for range 2 {
			if err := hypervisor.ReadXML(ctx, large, &libvirtxml.Domain{}); err != nil {
				t.Fatal(err)
			}
		}
		conversations, ends = append(conversations, ctx), append(ends, end)
	}
	one, end := budget.StartConversation(t.Context(), "hostile")
	defer end()
	if err := hypervisor.ReadXML(canceled(one), large, &libvirtxml.Domain{}); !errors.Is(err, context.Canceled) {
		t.Errorf("one more conversation of the namespace does not wait: %v", err)
	}
	if err := hypervisor.ReadXML(canceled(one), "<domain/>", &libvirtxml.Domain{}); err != nil {
		t.Errorf("a small response waits: %v", err)
	}
	other, endOther := budget.StartConversation(t.Context(), "other")
	if err := hypervisor.ReadXML(other, large, &libvirtxml.Domain{}); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	endOther()
	// A conversation within another one is the same.
	inner, endInner := budget.StartConversation(conversations[0], "hostile")
	endInner()
	if inner != conversations[0] {
		t.Error("there is a second conversation")
	}
	ends[0]()
	if err := hypervisor.Reserve(one); err != nil {
		t.Errorf("after another conversation has ended: %v", err)
	}
	if err := hypervisor.Reserve(conversations[0]); err == nil {
		t.Error("a conversation that has ended reserves memory")
	}
	for _, end := range ends[1:] {
		end()
	}
}

func TestEndOfConversationEndsReserve(t *testing.T) {
	budget := hypervisor.NewResponseBudget()
	release, err := budget.Acquire(t.Context(), "ns", hypervisor.ResponseBudgetPerNamespace)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := budget.StartConversation(t.Context(), "ns")
	done := make(chan error, 1)
	go func() { done <- hypervisor.Reserve(context.WithoutCancel(ctx)) }()
	end()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	release()
}
