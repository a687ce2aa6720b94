// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"context"
	"fmt"
	"sync"

	"github.com/vireo-project/vireo/internal/handler/turns"
)

// What answers of launchers and guests may take of the agent's memory at a time. Small answers are not counted: their number is that of the
// node's guests. docs/adr/0060-what-launchers-make-an-agent-keep.md reckons it up.
const (
	// SmallAnswer is up to how many bytes a message of a launcher is small. The XML of a domain with 64 disks has about 60 KiB.
	SmallAnswer = 64 << 10
	// SmallDescription is up to how many bytes a description is small that was parsed.
	SmallDescription = 256 << 10
	// AnswersBytes is what all that is not small may take.
	AnswersBytes = 256 << 20
	// AnswersPerNamespace is what launchers of one namespace may take of that.
	AnswersPerNamespace = AnswersBytes / 2
	// AnswerBytes is what one conversation with a launcher takes that has answers that are not small: a message of at most 4 MiB at a time,
	// what was made of it, and what is made of that for whoever asked.
	AnswerBytes = 16 << 20
)

// Answers shares the memory for answers that are not small between conversations with launchers. Namespaces take turns.
type Answers struct{ turns *turns.Turns }

// NewAnswers makes Answers of AnswersBytes.
func NewAnswers() *Answers {
	return &Answers{turns.WithLimits(turns.Limits{Total: AnswersBytes, PerNamespace: AnswersPerNamespace})}
}

// Take waits for memory for something whose size is known. Nil Answers have no limit, which is for tests.
func (a *Answers) Take(ctx context.Context, namespace string, bytes int64) (release func(), err error) {
	if a == nil {
		return func() {}, nil
	}
	if release, err = a.turns.Take(ctx, namespace, bytes); err != nil {
		return nil, fmt.Errorf("wait for memory for the answer of a launcher: %w", err)
	}
	return release, nil
}

// conversation is what a context of Begin has.
type conversation struct {
	answers   *Answers
	namespace string
	ctx       context.Context
	cancel    context.CancelFunc

	mu      sync.Mutex
	release func()
}

type conversationKey struct{}

// Begin begins a conversation with a launcher, unless the context has one. What is kept of its answers must not be kept longer than until end
// is called.
func (a *Answers) Begin(ctx context.Context, namespace string) (_ context.Context, end func()) {
	if Conversing(ctx) {
		return ctx, func() {}
	}
	c := &conversation{answers: a, namespace: namespace}
	c.ctx, c.cancel = context.WithCancel(ctx)
	return context.WithValue(ctx, conversationKey{}, c), c.end
}

// Conversing says that a context has a conversation.
func Conversing(ctx context.Context) bool { return ctx.Value(conversationKey{}) != nil }

// Reserve waits until there is memory for answers that are not small in the context's conversation. It waits once in a conversation, so that
// two cannot wait for each other, and as long as both the context and the conversation last.
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
	release, err := c.answers.Take(ctx, c.namespace, AnswerBytes)
	if err == nil {
		c.release = release
	}
	return err
}

func (c *conversation) end() {
	// Whoever waits stops to wait, and nobody begins to.
	c.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.release != nil {
		c.release()
	}
}
