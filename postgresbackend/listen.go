package postgresbackend

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed951563bd/distsync/backend"
)

// A session has one connection that listens, on a channel of its own: who releases a lock, or gives
// it to somebody in line, finds the channel in the tables. There the session has notes, one for
// each name that it wants to be told of.

const (
	noteEvery   = 10 * time.Second // so often it is looked whether the notes are there, and last for long enough
	lingers     = 2 * time.Second  // for so long a note stays that nobody needs: somebody may again, soon
	proofWithin = 2 * time.Second  // in which a connection must hear what it is sent, to be believed
)

// listenerName is what a connection that listens is called, before the name that the program's
// connections have.
const listenerName = "distsync listener"

// channel returns where messages for a session go.
func channel(session string) string { return "distsync_v1_" + session }

// listener is what a session has heard and wants to hear.
type listener struct {
	sightings

	lmu    sync.Mutex // guards what follows; never held while anything is sent or called
	names  map[string]*audience
	runs   bool
	ready  chan struct{} // closed when it is known whether the connection hears; then, unless it does, another is made
	stands bool          // it does
	broken error         // why the last didn't
	deaf   error         // why none ever will
	noting chan struct{} // has a value while nobody changes the notes in the store: one change at a time
	kick   chan struct{} // there is something to do for those who keep the notes
}

// audience is those of a session who want to be told of one lock.
type audience struct {
	subs  map[*subscription]struct{}
	noted int       // what the note says: 1 they wait, 0 they look on, -1 there is none
	until time.Time // nothing is known of the note after that
	idle  time.Time // since when there are no subscriptions
}

type subscription struct {
	s    *session
	name string // as stored
	req  backend.SubscribeRequest
}

func (l *listener) init() {
	l.names = make(map[string]*audience)
	l.ready = make(chan struct{})
	l.noting = make(chan struct{}, 1)
	l.noting <- struct{}{}
	l.kick = make(chan struct{}, 1)
}

// note returns what a subscription wants the store to know: 1 that somebody waits, 0 that somebody
// looks on, -1 nothing, since who stands in line has a place.
func (sub *subscription) note() int {
	switch {
	case sub.req.Watches:
		return 0
	case sub.req.Granted != nil:
		return -1
	default:
		return 1
	}
}

// Subscribe implements [backend.Notifier].
func (s *session) Subscribe(ctx context.Context, req backend.SubscribeRequest) (backend.Subscription, error) {
	sub, kind := &subscription{s: s, name: encode(req.Name), req: req}, req.Kind
	if kind == backend.Latch {
		sub.name, kind = latchNews(sub.name), backend.Exclusive
	}
	if err := s.check(ctx, kind, sub.name); err != nil {
		return nil, err
	}
	if s.b.options.polls {
		return nil, refused(errors.New("this client polls, since it was made so"))
	}
	ready, err := s.join(sub)
	if err != nil {
		return nil, err
	}
	select {
	case <-ready:
		err = s.hears()
		if err == nil {
			err = s.takeNotes(ctx, sub.name)
		}
	case <-ctx.Done():
		err = retry(ctx.Err())
	case <-s.ctx.Done():
		err = refused(errClosed)
	}
	if err != nil {
		sub.Close()
		return nil, err
	}
	return sub, nil
}

// join adds a subscription, and starts to listen with the first.
func (s *session) join(sub *subscription) (ready <-chan struct{}, err error) {
	s.lmu.Lock()
	defer s.lmu.Unlock()
	if s.closed.Load() {
		return nil, refused(errClosed)
	}
	if !s.runs {
		s.runs = true
		s.busy.run(s.listen)
		s.busy.run(s.keepNotes)
	}
	a := s.names[sub.name]
	if a == nil {
		a = &audience{subs: make(map[*subscription]struct{}), noted: -1}
		s.names[sub.name] = a
	}
	a.subs[sub] = struct{}{}
	if sub.req.Granted != nil {
		s.watch(sub.name, true)
	}
	return s.ready, nil
}

