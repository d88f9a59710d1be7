package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

func newWatch(g *global) *cobra.Command {
	every := time.Second
	cmd := &cobra.Command{
		Use:   "watch NAME…",
		Short: "Report changes of the holders of locks, and of the waiters in line",
		Long: `Reports who acquires and who releases the locks, and who joins and leaves the line of
a fair lock. At first it reports the present state. It ends when it is interrupted, with
status 0. It looks when the store reports a release, and at least every --every. It may
miss a change that is undone within that time.

The events are:
  holds, free       the present state, at first
  acquired          a new holder
  gone              the holder is gone: it released the lock, its lease ran out, or the
                    lock was forced; no store tells which
  count             a holder has the lock more or less often than before
  queued, unqueued  a waiter has joined or left the line
  error, again      the store doesn't answer; it answers again

Adapters put a prefix before the names of jobs: the lock of gocron's job "tick" is
"gocron:tick". If nobody has "tick", but somebody has that, a message says so once.`,
		Example: `  distsync watch orders:42
  distsync watch --json orders:42 prices | jq -r 'select(.event == "acquired") | .holder.client'`,
		Args:              usage(cobra.MinimumNArgs(1)),
		ValidArgsFunction: g.completeNames(-1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if every < shortest {
				return exitf(exitUsage, "--every %v: want at least %v", every, shortest)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return g.with(ctx, func(s *store, c *dlock.Client) error {
				return g.watch(ctx, cmd, s, c, args, every)
			})
		},
	}
	cmd.Flags().DurationVar(&every, "every", every,
		"how often to look if the store reports no release")
	return cmd
}

// shortest is the shortest time between two requests about a lock. It limits the load on the store
// while holders change quickly.
const shortest = 20 * time.Millisecond

// watch reports the events of locks until ctx ends or the output fails.
func (g *global) watch(
	ctx context.Context, cmd *cobra.Command, s *store, c *dlock.Client, names []string,
	every time.Duration,
) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	session := s.Backend.Open()
	defer session.Close()
	var mu sync.Mutex
	var broken error
	out := screenOf(cmd.OutOrStdout())
	tell := func(e event) {
		mu.Lock()
		defer mu.Unlock()
		if broken == nil {
			broken = e.print(out, g.json)
		}
		if broken != nil {
			stop()
		}
	}
	var all sync.WaitGroup
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		w := &watcher{
			name: name, every: every, timeout: g.timeout, tell: tell, wake: make(chan struct{}, 1),
		}
		w.inspect = func(ctx context.Context) (*dlock.LockInfo, error) {
			return g.inspect(ctx, s, c, name)
		}
		w.hint = func(ctx context.Context, l *dlock.LockInfo) bool {
			mu.Lock()
			defer mu.Unlock()
			return g.hint(ctx, cmd.ErrOrStderr(), s, c, l)
		}
		if n := backend.CapabilitiesOf(session).Notifier; n != nil {
			w.notifier = n
			w.kinds = channels(s.Limits().Kinds)
		}
		all.Go(func() { w.run(ctx) })
	}
	all.Wait()
	return broken
}

// channels returns a kind of lock for each notification channel of the store. A watcher subscribes
// to all channels, because it doesn't know the lock's kind in advance.
func channels(known backend.Kinds) []backend.Kind {
	return slices.DeleteFunc([]backend.Kind{backend.Exclusive, backend.Write, backend.Permits},
		func(k backend.Kind) bool { return !known.Has(k) })
}

// A watcher watches one lock.
type watcher struct {
	name     string
	every    time.Duration
	timeout  time.Duration
	tell     func(event)
	inspect  func(context.Context) (*dlock.LockInfo, error)
	hint     func(context.Context, *dlock.LockInfo) bool // not called again once it returns true
	notifier backend.Notifier
	kinds    []backend.Kind // the kinds that have no subscription yet
	standing []backend.Subscription
	wake     chan struct{}

	last    *dlock.LockInfo // nil before the first answer
	hinted  time.Time       // when hint was last called
	known   bool            // hint needn't be called again
	failing bool
}

// run watches the lock until ctx ends.
func (w *watcher) run(ctx context.Context) {
	defer func() {
		for _, sub := range w.standing {
			sub.Close()
		}
	}()
	for {
		w.subscribe(ctx) // first, so that no release is missed
		l, err := w.inspect(ctx)
		if ctx.Err() != nil {
			return
		}
		w.compare(l, err)
		if err == nil {
			w.doubt(ctx, l)
		}
		if !pause(ctx, w.wake, w.every) || !pause(ctx, nil, shortest) {
			return
		}
	}
}

