package faults_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/depth"
	"github.com/seed951563bd/distsync/internal/test/history"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// roomFor is the number of permits of the guests' semaphore.
const roomFor = 10

// guestsIn returns how many guests a process has. All of them keep the store busy all the time, so
// the quickest runs have fewer: on two busy processors, 64 take minutes.
func guestsIn() int { return depth.Of(4, inACrowd, inACrowd) }

// guests lets users of several processes contend for a fair lock, or for permits, of which some
// users want several. Some users give up, and two of the processes are killed. The users never have
// more than the lock or all permits. No user gets the lock before an earlier one that still stands
// in line, and all waiters get it at last. Afterwards the lock or all permits are free again.
func guests(l *lab) {
	dir := l.TempDir()
	random := seed(l.T)
	var all []*process
	for i := range crowds {
		s := *l.store
		s.name = fmt.Sprintf("%s%s %d %d %s", guestsPrefix, diary(dir, i), i, random.Uint64(),
			s.name)
		all = append(all,
			(&lab{T: l.T, store: &s, lock: l.lock, kinds: l.kinds}).process(l.server.Addr))
	}
	visit := func(all []*process) {
		for range turns { // one after the other, since each may be slow on a busy machine
			for _, p := range all {
				p.order("visit", "")
			}
			for i, p := range all {
				if got := p.says("it"); got != "everybody" {
					l.Fatalf("process %d of those that are left: %s", i+1, got)
				}
			}
		}
	}
	visit(all)
	for _, p := range all[:killed] {
		p.kill()
	}
	gone := time.Now()
	visit(all[killed:])
	l.Logf("everybody has been inside %v after two processes were killed",
		time.Since(gone).Round(time.Millisecond))
	for i, p := range all[killed:] {
		must(l.T, p.stdin.Close())
		if got := p.says("it"); got != "over" {
			l.Errorf("process %d: %s", killed+i+1, got)
		}
		<-p.exited
	}
	l.judge(dir, crowds)
	b := l.direct()
	if b.kind == backend.Fair {
		l.isFree(b)
		return
	}
	testservers.Until(l.T, "every permit has come back", func() bool {
		n, err := b.client.Semaphore(b.name, roomFor).Available(l.Context())
		must(l.T, err)
		return n == roomFor
	})
	// All permits can be acquired at once. That also removes the expired permits of the killed
	// processes.
	must(l.T, b.client.Semaphore(b.name, roomFor).Do(l.Context(), roomFor, b.turn))
}

// diary returns the file for the record of a process.
func diary(dir string, process int) string { return filepath.Join(dir, strconv.Itoa(process)) }

// judge checks the records of all processes.
func (l *lab) judge(dir string, processes int) {
	l.Helper()
	var diaries []io.Reader
	for i := range processes {
		f, err := os.Open(diary(dir, i))
		must(l.T, err)
		defer f.Close()
		diaries = append(diaries, bufio.NewReader(f))
	}
	r, err := history.Gather(diaries...)
	must(l.T, err)
	if err := r.CheckTimes(history.Rules{}); err != nil {
		l.Error(err)
	}
	l.Logf("%d calls", r.Count())
}

// guestsPrefix in a child's order makes it call runGuests.
const guestsPrefix = "guests "