// hears returns why the session isn't told of anything now, or nil.
func (s *session) hears() error {
	s.lmu.Lock()
	defer s.lmu.Unlock()
	switch {
	case s.deaf != nil:
		return refused(s.deaf)
	case !s.stands:
		return retry(s.broken)
	}
	return nil
}

// known says whether the connection hears; err says why not.
func (s *session) known(stands bool, err, deaf error) {
	s.lmu.Lock()
	defer s.lmu.Unlock()
	s.stands, s.broken, s.deaf = stands, err, deaf
	close(s.ready)
	if !stands && deaf == nil {
		s.ready = make(chan struct{})
	}
}

// lapses notes that the connection doesn't hear any more.
func (s *session) lapses(err error) {
	s.lmu.Lock()
	defer s.lmu.Unlock()
	s.stands, s.broken = false, err
	s.ready = make(chan struct{})
}

// Close gives the subscription up.
func (sub *subscription) Close() {
	s := sub.s
	s.lmu.Lock()
	defer s.lmu.Unlock()
	a := s.names[sub.name]
	if a == nil {
		return
	}
	if delete(a.subs, sub); len(a.subs) > 0 {
		return
	}
	s.watch(sub.name, false)
	if a.noted < 0 {
		delete(s.names, sub.name)
		return
	}
	a.idle = time.Now()
	s.kickLocked()
}

func (l *listener) kickLocked() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// wanted returns what the note of a name should say.
func (a *audience) wanted() int {
	want := -1
	for sub := range a.subs {
		want = max(want, sub.note())
	}
	return want
}

// askAgain has the note of a name be written again: a step has found that there is none.
func (s *session) askAgain(name string) {
	s.lmu.Lock()
	defer s.lmu.Unlock()
	if a := s.names[name]; a != nil && a.noted >= 0 && len(a.subs) > 0 {
		a.noted = -1
		s.kickLocked()
	}
}

// takeNotes writes the notes of names that aren't in the store as they are wanted.
func (s *session) takeNotes(ctx context.Context, names ...string) error {
	select {
	case <-s.noting:
		defer func() { s.noting <- struct{}{} }()
	case <-ctx.Done():
		return retry(ctx.Err())
	}
	now := time.Now()
	var write []string
	var wants []int32
	s.lmu.Lock()
	for _, name := range names {
		a := s.names[name]
		if a == nil {
			continue
		}
		want := a.wanted()
		switch {
		case want >= 0 && (a.noted < want || !now.Before(a.until)):
		case want < 0 && a.noted >= 0 && len(a.subs) == 0 && now.Sub(a.idle) >= lingers:
			delete(s.names, name) // who comes from here on writes a new one after this
		default:
			continue
		}
		write, wants = append(write, name), append(wants, int32(want))
	}
	s.lmu.Unlock()
	for len(write) > 0 {
		n := min(len(write), mostTogether)
		if err := s.writeNotes(ctx, write[:n], wants[:n]); err != nil {
			return err
		}
		s.lmu.Lock()
		for i, name := range write[:n] {
			if a := s.names[name]; a != nil && wants[i] >= 0 {
				a.noted, a.until = int(wants[i]), now.Add(noteEvery)
			}
		}
		s.lmu.Unlock()
		write, wants = write[n:], wants[n:]
	}
	return nil
}

// writeNotes says in the store what the session wants to be told of: -1 no more.
func (s *session) writeNotes(ctx context.Context, names []string, wants []int32) error {
	return s.do(ctx, s.lane(), &call{
		sql:  `SELECT 1 FROM ` + s.b.q + `distsync_v1_ask($1::text[], $2::integer[], $3)`,
		args: []any{names, wants, s.id}, dest: []any{new(int32)},
	})
}

