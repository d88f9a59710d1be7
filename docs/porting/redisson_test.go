package porting

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/redisbackend"
)

func javaBounded(ctx context.Context, client *dlock.Client, name string, work job) error {
	return client.Locker(name).
		Do(ctx, work, dlock.Wait(100*time.Millisecond), dlock.FixedLease(time.Minute))
}

func javaAgain(ctx context.Context, client *dlock.Client, name string, work job) error {
	locker := client.Locker(name)
	return locker.Do(ctx, func(ctx context.Context) error {
		return locker.Do(ctx, work) // the same context
	})
}

func javaStillMine(ctx context.Context, client *dlock.Client, name string, one, two job) error {
	return client.Locker(name).Do(ctx, func(ctx context.Context) error {
		if err := one(ctx); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return two(ctx)
	})
}

func javaFair(ctx context.Context, client *dlock.Client, name string, work job) error {
	return client.FairLocker(name).Do(ctx, work)
}

func javaRead(ctx context.Context, client *dlock.Client, name string, work job) error {
	return client.RWLocker(name).Reader().Do(ctx, work)
}

func javaWrite(ctx context.Context, client *dlock.Client, name string, work job) error {
	return client.RWLocker(name).Writer().Do(ctx, work)
}

func javaFenced(
	ctx context.Context, client *dlock.Client, name string, work func(
		ctx context.Context, token uint64,
	) error,
) error {
	return client.FencedLocker(name).Do(ctx, func(ctx context.Context) error {
		token, _ := dlock.Token(ctx)
		return work(ctx, token)
	})
}

func javaPermit(ctx context.Context, client *dlock.Client, name string, work job) error {
	return client.Semaphore(name, 2).Do(ctx, 1, work)
}

func javaSeveral(ctx context.Context, client *dlock.Client, name string, work job) error {
	return dlock.All(client.Locker(name+":a"), client.Locker(name+":b")).Do(ctx, work)
}

func javaLook(ctx context.Context, client *dlock.Client, name string) (dlock.Holder, error) {
	locker := client.Locker(name)
	who, err := locker.Holder(ctx) // who, and for how long: who.Remaining
	if err == nil && who.ID != "" {
		_, err = locker.ForceUnlock(ctx)
	}
	return who, err
}

func javaThreads(rdb *redis.Client) *dlock.Client {
	client := dlock.New(redisbackend.New(rdb), dlock.WithGoroutineOwners())
	return client
}

// A javaProgram is Before.java, running.
type javaProgram struct {
	t       *testing.T
	stdin   io.Writer
	stdout  *bufio.Scanner
	methods []string // those of Redisson's locks
}

// startJava compiles and starts Before.java.
func startJava(t *testing.T, addr string) *javaProgram {
	javac, java := testservers.Program(t, "javac"), testservers.Program(t, "java")
	classpath, err := testservers.RedissonClasspath("../../contract/redisson", "4.7.0")
	switch {
	case err == nil:
	case os.Getenv("DISTSYNC_REQUIRE_SERVERS") == "1":
		t.Fatalf("%v\nDISTSYNC_REQUIRE_SERVERS=1 asks for it", err)
	default:
		t.Skip(err)
	}
	// has the go command notice that it was changed, where it caches results
	_, err = os.Stat("Before.java")
	must(t, err)
	classes := t.TempDir()
	if out, err := exec.Command(javac, "-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC",
		"-proc:none", "-Xlint:all", "-Werror", "-d", classes, "-cp", classpath, "Before.java").
		CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// it is to start quickly and stay small
	cmd := exec.Command(java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp",
		classes+string(os.PathListSeparator)+classpath, "Before", addr)
	stderr := new(bytes.Buffer)
	cmd.Stderr = stderr
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	patience := time.AfterFunc(4*testservers.Patience, func() { cmd.Process.Kill() })
	t.Cleanup(func() {
		patience.Stop()
		cmd.Process.Kill()
		cmd.Wait() // how it ended does not matter: it was killed
		if t.Failed() {
			t.Logf("Java says:\n%s", stderr)
		}
	})
	p := &javaProgram{t: t, stdin: stdin, stdout: bufio.NewScanner(stdout)}
	line := p.answer()
	for ; strings.HasPrefix(line, "method "); line = p.answer() {
		p.methods = append(p.methods, strings.TrimPrefix(line, "method "))
	}
	if line != "ready" {
		t.Fatal(line)
	}
	return p
}

func (p *javaProgram) answer() string {
	p.t.Helper()
	if !p.stdout.Scan() {
		p.t.Fatal("the Java program has ended:", p.stdout.Err())
	}
	return p.stdout.Text()
}

// order has the program do something, and returns its answer.
func (p *javaProgram) order(words ...string) string {
	p.t.Helper()
	_, err := io.WriteString(p.stdin, strings.Join(words, " ")+"\n")
	must(p.t, err)
	return p.answer()
}

func (p *javaProgram) want(answer string, words ...string) {
	p.t.Helper()
	if got := p.order(words...); got != answer {
		p.t.Fatalf("%v: %s, want %s", words, got, answer)
	}
}

