package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"
)

func newHold(g *global) *cobra.Command {
	k := &taker{global: g}
	cmd := &cobra.Command{
		Use:        "hold NAME",
		SuggestFor: []string{"lock", "acquire", "take", "grab"},
		Short:      "Hold a lock until a signal comes",
		Long: `Waits for the lock, and holds it until Ctrl-C or TERM. Then it releases the lock.
Use it for work by hand while the programs must keep out: a migration, a repair, a
deploy.

The lock is renewed meanwhile. It is lost if somebody takes it away, or if the store can't
be reached for as long as the lease. Then hold says so at once, and ends: from then on
others may be inside. It can't stop your work. distsync run stops a command whose lock is
lost. After kill -9 of hold, the lock ends with its lease.

The signals INT, TERM, HUP, QUIT, USR1 and USR2 end it. At a second signal it no longer
waits for the store to release the lock, and the lock ends with its lease. To hold a lock
for a known time, use timeout(1), as in the example.

Exit status: 0 the lock was held until a signal; 128+N signal N ended the wait for it;
76 it was lost; 75 it was not acquired in time (-E sets another status); 69 the store
can't be reached, or didn't release the lock; 64 the command line is wrong, or the lock
is of another kind; 70 distsync failed.

With --json each event is a line on standard output: waiting, acquired, unrenewed (a
renewal failed, and will be repeated), lost, released, unreleased, failed.`,
		Example: `  distsync hold deploy
  distsync hold deploy --wait 0 --quiet
  timeout 10m distsync hold --permits 4/4 gpu`,
		Args:              usage(cobra.ExactArgs(1)),
		ValidArgsFunction: g.completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := k.check(cmd.Flags()); err != nil {
				return err
			}
			out := cmd.ErrOrStderr()
			if k.json {
				out = cmd.OutOrStdout()
			}
			return k.holdUntilSignal(cmd.Context(), out, args[0])
		},
	}
	k.define(cmd)
	return cmd
}

var errImpatient = errors.New("another signal came before the store had answered")

// holdUntilSignal holds the lock until a signal arrives or the lock is lost.
func (k *taker) holdUntilSignal(ctx context.Context, out io.Writer, name string) error {
	s := newHolding(k, name, out)
	s.alone = true
	return s.finish(s.under(ctx, func(ctx context.Context, waited func()) error {
		waited()
		if ctx.Err() != nil {
			_ = s.release(context.Background())
			return context.Cause(ctx)
		}
		s.untilSignal(ctx)
		if s.lost != nil {
			return exit(exitLost, s.lost)
		}
		ctx, interrupt := context.WithCancelCause(context.WithoutCancel(ctx))
		defer interrupt(nil)
		defer s.interruptible(func(error) { interrupt(errImpatient) })()
		if err := s.release(ctx); err != nil {
			return exit(exitUnavailable, err)
		}
		if s.lost != nil {
			return exit(exitLost, s.lost)
		}
		return nil
	}))
}

// untilSignal waits for a signal or for the loss of the lock.
func (s *holding) untilSignal(ctx context.Context) {
	for {
		select {
		case <-s.signals:
			return
		case <-ctx.Done():
			return
		case e := <-s.renewals:
			s.tellRenewal(e)
		case <-s.hold.Lost():
			s.lose(s.hold.Err())
			return
		}
	}
}
