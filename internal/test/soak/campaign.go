package main

import (
	"context"
	"errors"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// A campaign is a visit in which the user takes part in an election. Each term of the candidate is
// a separate hold.
type campaign struct {
	*visit
	election *dlock.Election
}

// campaign makes a user observe an election, or campaign for some time. If elected, the user leads.
func (u *user) campaign(name string) {
	v := &visit{
		user: u, line: u.current(), ctx: context.Background(), use: use{name, backend.Fenced},
	}
	v.hold = hold{Name: name, Asked: now(), Lease: u.Lease}
	c := &campaign{v, v.line.client.Election(name)}
	ctx, cancel := context.WithTimeout(v.ctx, v.upTo(4*v.Lease))
	defer cancel()
	if u.oneIn(5) {
		c.watch(ctx)
		return
	}
	err := c.election.Run(ctx, c.lead)
	c.expect("Run", err)
	if errors.Is(err, dlock.ErrLost) {
		c.wrong("Run ended with a loss: %v", err)
	}
	if c.election.IsLeader() {
		c.wrong("a leader whose Run has returned")
	}
	v.leave()
}

var errLead = errors.New("lead has had enough")

// lead runs one term.
func (c *campaign) lead(ctx context.Context) error {
	c.hold.Visit = c.next()
	c.hold.Number, _ = dlock.Token(ctx)
	c.numbered()
	c.enter("Run")
	c.valid = func() bool {
		if ctx.Err() != nil && c.election.IsLeader() {
			c.wrong("a leader whose term is over")
		}
		return ctx.Err() == nil && c.election.IsLeader()
	}
	c.linger(func() {
		if c.oneIn(2) {
			c.election.Resign()
			return
		}
		ctx, cancel := context.WithTimeout(ctx, c.Lease)
		defer cancel()
		_, err := c.election.Leader(ctx)
		c.expect("Leader", err)
	})
	c.hold.Lost = ctx.Err() != nil && errors.Is(context.Cause(ctx), dlock.ErrLost)
	c.report(0)
	c.hold.Asked = now() // for the next term
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case c.oneIn(2):
		return errLead
	default:
		return nil
	}
}

// watch observes a random number of changes of the leader.
func (c *campaign) watch(ctx context.Context) {
	for leader, err := range c.election.Changes(ctx) {
		if leader != "" && err != nil {
			c.wrong("both a leader, %q, and an error, %v", leader, err)
		}
		if c.oneIn(4) {
			return
		}
	}
}
