package postgresbackend

import (
	"context"
	"crypto/rand"
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

// A session listens on a channel of its own, with one connection. For each lock that it subscribes
// to, it keeps a row in the database, called a note here. The note says which channel to use. A
// session that releases a lock, or hands it to the first waiter in line, finds the notes and sends
// messages to the channels.

const (
	// noteEvery is how often a session makes sure that its notes exist, and won't expire too soon.
	noteEvery = 10 * time.Second
	// lingers is how long a note stays after the last subscription to a lock ends, in case another
	// one begins.
	lingers = 2 * time.Second
	// proofWithin is the time within which a new connection must receive its test message.
	proofWithin = 2 * time.Second
)

// listenerName is the prefix that a listening connection adds to the program's application name.
const listenerName = "distsync listener"

// channel returns the name of the channel for messages to a session.
func channel(session string) string { return "distsync_v1_" + session }

// listener holds a session's subscriptions and the state of its connection.
type listener struct {
	sightings

	lmu   sync.Mutex // guards the fields below; not held during a request or a callback
	names map[string]*audience
	runs  bool
	// ready is closed once it is known whether the connection receives messages. It is replaced by
	// a new channel if the connection doesn't receive messages, or breaks later.
	ready  chan struct{}
	stands bool  // the connection receives messages
	broken error // why stands is false
	deaf   error // why no connection will ever receive messages, or nil
	// noting serves as a mutex for changes of the notes in the database. It holds a value while the
	// mutex is unlocked.
	noting chan struct{}
	kick   chan struct{} // wakes keepNotes
}

// audience holds a session's subscriptions to one lock.
type audience struct {
	subs  map[*subscription]struct{}
	noted int       // the note in the store (see subscription.note)
	until time.Time // when the note must be checked next
	idle  time.Time // when the last subscription ended
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

// note returns the value of the note that a subscription needs: 1 for a waiter, and 0 for a
// watcher. It returns -1 for a waiter in line, whose place makes a note unnecessary.
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
func (s *session) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	sub, kind := &subscription{s: s, name: encode(req.Name), req: req}, req.Kind
	if kind == backend.Latch {
		sub.name, kind = latchNews(sub.name), backend.Exclusive
	}
	if err := s.check(ctx, kind, sub.name); err != nil {
		return nil, err
	}
	if s.b.options.polls {
		return nil, refused(errors.New("this client polls, because it was created with Polling"))
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

// join adds a subscription. The first one starts the goroutines that listen and keep notes.
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

// hears returns nil if the session receives notifications now, and the reason otherwise.
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

// known records whether the connection receives messages. If it doesn't, err says why. If no
// connection ever will, deaf says why.
func (s *session) known(stands bool, err, deaf error) {
	s.lmu.Lock()
	defer s.lmu.Unlock()
	s.stands, s.broken, s.deaf = stands, err, deaf
	close(s.ready)
	if !stands && deaf == nil {
		s.ready = make(chan struct{})
	}
}

// lapses records that the connection no longer receives messages.
func (s *session) lapses(err error) {
	s.lmu.Lock()
	defer s.lmu.Unlock()
	s.stands, s.broken = false, err
	s.ready = make(chan struct{})
}

// Close ends the subscription.
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

// wanted returns the value that the note for these subscriptions should have, or -1 for no note.
func (a *audience) wanted() int {
	want := -1
	for sub := range a.subs {
		want = max(want, sub.note())
	}
	return want
}

// askAgain makes keepNotes write the note for a name again, after a step found that the note is
// missing.
func (s *session) askAgain(name string) {
	s.lmu.Lock()
	defer s.lmu.Unlock()
	if a := s.names[name]; a != nil && a.noted >= 0 && len(a.subs) > 0 {
		a.noted = -1
		s.kickLocked()
	}
}

// takeNotes updates the notes for the given names in the database. It writes missing and outdated
// notes, and deletes notes that are no longer needed.
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
			delete(s.names, name) // a later subscription writes a new note
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

// writeNotes writes notes to the database. The value -1 deletes a note.
func (s *session) writeNotes(ctx context.Context, names []string, wants []int32) error {
	return s.do(ctx, s.lane(), &call{
		sql:  `SELECT 1 FROM ` + s.b.q + `distsync_v1_ask($1::text[], $2::integer[], $3)`,
		args: []any{names, wants, s.id}, dest: []any{new(int32)},
	})
}

// keepNotes keeps the notes in the database up to date. It deletes them when the session is closed.
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
			if err != nil { // try again after a pause; until then the waiters poll
				next, pause = pause, min(2*pause, noteEvery)
			} else {
				pause = time.Second
				_, next = s.dueNotes(time.Now())
			}
		}
		timer.Reset(next)
	}
}

