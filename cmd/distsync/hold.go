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
		Short:      "Hold a lock until it is interrupted",
		Long: `Waits for the lock, and holds it until it is interrupted by Ctrl-C or TERM; then it
gives the lock back. It is for work by hand that must not meet what the programs do: a
migration, a repair, a deploy that has to wait.

The lock is renewed meanwhile. If it is lost, since the store couldn't be reached for
as long as the lease, or somebody took it away, that is said at once, and hold ends:
from then on others may be inside. Commands that are to be ended in time run under
distsync run. After kill -9 the lock ends with its lease.

The signals INT, TERM, HUP, QUIT, USR1 and USR2 end it. A second one doesn't wait any
longer for the store to take the lock back; that ends with its lease then. For a time
that is known before there is timeout(1), as in the example.

Exit status: 0 if the lock was held until a signal; 128+N if signal N ended the wait
for it; 76 if it was lost; 75 if it was not acquired in time (-E says another); 69 if
the store can't be reached, or didn't take the lock back; 64 if the command line is
wrong, or the lock is of another kind; 70 if distsync failed.

With --json each event is a line on standard output: waiting, acquired, unrenewed (a
renewal has failed, and will be repeated), lost, released, unreleased, failed.`,
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

var errImpatient = errors.New("another signal came")

// holdUntilSignal holds the lock until a signal comes, or the lock is lost.
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

// untilSignal returns when a signal comes, or the lock is lost.
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
