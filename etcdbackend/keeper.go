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

// A keeper keeps the leases of a session alive. It uses one stream for all of them. The client
// library would use a goroutine for each lease, or a stream for each message.
//
// The stream is opened when it is first needed. When it breaks, every [ask] that is waiting gets an
// error, and the next [ask] opens another stream.
type keeper struct {
	client pb.LeaseClient
	ctx    context.Context // ends with the session
	stop   context.CancelFunc

	mu    sync.Mutex // not held while sending, receiving or calling [ask.answer]
	pulse *pulse     // the present stream, or nil
}

// A pulse owns one stream. If a learner refuses the stream, the pulse opens another. One goroutine
// opens streams and sends messages, and another receives answers.
type pulse struct {
	keeper *keeper
	ctx    context.Context
	cancel context.CancelCauseFunc
	kick   chan struct{} // signals that there are messages to send

	// Guarded by the keeper's mutex.
	queue    []*message           // to be sent
	pending  map[int64][]*message // unanswered messages of each lease, oldest first
	waiting  int                  // the number of pending messages
	unread   int                  // the number of pending messages that were sent
	patience time.Duration        // how long the stream may be silent while any [ask] waits
	timer    *time.Timer          // ends a silent stream, since another one may work
}

// A message is a keep-alive for a lease, with the asks that wait for its answer. More asks can join
// it until it is sent.
type message struct {
	lease int64
	asks  []*ask
	sent  bool
}

// An ask is a request for a keep-alive. It is answered exactly once.
type ask struct {
	lease int64
	// ttl is the new ttl of the lease; 0 if there is no lease
	answer func(ttl int64, err error)
	over   bool
}

// maxUnread is the maximum number of unanswered messages. The server handles them one at a time. If
// it is slow, other messages stay in the queue, where later renewals of the same leases join
// them.
const maxUnread = 256

func newKeeper(client pb.LeaseClient) *keeper {
	ctx, stop := context.WithCancel(context.Background())
	return &keeper{client: client, ctx: ctx, stop: stop}
}

func (k *keeper) closed() bool { return k.ctx.Err() != nil }

// close ends the stream. It doesn't wait.
func (k *keeper) close() { k.stop() }

// keepAlive renews a lease of ttl seconds. It returns the lease's new ttl, which is 0 if there is
// no such lease.
func (k *keeper) keepAlive(ctx context.Context, lease, ttl int64) (int64, error) {
	type answer struct {
		ttl int64
		err error
	}
	answers := make(chan answer, 1)
	asks := []*ask{{lease: lease, answer: func(ttl int64, err error) {
		answers <- answer{ttl, err}
	}}}
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

// send queues messages for the asks, whose leases last at least ttl seconds. It doesn't wait for
// the answers. Any goroutine may answer the asks, perhaps before send returns.
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
		p.patience = longestPatience // no message with a shorter patience is pending
	}
	p.patience = min(p.patience, patience(ttl))
	for _, a := range asks {
		p.add(a)
	}
	p.wake()
}

// add adds an ask to an unsent message for its lease, or to a new one. The caller must hold the
// keeper's mutex.
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
	default: // run has a signal already
	}
}

// abandon answers all unanswered asks with an error. Later answers are ignored.
func (k *keeper) abandon(asks []*ask, err error) {
	k.mu.Lock()
	open := finish(asks)
	k.mu.Unlock()
	for _, a := range open {
		a.answer(0, withKind(err, true))
	}
}

// finish marks asks as answered, and returns those that were still open. The caller must hold the
// keeper's mutex.
func finish(asks []*ask) (open []*ask) {
	for _, a := range asks {
		if !a.over {
			a.over = true
			open = append(open, a)
		}
	}
	return open
}

// beginWaiting restarts the timer that ends a silent stream. The caller must hold the keeper's
// mutex.
func (p *pulse) beginWaiting() {
	if p.timer == nil {
		p.timer = time.AfterFunc(p.patience, func() { p.cancel(errSilent) })
	} else {
		p.timer.Reset(p.patience)
	}
}

// run opens the stream and sends messages on it. If a learner refuses the stream, run opens
// another, which may reach a member that serves clients.
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

// stream opens a stream and sends messages on it until it breaks. It returns the error that broke
// it.
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
			if err == io.EOF { // the stream has broken, and p.receive returns the reason
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

// sendAgain moves unanswered messages into the queue for the next stream.
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

// next returns the messages to send now, so that at most maxUnread are unanswered. It drops
// messages that no ask waits for.
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

// remove removes a message from p.pending. The caller must hold the keeper's mutex.
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

// answered records the answer for a lease, and returns the asks that wait for it.
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

// fail ends the pulse, and answers its open asks with err.
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
