package contract

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/seed951563bd/distsync/backend"
)

const modelRule = "every sequence of steps gets the answers that the table in package backend's comment gives"

// runModel runs random sequences of steps on the store and compares each answer with a model of the
// lock. A sequence that goes wrong is shrunk to a short one, and printed with its answers.
func runModel(t *testing.T, h Harness) {
	if h.Virtual {
		rapid.Check(t, func(rt *rapid.T) {
			steps := drawSteps(rt, virtualLeases, virtualPauses)
			// rapid must stay outside the bubble: it reads the clock and unwinds by panics.
			var err error
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t, h, modelRule)
				err = newModelRun(e, "").run(steps, func() bool { return false })
			})
			if err != nil {
				rt.Fatalf("%v\nrule: %s", err, modelRule)
			}
		})
		return
	}
	// Real time is dear: sequences are run for a few seconds. But once one has failed rapid looks for
	// a shorter one that fails as well, and has to be told the truth about each.
	runCase(t, h, testCase{rule: modelRule, run: func(e *env) {
		leases := []time.Duration{e.shortLease(), e.longLease(), 2 * e.longLease()}
		pauses := []time.Duration{e.shortLease() / 4, e.shortLease() * 3 / 4, e.shortLease() * 5 / 4}
		start, failed, runs := time.Now(), false, 0
		enough := func() bool { return !failed && time.Since(start) > 4*time.Second }
		rapid.Check(e.T, func(rt *rapid.T) {
			steps := drawSteps(rt, leases, pauses)
			if enough() {
				return
			}
			runs++ // the sequences share a store, so each has names of its own
			if err := newModelRun(e, fmt.Sprintf("run%d:", runs)).run(steps, enough); err != nil {
				failed = true
				rt.Fatalf("%v\nrule: %s", err, modelRule)
			}
		})
	}})
}

// In virtual time leases end one after the other, and pauses end around them.
var (
	virtualLeases = []time.Duration{10 * time.Second, 30 * time.Second, 100 * time.Second}
	virtualPauses = []time.Duration{
		time.Millisecond, time.Second, 9990 * time.Millisecond, 10 * time.Second, 10010 * time.Millisecond,
		20 * time.Second, 31 * time.Second, 69 * time.Second, 101 * time.Second,
	}
)

// modelStep is one step of a sequence: a step of a session, or time that passes.
type modelStep struct {
	op    modelOp
	owner string
	name  string
	lease time.Duration
	pause time.Duration
}

type modelOp int

const (
	opAcquire modelOp = iota
	opReenter
	opRelease
	opRenew
	opLook
	opForce
	opPause // some time passes
	opAwait // time passes until the lock's lease is over
)

func (s modelStep) String() string {
	switch s.op {
	case opAcquire:
		return fmt.Sprintf("%s: Acquire(%s, %v)", s.owner, s.name, s.lease)
	case opReenter:
		return fmt.Sprintf("%s: Acquire(%s, %v, re-entry)", s.owner, s.name, s.lease)
	case opRelease:
		return fmt.Sprintf("%s: Release(%s, %v)", s.owner, s.name, s.lease)
	case opRenew:
		return fmt.Sprintf("%s: Renew(%s, %v)", s.owner, s.name, s.lease)
	case opLook:
		return fmt.Sprintf("%s: Look(%s)", s.owner, s.name)
	case opForce:
		return fmt.Sprintf("%s: ForceRelease(%s)", s.owner, s.name)
	case opPause:
		return fmt.Sprintf("%v pass", s.pause)
	default:
		return fmt.Sprintf("wait until the lease of %s is over", s.name)
	}
}

// GoString makes rapid's own listing of the sequence readable.
func (s modelStep) GoString() string { return s.String() }

