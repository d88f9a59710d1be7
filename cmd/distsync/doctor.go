package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed951563bd/distsync/backend"
)

func newDoctor(g *global) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check whether locks work on the store for this user",
		Long: `Connects to the store, and acquires, renews and releases a lock of each kind, as the
library does. Their random names begin with --prefix. It deletes what they leave. It
checks whether waiters are told of a release, and whether locks are safe on the server:

  Redis, Valkey  version, scripts, replicas, eviction of keys, clock, slots of a cluster
  etcd           members, quorum, alarms, space, authentication
  PostgreSQL     version, functions, settings, tables, standbys, old snapshots,
                 listeners, clock

Each check is ok, a warning or a failure. Warnings and failures say what to do. If the
user has rights to some keys only, add --prefix.

Exit status: 0 no check failed; 1 some check failed; 69 the store can't be reached.`,
		Example: `  distsync doctor --store redis://app:PASSWORD@redis.internal:6379 --prefix lock:
  distsync doctor --json | jq -r 'select(.status != "ok") | .check + ": " + .todo'`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return g.doctor(ctx, cmd)
		},
	}
}

// The possible statuses of a check.
const (
	statusOK   = "ok"
	statusWarn = "warn"
	statusFail = "fail"
)

// A check is the outcome of one test of the store.
type check struct {
	Check  string `json:"check"`
	Status string `json:"status"`
	Text   string `json:"text"`
	Todo   string `json:"todo,omitempty"`
}

// A doctor checks one store.
type doctor struct {
	*store
	session backend.Session
	timeout time.Duration
	prefix  string
	tell    func(check)
}

func (d *doctor) ok(name, format string, args ...any) {
	d.tell(check{name, statusOK, fmt.Sprintf(format, args...), ""})
}

func (d *doctor) warn(name, todo, format string, args ...any) {
	d.tell(check{name, statusWarn, fmt.Sprintf(format, args...), todo})
}

func (d *doctor) fail(name, todo, format string, args ...any) {
	d.tell(check{name, statusFail, fmt.Sprintf(format, args...), todo})
}

func (g *global) doctor(ctx context.Context, cmd *cobra.Command) error {
	out := screenOf(cmd.OutOrStdout())
	var failed bool
	var broken error
	tell := func(c check) {
		failed = failed || c.Status == statusFail
		if err := c.print(out, g); err != nil {
			broken = err
		}
	}
	begun := time.Now()
	s, err := g.connect(ctx)
	if err != nil {
		if statusOf(err) == exitUnavailable {
			todo := "is it running, and is the URL right? (distsync help stores)"
			if keepsOut(err) {
				todo = "are the user and the password in the URL right, and are their special " +
					"characters escaped? (distsync help stores)"
			}
			tell(check{"connect", statusFail, err.Error(), todo})
			err = exit(exitUnavailable, nil)
		}
		return err
	}
	defer s.close()
	tell(check{
		"connect", statusOK, fmt.Sprintf("%s answered within %v", s.address,
			time.Since(begun).Round(time.Millisecond)), "",
	})
	d := &doctor{store: s, session: s.Open(), timeout: g.timeout, prefix: g.prefix, tell: tell}
	defer d.session.Close()
	switch {
	case s.etcd != nil:
		d.checkEtcd(ctx)
	case s.postgres != nil:
		d.checkPostgres(ctx)
	default:
		d.checkRedis(ctx)
	}
	d.checkLocks(ctx)
	switch {
	case broken != nil:
		return broken
	case ctx.Err() != nil:
		return exitf(exitFailed, "interrupted: some checks are missing")
	case failed:
		return exit(exitFailed, nil)
	}
	return nil
}

// print prints the check as JSON or as one or two lines of text.
func (c *check) print(s screen, g *global) error {
	if g.json {
		return printJSON(s, c)
	}
	if g.quiet && c.Status == statusOK {
		return nil
	}
	colour := map[string]string{statusOK: green, statusWarn: yellow, statusFail: red}[c.Status]
	_, err := fmt.Fprintf(s, "%s  %-11s  %s\n", s.paint(colour, fmt.Sprintf("%-4s", c.Status)),
		c.Check, escape(c.Text))
	if err == nil && c.Todo != "" {
		_, err = fmt.Fprintf(s, "%19s→ %s\n", "", escape(c.Todo))
	}
	return err
}

// bounded returns a context with the timeout for one store request.
func (d *doctor) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d.timeout)
}

// checkLocks tries a lock of each kind that the store supports.
func (d *doctor) checkLocks(ctx context.Context) {
	for _, kinds := range [][]backend.Kind{
		{backend.Exclusive}, {backend.Fenced}, {backend.Write, backend.Read}, {backend.Fair},
		{backend.Permits},
	} {
		if ctx.Err() == nil && d.Limits().Kinds.Has(kinds[0]) {
			d.checkKinds(ctx, kinds)
		}
	}
	if ctx.Err() == nil {
		d.checkLooking(ctx)
	}
}

// checkKinds acquires, renews and releases a lock of each kind in kinds.
func (d *doctor) checkKinds(ctx context.Context, kinds []backend.Kind) {
	name := "distsync-doctor-" + strings.ToLower(rand.Text())
	defer d.remove(context.WithoutCancel(ctx), name)
	for _, k := range kinds {
		p := probe{doctor: d, name: name, kind: k}
		if err := p.run(ctx); err != nil {
			d.troubled(label(kinds[0]), k, err)
			return
		}
	}
	d.ok(label(kinds[0]), "acquired, renewed and released")
}

// label returns the name under which the doctor reports locks of kind k.
func label(k backend.Kind) string {
	if k == backend.Write {
		return "read-write"
	}
	return k.String()
}