// dueNotes returns the notes that are due to be written and the time until the next check.
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

// forgetNotes deletes all notes when the session is closed. If that takes too long, it leaves them
// to expire.
func (s *session) forgetNotes() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	select {
	case <-s.noting: // noting stays empty, so that no note is written later
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
			return // they expire within minutes
		}
		names = names[n:]
	}
}

// each calls f for the subscriptions to a name or, if name is empty, for all subscriptions.
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

// heard passes a message to the subscriptions that it concerns.
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

// listen keeps a listening connection open until the session is closed, or until it turns out that
// no connection can receive messages.
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

// connect opens a listening connection. Each message that the connection receives is appended to
// *heard.
func (s *session) connect(ctx context.Context) (conn *pgx.Conn, heard *[]string, err error) {
	pool := s.b.pool.Config()
	config := pool.ConnConfig
	heard = new([]string) // OnNotification appends to it
	config.RuntimeParams["application_name"] = strings.TrimSpace(listenerName + " " +
		config.RuntimeParams["application_name"])
	config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) {
		*heard = append(*heard, n.Payload)
	}
	if pool.BeforeConnect != nil {
		if err := pool.BeforeConnect(ctx, config); err != nil {
			return nil, nil, err
		}
	}
	conn, err = pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	if _, err := conn.Exec(ctx, `LISTEN `+pgx.Identifier{channel(s.id)}.Sanitize(),
		pgx.QueryExecModeExec); err != nil {
		hangUp(conn)
		return nil, nil, err
	}
	return conn, heard, nil
}

// hangUp closes a connection, and waits until it is closed.
func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // ignore the error, since the connection isn't used again
	<-conn.PgConn().CleanupDone()
}

var errDeaf = errors.New(
	"LISTEN hears nothing: is there a pooler that shares connections between transactions?")

// listenOnce listens on one connection until the connection breaks or the session is closed. stood
// reports whether the connection received its test message.
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
		// Behind a pooler, UNLISTEN is carried out on one of the pooler's own connections, which
		// would otherwise collect messages.
		_, _ = conn.Exec(s.ctx, `UNLISTEN *`, pgx.QueryExecModeExec)
		return false, errDeaf
	}
	s.known(true, nil, nil)
	if !first {
		s.each("", func(sub *subscription) {
			if sub.req.Changed != nil {
				sub.req.Changed(nil)
			}
			sub.req.Wake(0) // messages may have been missed
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

// await waits for the next message. If none comes for a while, it pings the server.
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

// proves reports whether conn receives a message that is sent on another connection. A pooler
// delivers messages only together with the answer to a request. So proves sends nothing on conn
// meanwhile, and ignores other messages, which might have come with the answer to LISTEN.
func (s *session) proves(conn *pgx.Conn, heard *[]string) (bool, error) {
	proof := tellProof + rand.Text()
	for range 2 { // a server may be slow occasionally
		ctx, cancel := context.WithTimeout(s.ctx, proofWithin)
		send := &call{
			sql: `SELECT 1 FROM pg_notify($1, $2)`, args: []any{channel(s.id), proof},
			dest: []any{new(int32)},
		}
		err := s.once(ctx, s.lane(), send)
		cancel()
		if err != nil {
			return false, err
		}
		ctx, cancel = context.WithTimeout(s.ctx, proofWithin)
		for err == nil && !slices.Contains(*heard, proof) {
			err = conn.PgConn().WaitForNotification(ctx)
		}
		silent := ctx.Err() != nil && s.ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			return true, nil
		case !silent || conn.IsClosed():
			return false, err
		}
	}
	return false, nil
}
