package backend

// Capabilities are what a session can do beside its steps. A session lacks those that are nil or
// zero, and each field says what is done without it.
type Capabilities struct {
	// Notifier tells waiters that a lock has become free. Without it they poll.
	Notifier Notifier

	// BatchRenewer and Batcher take many steps for the price of few. Without them each step is a
	// call of its own. They are two, since renewals are many in every program and often cheap to
	// take together: some stores do only that.
	BatchRenewer BatchRenewer
	Batcher      Batcher

	// Inspector and Lister are for people who look from outside: one says who has a lock, the other
	// which locks there are. Without them nobody can ask.
	Inspector Inspector
	Lister    Lister

	// Liner and Latcher come with what they are for: a store has no [Fair] locks without a Liner,
	// and no latches without a Latcher.
	Liner   Liner
	Latcher Latcher

	// Steps says what a step does when its context ends.
	Steps Steps

	// Settle, unless it is nil, returns when nothing is under way any more of steps that have
	// returned. It is called once, after Close, and perhaps waited for in vain.
	Settle func()

	// WhyNot, unless it is nil, returns why the store lacks a kind that its [Limits] don't declare,
	// in words that go after a colon, or nothing. It is for a store that can't have it, so that there
	// is more to say than that it hasn't been written.
	WhyNot func(Kind) string
}

// Steps is what the steps of a session do when their context ends.
type Steps uint8

// What steps can do then. A caller never waits for a step for longer than it wants to.
const (
	// StepsMayHang: they may return late, or never. Each gets a goroutine, which a caller can leave.
	StepsMayHang Steps = iota

	// StepsReturn: they return as soon as their context ends, though what they have sent may still be
	// under way: then with an error of kind [Unknown]. That goes for batches, too. They are called in
	// the goroutine of the caller.
	StepsReturn

	// StepsNeverWait: they wait neither for another process nor for anything else, as in a store that
	// keeps its locks in the memory of this process. They are called in the goroutine of the caller,
	// and none is ever left.
	StepsNeverWait
)

// Capable is a [Session] that says itself what it can do beside its steps. A session needs that if it
// has something to say that isn't an interface, and if it wraps another session: what it doesn't
// hand on is lost.
//
// A session that wraps another and lets its capabilities pass returns what [CapabilitiesOf] says of
// the other. Steps that are taken by way of a capability go around it then. If it wants to see them,
// it puts one of its own in place of each that isn't nil.
type Capable interface {
	Session

	// Capabilities always returns the same.
	Capabilities() Capabilities
}

// CapabilitiesOf returns what a session can do beside its steps: what it says itself, if it is
// [Capable], and else by which of the interfaces it implements.
func CapabilitiesOf(s Session) Capabilities {
	if c, ok := s.(Capable); ok {
		return c.Capabilities()
	}
	var c Capabilities
	c.Notifier, _ = s.(Notifier)
	c.BatchRenewer, _ = s.(BatchRenewer)
	c.Batcher, _ = s.(Batcher)
	c.Inspector, _ = s.(Inspector)
	c.Lister, _ = s.(Lister)
	c.Liner, _ = s.(Liner)
	c.Latcher, _ = s.(Latcher)
	if l, ok := s.(Leavable); ok {
		c.Steps, c.Settle = StepsReturn, l.Settle
	}
	if _, ok := s.(Prompt); ok {
		c.Steps = StepsNeverWait
	}
	return c
}

// Open opens a session of a store, and returns it with what it can do.
func Open(b Backend) (Session, Capabilities) {
	s := b.Open()
	c := CapabilitiesOf(s)
	if e, ok := b.(Explainer); ok && c.WhyNot == nil {
		c.WhyNot = e.WhyNot
	}
	return s, c
}