// troubled reports that a test lock failed. This is a failure for a plain lock, and a warning for
// any other kind, because many programs don't use that kind.
func (d *doctor) troubled(name string, k backend.Kind, err error) {
	todo := "docs/operations.md, Permissions, lists the rights that each kind of lock needs"
	switch {
	case strings.Contains(err.Error(), "NOPERM") && d.prefix == "":
		todo += "; if the user has rights to some keys only, add --prefix"
	case errors.Is(err, backend.ErrConflict):
		todo = "other data has the names of the locks: choose another --prefix"
	}
	tell := d.warn
	if k == backend.Exclusive {
		tell = d.fail
	}
	tell(name, todo, "%v", err)
}

// A probe is a test lock.
type probe struct {
	*doctor
	name string
	kind backend.Kind
}

// probing is the owner of all test locks. A test lock that isn't released expires with its lease.
const (
	probing = "distsync-doctor:1"
	lease   = 10 * time.Second
)

func (p *probe) run(ctx context.Context) error {
	ctx, cancel := p.bounded(ctx)
	defer cancel()
	woken, stop := p.listen(ctx)
	defer stop()
	got, err := p.session.Acquire(ctx, backend.AcquireRequest{
		Kind: p.kind, Name: p.name, Owner: probing, Lease: lease, Permits: 1, Limit: 1,
	})
	switch {
	case err != nil:
		return fmt.Errorf("can't be acquired: %w", err)
	case !got.Acquired:
		return errors.New("can't be acquired: somebody holds it, though its name is random")
	}
	renewed, err := p.session.Renew(ctx, backend.RenewRequest{
		Kind: p.kind, Name: p.name, Owner: probing, Lease: lease, Permits: 1,
	})
	switch {
	case err != nil:
		return fmt.Errorf("can't be renewed: %w", err)
	case !renewed.Held:
		return errors.New("was gone at once: are keys evicted, or do writes go to another server?")
	}
	if err := p.look(ctx); err != nil {
		return err
	}
	released, err := p.session.Release(ctx, backend.ReleaseRequest{
		Kind: p.kind, Name: p.name, Owner: probing, Lease: lease, Permits: 1,
	})
	switch {
	case err != nil:
		return fmt.Errorf("can't be released: %w", err)
	case released.Outcome != backend.Freed:
		return errors.New("was gone before its release: are keys evicted, or do writes go to " +
			"another server?")
	}
	if p.kind == backend.Exclusive {
		p.heard(ctx, woken)
	}
	return nil
}

// look inspects a plain lock, as the commands ls and show do. It does nothing for other kinds.
func (p *probe) look(ctx context.Context) error {
	inspector := backend.CapabilitiesOf(p.session).Inspector
	if inspector == nil || p.kind != backend.Exclusive {
		return nil
	}
	found, err := inspector.Inspect(ctx, backend.InspectRequest{Name: p.name})
	switch {
	case err != nil:
		p.warn("show", "grant the right if this user shall see the holders of locks",
			"a lock can't be inspected: %v", err)
	case len(found.Holders) != 1 || found.Holders[0].Owner != probing:
		return fmt.Errorf("it was acquired, but the store says that it has %d other holders",
			len(found.Holders))
	}
	return nil
}

// listen subscribes to the release of a plain lock. It does nothing for other kinds.
func (p *probe) listen(ctx context.Context) (woken chan struct{}, stop func()) {
	notifier := backend.CapabilitiesOf(p.session).Notifier
	if notifier == nil || p.kind != backend.Exclusive {
		return nil, func() {}
	}
	woken = make(chan struct{}, 1)
	sub, err := notifier.Subscribe(ctx,
		backend.SubscribeRequest{Kind: p.kind, Name: p.name, Wake: func(backend.Wakeup) {
			select {
			case woken <- struct{}{}:
			default:
			}
		}})
	if err != nil {
		p.fail("messages", "allow the channels: without them waiters aren't told of releases, "+
			"and only poll", "the lock's channel can't be subscribed to: %v", err)
		return nil, func() {}
	}
	return woken, sub.Close
}

// heard waits for the notification of the release and prints whether it arrived.
func (p *probe) heard(ctx context.Context, woken chan struct{}) {
	if woken == nil {
		return
	}
	begun := time.Now()
	select {
	case <-woken:
		p.ok("messages", "a waiter is told of a release (it took %v)",
			time.Since(begun).Round(time.Millisecond))
	case <-ctx.Done():
		p.fail("messages", "may this user publish on the lock's channel? Without that waiters "+
			"aren't told of releases, and only poll",
			"a waiter wasn't told of a release within %v", p.timeout)
	}
}

// checkLooking checks that this user may list locks, as the command ls does.
func (d *doctor) checkLooking(ctx context.Context) {
	lister := backend.CapabilitiesOf(d.session).Lister
	if lister == nil {
		return
	}
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	if _, err := lister.List(ctx, backend.ListRequest{Limit: 100}); err != nil {
		d.warn("ls",
			"grant the right if this user shall list locks; locks themselves don't need it",
			"locks can't be listed: %v", err)
		return
	}
	d.ok("ls", "locks can be listed")
}

// remove deletes the keys that a probe left in the store. Some kinds of lock leave keys behind even
// after their release.
func (d *doctor) remove(ctx context.Context, name string) {
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	var err error
	switch {
	case d.etcd != nil:
		err = d.removeEtcd(ctx, name)
	case d.postgres != nil: // nothing to do: clients delete rows of free locks after a day
	default:
		err = d.removeRedis(ctx, name)
	}
	if err != nil {
		d.warn("cleaning", "delete the keys that begin with this name, if there are any",
			"%s: the rest of a test lock can't be deleted: %v", name, err)
	}
}