// drawSteps draws a sequence. The simplest values come first, since failures shrink towards them.
func drawSteps(rt *rapid.T, leases, pauses []time.Duration) []modelStep {
	ops := []modelOp{
		opAcquire, opAcquire, opAcquire, opReenter, opReenter, opRelease, opRelease, opRelease, opRelease,
		opRenew, opRenew, opLook, opLook, opForce, opPause, opPause, opAwait,
	}
	step := rapid.Custom(func(rt *rapid.T) modelStep {
		return modelStep{
			op:    rapid.SampledFrom(ops).Draw(rt, "step"),
			owner: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "owner"),
			name:  rapid.SampledFrom([]string{"lock", "other"}).Draw(rt, "name"),
			lease: rapid.SampledFrom(leases).Draw(rt, "lease"),
			pause: rapid.SampledFrom(pauses).Draw(rt, "pause"),
		}
	})
	// rapid's slices have about six elements; a slice of slices makes sequences long enough.
	return slices.Concat(rapid.SliceOfN(rapid.SliceOfN(step, 1, 20), 1, 20).Draw(rt, "steps")...)
}

// hold is the model of one lock.
type hold struct {
	owner string // empty if it is free
	count int

	// The lease ends between these, since it is not known when exactly the store carried out the
	// step that set it.
	earliest, latest time.Time
}

// expired returns whether the lease may be over, and whether it must be, for a step that was carried
// out between two moments. slack is how much the store's clock may be off, or coarse.
func (h hold) expired(before, after time.Time, slack time.Duration) (may, must bool) {
	if h.owner == "" {
		return false, false
	}
	return !after.Before(h.earliest.Add(-slack)), before.After(h.latest.Add(slack))
}

// apply returns what the lock answers to a step, as modelRun.do words it, and what it is afterwards.
func (h hold) apply(s modelStep, before, after time.Time) (answer string, next hold) {
	mine, free := h.owner == s.owner, h.owner == ""
	next = h
	prolonged := func() {
		next.earliest, next.latest = before.Add(s.lease), after.Add(s.lease)
	}
	switch s.op {
	case opAcquire, opReenter:
		if !free && !mine {
			return "refused", h
		}
		next.owner = s.owner
		next.count++
		prolonged()
		if s.op == opReenter {
			return fmt.Sprintf("acquired, count %d", next.count), next
		}
		return "acquired", next
	case opRelease:
		switch {
		case !mine:
			return backend.NotHeld.String(), h
		case h.count == 1:
			return backend.Freed.String(), hold{}
		}
		next.count--
		prolonged()
		return backend.Left.String(), next
	case opRenew:
		if !mine {
			return "not held", h
		}
		prolonged()
		return "held", next
	case opForce:
		if free {
			return "was free", h
		}
		return "released", hold{}
	default: // opLook
		if free {
			return "free", h
		}
		if mine {
			return fmt.Sprintf("held, count %d", h.count), h
		}
		return "held, count 0", h
	}
}

// modelRun is one sequence on a store.
type modelRun struct {
	e        *env
	prefix   string // of the names in the store
	sessions map[string]backend.Session

	// locks holds what each lock may be, given the answers so far. That is more than one thing only
	// where a lease ended at about the time of a step.
	locks map[string][]hold
	trace strings.Builder
}

func newModelRun(e *env, prefix string) *modelRun {
	first, second := e.store.Backend().Open(), e.store.Backend().Open()
	return &modelRun{
		e:        e,
		prefix:   prefix,
		sessions: map[string]backend.Session{"a": first, "b": second, "c": first},
		locks:    map[string][]hold{"lock": {{}}, "other": {{}}},
	}
}

// run runs the sequence, or as much of it as there is time for, and returns an error that tells it up
// to the answer that was wrong.
func (r *modelRun) run(steps []modelStep, enough func() bool) error {
	defer r.sessions["a"].Close()
	defer r.sessions["b"].Close()
	for _, s := range steps {
		if enough() {
			return nil
		}
		s.lease = r.e.legal(s.lease)
		var err error
		switch s.op {
		case opPause:
			fmt.Fprintf(&r.trace, "  %v\n", s)
			r.e.sleep(s.pause)
		case opAwait:
			err = r.await(s)
		default:
			err = r.step(s)
		}
		if err != nil {
			return fmt.Errorf("a store gave a wrong answer to the last of these steps:\n%s%w", &r.trace, err)
		}
	}
	return nil
}