// keepNotes keeps the notes until the session is closed, and then takes them back.
func (s *session) keepNotes() {
	defer s.forgetNotes()
	timer := time.NewTimer(noteEvery)
	defer timer.Stop()
	pause := time.Second
	for {
		select {
		case <-s.kick:
		case <-timer.C:
		case <-s.ctx.Done():
			return
		}
		names, next := s.dueNotes(time.Now())
		if len(names) > 0 && s.hears() == nil {
			ctx, cancel := context.WithTimeout(s.ctx, patience)
			err := s.takeNotes(ctx, names...)
			cancel()
			if err != nil { // it is tried again, and whoever waits looks by himself until then
				next, pause = pause, min(2*pause, noteEvery)
			} else {
				pause = time.Second
				_, next = s.dueNotes(time.Now())
			}
		}
		timer.Reset(next)
	}
}

// dueNotes returns which notes are to be written, and when to look again.
func (s *session) dueNotes(now time.Time) (names []string, next time.Duration) {
	s.lmu.Lock()
	defer s.lmu.Unlock()
	next = noteEvery
	for name, a := range s.names {
		due := a.until
		switch want := a.wanted(); {
		case len(a.subs) == 0:
			due = a.idle.Add(lingers)
		case want < 0:
			continue
		case a.noted < want:
			due = now
		}
		if !due.After(now) {
			names = append(names, name)
		} else {
			next = min(next, due.Sub(now))
		}
	}
	return names, max(next, time.Millisecond)
}

// forgetNotes takes the notes back when the session is closed, if that can be done soon.
func (s *session) forgetNotes() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	select {
	case <-s.noting: // for good
	case <-ctx.Done():
		return
	}
	s.lmu.Lock()
	var names []string
	for name, a := range s.names {
		if a.noted >= 0 {
			names = append(names, name)
		}
	}
	clear(s.names)
	s.lmu.Unlock()
	for len(names) > 0 {
		n := min(len(names), mostTogether)
		gone := make([]int32, n)
		for i := range gone {
			gone[i] = -1
		}
		if s.writeNotes(ctx, names[:n], gone) != nil {
			return // they are over in some minutes
		}
		names = names[n:]
	}
}

// each calls f for those who want to be told of a name, or of any.
func (s *session) each(name string, f func(*subscription)) {
	s.lmu.Lock()
	var subs []*subscription
	if a := s.names[name]; a != nil {
		subs = slices.Collect(maps.Keys(a.subs))
	} else if name == "" {
		for _, a := range s.names {
			subs = slices.AppendSeq(subs, maps.Keys(a.subs))
		}
	}
	s.lmu.Unlock()
	for _, sub := range subs {
		f(sub)
	}
}

// heard passes a message on.
func (s *session) heard(message string) {
	if message == "" {
		return
	}
	switch kind, rest := message[:1], message[1:]; kind {
	case tellFreed:
		s.each(rest, func(sub *subscription) { sub.req.Wake(0) })
	case tellKept:
		s.each(rest, func(sub *subscription) {
			if sub.req.Watches {
				sub.req.Wake(0)
			}
		})
	case "g":
		token, owner, name, ok := parseGrant(rest)
		if !ok {
			return
		}
		g := s.grant(name, decode(owner), token)
		s.each(name, func(sub *subscription) {
			if sub.req.Granted != nil {
				sub.req.Granted(g)
			}
		})
	}
}

// listen keeps a connection that listens until the session is closed, or it is known that none will
// hear anything.
func (s *session) listen() {
	first := true
	for pause := 10 * time.Millisecond; s.ctx.Err() == nil; {
		stood, err := s.listenOnce(first)
		switch {
		case errors.Is(err, errDeaf):
			s.known(false, err, err)
			return
		case !stood:
			s.known(false, err, nil)
		default:
			first, pause = false, 10*time.Millisecond
			s.lapses(err)
			broken := failed(err)
			s.each("", func(sub *subscription) {
				if sub.req.Changed != nil && s.ctx.Err() == nil {
					sub.req.Changed(broken)
				}
			})
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, time.Second)
		case <-s.ctx.Done():
		}
	}
}

