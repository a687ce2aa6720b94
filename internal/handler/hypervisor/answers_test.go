// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

// large is a description that is not small, although it is short.
var large = "<domain><devices>" + strings.Repeat("<disk/>", hypervisor.SmallDescription/512) + "</devices></domain>"

// ended is a context that waits for nothing.
func ended(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}

func TestLaunchersOfOneNamespaceDoNotTakeAllMemory(t *testing.T) {
	answers := hypervisor.NewAnswers()
	conversations, ends := []context.Context{}, []func(){}
	for range hypervisor.AnswersPerNamespace / hypervisor.AnswerBytes {
		ctx, end := answers.Begin(t.Context(), "hostile")
		// However often it has one, it takes its share once.
		for range 2 {
			if err := hypervisor.ReadXML(ctx, large, &libvirtxml.Domain{}); err != nil {
				t.Fatal(err)
			}
		}
		conversations, ends = append(conversations, ctx), append(ends, end)
	}
	one, end := answers.Begin(t.Context(), "hostile")
	defer end()
	if err := hypervisor.ReadXML(ended(one), large, &libvirtxml.Domain{}); !errors.Is(err, context.Canceled) {
		t.Errorf("one more of the namespace does not wait: %v", err)
	}
	if err := hypervisor.ReadXML(ended(one), "<domain/>", &libvirtxml.Domain{}); err != nil {
		t.Errorf("a small one waits: %v", err)
	}
	other, endOther := answers.Begin(t.Context(), "other")
	if err := hypervisor.ReadXML(other, large, &libvirtxml.Domain{}); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	endOther()
	// A conversation within another one is that one.
	inner, endInner := answers.Begin(conversations[0], "hostile")
	endInner()
	if inner != conversations[0] {
		t.Error("there is a second conversation")
	}
	ends[0]()
	if err := hypervisor.Reserve(one); err != nil {
		t.Errorf("after another one has ended: %v", err)
	}
	if err := hypervisor.Reserve(conversations[0]); err == nil {
		t.Error("a conversation that has ended takes memory")
	}
	for _, end := range ends[1:] {
		end()
	}
}

func TestTheEndOfAConversationEndsTheWait(t *testing.T) {
	answers := hypervisor.NewAnswers()
	release, err := answers.Take(t.Context(), "ns", hypervisor.AnswersPerNamespace)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := answers.Begin(t.Context(), "ns")
	done := make(chan error, 1)
	go func() { done <- hypervisor.Reserve(context.WithoutCancel(ctx)) }()
	end()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	release()
}
