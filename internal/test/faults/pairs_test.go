package faults_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

const (
	crowds   = 8 // processes
	inACrowd = 8 // goroutines: one writes now and then, and the others read all the time

	// killed is the number of processes that are killed. turns is how often each of the others
	// writes after that.
	killed = 2
	turns  = 2
)

// A pair is in memory that all processes share, and is guarded by a read-write lock. A writer
// changes its two counters one after the other. Without the lock, others would see different
// counters.
type pair struct {
	first, second atomic.Uint64
	writer        atomic.Uint64 // the process that has changed only the first, from 1
	crowds        [crowds]crowd
}

// A crowd counts the reads and writes of a process.
type crowd struct {
	writes, reads atomic.Uint64
	gone          atomic.Bool // it may have ended between the two changes
}

// mapped maps a file into memory, which all processes that do so share.
func mapped[T any](path string) (_ *T, unmap func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	size := int(unsafe.Sizeof(*new(T)))
	if err := f.Truncate(int64(size)); err != nil {
		return nil, nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	return (*T)(unsafe.Pointer(&mem[0])), func() { unix.Munmap(mem) }, nil
}

// torn returns a description of a wrong state of the pair. It returns "" if there is none, or if a
// dead writer explains it.
func (p *pair) torn() string {
	switch w, first, second := p.writer.Load(), p.first.Load(), p.second.Load(); {
	case w != 0 && p.crowds[w-1].gone.Load():
		return ""
	case w != 0:
		return fmt.Sprintf("process %d is writing", w)
	case first != second:
		return fmt.Sprintf("the pair is torn: %d, %d", first, second)
	default:
		return ""
	}
}

// pairs lets readers and writers of several processes contend. Some give up, and two of the
// processes are killed. A writer always has the lock alone, no increment is lost, and a steady
// stream of readers doesn't keep writers out.
func pairs(l *lab) {
	path := filepath.Join(l.TempDir(), "pair")
	p, unmap, err := mapped[pair](path)
	must(l.T, err)
	defer unmap()
	random := seed(l.T)
	var all []*process
	for i := range crowds {
		s := *l.store
		s.name = fmt.Sprintf("%s%s %d %d %s", pairsPrefix, path, i, random.Uint64(), s.name)
		all = append(all, (&lab{T: l.T, store: &s, lock: l.lock}).process(l.server.Addr))
	}
	write := func(crowds []crowd, times uint64) {
		before := make([]uint64, len(crowds))
		for i := range crowds {
			before[i] = crowds[i].writes.Load()
		}
		testservers.Until(l.T, "everybody writes", func() bool {
			for i, child := range all {
				select {
				case got := <-child.of("it"):
					l.Fatalf("process %d: %s", i+1, got)
				default:
				}
			}
			for i := range crowds {
				if crowds[i].writes.Load() < before[i]+times && !crowds[i].gone.Load() {
					return false
				}
			}
			return true
		})
	}
	write(p.crowds[:], 1)
	for i := range killed {
		p.crowds[i].gone.Store(true)
		all[i].kill()
	}
	write(p.crowds[killed:], turns)
	var reads, writes, gone uint64
	for i, child := range all[killed:] {
		must(l.T, child.stdin.Close())
		if got := child.says("it"); got != "<nil>" {
			l.Errorf("process %d: %s", killed+i+1, got)
		}
		<-child.exited
	}
	for i := range p.crowds {
		reads, writes = reads+p.crowds[i].reads.Load(), writes+p.crowds[i].writes.Load()
		if p.crowds[i].gone.Load() {
			gone++
		}
	}
	if first := p.first.Load(); first < writes || first > writes+gone {
		l.Errorf("the pair is at %d after %d increments", first, writes)
	}
	l.Logf("%d reads, %d writes", reads, writes)
}

// pairsPrefix in a child's order makes it call runPairs.
const pairsPrefix = "pairs "

// runPairs runs a process that uses a pair until its input ends, and then reports the first error.
func runPairs(order string) error {
	var path, storeName, addr, lock string
	var number, kind int
	var random uint64
	var lease time.Duration
	if _, err := fmt.Sscan(order, &path, &number, &random, &storeName, &addr, &lease, &lock,
		&kind); err != nil {
		return err
	}
	shared, unmap, err := mapped[pair](path)
	if err != nil {
		return err
	}
	defer unmap()
	b, closeClient, err := storeNamed(storeName).connect(addr)
	if err != nil {
		return err
	}
	defer closeClient()
	c := dlock.New(b, dlock.WithLease(lease),
		dlock.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	defer c.Close()
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	var wrong error
	var once sync.Once
	var goroutines sync.WaitGroup
	for i := range inACrowd {
		u := &pairUser{
			pair: shared, number: number, lock: c.RWLocker(lock),
			dice: rand.New(rand.NewPCG(random, uint64(i))),
		}
		use, locker, pause := u.read, u.lock.Reader(), 2*time.Millisecond
		if i == 0 {
			use, locker, pause = u.write, u.lock.Writer(), 20*time.Millisecond
		}
		goroutines.Go(func() {
			for ctx.Err() == nil {
				if err := u.visit(ctx, locker, use); err != nil {
					once.Do(func() { wrong = err })
					stop()
				}
				time.Sleep(time.Duration(u.dice.Int64N(int64(pause)))) // without the lock
			}
		})
	}
	goroutines.Wait()
	fmt.Println("it", wrong)
	return nil
}

type pairUser struct {
	*pair
	number int
	lock   *dlock.RWLocker
	dice   *rand.Rand
}

// visit uses the pair once, unless the user gives up before.
func (u *pairUser) visit(
	ctx context.Context, l *dlock.Locker, use func(context.Context) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	impatience := time.Hour
	if u.dice.IntN(4) == 0 {
		impatience = time.Duration(u.dice.Int64N(int64(20 * time.Millisecond)))
	}
	timer := time.AfterFunc(impatience, cancel)
	var wrong error
	err := l.Do(ctx, func(inside context.Context) error {
		if timer.Stop() {
			// From here on, the context ends only by a loss, or at the end of the test.
			wrong = use(inside)
		}
		return nil
	})
	if err != nil && ctx.Err() == nil && !errors.Is(err, dlock.ErrLost) {
		return err
	}
	return wrong
}

// stay waits for the time that a user has the lock.
func (u *pairUser) stay() { time.Sleep(time.Duration(u.dice.Int64N(int64(2 * time.Millisecond)))) }

func (u *pairUser) read(ctx context.Context) error {
	begin := u.torn()
	u.stay()
	end := u.torn()
	if wrong := begin + end; ctx.Err() == nil && wrong != "" {
		return fmt.Errorf("a reader of process %d: %s", u.number+1, wrong)
	}
	u.crowds[u.number].reads.Add(1)
	return nil
}

func (u *pairUser) write(ctx context.Context) error {
	if wrong := u.torn(); ctx.Err() == nil && wrong != "" {
		return fmt.Errorf("a writer of process %d: %s", u.number+1, wrong)
	}
	mine := uint64(u.number + 1)
	u.writer.Store(mine)
	n := u.first.Load() + 1
	u.first.Store(n)
	u.stay()
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), dlock.ErrLost) {
		u.crowds[u.number].gone.Store(true) // the pair stays as it is
		return nil
	}
	if first, w := u.first.Load(), u.writer.Load(); first != n || w != mine {
		return fmt.Errorf("while process %d writes %d, process %d writes %d", mine, n, w, first)
	}
	u.second.Store(n)
	u.crowds[u.number].writes.Add(1)
	u.writer.Store(0)
	return nil
}
