package dlock

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// A logbook writes log records in a goroutine of its own, which runs while there are any: a logger
// that is slow, or stands still, must not keep a lock from being renewed, or its loss from being
// told.
type logbook struct {
	logger *slog.Logger

	mu      sync.Mutex
	waiting []record
	dropped int           // how many there was no room for
	done    chan struct{} // closed when all is written; nil if nothing is being written
}

// A record is what is to be logged.
type record struct {
	time  time.Time
	level slog.Level
	msg   string
	args  []any
}

// longestLogbook is how many records may wait for a logger that is too slow.
const longestLogbook = 1024

// add has records written, in order.
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

// write writes until nothing is left, or the logger ends its goroutine.
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

// next returns what is to be written, or nil if that is all.
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

// stop notes that nothing is being written any more.
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

// A sentence is an error in a record of ours, which is text whatever it is: what an [Error] says of the lock in attributes, see [Error.LogValue], the
// record says itself.
type sentence struct{ error }

func (s sentence) Unwrap() error { return s.error }

// written returns a channel that is closed when everything is written.
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

// warning returns a record for what somebody should look at.
func warning(msg string, args ...any) record {
	return record{time.Now(), slog.LevelWarn, msg, args}
}

// debug logs what happens all the time, where somebody wants to know.
func (c *Client) debug(msg string, args ...any) {
	c.log.add(record{time.Now(), slog.LevelDebug, msg, args})
}

// warn logs. c.mu need not be held; where it is, use warnLocked.
func (c *Client) warn(msg string, args ...any) { c.log.add(warning(msg, args...)) }

// warnLocked logs once c.mu is free, after whoever waits for that has been told.
func (c *Client) warnLocked(msg string, args ...any) {
	c.records = append(c.records, warning(msg, args...))
}
