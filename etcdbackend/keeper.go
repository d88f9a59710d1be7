package etcdbackend

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A keeper keeps the leases of a session alive, all of them over one stream. The client library
// spends a goroutine on every lease, or a stream on every message.
//
// The stream is opened when it is first needed. When it breaks, who waits for an answer is told so, and
// the next one who asks opens another.
type keeper struct {
	client pb.LeaseClient
	ctx    context.Context // ends with the session
	stop   context.CancelFunc

	mu    sync.Mutex // never held while anything is sent, received or called
	pulse *pulse     // the present stream, or nil
}

// A pulse is one stream, after some that learners have refused. One goroutine opens it and sends,
// another receives.
type pulse struct {
	keeper *keeper
	ctx    context.Context
	cancel context.CancelCauseFunc
	kick   chan struct{} // there is something to send

	// Guarded by the keeper's mutex.
	queue    []*message           // to be sent
	pending  map[int64][]*message // without an answer, by lease, in the order of sending
	waiting  int                  // how many these are
	unread   int                  // those that were sent
	patience time.Duration        // for how long nothing may be heard by those who wait
	timer    *time.Timer          // ends the stream then: another may lead to a member that works
}

// A message is one message, and who waits for its answer. Who asks before it is sent may join.
type message struct {
	lease int64
	asks  []*ask
	sent  bool
}

// An ask is what is to be done with an answer. It is answered once.
type ask struct {
	lease  int64
	answer func(ttl int64, err error) // ttl is what the lease began anew with; 0 if there is no lease
	over   bool
}

// maxUnread is how many messages are sent ahead of the answers. The server works on one at a time. If it is slow, and
// the renewals of the same leases come again, they join those that were not sent.
const maxUnread = 256

func newKeeper(client pb.LeaseClient) *keeper {
	ctx, stop := context.WithCancel(context.Background())
	return &keeper{client: client, ctx: ctx, stop: stop}
}

func (k *keeper) closed() bool { return k.ctx.Err() != nil }

// close ends everything, and waits for nothing.
func (k *keeper) close() { k.stop() }

// keepAlive lets a lease of ttl seconds begin anew, and returns the number of seconds that it begins
// with: 0 if there is no such lease.
func (k *keeper) keepAlive(ctx context.Context, lease, ttl int64) (int64, error) {
	type answer struct {
		ttl int64
		err error
	}
	answers := make(chan answer, 1)
	asks := []*ask{{lease: lease, answer: func(ttl int64, err error) { answers <- answer{ttl, err} }}}
	k.send(asks, ttl)
	select {
	case a := <-answers:
		return a.ttl, a.err
	case <-ctx.Done():
		k.abandon(asks, ctx.Err())
		a := <-answers
		return a.ttl, a.err
	}
}