// doubt calls w.hint, at most once per second, until the lock has had a holder or w.hint has
// returned true.
func (w *watcher) doubt(ctx context.Context, l *dlock.LockInfo) {
	w.known = w.known || len(l.Holders) > 0
	if !w.known && time.Since(w.hinted) >= time.Second {
		w.hinted = time.Now()
		w.known = w.hint(ctx, l)
	}
}

// pause waits for d, or until wake receives a value. It returns false if ctx has ended.
func pause(ctx context.Context, wake <-chan struct{}, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-time.After(d):
	}
	return true
}

// subscribe subscribes to releases of each kind that has no subscription yet. It drops a kind that
// the store refuses.
func (w *watcher) subscribe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	for len(w.kinds) > 0 {
		sub, err := w.notifier.Subscribe(ctx,
			backend.SubscribeRequest{Kind: w.kinds[0], Name: w.name, Wake: func(backend.Wakeup) {
				select {
				case w.wake <- struct{}{}:
				default:
				}
			}})
		switch {
		case err == nil:
			w.standing = append(w.standing, sub)
		case backend.KindOf(err) != backend.Refused:
			return // to be retried later
		}
		w.kinds = w.kinds[1:]
	}
}

// compare reports how the lock changed since the last answer.
func (w *watcher) compare(l *dlock.LockInfo, err error) {
	if err != nil {
		if !w.failing {
			w.event("error", func(e *event) { e.Error = err.Error() })
		}
		w.failing = true
		return
	}
	if w.failing {
		w.event("again", nil)
		w.failing = false
	}
	came, last := "acquired", w.last
	if last == nil {
		came, last = "holds", &dlock.LockInfo{}
	}
	w.compareLine("unqueued", last.Line, l.Line)
	w.compareHolders("gone", "", last.Holders, l.Holders)
	w.compareHolders(came, "count", l.Holders, last.Holders)
	w.compareLine("queued", l.Line, last.Line)
	if len(l.Holders) == 0 && (w.last == nil || len(last.Holders) > 0) {
		w.event("free", nil)
	}
	w.last = l
}

// compareHolders emits an event for each holder that isn't in others, and an event for each holder
// whose count in others is different. The parameters missing and differs are the names of these
// events. An event whose name is empty is omitted.
func (w *watcher) compareHolders(missing, differs string, holders, others []dlock.Holder) {
	counts := make(map[string]int, len(others))
	for _, o := range others {
		counts[o.Kind.String()+o.ID] = o.Count
	}
	for _, h := range holders {
		what := missing
		if count, there := counts[h.Kind.String()+h.ID]; there && count == h.Count {
			continue
		} else if there {
			what = differs
		}
		if what != "" {
			w.event(what, func(e *event) { e.Holder = &jsonHolders([]dlock.Holder{h})[0] })
		}
	}
}

// compareLine emits an event with the given name for each waiter in line that isn't in others.
func (w *watcher) compareLine(missing string, line, others []string) {
	there := make(map[string]bool, len(others))
	for _, o := range others {
		there[o] = true
	}
	for _, id := range line {
		if !there[id] {
			w.event(missing, func(e *event) { e.Waiter = id })
		}
	}
}

// event emits an event. If fill isn't nil, event calls it to add details.
func (w *watcher) event(what string, fill func(*event)) {
	e := event{Time: time.Now(), nameJSON: jsonName(w.name), Event: what}
	if fill != nil {
		fill(&e)
	}
	w.tell(e)
}

// An event reports a change of a lock's holders or waiters, or an error.
type event struct {
	Time time.Time `json:"time"`
	nameJSON
	Event  string      `json:"event"`
	Holder *holderJSON `json:"holder,omitempty"`
	Waiter string      `json:"waiter,omitempty"` // the owner string of a waiter
	Error  string      `json:"error,omitempty"`
}

// colours are the colours of events.
var colours = map[string]string{"acquired": green, "holds": green, "gone": yellow, "error": red}

// print prints the event as one line.
func (e *event) print(s screen, asJSON bool) error {
	if asJSON {
		return printJSON(s, e)
	}
	name := e.Name
	if e.Base64 != nil {
		name = string(e.Base64)
	}
	text := fmt.Sprintf("%s  %s  %s", e.Time.Format("15:04:05.000"), printable(name),
		s.paint(colours[e.Event], e.Event))
	switch h := e.Holder; {
	case h != nil:
		text += fmt.Sprintf("  %s  %s", printable(h.ID), h.Kind)
		if h.Count != 1 {
			text += " " + strconv.Itoa(h.Count)
		}
	case e.Waiter != "":
		text += "  " + printable(e.Waiter)
	case e.Error != "":
		text += "  " + escape(e.Error)
	}
	_, err := fmt.Fprintln(s, text)
	return err
}
