package contract

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/history"
)

const historyRule = "whatever clients do at once, and whatever fails, their answers are those of " +
	"one lock for each name, of whatever kind"

// historyClients lists the options of the clients whose histories are checked.
var historyClients = []struct {
	name string
	opts []dlock.Option
}{
	{"handing on", nil},
	{"asking the store", []dlock.Option{dlock.WithHandover(0)}},
}

// A scenario describes the conditions under which users make random calls on locks.
type scenario struct {
	name   string
	faulty bool          // steps fail in all possible ways
	forced bool          // some users force-release the lock, and the store loses its data
	length time.Duration // length of the run in real time
}

var scenarios = []scenario{
	{name: "calm", length: 200 * time.Millisecond},
	{name: "forced", forced: true, length: 150 * time.Millisecond},
	{name: "faults", faulty: true, length: 500 * time.Millisecond},
	{name: "forced and faults", faulty: true, forced: true, length: 300 * time.Millisecond},
}

// testCase returns the scenario as a test case, so that a harness can select it or leave it out.
func (s scenario) testCase(client string) testCase {
	tags := Essential | Exclusion
	if s.forced {
		tags |= Forced
	}
	return testCase{name: client + "/" + s.name, tags: tags}
}

func runHistories(t *testing.T, h Harness) {
	for _, c := range historyClients {
		t.Run(c.name, func(t *testing.T) {
			for _, s := range scenarios {
				if !h.chooses(s.testCase(c.name)) {
					continue
				}
				t.Run(s.name, func(t *testing.T) { runHistory(t, h, s, c.opts) })
			}
		})
	}
}

// runHistory runs users that make random calls, and checks their history. With virtual time it does
// so several times, because a run then takes little real time.
func runHistory(t *testing.T, h Harness, s scenario, opts []dlock.Option) {
	runs := 1
	if h.Virtual {
		runs = 10
	}
	seed := history.Seed(t)
	for i := range runs {
		hl := &historyLab{scenario: s, seed: seed + uint64(i), opts: opts}
		runCase(t, h, testCase{rule: historyRule, run: locker(hl.run)}, nil)
		if t.Failed() || t.Skipped() {
			return
		}
		// The history is checked after the case has ended, so that the case's watchdog doesn't
		// limit the time for the check.
		hl.recorder.Verify(t, hl.seed, hl.rules)
	}
}

// A historyLab holds what a case needs to record a history.
type historyLab struct {
	*lab
	scenario scenario
	seed     uint64
	opts     []dlock.Option

	recorder  *history.Recorder
	rules     history.Rules
	workload  history.Workload
	processes []*process
}

func (l *historyLab) run(lab *lab) {
	l.lab = lab
	l.recorder = history.New()
	lease := l.legal(l.lease() / 2)
	l.workload = history.Workload{
		Seed: l.seed, Locks: l.locks(), Users: len(l.locks()) + 1, Lease: lease, Pace: lease,
		Rounds: 20,
		Length: time.Hour, Forces: l.scenario.forced,
	}
	l.rules = history.Rules{
		Late:  max(2*time.Millisecond, l.leaseStep()),
		Blink: l.leaseStep(),
		Voted: l.store.OwnersApart,
	}
	if l.h.Virtual && !l.scenario.faulty {
		l.rules.Calm, l.rules.Renewed, l.rules.Prompt = true, true, l.promptness()
	}
	if !l.h.Virtual {
		// Late is generous here, because other cases check that leases don't end too late.
		l.rules.Late = time.Minute
		l.workload.Length, l.workload.Pace = l.scenario.length, 150*time.Millisecond
	}
	var clients []*dlock.Client
	for range 3 {
		clients = append(clients, l.client(lease))
	}
	users := l.start("the workload", func() error {
		l.workload.Run(l.ctx, l.recorder, clients)
		return nil
	})
	l.meddle(users)
	users.ok()
	l.settleDown()
}

