package etcdbackend

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
)

// A watched is an etcd that serves streams of watches. The test is the server.
type watched struct {
	pb.KVClient
	pb.LeaseClient
	pb.WatchClient
	ctx  context.Context // of the last stream
	sent chan *pb.WatchRequest
	res  chan *pb.WatchResponse
}

type watches struct {
	grpc.ClientStream
	*watched
	ctx context.Context
}

func (w *watched) Watch(ctx context.Context, _ ...grpc.CallOption) (pb.Watch_WatchClient, error) {
	w.ctx = ctx
	return watches{watched: w, ctx: ctx}, nil
}

func (w watches) Send(r *pb.WatchRequest) error {
	select {
	case w.sent <- r:
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

func (w watches) Recv() (*pb.WatchResponse, error) {
	select {
	case r := <-w.res:
		return r, nil
	case <-w.ctx.Done():
		return nil, w.ctx.Err()
	}
}

// nextWatch returns the id of the next watch that is asked for.
func (w *watched) nextWatch() int64 {
	for {
		if create := (<-w.sent).GetCreateRequest(); create != nil {
			return create.WatchId
		}
	}
}

// A watch may be so slow that the events it should be told are compacted. It begins anew, and wakes
// those that have missed something.
func TestCompactedWatchBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &watched{sent: make(chan *pb.WatchRequest), res: make(chan *pb.WatchResponse)}
		ws := newWaiters(&store{}, nil)
		w := newWatcher(etcd, ws, time.Hour, func() {})
		defer w.close()
		woken := make(chan bool, 10)
		sub := &subscription{watcher: w, name: "n", key: []byte("n"), answer: make(chan error, 1)}
		sub.wake = func() { woken <- true }
		told := make(chan error, 10)
		sub.changed = func(broken error) { told <- broken }
		if err := w.add(sub); err != nil {
			t.Fatal(err)
		}
		id := etcd.nextWatch()
		etcd.res <- &pb.WatchResponse{WatchId: id, Created: true}
		if err := <-sub.answer; err != nil {
			t.Fatal(err)
		}
		if !requiresLeader(etcd.ctx) {
			t.Error("the stream doesn't require a leader")
		}
		etcd.res <- &pb.WatchResponse{
			WatchId: id, Canceled: true, CompactRevision: 9, CancelReason: "compacted",
		}
		again := etcd.nextWatch()
		etcd.res <- &pb.WatchResponse{WatchId: again, Created: true}
		synctest.Wait()
		if again == id || len(woken) != 1 {
			t.Errorf("watch %d follows %d; woken %d times", again, id, len(woken))
		}
		if broken := <-told; !errors.Is(broken, rpctypes.ErrCompacted) {
			t.Errorf("told %v", broken)
		}
		if again := <-told; again != nil || len(told) != 0 {
			t.Errorf("told %v, and %d more", again, len(told))
		}
		w.close()
		synctest.Wait()
		if len(told) != 0 {
			t.Errorf("told %v when it was closed", <-told)
		}
	})
}
