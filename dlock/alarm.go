package dlock

import (
	"container/heap"
	"time"
)

// An alarm says when a task is due. It is a field of the task, so that setting it allocates
// nothing.
type alarm struct {
	at    instant
	place int // heap index plus 1; 0: not scheduled
	task  task
}

// A task is work to be done when its alarm rings.
type task interface {
	ring(s *state, now instant)
}

// alarms holds the alarms that are set, and implements [container/heap.Interface].
type alarms struct {
	heap  []*alarm
	batch []*claim // claims to renew together after this ring
}

func (a *alarms) Len() int { return len(a.heap) }

func (a *alarms) Less(i, j int) bool { return a.heap[i].at < a.heap[j].at }

func (a *alarms) Swap(i, j int) {
	a.heap[i], a.heap[j] = a.heap[j], a.heap[i]
	a.heap[i].place, a.heap[j].place = i+1, j+1
}

func (a *alarms) Push(x any) {
	x.(*alarm).place = len(a.heap) + 1
	a.heap = append(a.heap, x.(*alarm))
}

func (a *alarms) Pop() any {
	last := len(a.heap) - 1
	x := a.heap[last]
	a.heap[last] = nil
	a.heap = a.heap[:last]
	x.place = 0
	return x
}

// next returns the time at which the first alarm is due, or now if that is earlier.
func (a *alarms) next(now instant) instant {
	if len(a.heap) == 0 {
		return now
	}
	return min(a.heap[0].at, now)
}

// schedule sets the time of an alarm, and replaces any earlier time.
func (s *state) schedule(a *alarm, at instant) {
	a.at = at
	if a.place > 0 {
		heap.Fix(&s.alarms, a.place-1)
	} else {
		heap.Push(&s.alarms, a)
	}
	s.arm()
}

// hasten makes an alarm ring at the given instant, unless it is already set to ring earlier.
func (s *state) hasten(a *alarm, at instant) {
	if a.place == 0 || at < a.at {
		s.schedule(a, at)
	}
}

// unschedule cancels an alarm.
func (s *state) unschedule(a *alarm) {
	if a.place > 0 {
		heap.Remove(&s.alarms, a.place-1)
	}
}

// arm sets the timer for the first alarm. The timer might ring too early, but never too late.
func (s *state) arm() {
	if len(s.alarms.heap) == 0 || s.closed {
		return
	}
	first := s.alarms.heap[0].at
	switch {
	case s.timer == nil:
		s.timer = time.AfterFunc(first-s.now(), s.rings)
	case s.armed == 0 || first < s.armed:
		s.timer.Reset(first - s.now())
	default:
		return
	}
	s.armed = first
}
