// Command transfer moves money between accounts in PostgreSQL, under a lock in the same database.
// One of two processes is stopped in the middle of its transaction, after it has read the balances
// and before it writes them, and continues only after its lease has expired. Without
// postgresbackend's Guard, the other process gets the lock meanwhile. The first process then writes
// wrong balances, and the sum of the accounts changes. With Guard, the other process waits until
// that transaction has ended.
//
//	go run ./examples/transfer -postgres postgres://postgres@localhost:5432/postgres
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/postgresbackend"
)

const (
	lockName = "transfer:accounts"
	lease    = time.Second // short, so that it can be watched
	total    = 300         // the sum of all accounts
)

func main() {
	url := flag.String("postgres", "",
		"URL of a PostgreSQL database, in which the program may create a schema")
	sam := flag.String("sam", "", "be the process that is stopped, with Guard: true or false "+
		"(the program starts itself like that)")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *url, *sam); err != nil {
		fmt.Fprintln(os.Stderr, "transfer:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, url, sam string) error {
	if url == "" {
		return errors.New("-postgres is missing")
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	bank := &bank{pool: pool, locks: postgresbackend.New(pool, postgresbackend.WithCreate())}
	bank.client = dlock.New(bank.locks, dlock.WithLease(lease))
	defer bank.client.Close()
	if sam != "" {
		guarded, err := strconv.ParseBool(sam)
		if err != nil {
			return err
		}
		return bank.transferSlowly(ctx, guarded)
	}
	for _, guarded := range []bool{false, true} {
		sum, err := bank.play(ctx, os.Stdout, url, guarded)
		if err != nil {
			return err
		}
		if guarded != (sum == total) {
			return fmt.Errorf("with Guard %v the accounts have %d, of %d", guarded, sum, total)
		}
	}
	return nil
}

type bank struct {
	pool   *pgxpool.Pool
	locks  *postgresbackend.Backend
	client *dlock.Client
}

// play runs the transfers of sam and ann, and returns the sum of the accounts afterwards.
func (b *bank) play(
	ctx context.Context, out io.Writer, url string, guarded bool,
) (sum int, err error) {
	fmt.Fprintf(out, "with Guard: %v\n", guarded)
	_, err = b.pool.Exec(ctx, `CREATE SCHEMA IF NOT EXISTS transfer;
		CREATE TABLE IF NOT EXISTS transfer.account
			(name text PRIMARY KEY, balance integer NOT NULL);
		INSERT INTO transfer.account VALUES ('a', 100), ('b', 100), ('c', 100)
		ON CONFLICT (name) DO UPDATE SET balance = excluded.balance`,
		pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return 0, err
	}
	sam, err := startSam(ctx, url, guarded)
	if err != nil {
		return 0, err
	}
	defer sam.end()
	fmt.Fprintln(out, "  sam has the lock, has read the balances of a and b, and is stopped for "+
		"longer than sam's lease")

	ann, err := b.client.FencedLocker(lockName).Acquire(ctx, dlock.Wait(3*lease))
	switch {
	case err == nil:
		fmt.Fprintln(out, "  ann has got the lock, since sam's lease is over")
	case errors.Is(err, dlock.ErrNotAcquired):
		fmt.Fprintln(out, "  ann waits, although sam's lease is over")
	default:
		return 0, err
	}
	if ann != nil {
		if err := b.transfer(ctx, ann, true, "b", "c", 50, nil); err != nil {
			return 0, err
		}
		fmt.Fprintln(out, "  ann has moved 50 from b to c")
	}
	says, err := sam.wake()
	if err != nil {
		return 0, err
	}
	fmt.Fprintf(out, "  sam goes on, and moves 10 from a to b: %s\n", says)
	if ann == nil {
		if ann, err = b.client.FencedLocker(lockName).Acquire(ctx); err != nil {
			return 0, err
		}
		if err := b.transfer(ctx, ann, true, "b", "c", 50, nil); err != nil {
			return 0, err
		}
		fmt.Fprintln(out, "  ann has got the lock, and has moved 50 from b to c")
	}
	if err := ann.Release(ctx); err != nil {
		return 0, err
	}
	if err := b.pool.QueryRow(ctx, `SELECT sum(balance) FROM transfer.account`).
		Scan(&sum); err != nil {
		return 0, err
	}
	fmt.Fprintf(out, "  the accounts have %d, of %d\n", sum, total)
	return sum, nil
}

// transfer moves money in one transaction. It reads both balances, calls pause, and writes the new
// balances.
func (b *bank) transfer(
	ctx context.Context, hold *dlock.Hold, guarded bool, from, to string, amount int,
	pause func() error,
) error {
	return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error {
		if guarded {
			if err := b.locks.Guard(ctx, tx, hold); err != nil {
				return err
			}
		}
		balance := make(map[string]int)
		for _, name := range []string{from, to} {
			var n int
			if err := tx.QueryRow(ctx, `SELECT balance FROM transfer.account WHERE name = $1`,
				name).Scan(&n); err != nil {
				return err
			}
			balance[name] = n
		}
		if pause != nil {
			if err := pause(); err != nil {
				return err
			}
		}
		balance[from] -= amount
		balance[to] += amount
		for name, n := range balance {
			if _, err := tx.Exec(ctx, `UPDATE transfer.account SET balance = $2 WHERE name = $1`,
				name, n); err != nil {
				return err
			}
		}
		return nil
	})
}

// transferSlowly is the work of the process that is stopped. It doesn't check the context of its
// hold, since the pause could always come just after a check.
func (b *bank) transferSlowly(ctx context.Context, guarded bool) error {
	hold, err := b.client.FencedLocker(lockName).Acquire(ctx)
	if err != nil {
		return err
	}
	err = b.transfer(ctx, hold, guarded, "a", "b", 10, func() error {
		fmt.Println("in the middle")
		_, err := bufio.NewReader(os.Stdin).ReadString('\n') // the process is stopped here
		return err
	})
	fmt.Printf("%v (Release: %v)\n", err, hold.Release(ctx))
	return nil
}

// A process is a second process that runs this program, and is stopped during its transaction.
type process struct {
	wake func() (string, error) // resumes the process, and returns its output
	end  func()
}

// startSam starts another process of this program, and stops it during its transaction.
func startSam(ctx context.Context, url string, guarded bool) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, "-postgres", url, "-sam", strconv.FormatBool(guarded))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{end: func() { cmd.Process.Kill(); cmd.Wait() }}
	out := bufio.NewReader(pipe)
	if _, err = out.ReadString('\n'); err == nil {
		err = stop(cmd.Process)
	}
	if err != nil {
		p.end()
		return nil, fmt.Errorf("the process that was to be stopped: %w", err)
	}
	p.wake = func() (string, error) {
		if err := resume(cmd.Process); err != nil {
			return "", err
		}
		if _, err := io.WriteString(in, "\n"); err != nil {
			return "", err
		}
		line, err := out.ReadString('\n')
		return strings.TrimSpace(line), err
	}
	return p, nil
}
