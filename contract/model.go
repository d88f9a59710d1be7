package contract

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/seed951563bd/distsync/backend"
)

const modelRule = "every sequence of steps gets the answers that the tables in package backend's " +
	"comment give"

// runModel runs random sequences of steps on the store and compares each answer with a model of the
// lock. If an answer is wrong, rapid shrinks the sequence, and the short version is printed with
// its answers.
func runModel(t *testing.T, h Harness) {
	if !h.chooses(testCase{tags: Essential | Exclusion}) {
		return
	}
	if h.Virtual {
		rapid.Check(t, func(rt *rapid.T) {
			steps := drawSteps(rt, virtualTimes)
			// rapid must run outside the bubble, because it reads the clock and ends a run with a
			// panic.
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
	// In real time, all sequences together are limited to a few seconds. After a failure there is
	// no limit: rapid then looks for a shorter sequence that fails, and needs the true result of
	// each one.
	runCase(t, h, testCase{rule: modelRule, run: func(e *env) {
		times := modelTimes{
			leases: []time.Duration{e.shortLease(), e.longLease(), 2 * e.longLease()},
			pauses: []time.Duration{
				e.shortLease() / 4, e.shortLease() * 3 / 4, e.shortLease() * 5 / 4,
			},
			waits:  []time.Duration{0, time.Hour},
			places: []time.Duration{e.shortLease(), e.longLease()},
		}
		start, failed, runs := time.Now(), false, 0
		enough := func() bool { return !failed && time.Since(start) > 4*time.Second }
		rapid.Check(e.T, func(rt *rapid.T) {
			steps := drawSteps(rt, times)
			if enough() {
				return
			}
			runs++ // the sequences share a store, so each uses its own names
			if err := newModelRun(e, fmt.Sprintf("run%d:", runs)).run(steps, enough); err != nil {
				failed = true
				rt.Fatalf("%v\nrule: %s", err, modelRule)
			}
		})
	}}, nil)
}

// modelTimes lists the durations that can occur in the steps of a sequence.
type modelTimes struct {
	leases, pauses []time.Duration
	waits          []time.Duration // how long an owner has waited already
	places         []time.Duration // lifetimes of places in line and of writers' notes
}

// virtualTimes holds the durations for sequences in virtual time. The leases end at different
// times. Some pauses end shortly before the end of a lease, and some shortly after it.
var virtualTimes = modelTimes{
	leases: []time.Duration{10 * time.Second, 30 * time.Second, 100 * time.Second},
	pauses: []time.Duration{
		time.Millisecond, time.Second, 9990 * time.Millisecond, 10 * time.Second,
		10010 * time.Millisecond,
		20 * time.Second, 31 * time.Second, 69 * time.Second, 101 * time.Second,
	},
	waits:  []time.Duration{0, 500 * time.Millisecond, 5 * time.Second, time.Minute},
	places: []time.Duration{2 * time.Second, 10 * time.Second, 30 * time.Second},
}

// A modelStep is one step of a sequence: either a step of a session, or a period of waiting.
type modelStep struct {
	op            modelOp
	kind          backend.Kind
	owner         string
	name          string
	lease         time.Duration
	keep, pause   time.Duration
	waited, place time.Duration
	limit         int      // number of permits that there are
	owners        []string // owners whose places are kept
}

type modelOp int

const (
	opAcquire modelOp = iota
	opReenter
	opRelease
	opRenew
	opLook
	opForce
	opKeep
	opPause // some time passes
	opAwait // waits until all leases of a name have expired
)

func (s modelStep) String() string {
	switch s.op {
	case opAcquire:
		if s.kind == backend.Permits {
			return fmt.Sprintf("%s: Acquire(%d of %d permits %s, %v)", s.owner, s.permits(),
				s.limit, s.name, s.lease)
		}
		return fmt.Sprintf("%s: Acquire(%v %s, %v, waited %v, place %v)", s.owner, s.kind, s.name,
			s.lease, s.waited, s.place)
	case opReenter:
		return fmt.Sprintf("%s: Acquire(%v %s, %v, re-entry)", s.owner, s.kind, s.name, s.lease)
	case opRelease:
		return fmt.Sprintf("%s: Release(%v %s, %v, keep %v)", s.owner, s.kind, s.name, s.lease,
			s.keep)
	case opRenew:
		return fmt.Sprintf("%s: Renew(%v %s, %v)", s.owner, s.kind, s.name, s.lease)
	case opLook:
		if s.kind == backend.Permits {
			return fmt.Sprintf("%s: Look(%d permits %s)", s.owner, s.limit, s.name)
		}
		return fmt.Sprintf("%s: Look(%v %s)", s.owner, s.kind, s.name)
	case opForce:
		return fmt.Sprintf("%s: ForceRelease(%v %s)", s.owner, s.kind, s.name)
	case opKeep:
		return fmt.Sprintf("%s: KeepPlaces(%s, %v)", strings.Join(s.owners, ", "), s.name, s.place)
	case opPause:
		return fmt.Sprintf("%v pass", s.pause)
	default:
		return fmt.Sprintf("wait until all leases of %s are over", s.name)
	}
}

// GoString makes rapid's listing of the sequence readable.
func (s modelStep) GoString() string { return s.String() }

// drawSteps draws a sequence. The simplest values come first in each list, because rapid shrinks
// towards the first values.
func drawSteps(rt *rapid.T, times modelTimes) []modelStep {
	ops := []modelOp{
		opAcquire, opAcquire, opAcquire, opReenter, opReenter, opRelease, opRelease, opRelease,
		opRelease,
		opRenew, opRenew, opLook, opLook, opForce, opPause, opPause, opAwait,
	}
	// Each name is mostly used for one kind of lock: plain, read-write, Fair, or a semaphore.
	kinds := map[string][]backend.Kind{
		"lock": {
			backend.Exclusive, backend.Exclusive, backend.Exclusive, backend.Exclusive,
			backend.Exclusive, backend.Exclusive, backend.Read, backend.Write,
		},
		"other": {
			backend.Read, backend.Write, backend.Read, backend.Write, backend.Read, backend.Write,
			backend.Read, backend.Write, backend.Exclusive,
		},
		"line": {
			backend.Fair, backend.Fair, backend.Fair, backend.Fair, backend.Fair, backend.Fair,
			backend.Exclusive,
		},
		"sem": {
			backend.Permits, backend.Permits, backend.Permits, backend.Permits, backend.Permits,
			backend.Permits, backend.Exclusive, backend.Read,
		},
	}
	names := rapid.SampledFrom([][]string{{"lock", "other"}, {"line", "sem"}}).Draw(rt, "names")
	step := rapid.Custom(func(rt *rapid.T) modelStep {
		s := modelStep{
			op:     rapid.SampledFrom(ops).Draw(rt, "step"),
			owner:  rapid.SampledFrom(modelOwners[:]).Draw(rt, "owner"),
			name:   rapid.SampledFrom(names).Draw(rt, "name"),
			lease:  rapid.SampledFrom(times.leases).Draw(rt, "lease"),
			pause:  rapid.SampledFrom(times.pauses).Draw(rt, "pause"),
			waited: rapid.SampledFrom(times.waits).Draw(rt, "waited"),
			place:  rapid.SampledFrom(times.places).Draw(rt, "place"),
			limit:  rapid.SampledFrom([]int{3, 4, 0, 6, 2}).Draw(rt, "limit"),
		}
		s.kind = rapid.SampledFrom(kinds[s.name]).Draw(rt, "kind")
		if s.kind == backend.Exclusive {
			s.kind = s.alone()
		}
		if s.kind == backend.Fair {
			s.drawFair(rt)
		}
		if s.op == opRelease && rapid.SampledFrom([]int{0, 0, 1}).Draw(rt, "keeps") == 1 {
			s.keep = s.lease
		}
		return s
	})
	// rapid's slices have about six elements, so concatenate several to get long sequences.
	return slices.Concat(rapid.SliceOfN(rapid.SliceOfN(step, 1, 20), 1, 20).Draw(rt, "steps")...)
}

// alone returns the kind of exclusive lock that a step's owner uses: Exclusive for the first owner,
// and Fenced for the rest. No owner uses both kinds.
func (s modelStep) alone() backend.Kind {
	if s.owner == modelOwners[0] {
		return backend.Exclusive
	}
	return backend.Fenced
}

// drawFair turns a step into one about a Fair lock.
func (s *modelStep) drawFair(rt *rapid.T) {
	switch rapid.SampledFrom([]int{0, 0, 0, 1, 1, 2}).Draw(rt, "variant") {
	case 1: // doesn't ask for a place
		s.place = 0
	case 2:
		s.op = opKeep
		s.owners = rapid.SampledFrom(
			[][]string{{"a"}, {"b"}, {"c"}, {"a", "b"}, {"c", "a"}, {"b", "c"}, {"c", "b", "a"}}).
			Draw(rt, "owners")
	}
}

// permits returns the number of permits that a step's owner asks for, which is fixed for each
// owner.
func (s modelStep) permits() int { return 1 + slices.Index(modelOwners[:], s.owner) }

// modelRun runs one sequence on a store.
type modelRun struct {
	e        *env
	prefix   string // prefix of the names in the store
	sessions map[string]backend.Session

	// objects holds the possible states of each name, given the answers so far. There is more than
	// one state only if a lease ended close to a step.
	objects map[string][]object
	tokens  map[string]uint64 // the largest token of each name
	trace   strings.Builder
}

func newModelRun(e *env, prefix string) *modelRun {
	first, second := e.store.Backend().Open(), e.store.Backend().Open()
	r := &modelRun{
		e:        e,
		prefix:   prefix,
		sessions: map[string]backend.Session{"a": first, "b": second, "c": first},
		objects:  make(map[string][]object),
		tokens:   make(map[string]uint64),
	}
	for _, name := range []string{"lock", "other", "line", "sem"} {
		r.objects[name] = []object{{}}
	}
	return r
}

// run takes the steps in order. It calls enough before each step, and stops when enough returns
// true. If an answer is wrong, the error lists the steps and answers up to that one.
func (r *modelRun) run(steps []modelStep, enough func() bool) error {
	defer r.sessions["a"].Close()
	defer r.sessions["b"].Close()
	for _, s := range steps {
		if enough() {
			return nil
		}
		s.lease = r.e.legal(s.lease)
		if s.place > 0 {
			s.place = r.e.legal(s.place)
		}
		if !r.e.limits().Keeps {
			s.keep = 0
		} else if s.keep > 0 {
			s.keep = s.lease
		}
		if kinds := r.e.limits().Kinds; !kinds.Has(s.kind) {
			if s.kind = s.alone(); !kinds.Has(s.kind) {
				s.kind = backend.Exclusive
			}
			if s.op == opKeep {
				s.op = opLook
			}
		}
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
			return fmt.Errorf("a store gave a wrong answer to the last of these steps:\n%s%w",
				&r.trace, err)
		}
	}
	return nil
}

// step carries out a step in both the store and the model, and compares the answers.
func (r *modelRun) step(s modelStep) error {
	slack := 2 * time.Millisecond
	if !r.e.h.Virtual {
		// a server may read its clock some time before it carries the step out
		slack = 10 * time.Millisecond
	}
	t := moment{before: time.Now(), slack: max(slack, r.e.leaseStep())}
	got, err := r.do(s)
	t.after = time.Now()
	if err != nil {
		fmt.Fprintf(&r.trace, "  %v\n", s)
		return err
	}
	fmt.Fprintf(&r.trace, "  %-60v %s\n", s, got.text)

	var next []object
	var wants []string
	for _, o := range r.objects[s.name] {
		// In virtual time the model also checks that leases don't end too late. In real time only
		// opAwait checks that leases end at all.
		for _, now := range o.passing(t, r.e.h.Virtual) {
			for _, want := range now.apply(s, t) {
				complaint := want.compare(got, r.tokens[s.name])
				if complaint != "" {
					wants = append(wants, complaint)
					continue
				}
				if want.numbered {
					want.next.alone.token = got.token
				}
				if !slices.Contains(next, want.next) {
					next = append(next, want.next)
				}
			}
		}
	}
	if len(next) == 0 {
		slices.Sort(wants)
		return fmt.Errorf("want: %s", strings.Join(slices.Compact(wants), "; or: "))
	}
	r.objects[s.name] = next
	r.tokens[s.name] = max(r.tokens[s.name], got.token)
	return nil
}

// await waits until all leases of a name have expired, and checks that the lock is free in the
// store.
func (r *modelRun) await(s modelStep) error {
	var last time.Time
	for _, o := range r.objects[s.name] {
		if o.line != (line{}) {
			// the store would grant the lock to an owner in line, so it wouldn't become free
			return nil
		}
		if end := o.latest(); end.After(last) {
			last = end
		}
	}
	rest := time.Until(last)
	if limit := 2 * r.e.lease(); rest > limit && !r.e.h.Virtual {
		return nil // the wait would take too long
	}
	fmt.Fprintf(&r.trace, "  %v\n", s)
	r.e.sleep(rest)
	kinds := []backend.Kind{backend.Exclusive, backend.Read, backend.Write}
	if slices.ContainsFunc(r.objects[s.name], func(o object) bool { return o.told != 0 }) {
		// the store may remember the limit, and then the name can't be used for other locks
		kinds = []backend.Kind{backend.Permits}
	}
	for _, k := range kinds {
		if err := r.awaitFree(modelStep{
			op: opLook, kind: k, name: s.name, owner: s.owner, limit: 9,
		}); err != nil {
			return err
		}
	}
	var next []object
	for _, o := range r.objects[s.name] {
		if rest := (object{notes: o.notes, told: o.told}); !slices.Contains(next, rest) {
			next = append(next, rest)
		}
	}
	r.objects[s.name] = next
	return nil
}

func (r *modelRun) awaitFree(look modelStep) error {
	if !r.e.limits().Kinds.Has(look.kind) {
		return nil
	}
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		got, err := r.do(look)
		if err != nil || got.text == "free" || got.text == permitsSeen(false, 0, look.limit) {
			return err
		}
		if time.Since(start) > 30*time.Second {
			return fmt.Errorf("30 s later, asked for a %v lock: %s; want: free", look.kind,
				got.text)
		}
	}
}

// answer is a store's answer to a step.
type answer struct {
	text      string
	remaining time.Duration
	token     uint64
}

// do carries out a step in the store, and returns a description of the store's answer.
func (r *modelRun) do(s modelStep) (got answer, err error) {
	got, err = r.ask(s)
	for text, refused := range map[string]error{
		otherKind: backend.ErrConflict,
		noLimit:   backend.ErrNoLimit,
		tooMany:   backend.ErrTooMany,
	} {
		if errors.Is(err, refused) && backend.KindOf(err) == backend.Refused {
			return answer{text: text}, nil
		}
	}
	return got, err
}

func (r *modelRun) ask(s modelStep) (got answer, err error) {
	ctx, session, name, owner := r.e.ctx, r.sessions[s.owner], r.prefix+s.name, s.id()
	permits, limit := 0, 0
	if s.kind == backend.Permits {
		permits, limit = s.permits(), s.limit
	}
	switch s.op {
	case opAcquire, opReenter:
		req := backend.AcquireRequest{
			Kind: s.kind, Name: name, Owner: owner, Lease: s.lease, Waited: s.waited,
			Place: s.place, Permits: permits, Limit: limit,
		}
		if s.op == opReenter {
			req.Reentry, req.Waited, req.Place = true, 0, 0
		}
		if s.kind == backend.Fair {
			// for Fair locks Waited has a different meaning, and not all stores use it
			req.Waited = 0
		}
		res, err := session.Acquire(ctx, req)
		switch {
		case !res.Acquired:
			return answer{text: heldByOther, remaining: res.Remaining}, err
		case s.op == opReenter:
			return answer{text: fmt.Sprintf("acquired, count %d", res.Count), token: res.Token}, err
		}
		return answer{text: "acquired", token: res.Token}, err
	case opRelease:
		res, err := session.Release(ctx, backend.ReleaseRequest{
			Kind: s.kind, Name: name, Owner: owner, Lease: s.lease, Permits: permits, Keep: s.keep,
		})
		return answer{text: res.Outcome.String()}, err
	case opRenew:
		res, err := session.Renew(ctx, backend.RenewRequest{
			Kind: s.kind, Name: name, Owner: owner, Lease: s.lease, Permits: permits,
		})
		if !res.Held {
			return answer{text: "not held"}, err
		}
		return answer{text: "held"}, err
	case opForce:
		res, err := session.ForceRelease(ctx, backend.ForceReleaseRequest{Kind: s.kind, Name: name})
		if !res.Released {
			return answer{text: "was free"}, err
		}
		return answer{text: "released"}, err
	case opKeep:
		req := backend.PlacesRequest{Kind: s.kind, Name: name, Place: s.place}
		for _, s.owner = range s.owners {
			req.Owners = append(req.Owners, s.id())
		}
		res, err := backend.CapabilitiesOf(session).Liner.KeepPlaces(ctx, req)
		return answer{text: "holder " + res.Holder, remaining: res.Remaining}, err
	default: // opLook
		res, err := session.Look(ctx, backend.LookRequest{
			Kind: s.kind, Name: name, Owner: owner, Permits: permits, Limit: limit,
		})
		switch {
		case s.kind == backend.Permits:
			return answer{text: permitsSeen(res.Held, res.Count, res.Available),
				remaining: res.Remaining}, err
		case res == backend.LookResult{}:
			return answer{text: "free"}, err
		case !res.Held:
			return answer{text: fmt.Sprintf("%+v", res)}, err
		}
		return answer{text: lockSeen(res.Count, res.Kept), remaining: res.Remaining}, err
	}
}
