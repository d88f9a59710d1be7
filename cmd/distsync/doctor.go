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
		Short: "Check that locks can work on this store, for this user",
		Long: `Connects to the store, and does what the library does: it takes, renews and releases a
lock of each kind, under a random name that begins with --prefix, and removes what
is left of it. It looks whether who waits is told of a release, and whether the
server is one that locks are safe on: its version, replicas, eviction of keys and
clock; the slots of a cluster; of etcd its members, alarms and space; and of
PostgreSQL its settings, standbys, old snapshots, and who listens.

Each check is ok, a warning or a failure, and says what to do. If the user may
touch only some keys, say --prefix.

The exit status is 0 if nothing has failed, 1 if something has, 69 if the store can't
be reached.`,
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

// A check is the result of one check of the store.
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
				todo = "are the user and the password in the URL right, and is what is special " +
					"in them escaped? (distsync help stores)"
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
		return exitf(exitFailed, "interrupted: not all was checked")
	case failed:
		return exit(exitFailed, nil)
	}
	return nil
}

// print prints the check: in one or two lines for people, or as JSON.
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

// bounded returns a context with the timeout of one store request.
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

// checkKinds acquires, renews and releases a lock of each of the kinds.
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
	d.ok(label(kinds[0]), "taken, renewed and released")
}

// label returns the name of the check of a kind of lock.
func label(k backend.Kind) string {
	if k == backend.Write {
		return "read-write"
	}
	return k.String()
}

// troubled reports that a test lock failed. The check of a plain lock then fails. For any other
// kind it is a warning, because many programs don't use that kind.
func (d *doctor) troubled(name string, k backend.Kind, err error) {
	todo := "what a user needs for each kind of lock is in docs/operations.md, Permissions"
	switch {
	case strings.Contains(err.Error(), "NOPERM") && d.prefix == "":
		todo += "; if that is only some keys, say --prefix"
	case errors.Is(err, backend.ErrConflict):
		todo = "another kind of data is where the locks are to be: say --prefix"
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

// probing is the owner string of all probes. lease is their lease, after which the store frees a
// probe that wasn't released.
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
		return fmt.Errorf("can't be taken: %w", err)
	case !got.Acquired:
		return errors.New("can't be taken: somebody has it, under a random name")
	}
	renewed, err := p.session.Renew(ctx, backend.RenewRequest{
		Kind: p.kind, Name: p.name, Owner: probing, Lease: lease, Permits: 1,
	})
	switch {
	case err != nil:
		return fmt.Errorf("can't be renewed: %w", err)
	case !renewed.Held:
		return errors.New("was gone at once: does something evict keys, or do writes go elsewhere?")
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
		return errors.New("was gone when it was released: does something evict keys, or do " +
			"writes go elsewhere?")
	}
	if p.kind == backend.Exclusive {
		p.heard(ctx, woken)
	}
	return nil
}

// look inspects a plain lock as ls and show do. It does nothing for other kinds.
func (p *probe) look(ctx context.Context) error {
	inspector := backend.CapabilitiesOf(p.session).Inspector
	if inspector == nil || p.kind != backend.Exclusive {
		return nil
	}
	found, err := inspector.Inspect(ctx, backend.InspectRequest{Name: p.name})
	switch {
	case err != nil:
		p.warn("show", "allow it if people shall see who has a lock", "can't be looked at: %v", err)
	case len(found.Holders) != 1 || found.Holders[0].Owner != probing:
		return fmt.Errorf("it was taken, and the store says it is had by %d others",
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
		p.fail("messages", "allow the channels: who waits for a lock isn't told of its release, "+
			"and looks now and then", "can't be subscribed to: %v", err)
		return nil, func() {}
	}
	return woken, sub.Close
}

// heard waits until the store has told of the release, and reports whether it did.
func (p *probe) heard(ctx context.Context, woken chan struct{}) {
	if woken == nil {
		return
	}
	begun := time.Now()
	select {
	case <-woken:
		p.ok("messages", "who waits hears of a release (within %v)",
			time.Since(begun).Round(time.Millisecond))
	case <-ctx.Done():
		p.fail("messages", "may this user publish on the lock's channel? Who waits isn't told of "+
			"releases, and looks now and then",
			"the release of a lock wasn't heard of within %v", p.timeout)
	}
}

// checkLooking checks that locks can be listed, as ls does. It asks for up to 100.
func (d *doctor) checkLooking(ctx context.Context) {
	lister := backend.CapabilitiesOf(d.session).Lister
	if lister == nil {
		return
	}
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	if _, err := lister.List(ctx, backend.ListRequest{Limit: 100}); err != nil {
		d.warn("ls",
			"allow it if people shall see which locks there are; locks themselves don't need it",
			"locks can't be listed: %v", err)
		return
	}
	d.ok("ls", "locks can be listed")
}

// remove removes the keys that a probe has left in the store. Some kinds of lock leave keys even
// after their release.
func (d *doctor) remove(ctx context.Context, name string) {
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	var err error
	switch {
	case d.etcd != nil:
		err = d.removeEtcd(ctx, name)
	case d.postgres != nil: // clients delete rows of free locks after a day
	default:
		err = d.removeRedis(ctx, name)
	}
	if err != nil {
		d.warn("cleaning", "delete what begins so, if anything is left",
			"%s: what is left can't be removed: %v", name, err)
	}
}
