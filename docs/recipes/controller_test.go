package recipes

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

// A reconciler is a controller that is at work until its context ends, and for ten seconds more.
type reconciler struct{ gauge }

func (r *reconciler) Run(ctx context.Context, _ int) error {
	r.around(func() {
		<-ctx.Done()
		time.Sleep(10 * time.Second)
	})
	return nil
}

// rollOut has three replicas campaign. After a minute the leader resigns, and another minute later
// they end. It says after how much time the first of them gave up.
func rollOut(
	t *testing.T, control func(context.Context, *dlock.Election, controller) error,
) (r *reconciler, first time.Duration) {
	r = new(reconciler)
	synctest.Test(t, func(t *testing.T) {
		store, began := membackend.New(), time.Now()
		ctx, end := context.WithTimeout(t.Context(), 2*time.Minute)
		defer end()
		var once sync.Once
		var all sync.WaitGroup
		var elections [3]*dlock.Election
		for i := range elections {
			election := replicaOn(t, store).Election("controller")
			elections[i] = election
			all.Go(func() {
				control(ctx, election, r)
				once.Do(func() { first = time.Since(began) })
			})
		}
		time.Sleep(time.Minute)
		if i := slices.IndexFunc(elections[:], (*dlock.Election).IsLeader); i >= 0 {
			elections[i].Resign()
		}
		all.Wait()
		time.Sleep(time.Minute) // so that what nobody waits for ends, too
	})
	return r, first
}

func TestWhoReturnsWhileItLeadsGivesUp(t *testing.T) {
	r, first := rollOut(t, controlWrong)
	if most := r.most.Load(); first != 0 || most < 2 {
		t.Errorf("the first has given up after %v; %d controllers were at work at the same time",
			first, most)
	}
}

func TestWhoDoesNotWaitForItsControllerHasTwo(t *testing.T) {
	r, _ := rollOut(t, controlWrongToo)
	if n := r.most.Load(); n != 2 {
		t.Errorf("%d controllers were at work at the same time", n)
	}
}

func TestAControllerOnTheLeader(t *testing.T) {
	r, first := rollOut(t, control)
	if most, n := r.most.Load(), r.left.Load(); most != 1 || n != 2 || first < 2*time.Minute {
		t.Errorf(
			"%d controllers were at work, %d at the same time; the first has given up after %v", n,
			most, first)
	}
}
