package dlock

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// A logbook writes log records in a goroutine of its own, so that a logger that is slow or hangs
// doesn't delay renewals or the report of a loss. The goroutine runs only while there are records.
type logbook struct {
	logger *slog.Logger

	mu      sync.Mutex
	waiting []record
	dropped int           // the number of records that were dropped for lack of room
	done    chan struct{} // closed when all records are written; nil if the goroutine isn't running
}

// A record is a message for the log.
type record struct {
	time  time.Time
	level slog.Level
	msg   string
	args  []any
}

// longestLogbook is the maximum number of records that may wait for a slow logger.
const longestLogbook = 1024

// add queues records, which are written in order.
func (b *logbook) add(records ...record) {
	if len(records) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	room := min(len(records), longestLogbook-len(b.waiting))
	b.waiting = append(b.waiting, records[:room]...)
	b.dropped += len(records) - room
	if b.done == nil {
		b.done = make(chan struct{})
		go b.write()
	}
}

// write writes records until none are left, or until the logger ends the goroutine with
// [runtime.Goexit].
func (b *logbook) write() {
	over := false
	defer func() {
		if !over {
			b.stop()
		}
	}()
	for {
		records, dropped := b.next()
		if records == nil {
			over = true
			return
		}
		for _, r := range records {
			b.log(r)
		}
		if dropped > 0 {
			b.log(warning("the logger is too slow: records were dropped", "dropped", dropped))
		}
	}
}

// next returns the next records to write. If there are none, it returns nil, and the goroutine
// counts as ended.
func (b *logbook) next() (records []record, dropped int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	records, dropped = b.waiting, b.dropped
	b.waiting, b.dropped = nil, 0
	if records == nil {
		b.stopLocked()
	}
	return records, dropped
}

// stop records that the goroutine has ended.
func (b *logbook) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopLocked()
}

func (b *logbook) stopLocked() {
	close(b.done)
	b.done = nil
}

func (b *logbook) log(r record) {
	ctx := context.Background()
	if !b.logger.Enabled(ctx, r.level) {
		return
	}
	entry := slog.NewRecord(r.time, r.level, "dlock: "+r.msg, 0)
	for i, arg := range r.args {
		if err, ok := arg.(error); ok {
			r.args[i] = sentence{err}
		}
	}
	entry.Add(r.args...)
	b.logger.Handler().Handle(ctx, entry)
}

// A sentence wraps an error for a log record of this package, so that the error is logged as text.
// The attributes that [Error.LogValue] would add are already in the record.
type sentence struct{ error }

func (s sentence) Unwrap() error { return s.error }

// written returns a channel that is closed when all queued records are written.
func (b *logbook) written() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done != nil {
		return b.done
	}
	done := make(chan struct{})
	close(done)
	return done
}

// warning returns a record at level Warn.
func warning(msg string, args ...any) record {
	return record{time.Now(), slog.LevelWarn, msg, args}
}

// debug logs frequent events, at level Debug.
func (c *Client) debug(msg string, args ...any) {
	c.log.add(record{time.Now(), slog.LevelDebug, msg, args})
}

// warn logs a warning. While the mutex is held, call [state.warn] instead.
func (c *Client) warn(msg string, args ...any) { c.log.add(warning(msg, args...)) }

// warn logs a warning once the mutex is unlocked and the functions passed to [state.later] and
// [state.trace] have been called.
func (s *state) warn(msg string, args ...any) {
	s.records = append(s.records, warning(msg, args...))
}