// runGuests runs a process whose users acquire and release until its input ends. After each line of
// input, it reports when all users have had the lock once more.
func runGuests(order string) error {
	var path, storeName, addr, lock string
	var number int
	var random uint64
	var lease time.Duration
	var kind backend.Kind
	if _, err := fmt.Sscan(order, &path, &number, &random, &storeName, &addr, &lease, &lock,
		&kind); err != nil {
		return err
	}
	r, c, closeAll, err := telling(path, storeName, addr, lease)
	if err != nil {
		return err
	}
	defer closeAll()
	ctx, stop := context.WithCancel(context.Background())
	all := make([]*guest, guestsIn())
	var goroutines sync.WaitGroup
	for i := range all {
		user := number*inACrowd + i
		g := &guest{
			dice: rand.New(rand.NewPCG(random, uint64(i))),
			party: &history.Party{
				User: user, Client: number, Lease: lease, Kind: kind, Recorder: r,
			},
			borrower: &history.Borrower{
				User: user, Client: number, Lease: lease, Recorder: r, Limit: roomFor,
			},
		}
		if kind == backend.Permits {
			g.borrower.Semaphore = c.Semaphore(lock, roomFor)
		} else {
			g.party.Locker = c.FairLocker(lock)
		}
		all[i] = g
		goroutines.Go(func() {
			for ctx.Err() == nil {
				g.visit(ctx)
			}
		})
	}
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		for _, g := range all {
			for before := g.visits.Load(); g.visits.Load() == before; {
				time.Sleep(time.Millisecond)
			}
		}
		fmt.Println("it everybody")
	}
	stop()
	goroutines.Wait()
	fmt.Println("it over")
	return nil
}

// telling returns a client, and a recorder that writes the calls of the process into its diary.
func telling(path, storeName, addr string, lease time.Duration) (
	r *history.Recorder, c *dlock.Client, closeAll func(), err error,
) {
	f, err := os.Create(path)
	if err != nil {
		return nil, nil, nil, err
	}
	b, closeClient, err := storeNamed(storeName).connect(addr)
	if err != nil {
		f.Close()
		return nil, nil, nil, err
	}
	r = history.NewTelling(f)
	c = dlock.New(r.Watch(b), dlock.WithLease(lease), dlock.WithLogger(quiet()))
	return r, c, func() {
		c.Close()
		closeClient()
		f.Close()
	}, nil
}

// A guest is one user of a fair lock, or of a semaphore.
type guest struct {
	dice     *rand.Rand
	party    *history.Party
	borrower *history.Borrower
	visits   atomic.Int64
}

// visit acquires and releases once, unless the guest gives up before.
func (g *guest) visit(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	impatience := time.Hour
	if g.dice.IntN(4) == 0 {
		impatience = time.Duration(g.dice.Int64N(int64(50 * time.Millisecond)))
	}
	timer := time.AfterFunc(impatience, cancel)
	inside := func(check func()) {
		if timer.Stop() {
			check()
			time.Sleep(time.Duration(g.dice.Int64N(int64(2 * time.Millisecond)))) // holding it
			check()
			g.visits.Add(1)
		}
	}
	if g.borrower.Semaphore != nil {
		n := 1
		if g.dice.IntN(3) == 0 {
			n += g.dice.IntN(roomFor / 2)
		}
		g.borrower.Do(ctx, n, history.Ask{}, func(l *history.Loan) { inside(func() { l.Check() }) })
	} else {
		g.party.Do(ctx, history.Ask{}, func(ctx context.Context) {
			inside(func() { g.party.Check(ctx) })
		})
	}
	time.Sleep(time.Duration(g.dice.Int64N(int64(10 * time.Millisecond)))) // without the lock
}

// lined waits until n calls stand in line.
func (l *lab) lined(n int) {
	l.Helper()
	testservers.Until(l.T, "all stand in line", func() bool {
		return l.store.waiting(l.T, l.server.Addr, l.lock) == n
	})
}

// Many waiters are killed with their process. They stood in line before another waiter. However
// many they were, they delay it only until their places expire.
func deadPlaces(l *lab) {
	const many = 64
	a, p, b := l.direct(dlock.WithLease(long)), l.process(l.server.Addr),
		l.proxied(dlock.WithLease(long))
	g := a.grab()
	for i := range many {
		p.order("lock", strconv.Itoa(i))
	}
	l.lined(many)
	w := b.queue()
	p.kill()
	g.let()
	begin := time.Now()
	w.in()
	l.Logf("%d dead places have cost %v", many, time.Since(begin).Round(time.Millisecond))
	w.let()
}
