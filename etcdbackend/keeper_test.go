package etcdbackend

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/seed951563bd/distsync/backend"
)

// A streamer is an etcd that serves one stream of keep-alives. The test is the server.
type streamer struct {
	pb.LeaseClient
	ctx  context.Context // of the stream
	sent chan int64
	res  chan *pb.LeaseKeepAliveResponse
}

type keepAlives struct {
	grpc.ClientStream
	*streamer
}

func newStreamer() *streamer {
	return &streamer{sent: make(chan int64), res: make(chan *pb.LeaseKeepAliveResponse)}
}

func (s *streamer) LeaseKeepAlive(
	ctx context.Context, _ ...grpc.CallOption,
) (pb.Lease_LeaseKeepAliveClient, error) {
	s.ctx = ctx
	return keepAlives{streamer: s}, nil
}

func (s keepAlives) Send(r *pb.LeaseKeepAliveRequest) error {
	select {
	case s.sent <- r.ID:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (s keepAlives) Recv() (*pb.LeaseKeepAliveResponse, error) {
	select {
	case r := <-s.res:
		return r, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// asked sends one ask, and returns where its answer comes.
func asked(k *keeper, lease int64) ([]*ask, chan error) {
	answer := make(chan error, 1)
	asks := []*ask{{lease: lease, answer: func(_ int64, err error) { answer <- err }}}
	k.send(asks, 30)
	return asks, answer
}

// requiresLeader says whether a stream ends when its member has lost the others.
func requiresLeader(ctx context.Context) bool {
	md, _ := metadata.FromOutgoingContext(ctx)
	return slices.Equal(md.Get(rpctypes.MetadataRequireLeaderKey),
		[]string{rpctypes.MetadataHasLeader})
}

// A caller doesn't get the answer to a message that was sent before it asked: the promise in that
// begins too early.
func TestAskDoesNotJoinWhatWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStreamer()
		k := newKeeper(s)
		defer k.close()
		_, first := asked(k, 7)
		<-s.sent
		synctest.Wait()
		_, second := asked(k, 7)
		s.res <- &pb.LeaseKeepAliveResponse{ID: 7, TTL: 30}
		if err := <-first; err != nil {
			t.Error(err)
		}
		if id := <-s.sent; id != 7 || len(second) != 0 {
			t.Errorf("sent %d; answered %d times", id, len(second))
		}
		if !requiresLeader(s.ctx) {
			t.Error("the stream doesn't require a leader")
		}
	})
}

// A stream is given up when nothing is heard for a while, however long ago it was that somebody
// asked.
func TestSlowKeepAlives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStreamer()
		k := newKeeper(s)
		defer k.close()
		var answers []chan error
		for id := range int64(4) {
			_, answer := asked(k, id)
			answers = append(answers, answer)
			<-s.sent
		}
		for id := range int64(3) {
			time.Sleep(patience(30) * 9 / 10)
			s.res <- &pb.LeaseKeepAliveResponse{ID: id, TTL: 30}
			if err := <-answers[id]; err != nil {
				t.Errorf("answer %d: %v", id, err)
			}
		}
		begin := time.Now()
		if err := <-answers[3]; !errors.Is(err, errSilent.Err) ||
			time.Since(begin) > 2*patience(30) {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}

// A caller that was in a hurry and is gone doesn't hurry the others.
func TestPatienceGrowsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStreamer()
		k := newKeeper(s)
		defer k.close()
		hurried := make(chan error, 1)
		k.send([]*ask{{lease: 1, answer: func(_ int64, err error) { hurried <- err }}}, 2)
		<-s.sent
		s.res <- &pb.LeaseKeepAliveResponse{ID: 1, TTL: 2}
		if err := <-hurried; err != nil {
			t.Fatal(err)
		}
		_, answer := asked(k, 2)
		<-s.sent
		time.Sleep(patience(2) * 3 / 2)
		s.res <- &pb.LeaseKeepAliveResponse{ID: 2, TTL: 30}
		if err := <-answer; err != nil {
			t.Error(err)
		}
	})
}

// A message that nobody waits for any more isn't sent.
func TestAbandonedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStreamer()
		k := newKeeper(s)
		defer k.close()
		asked(k, 1)
		synctest.Wait() // this one is being sent
		asks, answer := asked(k, 2)
		asked(k, 3)
		k.abandon(asks, context.Canceled)
		if err := <-answer; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		var sent []int64
		for range 2 {
			sent = append(sent, <-s.sent)
			synctest.Wait()
		}
		if !slices.Equal(sent, []int64{1, 3}) {
			t.Errorf("sent %v, want 1 and 3", sent)
		}
	})
}

// A closed keeper answers each call once, even if the caller gives up just then.
func TestClosedKeeperAnswersOnce(t *testing.T) {
	k := newKeeper(newStreamer())
	k.close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		if _, err := k.keepAlive(ctx, 7, 30); err == nil {
			t.Error("a closed keeper has kept a lease alive")
		}
	}
}

// learners are an etcd of which the first so many members that are asked for a stream are learners.
type learners struct {
	*streamer
	left int
}

func (l *learners) LeaseKeepAlive(
	ctx context.Context, _ ...grpc.CallOption,
) (pb.Lease_LeaseKeepAliveClient, error) {
	if l.left--; l.left < 0 {
		return l.streamer.LeaseKeepAlive(ctx)
	}
	return new(refusedStream), nil
}

type refusedStream struct{ grpc.ClientStream }

func (*refusedStream) Send(*pb.LeaseKeepAliveRequest) error { return nil }

func (*refusedStream) Recv() (*pb.LeaseKeepAliveResponse, error) {
	time.Sleep(time.Millisecond)
	return nil, rpctypes.ErrGRPCNotSupportedForLearner
}

// A message that a learner refuses is sent again. A call that only learners answer fails with an
// error of kind Retry.
func TestKeepAlivesThatLearnersRefuse(t *testing.T) {
	for refusals, served := range map[int]bool{1: true, mostLearners - 1: true,
		mostLearners: false} {
		synctest.Test(t, func(t *testing.T) {
			s := newStreamer()
			k := newKeeper(&learners{s, refusals})
			defer k.close()
			var answers []chan error
			for _, id := range []int64{1, 1, 2} {
				_, answer := asked(k, id)
				answers = append(answers, answer)
				// so that the second of the first isn't the same message
				time.Sleep(100 * time.Microsecond)
			}
			for served && len(answers[1]) == 0 {
				select {
				case id := <-s.sent:
					s.res <- &pb.LeaseKeepAliveResponse{ID: id, TTL: 30}
				case <-time.After(time.Minute):
					t.Fatalf("after %d refusals nothing is sent any more", refusals)
				}
				synctest.Wait()
			}
			if served && len(answers[2]) == 0 {
				id := <-s.sent
				s.res <- &pb.LeaseKeepAliveResponse{ID: id, TTL: 30}
			}
			for i, answer := range answers {
				if err := <-answer; (err == nil) != served || !served &&
					backend.KindOf(err) != backend.Retry {
					t.Errorf("after %d refusals question %d is answered with %v", refusals, i, err)
				}
			}
		})
	}
}