// connect returns a connection of its own that listens, and what it has heard so far.
func (s *session) connect(ctx context.Context) (conn *pgx.Conn, heard *[]string, err error) {
	pool := s.b.pool.Config()
	config := pool.ConnConfig
	heard = new([]string) // appended to within the calls of the connection
	config.RuntimeParams["application_name"] = strings.TrimSpace(listenerName + " " + config.RuntimeParams["application_name"])
	config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { *heard = append(*heard, n.Payload) }
	if pool.BeforeConnect != nil {
		if err := pool.BeforeConnect(ctx, config); err != nil {
			return nil, nil, err
		}
	}
	conn, err = pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	if _, err := conn.Exec(ctx, `LISTEN `+pgx.Identifier{channel(s.id)}.Sanitize(), pgx.QueryExecModeExec); err != nil {
		hangUp(conn)
		return nil, nil, err
	}
	return conn, heard, nil
}

// hangUp closes a connection, and waits until that is done.
func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // it is given up, however
	<-conn.PgConn().CleanupDone()
}

var errDeaf = errors.New("LISTEN hears nothing, as behind a pooler that shares connections between transactions")

// listenOnce listens on one connection for as long as it lasts. It says whether it has heard.
func (s *session) listenOnce(first bool) (stood bool, err error) {
	conn, heard, err := s.connect(s.ctx)
	if err != nil {
		return false, err
	}
	defer hangUp(conn)
	hears, err := s.proves(conn, heard)
	if err != nil {
		return false, err
	}
	if !hears {
		_, _ = conn.Exec(s.ctx, `UNLISTEN *`, pgx.QueryExecModeExec) // of whatever connection: it must not pile up there
		return false, errDeaf
	}
	s.known(true, nil, nil)
	if !first {
		s.each("", func(sub *subscription) {
			if sub.req.Changed != nil {
				sub.req.Changed(nil)
			}
			sub.req.Wake(0) // something may have been said that nobody heard
		})
	}
	for {
		err := s.await(s.ctx, conn, s.b.options.pingAfter)
		for _, message := range *heard {
			s.heard(message)
		}
		*heard = (*heard)[:0]
		if err != nil {
			return true, err
		}
	}
}

// await waits for the next message, and after a while looks whether the connection still stands.
func (s *session) await(ctx context.Context, conn *pgx.Conn, patience time.Duration) error {
	wait, cancel := context.WithTimeout(ctx, patience)
	err := conn.PgConn().WaitForNotification(wait)
	silent := wait.Err() != nil && ctx.Err() == nil
	cancel()
	if err == nil || !silent || conn.IsClosed() {
		return err
	}
	ping, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return conn.Ping(ping)
}

// proves says whether the connection hears what is sent to it by way of another. Nothing is sent on
// it meanwhile: a pooler passes on what comes with the answer to something else.
func (s *session) proves(conn *pgx.Conn, heard *[]string) (bool, error) {
	for range 2 { // a server may be slow once
		ctx, cancel := context.WithTimeout(s.ctx, proofWithin)
		send := &call{sql: `SELECT 1 FROM pg_notify($1, '')`, args: []any{channel(s.id)}, dest: []any{new(int32)}}
		err := s.once(ctx, s.lane(), send)
		cancel()
		if err != nil {
			return false, err
		}
		ctx, cancel = context.WithTimeout(s.ctx, proofWithin)
		err = conn.PgConn().WaitForNotification(ctx)
		silent := ctx.Err() != nil && s.ctx.Err() == nil
		cancel()
		switch {
		case len(*heard) > 0:
			return true, nil
		case err != nil && (!silent || conn.IsClosed()):
			return false, err
		}
	}
	return false, nil
}
