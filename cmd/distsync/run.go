package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed951563bd/distsync/dlock"
)

// The statuses that only run exits with, beside those of the command.
const (
	exitInternal  = 70  // distsync itself failed
	exitTimeout   = 124 // the command ran for longer than --timeout: as timeout(1)
	exitCannotRun = 126 // the command can't be run: as env(1)
	exitNotFound  = 127 // there is no such command
)

// A runner is what the flags of run say.
type runner struct {
	*global
	kind        string
	permits     string
	wait        time.Duration // for the lock
	forever     bool          // wait is not given
	lease       time.Duration
	atLeast     time.Duration // that the lock stays taken
	grace       time.Duration // from TERM to KILL
	bounded     bool          // grace was asked for, so that it is also for a TERM that is passed on
	longest     time.Duration // that the command may run; 0: as long as it likes
	notAcquired int           // the status for that
}

// Bounds of the times that run can keep.
const (
	shortestLease = time.Second
	longestGrace  = 10 * time.Second // unless another is asked for
)

func newRun(g *global) *cobra.Command {
	r := &runner{global: g}
	cmd := &cobra.Command{
		Use:   "run NAME -- COMMAND [ARG…]",
		Short: "Run a command while a lock is held",
		Long: `Waits for the lock, runs the command, and gives the lock back as soon as that has
ended. There is no shell: for one say sh -c '…'. The command has distsync's standard
input, output and error, the terminal too if there is one, and in its environment
DISTSYNC_NAME, DISTSYNC_HOLDER (what the store knows the holder by) and, with --kind
fenced, DISTSYNC_TOKEN.

The lock is renewed while the command runs. If renewals fail, the command is sent TERM
in time, and what is left --grace later is killed, shortly before the lock could be
another's. If the store says that the lock is gone, or that another has it, the command
is killed at once. A process that watches over it does that also while distsync is
stopped, and as soon as distsync is gone, be it by kill -9; then the lock ends with its
lease. What is killed is every process that the command has started (on systems other
than Linux its process group), but for those of other users, as sudo starts them.

When the command has ended, what it has left in its process group is killed before the
lock is given back. A daemon that is to outlive it, without the lock, needs a session
of its own: see setsid(1).

With --at-least the lock stays taken for that long after it was acquired, however soon the
command has ended, and whatever its status: for jobs that every machine's cron starts, by
clocks that differ.

Where it has waited for a fair lock, the command begins up to a second after its turn has
come, when the lock is renewed for the first time. All who share permits must say the same LIMIT: the last
to say another changes it for all.

The signals INT, TERM, HUP, QUIT, USR1, USR2, WINCH, TSTP and CONT are passed on to the
command's process group. After a TERM that is passed on the command takes the time that
it needs, under the lock, unless --grace is given: then it is killed that much later. While distsync waits for the lock the first six end it. Who
stops the command with ^Z for longer than the lease loses the lock, and the command
is killed.

Exit status: the command's; 128+N if signal N ended it, or the wait for the lock; 124 if
it ran for longer than --timeout; 76 if the lock was lost, or about to be; 75 if it was
not acquired in time (-E says another); 69 if the store can't be reached; 64 if the
command line is wrong, or the lock is of another kind; 70 if distsync failed; 126 if the
command can't be run; 127 if it isn't there.

With --json each event is a line on standard error: waiting, acquired, started,
unrenewed (a renewal has failed, and will be repeated), terminated, killed, ended,
spared (processes of other users are left), lost, released, unreleased, failed.`,
		Example: `  distsync run nightly --quiet --wait 0 -E 0 --at-least 5m -- backup
  distsync run deploy --wait 10m --lease 15s -- sh -c 'make deploy && make check'
  distsync run gpu --permits 4 -- ./train`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && args[0] == "" {
				return exitf(exitUsage, "the name is empty: usage is distsync run NAME [FLAGS] -- COMMAND [ARG…]")
			}
			if cmd.ArgsLenAtDash() != 1 || len(args) < 2 || args[1] == "" {
				return exitf(exitUsage, "usage is distsync run NAME [FLAGS] -- COMMAND [ARG…]")
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return g.completeNames(1)(cmd, args, begun)
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.check(cmd); err != nil {
				return err
			}
			return r.run(cmd.Context(), cmd.ErrOrStderr(), args[0], args[1:])
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.kind, "kind", "lock", "of lock: "+strings.Join(kinds, ", "))
	f.StringVar(&r.permits, "permits", "", "instead of a lock, a permit of a semaphore that has LIMIT, as in 3; or N of them, as in 2/5")
	f.DurationVar(&r.wait, "wait", 0, "how long to wait for the lock; 0: not at all (default: for ever)")
	f.DurationVar(&r.lease, "lease", dlock.DefaultLease, "how long the lock outlives a distsync that dies; it is renewed each third of that")
	f.DurationVar(&r.atLeast, "at-least", 0, "how long the lock stays taken at least, however soon the command has ended (default: until then)")
	f.DurationVar(&r.grace, "grace", 0, "how long the command has from TERM to KILL, at most half the lease "+
		"(default: a third of it, at most 10s, and no end if the TERM is one that is passed on)")
	f.DurationVar(&r.longest, "timeout", 0, "how long the command may run before it gets TERM, and --grace later KILL (default: for ever)")
	f.IntVarP(&r.notAcquired, "not-acquired", "E", exitNotAcquired, "the exit status if the lock isn't acquired in time")
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(kinds, cobra.ShellCompDirectiveNoFileComp)) // there is such a flag
	f.Lookup("not-acquired").Annotations = map[string][]string{byHand: nil}
	return cmd
}

var kinds = []string{"lock", "fair", "read", "write", "fenced"}

