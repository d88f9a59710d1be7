package backend_test

import (
	"context"
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// logged is a decorator as a user might write it. It records the steps, and passes the capabilities
// on.
type logged struct {
	backend.Backend
	acquired []string
}

func (b *logged) Open() backend.Session { return loggedSession{b.Backend.Open(), b} }

type loggedSession struct {
	backend.Session
	b *logged
}

func (s loggedSession) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	s.b.acquired = append(s.b.acquired, req.Name)
	return s.Session.Acquire(ctx, req)
}

func (s loggedSession) Capabilities() backend.Capabilities {
	return backend.CapabilitiesOf(s.Session)
}

// A session that wraps another has the capabilities that it passes on, and no others.
func TestCapabilitiesOfADecorator(t *testing.T) {
	bare, can := backend.Open(membackend.New())
	defer bare.Close()
	wrapped, also := backend.Open(&logged{Backend: membackend.New()})
	defer wrapped.Close()
	if can.Notifier == nil || can.BatchRenewer == nil || can.Steps != backend.StepsNeverWait {
		t.Fatalf("memory can't do what it can: %+v", can)
	}
	for what, both := range map[string][2]bool{
		"Notifier":     {can.Notifier != nil, also.Notifier != nil},
		"BatchRenewer": {can.BatchRenewer != nil, also.BatchRenewer != nil},
		"Batcher":      {can.Batcher != nil, also.Batcher != nil},
		"Inspector":    {can.Inspector != nil, also.Inspector != nil},
		"Lister":       {can.Lister != nil, also.Lister != nil},
		"Liner":        {can.Liner != nil, also.Liner != nil},
		"Latcher":      {can.Latcher != nil, also.Latcher != nil},
		"Steps":        {can.Steps == backend.StepsNeverWait, also.Steps == backend.StepsNeverWait},
	} {
		if both[0] != both[1] {
			t.Errorf("%s: %v, and wrapped %v", what, both[0], both[1])
		}
	}
	silent := backend.CapabilitiesOf(struct{ backend.Session }{bare})
	if silent.Notifier != nil || silent.Steps != backend.StepsMayHang {
		t.Errorf("a session that says nothing can do %+v", silent)
	}
}

// A store that was written for the first version declares its capabilities by its methods.
func TestCapabilitiesByMethods(t *testing.T) {
	settled := false
	s, can := backend.Open(older{membackend.New(), &settled})
	defer s.Close()
	if can.Notifier == nil || can.Liner != nil || can.Steps != backend.StepsReturn {
		t.Errorf("it can do %+v", can)
	}
	if can.Settle(); !settled {
		t.Error("Settle isn't called")
	}
	if can.WhyNot == nil || can.WhyNot(backend.Fair) != "no line" {
		t.Error("it doesn't say why")
	}
	if c := backend.CapabilitiesOf(prompt{s}); c.Steps != backend.StepsNeverWait {
		t.Errorf("a prompt session's steps are %v", c.Steps)
	}
}

type older struct {
	backend.Backend
	settled *bool
}

func (b older) WhyNot(backend.Kind) string { return "no line" }

func (b older) Open() backend.Session {
	s := b.Backend.Open()
	return olderSession{s, backend.CapabilitiesOf(s).Notifier, b.settled}
}

type olderSession struct {
	backend.Session
	backend.Notifier
	settled *bool
}

func (s olderSession) Settle() { *s.settled = true }

type prompt struct{ backend.Session }

func (prompt) Prompt() {}
