package recipes

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

type leading func(ctx context.Context, client *dlock.Client, send func(context.Context) error) error

// aLeaderIsCutOff has three replicas send for half an hour. Each time takes five minutes, and ends
// with its context. The first leader is cut off from the store while it sends, for ten minutes.
func aLeaderIsCutOff(t *testing.T, lead leading) (sending *gauge, by [3]int) {
	sending = new(gauge)
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		var cables [3]*line
		var once sync.Once
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
		defer cancel()
		var all sync.WaitGroup
		for i := range cables {
			cables[i] = &line{Backend: store}
			client := replicaOn(t, cables[i])
			all.Go(func() {
				lead(ctx, client, func(ctx context.Context) error {
					sending.around(func() {
						by[i]++
						once.Do(func() {
							cables[i].down.Store(true)
							time.AfterFunc(10*time.Minute, func() { cables[i].down.Store(false) })
						})
						select {
						case <-time.After(5 * time.Minute):
						case <-ctx.Done():
						}
					})
					return nil
				})
			})
		}
		all.Wait()
	})
	return sending, by
}

func TestWhoAsksWhetherItLeadsBeforeLongWork(t *testing.T) {
	if sending, _ := aLeaderIsCutOff(t, runWrong); sending.most.Load() != 2 {
		t.Errorf("%d have sent at the same time", sending.most.Load())
	}
}

// aLeaderDies has three replicas send each minute, and returns how often that happens in the hour
// after one of them, which has done so before, has ended.
func aLeaderDies(t *testing.T, lead leading) (after int32) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		var sent atomic.Int32
		var leader atomic.Pointer[context.CancelFunc]
		var end []context.CancelFunc
		var all sync.WaitGroup
		for range 3 {
			client := replicaOn(t, store)
			ctx, die := context.WithCancel(t.Context())
			end = append(end, die)
			all.Go(func() {
				lead(ctx, client, func(context.Context) error {
					leader.Store(&die)
					sent.Add(1)
					return nil
				})
				client.Close()
			})
		}
		time.Sleep(10*time.Minute + time.Second)
		if n := sent.Load(); n != 10 {
			t.Errorf("in ten minutes all of them have sent %d times", n)
		}
		(*leader.Load())()
		synctest.Wait()
		before := sent.Load()
		time.Sleep(time.Hour)
		after = sent.Load() - before
		for _, die := range end {
			die()
		}
		all.Wait()
	})
	return after
}

func TestWhoAsksOnceWhetherItLeads(t *testing.T) {
	if n := aLeaderDies(t, runWrongToo); n != 0 {
		t.Errorf("in the hour after the leader ended another has sent %d times", n)
	}
}

func TestAnotherLeadsWhenTheLeaderEnds(t *testing.T) {
	if n := aLeaderDies(t, runOnLeader); n < 58 {
		t.Errorf("in the hour after the leader ended another has sent %d times", n)
	}
}

func TestALoopOnTheLeaderOnly(t *testing.T) {
	sending, by := aLeaderIsCutOff(t, runOnLeader)
	if sending.most.Load() != 1 {
		t.Errorf("%d have sent at the same time", sending.most.Load())
	}
	led, total := 0, 0
	for _, n := range by {
		if n > 0 {
			led++
		}
		total += n
	}
	if led < 2 || total < 5 {
		t.Errorf("in half an hour, with a leader that was cut off, each has sent %v", by)
	}
}
