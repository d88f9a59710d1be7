package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed951563bd/distsync/dlock"
)

// A taker holds the flags of "run" and "hold", the commands that acquire a lock.
type taker struct {
	*global
	kind        string
	permits     string
	wait        time.Duration // how long to wait for the lock
	forever     bool          // --wait isn't given
	lease       time.Duration
	atLeast     time.Duration // the minimum time for which the lock stays taken
	notAcquired int           // the exit status if the lock isn't acquired
}

// shortestLease is the shortest lease that --lease allows.
const shortestLease = time.Second

var kinds = []string{"lock", "fair", "read", "write", "fenced"}

var errNegative = exitf(exitUsage, "a time can't be negative")

// define defines the flags.
func (k *taker) define(cmd *cobra.Command) *pflag.FlagSet {
	f := cmd.Flags()
	f.StringVar(&k.kind, "kind", "lock", "the kind of lock: "+strings.Join(kinds, ", "))
	f.StringVar(&k.permits, "permits", "",
		"acquire permits of a semaphore instead of a lock: LIMIT, as in 3, for one permit of 3; "+
			"or N/LIMIT, as in 2/5")
	f.DurationVar(&k.wait, "wait", 0,
		"how long to wait for the lock; with 0 it tries once (default: no limit)")
	f.DurationVar(&k.lease, "lease", dlock.DefaultLease,
		"how long the lock stays taken if distsync dies; it is renewed each third of that")
	f.IntVarP(&k.notAcquired, "not-acquired", "E", exitNotAcquired,
		"the exit status if the lock isn't acquired in time")
	f.Lookup("not-acquired").Annotations = map[string][]string{byHand: nil}
	complete := cobra.FixedCompletions(kinds, cobra.ShellCompDirectiveNoFileComp)
	_ = cmd.RegisterFlagCompletionFunc("kind", complete) // fails only if there is no such flag
	return f
}

// check returns an error if the flags are invalid.
func (k *taker) check(flags *pflag.FlagSet) error {
	k.forever = !flags.Changed("wait")
	switch {
	case !slices.Contains(kinds, k.kind):
		return exitf(exitUsage, "--kind %s: want one of %s", printable(k.kind),
			strings.Join(kinds, ", "))
	case k.permits != "" && flags.Changed("kind"):
		return exitf(exitUsage, "--permits is for semaphores: leave out --kind")
	case k.wait < 0:
		return errNegative
	case k.lease < shortestLease:
		return exitf(exitUsage, "--lease %v: want at least %v", k.lease, shortestLease)
	case k.notAcquired < 0 || k.notAcquired > 255:
		return exitf(exitUsage, "-E %d: want 0 to 255", k.notAcquired)
	}
	_, _, err := k.counts()
	return err
}

// counts returns the number of permits to acquire and the semaphore's limit. For other kinds of
// lock, both are 0.
func (k *taker) counts() (n, limit int, err error) {
	if k.permits == "" {
		return 0, 0, nil
	}
	first, second, ok := strings.Cut(k.permits, "/")
	if !ok {
		first, second = "1", k.permits
	}
	n, err = strconv.Atoi(first)
	limit, err2 := strconv.Atoi(second)
	if err != nil || err2 != nil || n < 1 || limit < n {
		return 0, 0, exitf(exitUsage, "--permits %s: want LIMIT, as in 3, for one permit of 3, "+
			"or N/LIMIT, as in 2/5", printable(k.permits))
	}
	return n, limit, nil
}

// acquire acquires the lock that the flags describe.
func (k *taker) acquire(ctx context.Context, c *dlock.Client, name string) (*dlock.Hold, error) {
	var opts []dlock.AcquireOption
	if !k.forever {
		opts = append(opts, dlock.Wait(k.wait))
	}
	if k.atLeast > 0 {
		opts = append(opts, dlock.AtLeast(k.atLeast))
	}
	n, limit, err := k.counts()
	switch {
	case err != nil:
		return nil, err
	case n > 0:
		return c.Semaphore(name, limit).Acquire(ctx, n, opts...)
	}
	switch k.kind {
	case "fair":
		return c.FairLocker(name).Acquire(ctx, opts...)
	case "read":
		return c.RWLocker(name).Reader().Acquire(ctx, opts...)
	case "write":
		return c.RWLocker(name).Writer().Acquire(ctx, opts...)
	case "fenced":
		return c.FencedLocker(name).Acquire(ctx, opts...)
	default:
		return c.Locker(name).Acquire(ctx, opts...)
	}
}

// refused adds an exit status to the error of an acquisition.
func (k *taker) refused(s *store, err error) error {
	switch {
	case errors.Is(err, dlock.ErrUnavailable):
		return exitf(exitUnavailable, "%s: %w", s.address, err)
	case errors.Is(err, dlock.ErrNotAcquired) && k.quiet:
		return exit(k.notAcquired, nil)
	case errors.Is(err, dlock.ErrNotAcquired):
		return exit(k.notAcquired, err)
	case errors.Is(err, dlock.ErrConflict), errors.Is(err, dlock.ErrTooMany),
		errors.Is(err, dlock.ErrNoLimit), errors.Is(err, errors.ErrUnsupported):
		return exit(exitUsage, err)
	}
	return exit(exitInternal, err)
}
