package oteldlock

import (
	"errors"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// The keys of attributes.
const (
	setKey       = attribute.Key("distsync.set")
	kindKey      = attribute.Key("distsync.kind")
	nameKey      = attribute.Key("distsync.name")
	outcomeKey   = attribute.Key("distsync.outcome")
	viaKey       = attribute.Key("distsync.via")
	reasonKey    = attribute.Key("distsync.reason")
	stepKey      = attribute.Key("distsync.step")
	holderKey    = attribute.Key("distsync.holder")
	permitsKey   = attribute.Key("distsync.permits")
	durationKey  = attribute.Key("distsync.duration")
	errorTypeKey = attribute.Key("error.type")
)

// The type about contains the attributes of one measurement. Empty fields are left out.
type about struct {
	kind                                      backend.Kind // or none
	name, outcome, via, reason, step, failure string
	set                                       string // the name of a set of shards
}

// none is the kind of a measurement that isn't about one kind of lock.
const none = backend.Kind(255)

// attributes returns the common attributes, followed by the measurement's own.
func (a about) attributes(common []attribute.KeyValue) []attribute.KeyValue {
	all := slices.Clone(common)
	if a.kind != none {
		all = append(all, kindKey.String(a.kind.String()))
	}
	for _, attr := range []attribute.KeyValue{
		setKey.String(a.set), nameKey.String(a.name), outcomeKey.String(a.outcome),
		viaKey.String(a.via), reasonKey.String(a.reason),
		stepKey.String(a.step), errorTypeKey.String(a.failure),
	} {
		if attr.Value.AsString() != "" {
			all = append(all, attr)
		}
	}
	return all
}

// sets caches attribute sets, so that measuring allocates nothing for a known set.
type sets struct {
	common []attribute.KeyValue
	mu     sync.RWMutex
	made   map[about]set
}

// A set contains attributes, in the form of the options that instruments take.
type set struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

// mostSets is the maximum number of cached sets. Any further set is created again for each
// measurement. That is slower, but hardly matters, since so many time series overload most metric
// stores anyway.
const mostSets = 10_000

// of returns the set of attributes for a measurement.
func (s *sets) of(a about) set {
	made, _ := s.find(a)
	return made
}

// find returns the set of attributes for a measurement, and reports whether the set was just added
// to the cache.
func (s *sets) find(a about) (made set, first bool) {
	s.mu.RLock()
	made, ok := s.made[a]
	s.mu.RUnlock()
	if ok {
		return made, false
	}
	with := metric.WithAttributeSet(attribute.NewSet(a.attributes(s.common)...))
	made = set{[]metric.AddOption{with}, []metric.RecordOption{with}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.made[a]; ok || len(s.made) >= mostSets {
		return made, false
	}
	s.made[a] = made
	return made, true
}

// failureOf returns the error.type of an acquisition, or "" if it didn't fail. A timeout, or the
// end of the caller's context, is a failure only if the store couldn't say who holds the lock.
func failureOf(e dlock.AcquireDone) string {
	if e.Outcome == dlock.OutcomeFailed || errors.Is(e.Err, dlock.ErrUnavailable) {
		return errorType(e.Err)
	}
	return ""
}

// errorTypes lists the values of error.type. If several fit an error, the first is used.
var errorTypes = []struct {
	err  error
	name string
}{
	{dlock.ErrClosed, "closed"},
	{dlock.ErrConflict, "conflict"},
	{dlock.ErrUpgrade, "upgrade"},
	{dlock.ErrTooMany, "too_many"},
	{dlock.ErrNoLimit, "no_limit"},
	{errors.ErrUnsupported, "unsupported"},
	{dlock.ErrLost, "lost"},
	{dlock.ErrNotHeld, "not_held"},
	{dlock.ErrUnavailable, "unavailable"},
}

// errorType returns the error.type of a call's error.
func errorType(err error) string { return errorTypeOr(err, "_OTHER") }

func errorTypeOr(err error, other string) string {
	for _, t := range errorTypes {
		if errors.Is(err, t.err) {
			return t.name
		}
	}
	return other
}

// stepErrorType returns the error.type of a step's error, or "" for nil.
func stepErrorType(err error) string {
	switch {
	case err == nil:
		return ""
	case backend.KindOf(err) == backend.Unknown:
		return errorTypeOr(err, "outcome_unknown")
	case backend.KindOf(err) == backend.Retry:
		return errorTypeOr(err, "not_done")
	default:
		return errorTypeOr(err, "refused")
	}
}