// locks returns the locks that users contend for: a plain one, and up to two of other kinds that
// the store supports, chosen at random.
func (l *historyLab) locks() []history.Lock {
	others := []history.Lock{
		{Name: "numbered", Kind: backend.Fenced},
		{Name: "read and written", Kind: backend.Write},
		{Name: "in line", Kind: backend.Fair},
		{Name: "permits", Kind: backend.Permits, Permits: 3},
	}
	known := l.store.Backend().Limits().Kinds
	others = slices.DeleteFunc(others, func(lock history.Lock) bool {
		return !known.Has(lock.Kind) || lock.Kind == backend.Write && !known.Has(backend.Read)
	})
	rand.New(rand.NewPCG(l.seed, 1<<33)).Shuffle(len(others), func(i, j int) {
		others[i], others[j] = others[j], others[i]
	})
	if len(others) == 0 {
		return []history.Lock{{Name: "a"}, {Name: "b"}}
	}
	return append([]history.Lock{{Name: "a"}}, others[:min(2, len(others))]...)
}

// promptness returns how long a lock is allowed to stay free while a client waits for it.
func (l *historyLab) promptness() time.Duration {
	if backend.CapabilitiesOf(l.session()).Notifier != nil {
		// with hand-over, a client can wait a little before it asks the store
		return 10*time.Millisecond + 2*dlock.DefaultHandover
	}
	return 1200 * time.Millisecond // the client polls, about once a second
}

// client returns a client whose steps are recorded. They fail at random if the scenario is faulty.
func (l *historyLab) client(lease time.Duration) *dlock.Client {
	// The recorder is between the faults and the store, so it also sees answers that don't reach
	// the client.
	p := l.processOn(newFaults(l.recorder.Watch(l.store.Backend())),
		append([]dlock.Option{dlock.WithLease(lease)}, l.opts...)...)
	if l.scenario.faulty {
		dice := rand.New(rand.NewPCG(l.seed, uint64(len(l.processes))))
		p.on(which{}, randomFault(dice, p.faultyBackend, l.workload.Pace))
	}
	l.processes = append(l.processes, p)
	return p.Client
}

// randomFault returns a fault that lets most steps pass, and makes each of the others fail or hang
// in a random way.
func randomFault(r *rand.Rand, f *faultyBackend, lease time.Duration) fault {
	return func(x *transit) error {
		f.mu.Lock()
		dice, pause := r.IntN(100), time.Duration(r.Int64N(int64(lease)))
		f.mu.Unlock()
		later := func() <-chan struct{} {
			open := make(chan struct{})
			time.AfterFunc(pause, func() { close(open) })
			return open
		}
		switch {
		case dice < 4:
			return replyLost(x)
		case dice < 8:
			return requestLost(x)
		case dice < 12:
			return notSent(x)
		case dice < 16:
			return hangs(later())(x)
		case dice < 20:
			return replyHangs(later())(x)
		case dice < 24:
			return late(later())(x)
		case dice < 27:
			return hangsPolitely(x)
		default:
			return x.carryOut(x.ctx)
		}
	}
}

// meddle injects the faults that aren't tied to a single step, until the users are done.
func (l *historyLab) meddle(users *call) {
	dice := rand.New(rand.NewPCG(l.seed, 1<<32))
	for !users.over() {
		select {
		case <-users.done:
		case <-time.After(time.Duration(dice.Int64N(int64(3 * l.workload.Pace)))):
		}
		switch dice.IntN(3) {
		case 0:
			if l.scenario.forced && l.store.Wipe != nil {
				l.recorder.Wipe("the store loses its data", l.store.Wipe)
			}
		case 1:
			if l.scenario.faulty && l.store.BreakSubscriptions != nil {
				l.store.BreakSubscriptions()
			}
		default:
			p := l.processes[dice.IntN(len(l.processes))]
			p.swallow(l.scenario.faulty && dice.IntN(2) == 0)
		}
	}
}

// settleDown ends the faults and waits until every lock is free in the store. That takes a moment,
// because clients still release locks that late requests have acquired.
func (l *historyLab) settleDown() {
	for _, p := range l.processes {
		p.heal()
	}
	for _, lock := range l.workload.Locks {
		for _, kind := range lock.Kinds() {
			l.eventually(lock.Name+" is free in the store", func() bool {
				res, err := l.other.Look(l.ctx, backend.LookRequest{
					Kind: kind, Name: lock.Name, Limit: lock.Permits,
				})
				return err == nil && !res.Held
			})
		}
	}
	if n := l.recorder.Count(); n < 200 && l.h.Virtual {
		// only in virtual time, since in real time the number depends on the machine's speed
		l.Errorf("only %d calls", n)
	}
}

// heal ends all faults, and lets notifications and grants through again.
func (f *faultyBackend) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules, f.deaf = slices.Delete(f.rules, 0, len(f.rules)), false
}