// send sends messages for leases of at least ttl seconds. The answers come from any goroutine, perhaps
// before send returns.
func (k *keeper) send(asks []*ask, ttl int64) {
	if len(asks) == 0 {
		return
	}
	if k.closed() {
		k.abandon(asks, errClosed)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.pulse
	if p == nil {
		p = &pulse{
			keeper:  k,
			kick:    make(chan struct{}, 1),
			pending: make(map[int64][]*message),
		}
		p.ctx, p.cancel = context.WithCancelCause(clientv3.WithRequireLeader(k.ctx))
		k.pulse = p
		go p.run()
	}
	if p.waiting == 0 {
		p.patience = longestPatience // whoever was in a hurry isn't there any more
	}
	p.patience = min(p.patience, patience(ttl))
	for _, a := range asks {
		p.add(a)
	}
	p.wake()
}

// add lets an ask wait for a message that has still to be sent. The keeper's mutex is held.
func (p *pulse) add(a *ask) {
	messages := p.pending[a.lease]
	if n := len(messages); n > 0 && !messages[n-1].sent {
		messages[n-1].asks = append(messages[n-1].asks, a)
		return
	}
	m := &message{lease: a.lease, asks: []*ask{a}}
	p.pending[a.lease] = append(messages, m)
	p.queue = append(p.queue, m)
	if p.waiting == 0 {
		p.beginWaiting()
	}
	p.waiting++
}

func (p *pulse) wake() {
	select {
	case p.kick <- struct{}{}:
	default: // it is awake
	}
}

// abandon answers what has no answer yet with an error. What comes after that is ignored.
func (k *keeper) abandon(asks []*ask, err error) {
	k.mu.Lock()
	open := finish(asks)
	k.mu.Unlock()
	for _, a := range open {
		a.answer(0, withKind(err, true))
	}
}

// finish marks as answered what is not, and returns that. The keeper's mutex is held.
func finish(asks []*ask) (open []*ask) {
	for _, a := range asks {
		if !a.over {
			a.over = true
			open = append(open, a)
		}
	}
	return open
}

// beginWaiting lets the time run until the stream is given up. The keeper's mutex is held.
func (p *pulse) beginWaiting() {
	if p.timer == nil {
		p.timer = time.AfterFunc(p.patience, func() { p.cancel(errSilent) })
	} else {
		p.timer.Reset(p.patience)
	}
}

// run opens the stream and sends. Where a learner refuses the stream, another may be a member's
// that serves clients.
func (p *pulse) run() {
	for range mostLearners - 1 {
		if err := p.stream(); !isLearners(err) {
			p.fail(err)
			return
		}
		p.sendAgain()
	}
	p.fail(p.stream())
}

// stream opens a stream and sends on it, until it breaks. It returns why it has.
func (p *pulse) stream() error {
	stream, err := p.keeper.client.LeaseKeepAlive(p.ctx)
	if err != nil {
		return err
	}
	broken := make(chan error, 1)
	go func() { broken <- p.receive(stream) }()
	for {
		for _, m := range p.next() {
			err := stream.Send(&pb.LeaseKeepAliveRequest{ID: m.lease})
			if err == io.EOF { // the stream has broken, and receive knows why
				return <-broken
			}
			if err != nil {
				return err
			}
		}
		select {
		case <-p.kick:
		case err := <-broken:
			return err
		}
	}
}

// sendAgain has all that was sent, and has no answer, be sent on the next stream.
func (p *pulse) sendAgain() {
	p.keeper.mu.Lock()
	defer p.keeper.mu.Unlock()
	p.unread, p.queue = 0, nil
	for _, messages := range p.pending {
		for _, m := range messages {
			m.sent = false
		}
		p.queue = append(p.queue, messages...)
	}
}

// next returns what is to be sent now: what somebody still waits for, as far as there is room.
func (p *pulse) next() []*message {
	p.keeper.mu.Lock()
	defer p.keeper.mu.Unlock()
	var now []*message
	for len(p.queue) > 0 && p.unread < maxUnread {
		m := p.queue[0]
		p.queue = p.queue[1:]
		if !slices.ContainsFunc(m.asks, func(a *ask) bool { return !a.over }) {
			p.remove(m)
			continue
		}
		m.sent = true
		p.unread++
		now = append(now, m)
	}
	return now
}

// remove takes a message out of those that have no answer. The keeper's mutex is held.
func (p *pulse) remove(m *message) {
	messages := p.pending[m.lease]
	if len(messages) == 1 {
		delete(p.pending, m.lease)
	} else {
		i := slices.Index(messages, m)
		p.pending[m.lease] = slices.Delete(messages, i, i+1)
	}
	if p.waiting--; p.waiting == 0 {
		p.timer.Stop()
	}
}

func (p *pulse) receive(stream pb.Lease_LeaseKeepAliveClient) error {
	for {
		res, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, a := range p.answered(res.ID) {
			a.answer(res.TTL, nil)
		}
	}
}

// answered returns who waits for an answer.
func (p *pulse) answered(lease int64) []*ask {
	p.keeper.mu.Lock()
	defer p.keeper.mu.Unlock()
	messages := p.pending[lease]
	if len(messages) == 0 || !messages[0].sent {
		return nil
	}
	p.unread--
	m := messages[0]
	if p.remove(m); p.waiting > 0 {
		p.beginWaiting()
	}
	if p.unread <= maxUnread/2 && len(p.queue) > 0 {
		p.wake()
	}
	return finish(m.asks)
}

// fail ends the stream.
func (p *pulse) fail(err error) {
	if context.Cause(p.ctx) == errSilent {
		err = errSilent
	}
	p.cancel(nil)
	type failure struct {
		*ask
		sent bool
	}
	var open []failure
	k := p.keeper
	k.mu.Lock()
	if k.pulse == p {
		k.pulse = nil
	}
	p.timer.Stop()
	for _, messages := range p.pending {
		for _, m := range messages {
			for _, a := range finish(m.asks) {
				open = append(open, failure{a, m.sent})
			}
		}
	}
	p.pending, p.queue, p.waiting = nil, nil, 0
	k.mu.Unlock()
	for _, f := range open {
		f.answer(0, withKind(err, f.sent))
	}
}
