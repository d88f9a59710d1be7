package backend

// Capabilities are the optional features of a session. A session lacks every capability whose field
// is nil or zero. The comment of each field describes what happens then.
type Capabilities struct {
	// Notifier notifies waiters that a lock has become free. Without it, waiters poll.
	Notifier Notifier

	// BatchRenewer and Batcher carry out many steps in few requests. Without them, each step is a
	// separate call. They are two capabilities because some stores can combine only renewals.
	// Renewals are often cheap to combine, and every program sends many of them.
	BatchRenewer BatchRenewer
	Batcher      Batcher

	// Inspector and Lister are for operators. An Inspector names the holders of a lock, and a
	// Lister lists the locks. Without them, operators can do neither.
	Inspector Inspector
	Lister    Lister

	// Liner is required for [Fair] locks, and Latcher for latches.
	Liner   Liner
	Latcher Latcher

	// Steps describes how steps behave when their context ends.
	Steps Steps

	// Settle, if not nil, waits for requests that are still under way after their steps have
	// returned. It is called once, after Close. The caller may stop waiting for it.
	Settle func()

	// WhyNot, if not nil, returns why the store doesn't support a kind that its [Limits] don't
	// declare. The text follows a colon in an error message, and may be empty. It is for kinds that
	// the store can't support, not for kinds that aren't implemented yet.
	WhyNot func(Kind) string
}

// Steps describes how a session's steps behave when their context ends.
type Steps uint8

// These values also determine whether a caller can stop waiting for a step.
const (
	// StepsMayHang means that steps may return long after their context has ended, or never. Each
	// step is called in a new goroutine, and the caller need not wait for it.
	StepsMayHang Steps = iota

	// StepsReturn means that steps and batches return as soon as their context ends. If a request
	// may still be under way then, the error is of kind [Unknown]. Steps are called in the caller's
	// goroutine.
	StepsReturn

	// StepsNeverWait means that steps don't wait for anything outside this process, as is the case
	// for an in-memory store. Steps are called in the caller's goroutine, which always waits for
	// them.
	StepsNeverWait
)

// Capable is a [Session] that lists its capabilities itself. A session must do so if it sets a
// field of [Capabilities] that isn't an interface, or if it wraps another session. A wrapper loses
// the capabilities that it doesn't pass on.
//
// To pass all of them on, a wrapper returns [CapabilitiesOf] of the wrapped session. Calls through
// these capabilities then bypass the wrapper. To intercept them, the wrapper must replace each
// capability that isn't nil with its own.
type Capable interface {
	Session

	// Capabilities returns the session's capabilities. It always returns the same value.
	Capabilities() Capabilities
}

// CapabilitiesOf returns the capabilities of a session. If the session is [Capable], they are what
// its Capabilities method returns. Otherwise they follow from the interfaces that it implements.
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

// Open opens a session of a store, and returns it with its capabilities.
func Open(b Backend) (Session, Capabilities) {
	s := b.Open()
	c := CapabilitiesOf(s)
	if e, ok := b.(Explainer); ok && c.WhyNot == nil {
		c.WhyNot = e.WhyNot
	}
	return s, c
}
