package dlock

import (
	"errors"
	"log/slog"
)

// The LogValue methods use the same names for attributes as the package's own log records, such as
// name, kind and holder.

// mostLogged is the maximum number of names that a list in the log contains.
const mostLogged = 10

// LogValue returns the error as a group with the attributes "msg" (the whole text), "op", "name"
// and "reason". The reason is a keyword for the wrapped error: "held" ([ErrHeld]), "unavailable",
// "not_held", "lost", "closed", "conflict", "upgrade", "too_many", "no_limit" or "unsupported". For
// a [Loss], it is the reason of the loss, and the group also has the attributes of [Loss.LogValue].
func (e *Error) LogValue() slog.Value {
	if e == nil {
		return slog.Value{}
	}
	attrs := []slog.Attr{slog.String("msg", e.Error()), slog.String("op", e.Op),
		slog.String("name", e.Name)}
	if l, ok := errors.AsType[*Loss](e.Err); ok {
		attrs = append(attrs, l.attrs()...)
	} else if reason := reasonOf(e.Err); reason != "" {
		attrs = append(attrs, slog.String("reason", reason))
	}
	return slog.GroupValue(attrs...)
}

// reasons lists the keywords for errors, the most specific first.
var reasons = []struct {
	err  error
	word string
}{

	{ErrClosed, "closed"},
	{ErrConflict, "conflict"},
	{ErrUpgrade, "upgrade"},
	{ErrTooMany, "too_many"},
	{ErrNoLimit, "no_limit"},
	{errors.ErrUnsupported, "unsupported"},
	{ErrLost, "lost"},
	{ErrNotHeld, "not_held"},
	{ErrUnavailable, "unavailable"},
	{ErrHeld, "held"},
}

// reasonOf returns the keyword for an error, or "".
func reasonOf(err error) string {
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			return r.word
		}
	}
	return ""
}

// LogValue returns the loss as a group. Its attributes are "msg" (the whole sentence) and those of
// the log record "lock lost": "name", "kind", "holder", "reason", "held" and "renewed". It
// adds "by", "paused" or "err" if that is known.
func (l *Loss) LogValue() slog.Value {
	if l == nil {
		return slog.Value{}
	}
	attrs := []slog.Attr{slog.String("msg", l.Error()), slog.String("name", l.Name)}
	return slog.GroupValue(append(attrs, l.attrs()...)...)
}

// attrs returns the attributes of a loss, without the lock's name.
func (l *Loss) attrs() []slog.Attr {
	attrs := []slog.Attr{
		slog.String("kind", l.Kind.String()), slog.String("holder", l.Holder),
		slog.String("reason", l.Reason.String()),
		slog.Duration("held", l.Held), slog.Duration("renewed", l.unconfirmed()),
	}
	switch {
	case l.takenBy() != "":
		attrs = append(attrs, slog.String("by", l.takenBy()))
	case l.Paused > 0:
		attrs = append(attrs, slog.Duration("paused", l.Paused))
	case l.Err != nil:
		attrs = append(attrs, slog.String("err", l.Err.Error()))
	}
	return attrs
}

// LogValue returns the lock's name and kind as a group. It doesn't ask the store.
func (l *Locker) LogValue() slog.Value {
	if l == nil {
		return slog.Value{}
	}
	return slog.GroupValue(slog.String("name", l.name), slog.String("kind", l.kind.String()))
}

// LogValue returns a group with the lock's name, and the kind "write". It doesn't ask the store.
func (rw *RWLocker) LogValue() slog.Value {
	if rw == nil {
		return slog.Value{}
	}
	return rw.writer.LogValue()
}

// LogValue returns a group with the attributes "name", "kind" and "permits" (the number of permits
// that the semaphore has). It doesn't ask the store.
func (s *Semaphore) LogValue() slog.Value {
	if s == nil {
		return slog.Value{}
	}
	return slog.GroupValue(slog.String("name", s.locker.name),
		slog.String("kind", s.locker.kind.String()), slog.Int("permits", s.permits))
}

// LogValue returns a group with the lock's attributes "name" and "kind", and with "leads", which is
// the result of [Election.IsLeader]. It doesn't ask the store.
func (e *Election) LogValue() slog.Value {
	if e == nil || e.locker.client == nil {
		return slog.Value{}
	}
	return slog.GroupValue(slog.String("name", e.locker.name),
		slog.String("kind", e.locker.kind.String()), slog.Bool("leads", e.IsLeader()))
}

// LogValue returns a group with the attributes "locks" (the number of locks) and "names" (the first
// ten names). It doesn't ask the store.
func (m *MultiLocker) LogValue() slog.Value {
	if m == nil {
		return slog.Value{}
	}
	return severalValue(m.lockers)
}

