package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	t.Parallel()
	test(t, "")
}

func TestRedis(t *testing.T) {
	t.Parallel()
	test(t, testservers.Redis(t).Addr)
}

// test runs the program until its page shows the expected rows, and stops it.
func test(t *testing.T, redisAddr string) {
	defer http.DefaultClient.CloseIdleConnections()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, in, redisAddr, "localhost:0", 0)
		in.CloseWithError(err)
		ended <- err
	}()
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	const want = "lost: cache:warm forced, import:feeds lease, orders:1042 taken\n" +
		"held: account:7 deploy:production export:ledger prices report:nightly slots:mailer\n" +
		"waiting: deploy:production orders:1041 prices till:3\n" +
		"store: account:7 deploy:production export:ledger orders:1041 orders:1042 prices " +
		"report:nightly slots:mailer till:3\n"
	for {
		got, err := look(ctx, strings.TrimSpace(url)+"?format=json&store=1")
		if got == want {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the page says, %v,\n%s", err, got)
		}
		time.Sleep(50 * time.Millisecond)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// look returns a summary of the page.
func look(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	type named struct{ Name, Reason string }
	var page struct {
		Losses, Holds, Waits []named
		Store                struct{ Locks []named }
	}
	if err := json.NewDecoder(res.Body).Decode(&page); err != nil {
		return "", err
	}
	var b strings.Builder
	list := func(title, sep string, all []named) {
		var parts []string
		for _, n := range all {
			parts = append(parts, strings.TrimSpace(n.Name+" "+n.Reason))
		}
		slices.Sort(parts)
		fmt.Fprintf(&b, "%s: %s\n", title, strings.Join(parts, sep))
	}
	list("lost", ", ", page.Losses)
	list("held", " ", page.Holds)
	list("waiting", " ", page.Waits)
	list("store", " ", page.Store.Locks)
	return b.String(), nil
}

// With -for the program ends after that time.
func TestFor(t *testing.T) {
	if err := run(t.Context(), io.Discard, "", "localhost:0", time.Millisecond); err != nil {
		t.Error(err)
	}
}

// If the address can't be served, the program returns an error and cleans up.
func TestBadAddress(t *testing.T) {
	if err := run(t.Context(), os.Stderr, "", "nowhere", 0); err == nil {
		t.Error("no error")
	}
}
