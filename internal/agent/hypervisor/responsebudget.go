// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"context"
	"fmt"
	"sync"

	"github.com/vireo-project/vireo/internal/limits"
)

// Limits for the memory that the responses of launchers and guests may take at a time. Small responses are not counted:
// their number depends on the node's guests. docs/adr/0060-response-memory-budget.md explains the numbers.
const (
	// SmallResponse is the size in bytes up to which a message of a launcher is small. The XML of a domain with 64 disks
	// has about 60 KiB.
	SmallResponse = 64 << 10
	// SmallXML is the size in bytes up to which parsed XML is small.
	SmallXML = 256 << 10
	// ResponseBudgetBytes is the budget for all responses that are not small.
	ResponseBudgetBytes = 256 << 20
	// ResponseBudgetPerNamespace is how much of it the launchers of one namespace may use.
	ResponseBudgetPerNamespace = ResponseBudgetBytes / 2
	// ConversationBytes is what a series of calls reserves if their responses are not small. It is for one message of at
	// most 4 MiB at a time, the parsed message, and what the caller derives from it.
	ConversationBytes = 16 << 20
)

// ResponseBudget is the memory budget for the responses of launchers that are not small. Conversations reserve memory
// from it, in fair queues by namespace.
type ResponseBudget struct{ queue *limits.Queue }

// NewResponseBudget returns a budget of ResponseBudgetBytes.
func NewResponseBudget() *ResponseBudget {
	return &ResponseBudget{limits.NewQueueOf(limits.QueueLimits{
		Capacity: ResponseBudgetBytes, PerNamespace: ResponseBudgetPerNamespace,
	})}
}

// Acquire waits for memory for a response of a known size.
func (b *ResponseBudget) Acquire(ctx context.Context, namespace string, bytes int64) (release func(), err error) {
	if release, err = b.queue.Acquire(ctx, namespace, bytes); err != nil {
		return nil, fmt.Errorf("wait for memory for the response of a launcher: %w", err)
	}
	return release, nil
}

// conversation is the value that StartConversation adds to a context.
type conversation struct {
	budget    ResponseBudget
	namespace string
	ctx       context.Context
	cancel    context.CancelFunc

	mu      sync.Mutex
	release func()
}

type conversationKey struct{}

// StartConversation starts a conversation with a launcher, unless the context has one. Responses must not be kept after
// end is called, which releases their memory.
func (b *ResponseBudget) StartConversation(ctx context.Context, namespace string) (_ context.Context, end func()) {
	if InConversation(ctx) {
		return ctx, func() {}
	}
	c := &conversation{budget: ResponseBudget{b.queue}, namespace: namespace}
	c.ctx, c.cancel = context.WithCancel(ctx)
	return context.WithValue(ctx, conversationKey{}, c), c.end
}

// InConversation reports whether a context has a conversation.
func InConversation(ctx context.Context) bool { return ctx.Value(conversationKey{}) != nil }

// Reserve waits for the memory of the context's conversation, until either the context or the conversation ends. A
// conversation reserves memory only once, so that two conversations cannot wait for each other. It does nothing without
// a conversation.
func Reserve(ctx context.Context) error {
	c, ok := ctx.Value(conversationKey{}).(*conversation)
	if !ok {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.ctx.Err(); err != nil {
		return fmt.Errorf("the conversation with the launcher has ended: %w", err)
	}
	if c.release != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	release, err := c.budget.Acquire(ctx, c.namespace, ConversationBytes)
	if err == nil {
		c.release = release
	}
	return err
}

func (c *conversation) end() {
	// This ends a Reserve that waits for c.mu or for memory, and fails later ones.
	c.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.release != nil {
		c.release()
	}
}
