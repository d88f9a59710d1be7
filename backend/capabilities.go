package backend

// Capabilities are the optional features of a session. A nil or zero field is a capability that the
// session lacks. Each field's comment describes what happens then.
type Capabilities struct {
	// Notifier tells waiters that a lock has become free. Without it waiters poll.
	Notifier Notifier

	// BatchRenewer and Batcher carry out many steps in few requests. Without them each step is a
	// separate call. They are separate because some stores can combine only renewals. Renewals are
	// often cheap to combine, and every program has many of them.
	BatchRenewer BatchRenewer
	Batcher      Batcher

	// Inspector and Lister are for operators. An Inspector names the holders of a lock, and a
	// Lister names the locks. Without them operators can't ask for holders and locks.
	Inspector Inspector
	Lister    Lister

	// Liner is required for [Fair] locks, and Latcher for latches.
	Liner   Liner
	Latcher Latcher

	// Steps is the behaviour of a step when its context ends.
	Steps Steps

	// A step may return while its request is still under way. Settle, unless it is nil, waits until
	// no such request is left. It is called once, after Close. The caller may stop waiting for it.
	Settle func()

	// WhyNot, unless it is nil, returns why the store doesn't have a kind that its [Limits] don't
	// declare. It returns text that can follow a colon, or "". Give a reason for a kind that the
	// store can't have, not for one that isn't implemented yet.
	WhyNot func(Kind) string
}

// Steps is the behaviour of a session's steps when their context ends.
type Steps uint8

// The ways in which steps react to the end of their context. They determine whether a caller can
// stop waiting for a step.
const (
	// StepsMayHang: they may return late, or never. Each gets a goroutine, which a caller can
	// leave.
	StepsMayHang Steps = iota

	// StepsReturn: they return as soon as their context ends. If their request may still be under
	// way then, the error is of kind [Unknown]. The same is true of batches. They are called in the
	// goroutine of the caller.
	StepsReturn

	// StepsNeverWait: they don't wait for another process or for anything else. A store in the
	// memory of this process is an example. They are called in the goroutine of the caller, and the
	// caller always waits for them.
	StepsNeverWait
)

// Capable is a [Session] that lists its capabilities itself. A session needs that in two cases: if
// it sets a field of [Capabilities] that isn't an interface, and if it wraps another session. A
// wrapper loses the capabilities that it doesn't pass on.
//
// A wrapper passes all of them on if it returns [CapabilitiesOf] of the other session. Then calls
// of these capabilities bypass the wrapper. To see these calls, the wrapper replaces each
// capability that isn't nil with one of its own.
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
