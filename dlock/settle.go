package dlock

// A rule that changes who has a lock doesn't touch the calls that wait for it. It marks the lock
// with what has happened. Before the mutex is unlocked, settle does what that means for the waiting
// calls, once for each marked lock. By then all rules have run, so it sees the lock as it will be.

// settle settles all marked locks.
func (s *state) settle() {
	for i := 0; i < len(s.marked); i++ { // the end can move, since calls can be told to listen
		s.marked[i].settle(s)
	}
	clear(s.marked)
	s.marked = s.marked[:0]
}

// settle brings the waiting calls of a lock up to date. First, calls that can have the lock without
// the store leave their queues. Then the others are told what they must know.
func (o *object) settle(s *state) {
	if o.marks&markJoinable != 0 {
		o.admitReaders(s)
	}
	if o.marks&markEntered != 0 {
		for q := range o.queues() {
			q.letPartiesEnter(s)
		}
	}
	m := o.marks
	o.marks = 0
	if q := o.queue; q != nil {
		q.settle(s, m)
	}
	if q := o.line; q != nil {
		q.settleLine(s, m)
	}
	o.tidy(s)
}

func (q *queue) settle(s *state, m marks) {
	switch {
	case q.first == nil:
		q.dissolve(s)
		return
	case m&markFree != 0:
		q.wake(s)
	default:
		q.chooseLead(s)
	}
	q.subscribe(s)
}

func (q *queue) settleLine(s *state, m marks) {
	if q.first == nil {
		q.dissolve(s)
		return
	}
	q.subscribe(s)
	if m&markLost != 0 {
		q.leavePlaces(s)
		q.lookAtLine(s)
	}
	if m&markUnlocked != 0 {
		q.askForPlaces()
	}
}
