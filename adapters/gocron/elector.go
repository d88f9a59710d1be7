package gocronlock

import (
	"context"
	"errors"
	"sync"

	"github.com/go-co-op/gocron/v2"

	"github.com/seed951563bd/distsync/dlock"
)

// ErrNotLeader says that this replica doesn't lead: another does, or none at the moment.
var ErrNotLeader = errors.New("gocronlock: this replica doesn't lead")

// An Elector is a [gocron.Elector], for [gocron.WithDistributedElector]: all jobs of the scheduler
// run on one replica, the leader. It campaigns while [Elector.Run] runs. It is safe for concurrent
// use.
//
// gocron asks it when a job is to begin, and not later. Make a job with [Elector.Task] if it must
// stop when its replica no longer leads.
type Elector struct {
	election *dlock.Election

	mu    sync.Mutex
	term  context.Context // nil while it doesn't lead
	tasks sync.WaitGroup  // of this term
}

// NewElector returns a candidate of a client for the leader of that name: see
// [dlock.Client.Election]. It panics if client is nil or the name is empty.
func NewElector(client *dlock.Client, name string) *Elector {
	if client == nil || name == "" {
		panic("gocronlock: NewElector: the client is nil or the name is empty")
	}
	return &Elector{election: client.Election(name)}
}

// Run campaigns until ctx ends, and again after a loss. The jobs of the scheduler run only in
// replicas that call it. When ctx ends it resigns, once the functions of [Elector.Task] have
// returned: so shut the scheduler down before. It waits for them after a loss, too, before it
// campaigns again. It returns what [dlock.Election.Run] does. After ctx has ended, the error is
// that of ctx. If Run returns before, no job will run here any more, so look at the error: it is
// [dlock.ErrClosed], or one that no waiting helps against.
func (e *Elector) Run(ctx context.Context) error { return e.election.Run(ctx, e.lead) }

// lead returns when the term is over, and nothing runs any more that belongs to it.
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

// IsLeader implements [gocron.Elector]: it returns nil if this replica leads, by its own clock, and
// [ErrNotLeader] otherwise. It asks nobody.
func (e *Elector) IsLeader(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.leads() {
		return ErrNotLeader
	}
	return nil
}

func (e *Elector) leads() bool { return e.term != nil && e.term.Err() == nil }

// Task returns a task whose function is told when this replica no longer leads. Its ctx comes from
// the job's, and ends then with a cause that says why; its Err looks at the clock. [dlock.Token] of
// it is the number of the term. If this replica resigned, and has not lost its lock, no other leads
// before the function has returned. If it leads no longer when the function is to begin, the
// function isn't called, and the job's error is ErrNotLeader.
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

// begin returns the context of the term, for a task that is counted in.
func (e *Elector) begin() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.leads() {
		return nil
	}
	e.tasks.Add(1)
	return e.term
}

// A taskContext is the context of a job and of a term: it ends with the first of them, and has the values of both.
type taskContext struct {
	context.Context // of the job
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