// check returns an error if the flags can't be meant.
func (r *runner) check(cmd *cobra.Command) error {
	r.forever = !cmd.Flags().Changed("wait")
	if r.bounded = cmd.Flags().Changed("grace"); !r.bounded {
		r.grace = min(r.lease/3, longestGrace)
	}
	switch {
	case !slices.Contains(kinds, r.kind):
		return exitf(exitUsage, "--kind %s: want one of %s", printable(r.kind), strings.Join(kinds, ", "))
	case r.permits != "" && cmd.Flags().Changed("kind"):
		return exitf(exitUsage, "--permits is of a semaphore: leave out --kind")
	case r.wait < 0 || r.longest < 0 || r.grace < 0 || r.atLeast < 0:
		return exitf(exitUsage, "a negative time")
	case r.atLeast > 0 && r.kind == "read":
		return exitf(exitUsage, "--at-least isn't for --kind read, which keeps no other reader out")
	case r.lease < shortestLease:
		return exitf(exitUsage, "--lease %v: at least %v", r.lease, shortestLease)
	case r.grace > r.lease/2:
		return exitf(exitUsage, "--grace %v: at most half the lease, %v, or there would be no time to renew it", r.grace, r.lease/2)
	case r.notAcquired < 0 || r.notAcquired > 255:
		return exitf(exitUsage, "-E %d: want 0 to 255", r.notAcquired)
	}
	_, _, err := r.counts()
	return err
}

// counts returns how many permits are wanted, and of how many: 0 of 0 if it isn't a semaphore.
func (r *runner) counts() (n, limit int, err error) {
	if r.permits == "" {
		return 0, 0, nil
	}
	first, second, ok := strings.Cut(r.permits, "/")
	if !ok {
		first, second = "1", r.permits
	}
	n, err = strconv.Atoi(first)
	limit, err2 := strconv.Atoi(second)
	if err != nil || err2 != nil || n < 1 || limit < n {
		return 0, 0, exitf(exitUsage, "--permits %s: want LIMIT, for one of so many, or N/LIMIT, as in 2/5", printable(r.permits))
	}
	return n, limit, nil
}

// margin is how long before the lock may be another's everything has to be dead: killing takes its time on a busy machine.
func (r *runner) margin() time.Duration { return min(r.lease/10, time.Second) }

// acquire acquires what the flags say.
func (r *runner) acquire(ctx context.Context, c *dlock.Client, name string) (*dlock.Hold, error) {
	var opts []dlock.AcquireOption
	if !r.forever {
		opts = append(opts, dlock.Wait(r.wait))
	}
	if r.atLeast > 0 {
		opts = append(opts, dlock.AtLeast(r.atLeast))
	}
	n, limit, err := r.counts()
	switch {
	case err != nil:
		return nil, err
	case n > 0:
		return c.Semaphore(name, limit).Acquire(ctx, n, opts...)
	}
	switch r.kind {
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

// refused gives the error of an acquisition the status to exit with.
func (r *runner) refused(s *store, err error) error {
	switch {
	case errors.Is(err, dlock.ErrUnavailable):
		return exitf(exitUnavailable, "%s: %w", s.address, err)
	case errors.Is(err, dlock.ErrNotAcquired) && r.quiet:
		return exit(r.notAcquired, nil)
	case errors.Is(err, dlock.ErrNotAcquired):
		return exit(r.notAcquired, err)
	case errors.Is(err, dlock.ErrConflict), errors.Is(err, dlock.ErrTooMany), errors.Is(err, dlock.ErrNoLimit), errors.Is(err, errors.ErrUnsupported):
		return exit(exitUsage, err)
	}
	return exit(exitInternal, err)
}

// A progress is an event of a run, as programs get it.
type progress struct {
	Time time.Time `json:"time"`
	nameJSON
	Event  string   `json:"event"`
	Holder string   `json:"holder,omitempty"`
	Token  uint64   `json:"token,omitempty"`
	Waited *seconds `json:"waited,omitempty"`
	PID    int      `json:"pid,omitempty"`
	Status *int     `json:"status,omitempty"` // the command's: 128 and the signal's number if there was one
	Reason string   `json:"reason,omitempty"` // of a loss; or timeout, or grace
	Error  string   `json:"error,omitempty"`
}

func secondsOf(d time.Duration) *seconds { s := seconds(d.Seconds()); return &s }

// reasonOf returns in a word why a lock was lost.
func reasonOf(err error) string {
	if l, ok := errors.AsType[*dlock.Loss](err); ok {
		return l.Reason.String()
	}
	return dlock.LossExpired.String()
}

// because says to people what a reason means.
var because = map[string]string{
	"timeout":                  "it has run for longer than --timeout",
	"grace":                    "it was asked to end, and --grace is over",
	dlock.LossExpired.String(): "the lock couldn't be renewed",
	dlock.LossGone.String():    "the store has the lock no more",
	dlock.LossTaken.String():   "another has the lock",
	dlock.LossPaused.String():  "distsync stood still for longer than the lease",
}

// text returns the event for people, or nothing if it is as it should be.
func (p *progress) text(name string) string {
	what := map[string]string{
		"unrenewed":  "the lock can't be renewed",
		"terminated": "the command is asked to end",
		"killed":     "the command is killed",
		"spared":     "processes of the command are left: they are another user's",
		"unreleased": "the lock isn't given back yet, and ends with its lease",
	}[p.Event]
	if what == "" {
		return ""
	}
	switch {
	case p.Error != "":
		what += ": " + p.Error
	case p.Reason != "":
		what += ": " + cmp.Or(because[p.Reason], p.Reason)
	}
	return fmt.Sprintf("distsync: %s: %s", printable(name), escape(what))
}
