package gocronlock

import (
	"context"
	"errors"
	"sync"

	"github.com/go-co-op/gocron/v2"

	"github.com/seed951563bd/distsync/dlock"
)

// ErrNotLeader means that this replica doesn't lead. Another replica leads, or no replica does at
// the moment.
var ErrNotLeader = errors.New("gocronlock: this replica doesn't lead")

// An Elector is a [gocron.Elector], for [gocron.WithDistributedElector]: all jobs of the scheduler
// run on one replica, the leader. An Elector campaigns during a call of [Elector.Run]. It is safe
// for concurrent use.
//
// gocron asks the Elector only when a job is about to begin. If a job must stop when its replica no
// longer leads, make it with [Elector.Task].
type Elector struct {
	election *dlock.Election

	mu    sync.Mutex
	term  context.Context // nil while this replica doesn't lead
	tasks sync.WaitGroup  // the running tasks of this term
}

// NewElector returns a candidate in the election with the given name (see [dlock.Client.Election]).
// It panics if client is nil or the name is empty.
func NewElector(client *dlock.Client, name string) *Elector {
	if client == nil || name == "" {
		panic("gocronlock: NewElector: the client is nil or the name is empty")
	}
	return &Elector{election: client.Election(name)}
}

// Run campaigns until ctx ends, and campaigns again after a loss. The jobs of the scheduler run
// only in replicas that call Run. When ctx ends, Run resigns as soon as the functions of
// [Elector.Task] have returned, so shut the scheduler down first. After a loss, Run also waits for
// these functions before it campaigns again. It returns the error of [dlock.Election.Run], which
// wraps the error of ctx if ctx has ended. If Run returns earlier, no more jobs will run in this
// replica, so handle the error, which is [dlock.ErrClosed] or another permanent error.
func (e *Elector) Run(ctx context.Context) error { return e.election.Run(ctx, e.lead) }

// lead lets tasks start until the term ends, and then waits until all of them have returned.
func (e *Elector) lead(term context.Context) error {
	e.mu.Lock()
	e.term = term
	e.mu.Unlock()
	<-term.Done()
	e.mu.Lock()
	e.term = nil
	e.mu.Unlock()
	e.tasks.Wait()
	return nil
}

// IsLeader implements [gocron.Elector]. It returns nil if this replica leads, according to its own
// clock, and [ErrNotLeader] otherwise. It sends no request.
func (e *Elector) IsLeader(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.leads() {
		return ErrNotLeader
	}
	return nil
}

func (e *Elector) leads() bool { return e.term != nil && e.term.Err() == nil }

// Task returns a task whose function is notified when this replica no longer leads. The function's
// ctx is derived from the job's context. It ends when this replica no longer leads, with the reason
// as its cause. Its Err method also checks the clock. Given ctx, [dlock.Token] returns the number
// of the term. If this replica resigns without having lost its lock, no other replica leads before
// the function has returned. If the replica no longer leads when the function is about to start,
// the function isn't called, and the job's error is ErrNotLeader.
func (e *Elector) Task(fn func(ctx context.Context) error) gocron.Task {
	return gocron.NewTask(func(ctx context.Context) error {
		term := e.begin()
		if term == nil {
			return ErrNotLeader
		}
		defer e.tasks.Done()
		ctx, end := context.WithCancelCause(ctx)
		defer end(nil)
		defer context.AfterFunc(term, func() { end(context.Cause(term)) })()
		return fn(taskContext{ctx, term, end})
	})
}

// begin counts a task that starts in the current term, and returns the term's context. If this
// replica doesn't lead, it returns nil.
func (e *Elector) begin() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.leads() {
		return nil
	}
	e.tasks.Add(1)
	return e.term
}

// A taskContext combines the contexts of a job and of a term. It ends when either of them ends, and
// has the values of both.
type taskContext struct {
	context.Context // derived from the job's context
	term            context.Context
	end             context.CancelCauseFunc
}

func (c taskContext) Err() error {
	if c.term.Err() != nil {
		c.end(context.Cause(c.term))
	}
	return c.Context.Err()
}

func (c taskContext) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.term.Value(key)
}
