package main

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed951563bd/distsync/dlock"
)

// The exit statuses that only run has, in addition to those of the command.
const (
	exitInternal  = 70  // distsync itself failed
	exitTimeout   = 124 // the command ran longer than --timeout; as in timeout(1)
	exitCannotRun = 126 // the command can't be executed; as in env(1)
	exitNotFound  = 127 // there is no such command; as in env(1)
)

// A runner has the flags of the command run.
type runner struct {
	taker
	grace   time.Duration // the time from TERM to KILL
	bounded bool          // --grace is given, so it also applies after a TERM that is passed on
	longest time.Duration // how long the command may run; 0: without limit
}

// longestGrace is the longest default time from TERM to KILL.
const longestGrace = 10 * time.Second

func newRun(g *global) *cobra.Command {
	r := &runner{taker: taker{global: g}}
	cmd := &cobra.Command{
		Use:        "run NAME -- COMMAND [ARG…]",
		SuggestFor: []string{"exec"},
		Short:      "Run a command while a lock is held",
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
come, when the lock is renewed for the first time. All who share permits must say the
same LIMIT: the last to say another changes it for all.

The signals INT, TERM, HUP, QUIT, USR1, USR2, WINCH, TSTP and CONT are passed on to the
command's process group. After a TERM that is passed on the command takes the time that
it needs, under the lock, unless --grace is given: then it is killed that much later.
While distsync waits for the lock the first six end it. If the command is stopped with
^Z for longer than the lease, the lock is lost, and the command is killed.

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
				return exitf(exitUsage, "the name is empty: usage is "+
					"distsync run NAME [FLAGS] -- COMMAND [ARG…]")
			}
			if cmd.ArgsLenAtDash() != 1 || len(args) < 2 || args[1] == "" {
				return exitf(exitUsage, "usage is distsync run NAME [FLAGS] -- COMMAND [ARG…]")
			}
			return nil
		},
		ValidArgsFunction: func(
			cmd *cobra.Command, args []string, begun string,
		) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return g.completeNames(1)(cmd, args, begun)
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := r.check(cmd.Flags()); err != nil {
				return err
			}
			return r.run(cmd.Context(), cmd.ErrOrStderr(), args[0], args[1:])
		},
	}
	f := r.define(cmd)
	f.DurationVar(&r.atLeast, "at-least", 0,
		"how long the lock stays taken at least, however soon "+
			"the command has ended (default: until then)")
	f.DurationVar(&r.grace, "grace", 0,
		"how long the command has from TERM to KILL, at most half the lease "+
			"(default: a third of it, at most 10s, and no end if the TERM is one that is "+
			"passed on)")
	f.DurationVar(&r.longest, "timeout", 0, "how long the command may run before it gets TERM, "+
		"and --grace later KILL (default: for ever)")
	return cmd
}

// check returns an error if the flags are invalid.
func (r *runner) check(flags *pflag.FlagSet) error {
	if r.bounded = flags.Changed("grace"); !r.bounded {
		r.grace = min(r.lease/3, longestGrace)
	}
	if r.longest < 0 || r.grace < 0 || r.atLeast < 0 {
		return errNegative
	}
	if err := r.taker.check(flags); err != nil {
		return err
	}
	switch {
	case r.atLeast > 0 && r.kind == "read":
		return exitf(exitUsage, "--at-least isn't for --kind read, which keeps no other reader out")
	case r.grace > r.lease/2:
		return exitf(exitUsage,
			"--grace %v: at most half the lease, %v, or there would be no time "+
				"to renew it", r.grace, r.lease/2)
	}
	return nil
}

// margin is the time between the latest end of all processes and the earliest time at which another
// client may get the lock. It is needed because killing processes takes time on a busy machine.
func (r *runner) margin() time.Duration { return min(r.lease/10, time.Second) }

// A progress is an event of run or hold in JSON.
type progress struct {
	Time time.Time `json:"time"`
	nameJSON
	Event  string   `json:"event"`
	Holder string   `json:"holder,omitempty"`
	Token  uint64   `json:"token,omitempty"`
	Waited *seconds `json:"waited,omitempty"`
	PID    int      `json:"pid,omitempty"`
	// the command's exit status: 128 plus the signal's number if a signal ended it
	Status *int   `json:"status,omitempty"`
	Reason string `json:"reason,omitempty"` // of a loss, or "timeout" or "grace"
	Error  string `json:"error,omitempty"`
}

func secondsOf(d time.Duration) *seconds { s := seconds(d.Seconds()); return &s }

// reasonOf returns in one word why a lock was lost.
func reasonOf(err error) string {
	if l, ok := errors.AsType[*dlock.Loss](err); ok {
		return l.Reason.String()
	}
	return dlock.LossExpired.String()
}

// because maps each reason to an explanation for people.
var because = map[string]string{
	"timeout":                  "it has run for longer than --timeout",
	"grace":                    "it was asked to end, and --grace is over",
	dlock.LossExpired.String(): "the lock couldn't be renewed",
	dlock.LossGone.String():    "the store has the lock no more",
	dlock.LossTaken.String():   "another has the lock",
	dlock.LossPaused.String():  "distsync stood still for longer than the lease",
}

// text returns the message of an event for people, or "" if the event isn't printed. If alone is
// true, no command is run. Then text also returns messages for normal events, but none for
// "unreleased", whose error finish returns to be printed.
func (p *progress) text(name string, alone bool) string {
	what := map[string]string{
		"unrenewed":  "the lock can't be renewed",
		"terminated": "the command is asked to end",
		"killed":     "the command is killed",
		"spared":     "processes of the command are left: they are another user's",
		"unreleased": "the lock isn't given back yet, and ends with its lease",
	}[p.Event]
	if alone {
		switch p.Event {
		case "waiting":
			what = "waiting for the lock"
		case "acquired":
			what = "held, as " + p.Holder
			if p.Token != 0 {
				what += ", with token " + strconv.FormatUint(p.Token, 10)
			}
		case "released":
			what = "given back"
		case "unreleased":
			what = ""
		}
	}
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
