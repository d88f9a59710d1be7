package recipes

import (
	"context"
	"time"

	"github.com/riverqueue/river"

	"github.com/seed951563bd/distsync/dlock"
)

type InvoiceArgs struct {
	Customer string `json:"customer"`
}

func (InvoiceArgs) Kind() string { return "invoice" }

type waitingWorker struct {
	river.WorkerDefaults[InvoiceArgs]
	locks *dlock.Client
	send  func(ctx context.Context, customer string) error
}

func (w *waitingWorker) Work(ctx context.Context, job *river.Job[InvoiceArgs]) error {
	return w.locks.Locker("customer:"+job.Args.Customer).Do(ctx, func(ctx context.Context) error {
		return w.send(ctx, job.Args.Customer)
	})
}

// An invoiceWorker sends a customer's invoices while it holds the customer's lock. Other programs,
// such as an import, use the same lock.
type invoiceWorker struct {
	river.WorkerDefaults[InvoiceArgs]
	locks *dlock.Client
	send  func(ctx context.Context, customer string) error
}

func (w *invoiceWorker) Work(ctx context.Context, job *river.Job[InvoiceArgs]) error {
	lock := w.locks.Locker("customer:" + job.Args.Customer)
	ran, err := lock.TryDo(ctx, func(ctx context.Context) error {
		return w.send(ctx, job.Args.Customer)
	})
	if !ran && err == nil {
		return river.JobSnooze(10 * time.Second) // a snooze doesn't count as an attempt
	}
	return err // River retries with backoff, even if the store is down
}
