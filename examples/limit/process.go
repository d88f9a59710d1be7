package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"sync"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// work makes workers call the service, each with a permit. So the calls from all processes together
// never exceed the limit of the service.
func work(ctx context.Context, store backend.Backend, url string, dies bool) error {
	client := dlock.New(store, dlock.WithLease(lease),
		dlock.WithLogger(slog.New(slog.DiscardHandler)))
	defer client.Close()
	permits := client.Semaphore(semaphoreName, atOnce)
	if dies {
		return hang(ctx, permits, url)
	}
	errs := make([]error, workers)
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			for range calls {
				if errs[i] == nil {
					errs[i] = permits.Do(ctx, 1, func(ctx context.Context) error {
						return call(ctx, url)
					})
				}
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// hang makes calls that last until the process is killed. It acquires all its permits at once.
func hang(ctx context.Context, permits *dlock.Semaphore, url string) error {
	hold, err := permits.Acquire(ctx, victimsCalls)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	for range victimsCalls {
		all.Go(func() { call(hold.Context(), url+"/hang") })
	}
	all.Wait()
	return nil // without Release, as after a crash
}

func call(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the service says %s", resp.Status)
	}
	return nil
}

// A process works until it has finished or is killed.
type process struct {
	wait func() error
	kill func()
}

// clientProcess returns a simulated process, which is a client in this process. Canceling its
// context looks like a crash to other clients: its permits are no longer renewed, and aren't
// released.
func clientProcess(ctx context.Context, store backend.Backend, url string, dies bool) process {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- work(ctx, store, url, dies) }()
	return process{
		wait: func() error { defer cancel(); return <-done },
		kill: cancel,
	}
}

// realProcess starts another process of this program.
func realProcess(ctx context.Context, addr, url string, dies bool) process {
	fail := func(err error) process {
		return process{wait: func() error { return err }, kill: func() {}}
	}
	program, err := os.Executable()
	if err != nil {
		return fail(err)
	}
	cmd := exec.CommandContext(ctx, program, "-redis", addr, "-service", url,
		fmt.Sprintf("-dies=%v", dies))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return fail(err)
	}
	ended := sync.OnceValue(cmd.Wait)
	return process{
		wait: ended,
		kill: func() { cmd.Process.Kill(); ended() },
	}
}