// step carries out a step in the store and in the model.
func (r *modelRun) step(s modelStep) error {
	before := time.Now()
	answer, remaining, err := r.do(s)
	after := time.Now()
	if err != nil {
		fmt.Fprintf(&r.trace, "  %v\n", s)
		return err
	}
	fmt.Fprintf(&r.trace, "  %-40v %s\n", s, answer)

	slack := max(2*time.Millisecond, r.e.leaseStep())
	var next []hold
	var wants []string
	consider := func(h hold) {
		want, after1 := h.apply(s, before, after)
		if answer == want && (answer == "refused" || strings.HasPrefix(answer, "held, ")) {
			// The answer says how long the hold lasts.
			atLeast, atMost := h.earliest.Sub(after)-slack, h.latest.Sub(before)+slack
			if unknown := answer == "refused" && remaining < 0; !unknown && (remaining < atLeast || remaining > atMost) {
				want = fmt.Sprintf("%s, Remaining %v to %v, not %v", want, atLeast, atMost, remaining)
				wants = append(wants, want)
				return
			}
		}
		wants = append(wants, want)
		if answer == want && !slices.Contains(next, after1) {
			next = append(next, after1)
		}
	}
	for _, h := range r.locks[s.name] {
		may, must := h.expired(before, after, slack)
		// How late a lease ends is only checked in virtual time: in real time there is opAwait.
		if !must || !r.e.h.Virtual {
			consider(h)
		}
		if may {
			consider(hold{})
		}
	}
	if len(next) == 0 {
		return fmt.Errorf("want: %s", strings.Join(slices.Compact(wants), "; or: "))
	}
	r.locks[s.name] = next
	return nil
}

// await waits until the lease of a lock is over, and for the store to notice it.
func (r *modelRun) await(s modelStep) error {
	var last time.Time
	for _, h := range r.locks[s.name] {
		if h.latest.After(last) {
			last = h.latest
		}
	}
	rest := time.Until(last)
	if limit := 2 * r.e.lease(); rest > limit && !r.e.h.Virtual {
		return nil // that would take too long
	}
	fmt.Fprintf(&r.trace, "  %v\n", s)
	r.e.sleep(rest)
	start := time.Now()
	for {
		answer, _, err := r.do(modelStep{op: opLook, name: s.name, owner: s.owner})
		if err != nil {
			return err
		}
		if answer == "free" {
			r.locks[s.name] = []hold{{}}
			return nil
		}
		if time.Since(start) > 30*time.Second {
			return fmt.Errorf("30 s later: %s; want: free", answer)
		}
		time.Sleep(time.Millisecond)
	}
}

// do carries out a step in the store and words the answer.
func (r *modelRun) do(s modelStep) (answer string, remaining time.Duration, err error) {
	ctx, session, name := r.e.ctx, r.sessions[s.owner], r.prefix+s.name
	switch s.op {
	case opAcquire, opReenter:
		res, err := session.Acquire(ctx, backend.AcquireRequest{Name: name, Owner: s.owner, Lease: s.lease, Reentry: s.op == opReenter})
		switch {
		case !res.Acquired:
			return "refused", res.Remaining, err
		case s.op == opReenter:
			return fmt.Sprintf("acquired, count %d", res.Count), 0, err
		}
		return "acquired", 0, err
	case opRelease:
		res, err := session.Release(ctx, backend.ReleaseRequest{Name: name, Owner: s.owner, Lease: s.lease})
		return res.Outcome.String(), 0, err
	case opRenew:
		res, err := session.Renew(ctx, backend.RenewRequest{Name: name, Owner: s.owner, Lease: s.lease})
		if !res.Held {
			return "not held", 0, err
		}
		return "held", 0, err
	case opForce:
		res, err := session.ForceRelease(ctx, backend.ForceReleaseRequest{Name: name})
		if !res.Released {
			return "was free", 0, err
		}
		return "released", 0, err
	default: // opLook
		res, err := session.Look(ctx, backend.LookRequest{Name: name, Owner: s.owner})
		switch {
		case res == backend.LookResult{}:
			return "free", 0, err
		case !res.Held:
			return fmt.Sprintf("%+v", res), 0, err
		}
		return fmt.Sprintf("held, count %d", res.Count), res.Remaining, err
	}
}
