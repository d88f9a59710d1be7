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

// These exit statuses are used only by distsync run, in addition to those that all commands use. If
// all goes well, the exit status is that of the program that distsync run starts.
const (
	exitInternal  = 70  // distsync itself failed
	exitTimeout   = 124 // the command ran longer than --timeout; as in timeout(1)
	exitCannotRun = 126 // the command can't be executed; as in env(1)
	exitNotFound  = 127 // there is no such command; as in env(1)
)

// A runner holds the flags of "distsync run".
type runner struct {
	taker
	grace   time.Duration // the time from TERM to KILL
	bounded bool          // --grace was set explicitly, so it also applies after a forwarded TERM
	longest time.Duration // how long the command may run; 0 means no limit
}

// longestGrace is the upper limit of the default for --grace, the time from TERM to KILL.
const longestGrace = 10 * time.Second

func newRun(g *global) *cobra.Command {
	r := &runner{taker: taker{global: g}}
	cmd := &cobra.Command{
		Use:        "run NAME -- COMMAND [ARG…]",
		SuggestFor: []string{"exec"},
		Short:      "Run a command while a lock is held",
		Long: `Waits for the lock, runs the command, and releases the lock when the command has
ended. There is no shell: for one use sh -c '…'. The command gets distsync's
standard input, output and error, and its terminal. In the environment it has
DISTSYNC_NAME, DISTSYNC_HOLDER (the holder's id in the store) and, with --kind
fenced, DISTSYNC_TOKEN.

The lock is renewed while the command runs. If renewals fail, the command gets TERM. After
--grace, what is left of it gets KILL, before another client could get the lock. If the
store says that the lock is gone or taken, the command is killed at once. A guard process
does the same while distsync is stopped, and as soon as distsync is gone, even after
kill -9. The lock then ends with its lease. To kill the command means to kill all
processes that it has started, except those of other users, such as sudo's. On systems
other than Linux it is the command's process group.

When the command has ended, the rest of its process group is killed before the lock is
released. A daemon that shall outlive the lock needs its own session: see setsid(1).

With --at-least the lock stays taken for that time from its acquisition on, even if the
command ends sooner or fails. That is for jobs that cron starts on several machines,
whose clocks differ.

After a wait for a fair lock, the command starts when the lock has been renewed for the
first time, up to a second after its turn. All users of a semaphore must give the same
LIMIT: the last one given applies to all.

The signals INT, TERM, HUP, QUIT, USR1, USR2, WINCH, TSTP and CONT are passed on to the
command's process group. After a TERM that was passed on, the command may go on under
the lock without limit. With --grace it is killed that much later. While distsync waits
for the lock, each of the first six ends it. If the command is stopped with ^Z for longer
than the lease, the lock is lost, and the command is killed.

Exit status: the command's; 128+N signal N ended the command, or the wait for the lock;
124 the command ran for longer than --timeout; 76 the lock was lost, or about to be lost;
75 the lock was not acquired in time (-E sets another status); 69 the store can't be
reached; 64 the command line is wrong, or the lock is of another kind; 70 distsync
failed; 126 the command can't be run; 127 the command doesn't exist.

With --json each event is a line on standard error: waiting, acquired, started,
unrenewed (a renewal failed, and will be repeated), terminated, killed, ended,
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
		"keep the lock taken for at least that long, even if the command ends sooner "+
			"(default: until the command has ended)")
	f.DurationVar(&r.grace, "grace", 0,
		"time from TERM to KILL, at most half the lease (default: a third of the lease, at "+
			"most 10s; without limit after a TERM that was passed on)")
	f.DurationVar(&r.longest, "timeout", 0, "how long the command may run until it gets TERM, "+
		"and KILL after --grace (default: no limit)")
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
		return exitf(exitUsage, "--at-least can't be used with --kind read, "+
			"which lets other readers in")
	case r.grace > r.lease/2:
		return exitf(exitUsage,
			"--grace %v: want at most half the lease, %v, to leave time for renewals",
			r.grace, r.lease/2)
	}
	return nil
}

// margin returns the minimum time between the command's death and the expiry of the lock. It isn't
// zero, because killing processes takes time on a busy machine.
func (r *runner) margin() time.Duration { return min(r.lease/10, time.Second) }

// A progress is an event that the command "run" or "hold" reports as JSON.
type progress struct {
	Time time.Time `json:"time"`
	nameJSON
	Event  string   `json:"event"`
	Holder string   `json:"holder,omitempty"`
	Token  uint64   `json:"token,omitempty"`
	Waited *seconds `json:"waited,omitempty"`
	PID    int      `json:"pid,omitempty"`
	// Status is the command's exit status, or 128 plus the signal's number if a signal killed it.
	Status *int   `json:"status,omitempty"`
	Reason string `json:"reason,omitempty"` // of a loss, or "timeout" or "grace"
	Error  string `json:"error,omitempty"`
}

func secondsOf(d time.Duration) *seconds { s := seconds(d.Seconds()); return &s }

// reasonOf returns the reason why a lock was lost, as a single word.
func reasonOf(err error) string {
	if l, ok := errors.AsType[*dlock.Loss](err); ok {
		return l.Reason.String()
	}
	return dlock.LossExpired.String()
}

// because maps the Reason of a [progress] to a text that says why the lock was lost, or why the
// command was ended.
var because = map[string]string{
	"timeout":                  "it ran for longer than --timeout",
	"grace":                    "it didn't end within --grace",
	dlock.LossExpired.String(): "the lock couldn't be renewed",
	dlock.LossGone.String():    "the store no longer has the lock",
	dlock.LossTaken.String():   "another client has the lock",
	dlock.LossPaused.String():  "distsync stood still for longer than the lease",
}

// text returns the message for an event, or "" if none is printed. alone means that no command runs
// while the lock is held. In that case, routine events have messages too, but the event
// "unreleased" has none, because the program prints the error that finish returns.
func (p *progress) text(name string, alone bool) string {
	what := map[string]string{
		"unrenewed":  "the lock can't be renewed",
		"terminated": "the command is asked to end",
		"killed":     "the command is killed",
		"spared":     "processes of the command are left, which belong to other users",
		"unreleased": "the lock isn't released yet, and ends with its lease",
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
			what = "released"
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
