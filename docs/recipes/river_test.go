package recipes

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

// A queue works jobs as one of River's does that has two workers: with a limit of time, again later
// after an error, and again when a snooze is over.
type queue struct {
	worker river.Worker[InvoiceArgs]
	jobs   chan *rivertype.JobRow
	args   map[int64]InvoiceArgs

	mu       sync.Mutex
	done     map[string]time.Duration // when the job for a customer was done, from the beginning
	failures int
}

// work works jobs for these customers, until all are done.
func (q *queue) work(ctx context.Context, customers ...string) {
	began := time.Now()
	q.jobs, q.args, q.done = make(chan *rivertype.JobRow, len(customers)),
		make(map[int64]InvoiceArgs), make(map[string]time.Duration)
	var open, slots sync.WaitGroup
	for i, customer := range customers {
		q.args[int64(i)] = InvoiceArgs{Customer: customer}
		q.jobs <- &rivertype.JobRow{ID: int64(i)}
		open.Add(1)
	}
	for range 2 {
		slots.Go(func() {
			for job := range q.jobs {
				args := q.args[job.ID]
				ctx, cancel := context.WithTimeout(ctx, time.Minute) // River's default
				err := q.worker.Work(ctx, &river.Job[InvoiceArgs]{JobRow: job, Args: args})
				cancel()
				q.mu.Lock()
				var snooze *river.JobSnoozeError
				switch {
				case err == nil:
					q.done[args.Customer] = time.Since(began)
					open.Done()
				case errors.As(err, &snooze):
					time.AfterFunc(snooze.Duration, func() { q.jobs <- job })
				default:
					q.failures++
					time.AfterFunc(time.Second, func() { q.jobs <- job })
				}
				q.mu.Unlock()
			}
		})
	}
	open.Wait()
	close(q.jobs)
	slots.Wait()
}

// withAnImport works four jobs, of which three are for a customer whose lock is held elsewhere, for
// ten minutes.
func withAnImport(
	t *testing.T, newWorker func(
		*dlock.Client, func(context.Context, string) error,
	) river.Worker[InvoiceArgs],
) *queue {
	store := membackend.New()
	elsewhere := replicaOn(t, store).Locker("customer:7")
	elsewhere.Lock()
	time.AfterFunc(10*time.Minute, elsewhere.Unlock)
	var sevens gauge
	q := &queue{worker: newWorker(replicaOn(t, store), func(
		_ context.Context, customer string,
	) error {
		if customer == "7" {
			sevens.around(func() { time.Sleep(time.Second) })
		}
		return nil
	})}
	q.work(t.Context(), "7", "7", "7", "8")
	if sevens.most.Load() != 1 || sevens.left.Load() != 3 || q.done["7"] < 10*time.Minute {
		t.Errorf("%d invoices to a customer, %d at the same time, after %v", sevens.left.Load(),
			sevens.most.Load(), q.done["7"])
	}
	return q
}

func TestAWorkerThatWaitsForALockKeepsOthersWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := withAnImport(t, func(
			c *dlock.Client, send func(context.Context, string) error,
		) river.Worker[InvoiceArgs] {
			return &waitingWorker{locks: c, send: send}
		})
		if q.done["8"] < time.Minute || q.failures == 0 {
			t.Errorf("the job of another customer was done after %v; %d have failed", q.done["8"],
				q.failures)
		}
	})
}

func TestAWorkerThatSnoozes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := withAnImport(t, func(
			c *dlock.Client, send func(context.Context, string) error,
		) river.Worker[InvoiceArgs] {
			return &invoiceWorker{locks: c, send: send}
		})
		if q.done["8"] != 0 || q.failures != 0 || q.done["7"] > 11*time.Minute {
			t.Errorf("the job of another customer was done after %v, the last after %v; %d "+
				"have failed", q.done["8"], q.done["7"], q.failures)
		}
	})
}

func TestAWorkerWithoutTheStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cable := &line{Backend: membackend.New()}
		cable.down.Store(true)
		w := &invoiceWorker{locks: replicaOn(t, cable), send: func(context.Context, string) error {
			t.Error("it was sent")
			return nil
		}}
		err := w.Work(t.Context(), &river.Job[InvoiceArgs]{
			JobRow: &rivertype.JobRow{}, Args: InvoiceArgs{Customer: "7"},
		})
		var snooze *river.JobSnoozeError
		if !errors.Is(err, dlock.ErrUnavailable) || errors.As(err, &snooze) {
			t.Errorf("the store is down: %v", err)
		}
	})
}