// Java and Go use the same names, so they exclude each other.
func TestRedisson(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	rdb := connect(t, server.Addr)
	client := newClient(t, redisbackend.New(rdb)) // without a prefix
	java := startJava(t, server.Addr)
	t.Run("nothing is forgotten", func(t *testing.T) {
		if len(java.methods) < 50 {
			t.Errorf("Redisson's locks have %d methods", len(java.methods))
		}
		accounted(t, "Redisson", java.methods)
	})

	none := func(context.Context) error { return nil }
	exclusive := func(l *dlock.Locker) func(ctx context.Context) (bool, error) {
		return func(ctx context.Context) (bool, error) {
			return l.TryLock(ctx, dlock.FixedLease(time.Minute))
		}
	}
	for _, pair := range []struct {
		method string
		taken  func(ctx context.Context) (bool, error) // false while Java is inside
		after  func(ctx context.Context, client *dlock.Client, name string, work job) error
	}{
		{"take", exclusive(client.Locker("take")), dlockDo},
		{"tryOnce", exclusive(client.Locker("tryOnce")), dlockTry},
		{"bounded", exclusive(client.Locker("bounded")), javaBounded},
		{"again", exclusive(client.Locker("again")), javaAgain},
		{"fair", exclusive(client.FairLocker("fair")), javaFair},
		{"read", exclusive(client.RWLocker("read").Writer()), javaRead},
		{"write", exclusive(client.RWLocker("write").Reader()), javaWrite},
		{"several", exclusive(client.Locker("several:b")), javaSeveral},
		{"permit", func(ctx context.Context) (bool, error) {
			n, err := client.Semaphore("permit", 2).Available(ctx)
			return n == 2, err
		}, javaPermit},
	} {
		t.Run(pair.method, func(t *testing.T) {
			java.want("inside", pair.method, pair.method)
			if ok, err := pair.taken(bounded(t)); err != nil || ok {
				t.Error("it is free while Java is inside:", err)
			}
			java.want("done", "leave")
			work, done := ran()
			must(t, pair.after(bounded(t), client, pair.method, work))
			if !done.Load() {
				t.Error("it is taken after Java has left")
			}
		})
	}

	t.Run("Java while Go is inside", func(t *testing.T) {
		for _, method := range []string{"tryOnce", "bounded"} {
			must(t, dlockDo(bounded(t), client, method, func(context.Context) error {
				java.want("skipped", method, method)
				return nil
			}))
		}
		// Go is told of a lock that Java forces. Go can also see who had it.
		err := dlockDo(bounded(t), client, "look", func(ctx context.Context) error {
			java.want("done", "look", "look")
			<-ctx.Done()
			return nil
		})
		wantErr(t, err, dlock.ErrLost)
	})

	t.Run("lost", func(t *testing.T) {
		java.want("inside", "stillMine", "stillMine")
		who, err := javaLook(bounded(t), client, "stillMine")
		if err != nil || who.Client == "" || who.Remaining <= 0 {
			t.Error(who, err)
		}
		if got := java.order("leave"); !strings.HasPrefix(got,
			"java.lang.IllegalMonitorStateException") {
			t.Error(got)
		}
		second, done := ran()
		err = javaStillMine(bounded(t), client, "stillMine", func(ctx context.Context) error {
			if err := rdb.Del(ctx, "stillMine").Err(); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		}, second)
		wantErr(t, err, dlock.ErrLost)
		if done.Load() {
			t.Error("done without the lock")
		}
		must(t, javaStillMine(bounded(t), client, "stillMine", none, second))
		if !done.Load() {
			t.Error("not done")
		}
	})

	t.Run("newCondition", func(t *testing.T) {
		java.want("java.lang.UnsupportedOperationException", "condition", "condition")
	})

	t.Run("fenced", func(t *testing.T) {
		token := func() (token uint64) {
			must(t, javaFenced(bounded(t), client, "fenced", func(
				_ context.Context, n uint64,
			) error {
				token = n
				return nil
			}))
			return token
		}
		first := token()
		java.want("inside", "fenced", "fenced")
		second, err := strconv.ParseUint(java.order("leave"), 10, 64)
		must(t, err)
		if third := token(); !(first < second && second < third) {
			t.Error(first, second, third)
		}
	})

	// RSemaphore counts in a key, and the permits of a dead process don't come back. So it isn't
	// the same as our semaphore.
	t.Run("RSemaphore", func(t *testing.T) {
		ctx := bounded(t)
		java.want("inside", "semaphore", "semaphore")
		if n, err := rdb.Get(ctx, "semaphore").Int(); err != nil || n != 1 {
			t.Error(n, err)
		}
		if d := rdb.PTTL(ctx, "semaphore").Val(); d >= 0 {
			t.Error("what is taken comes back after", d)
		}
		if n, err := client.Semaphore("semaphore", 2).Available(ctx); err != nil || n != 2 {
			t.Error("ours sees what RSemaphore has given away:", n, err)
		}
		java.want("done", "leave")
	})

	t.Run("goroutines as owners", func(t *testing.T) {
		client := javaThreads(rdb)
		defer client.Close()
		locker := client.Locker("threads")
		locker.Lock()
		must(t, locker.LockContext(bounded(t)))
		must(t, locker.UnlockContext(bounded(t)))
		other := make(chan error)
		go func() { other <- locker.UnlockContext(bounded(t)) }()
		wantErr(t, <-other, dlock.ErrNotHeld)
		locker.Unlock()
		if n, err := locker.HoldCount(bounded(t)); err != nil || n != 0 {
			t.Error(n, err)
		}
	})
}
