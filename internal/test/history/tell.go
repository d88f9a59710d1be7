package history

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed951563bd/distsync/backend"
)

// NewTelling returns a Recorder for one of several processes on a machine, with a clock that they
// all share. It writes each call and each step to w as a line when the call or step ends, so that
// the record of a killed process survives.
func NewTelling(w io.Writer) *Recorder {
	return &Recorder{clock: machineTime, tell: json.NewEncoder(w)}
}

// machineTime returns the time of a clock that all processes of this machine share.
func machineTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// A told is a line of the record. Exactly one of its fields is set.
type told struct {
	Op   *toldOp   `json:",omitempty"`
	Step *toldStep `json:",omitempty"`
}

// A toldOp holds the fields of an op that Gather needs.
type toldOp struct {
	ID, User, Client             int
	Kind                         kind
	Side                         backend.Kind
	Name, Text, Holder           string
	Call, Ret, Lease             time.Duration
	Result                       result
	Held, Permits, Limit, Borrow int
	Fixed, Waits, Rounds         bool
}

// A toldStep holds the fields of a step that Gather needs. Op is the id of the step's call plus 1,
// or 0 if there is none.
type toldStep struct {
	Op                      int `json:",omitempty"`
	Kind                    stepKind
	Side                    backend.Kind
	Name, Owner             string
	Lease, Place, Call, Ret time.Duration
	Reentry                 bool `json:",omitempty"`
	Permits                 int  `json:",omitempty"`
	Result                  stepResult
}

// tellOp writes the record of a call that has ended. The caller must hold r.mu.
func (r *Recorder) tellOp(o *op) {
	if r.tell != nil {
		r.tell.Encode(told{Op: &toldOp{ // if writing fails, the record lacks this call
			o.id, o.user, o.client, o.kind, o.side, o.name, o.text, o.holder, o.call, o.ret,
			o.lease, o.result, o.held, o.permits, o.limit, o.loan, o.fixed, o.waits, o.rounds,
		}})
	}
}

// tellStep writes the record of a step that has ended. The caller must hold r.mu.
func (r *Recorder) tellStep(s *step) {
	if r.tell == nil {
		return
	}
	t := &toldStep{
		Kind: s.kind, Side: s.side, Name: s.name, Owner: s.owner, Lease: s.lease, Place: s.place,
		Call: s.call, Ret: s.ret,
		Reentry: s.reentry, Permits: s.permits, Result: s.result,
	}
	if s.op != nil {
		t.Op = s.op.id + 1
	}
	r.tell.Encode(told{Step: t})
}

// Gather returns a Recorder with the records of several processes. It ignores an incomplete last
// line, which a killed process may leave.
func Gather(processes ...io.Reader) (*Recorder, error) {
	r := New()
	for _, from := range processes {
		if err := r.hear(json.NewDecoder(from)); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(r.ops, func(a, b *op) int { return cmp.Compare(a.call, b.call) })
	slices.SortFunc(r.steps, func(a, b *step) int { return cmp.Compare(a.call, b.call) })
	return r, nil
}

// hear reads the record of one process.
func (r *Recorder) hear(lines *json.Decoder) error {
	ops, of := make(map[int]*op), make(map[*step]int)
	for {
		var t told
		switch err := lines.Decode(&t); {
		case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF):
			for s, id := range of {
				s.op = ops[id-1]
			}
			return nil
		case err != nil:
			return err
		case t.Op != nil:
			o := t.Op
			ops[o.ID] = &op{
				id: o.ID, user: o.User, client: o.Client, kind: o.Kind, side: o.Side, name: o.Name,
				text: o.Text, holder: o.Holder, call: o.Call, ret: o.Ret,
				lease: o.Lease, result: o.Result, held: o.Held, permits: o.Permits, limit: o.Limit,
				loan: o.Borrow, fixed: o.Fixed, waits: o.Waits, rounds: o.Rounds,
			}
			r.ops = append(r.ops, ops[o.ID])
		case t.Step != nil:
			s := &step{
				kind: t.Step.Kind, side: t.Step.Side, name: t.Step.Name, owner: t.Step.Owner,
				lease: t.Step.Lease, place: t.Step.Place,
				call: t.Step.Call, ret: t.Step.Ret, reentry: t.Step.Reentry,
				permits: t.Step.Permits, result: t.Step.Result,
			}
			r.steps = append(r.steps, s)
			if t.Step.Op > 0 {
				of[s] = t.Step.Op
			}
		}
	}
}