func severalValue(all []*Locker, more ...slog.Attr) slog.Value {
	names := []string{}
	for _, l := range all[:min(len(all), mostLogged)] {
		if l != nil {
			names = append(names, l.name)
		}
	}
	return slog.GroupValue(append([]slog.Attr{slog.Int("locks", len(all)),
		slog.Any("names", names)}, more...)...)
}

// LogValue returns the client's id as a group.
func (c *Client) LogValue() slog.Value {
	if c == nil {
		return slog.Value{}
	}
	return slog.GroupValue(slog.String("id", c.id))
}

// LogValue returns a group with the attributes "name", "kind", "holder" and "until" (see
// [Hold.Until]). A hold of several locks has "locks" (the number of locks), "names" (the first ten
// names) and "until" instead. If a lock is fenced, "token" is added. LogValue doesn't ask the
// store, and doesn't say whether the lock is still held. For that, use [Hold.Err].
func (h *Hold) LogValue() slog.Value {
	if h == nil || h.ctx == nil {
		return slog.Value{}
	}
	more := []slog.Attr{slog.Time("until", h.Until())}
	if token, ok := h.Token(); ok {
		more = append(more, slog.Uint64("token", token))
	}
	if all := h.several(); all != nil {
		var lockers []*Locker
		for _, p := range all.given {
			lockers = append(lockers, p.locker)
		}
		return severalValue(lockers, more...)
	}
	attrs := []slog.Attr{slog.String("name", h.locker.name),
		slog.String("kind", h.hold.kind.String()), slog.String("holder", h.HolderID())}
	return slog.GroupValue(append(attrs, more...)...)
}

// LogValue returns a group with the attributes "name", "kind", "holder", "caller" (the field By),
// "since", "until", "fixed" (the opposite of Renewed), "lease" and "count". It adds "permits" and
// "token" unless they are 0.
func (i HoldInfo) LogValue() slog.Value {
	attrs := []slog.Attr{
		slog.String("name", i.Name), slog.String("kind", i.Kind.String()),
		slog.String("holder", i.HolderID), slog.String("caller", i.By),
		slog.Time("since", i.Since), slog.Time("until", i.Until), slog.Bool("fixed", !i.Renewed),
		slog.Duration("lease", i.Lease), slog.Int("count", i.Count),
	}
	if i.Permits > 0 {
		attrs = append(attrs, slog.Int("permits", i.Permits))
	}
	if i.Token > 0 {
		attrs = append(attrs, slog.Uint64("token", i.Token))
	}
	return slog.GroupValue(attrs...)
}

// LogValue returns a group with the attributes "name", "kind", "caller" (the field By), "since" and
// "place". It adds "until" if that time is known, and "permits" for a semaphore.
func (i WaitInfo) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("name", i.Name), slog.String("kind", i.Kind.String()),
		slog.String("caller", i.By), slog.Time("since", i.Since)}
	if !i.Until.IsZero() {
		attrs = append(attrs, slog.Time("until", i.Until))
	}
	attrs = append(attrs, slog.Int("place", i.Place))
	if i.Permits > 0 {
		attrs = append(attrs, slog.Int("permits", i.Permits))
	}
	return slog.GroupValue(attrs...)
}

// LogValue returns a group with the attributes "holder" (the field ID), "kind", "count" and "left"
// (the field Remaining). It adds "client" and "kept" if these fields are set. For the zero Holder,
// LogValue returns a nil value.
func (h Holder) LogValue() slog.Value {
	if h == (Holder{}) {
		return slog.Value{}
	}
	attrs := []slog.Attr{slog.String("holder", h.ID)}
	if h.Client != "" {
		attrs = append(attrs, slog.String("client", h.Client))
	}
	attrs = append(attrs, slog.String("kind", h.Kind.String()), slog.Int("count", h.Count),
		slog.Duration("left", h.Remaining))
	if h.Kept {
		attrs = append(attrs, slog.Bool("kept", true))
	}
	return slog.GroupValue(attrs...)
}

// LogValue returns a group with the attributes "name", "kind" and "holders" (the ids of the first
// ten). It adds "more" (the number of other holders), "waiting" (the length of a fair lock's line)
// and "limit", unless they are 0.
func (i LockInfo) LogValue() slog.Value {
	ids := []string{}
	for _, h := range i.Holders[:min(len(i.Holders), mostLogged)] {
		ids = append(ids, h.ID)
	}
	attrs := []slog.Attr{slog.String("name", i.Name), slog.String("kind", i.Kind.String()),
		slog.Any("holders", ids)}
	if more := i.More + len(i.Holders) - len(ids); more > 0 {
		attrs = append(attrs, slog.Int("more", more))
	}
	if len(i.Line) > 0 {
		attrs = append(attrs, slog.Int("waiting", len(i.Line)))
	}
	if i.Limit > 0 {
		attrs = append(attrs, slog.Int("limit", i.Limit))
	}
	return slog.GroupValue(attrs...)
}
