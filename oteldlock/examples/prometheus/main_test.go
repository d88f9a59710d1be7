package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// The measurements are exported under the names and with the units that Prometheus wants.
func TestServe(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- serve(ctx, listener) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	wanted := []string{
		`distsync_acquisitions_total{distsync_kind="exclusive",distsync_name="order",` +
			`distsync_outcome="acquired",distsync_via="store",`,
		`distsync_acquisitions_total{distsync_kind="exclusive",distsync_name="order",` +
			`distsync_outcome="timeout",`,
		`distsync_wait_duration_seconds_bucket{distsync_kind="exclusive",`,
		`distsync_hold_duration_seconds_count{distsync_kind="read",distsync_name="prices",` +
			`distsync_outcome="released",`,
		`distsync_held{distsync_kind="exclusive",distsync_name="order",`,
		`distsync_waiting{`,
		`distsync_losses_total{distsync_kind="exclusive",distsync_name="order",` +
			`distsync_reason="forced",`,
		`distsync_store_duration_seconds_sum{distsync_kind="exclusive",distsync_step="acquire",`,
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		page := get(t, "http://"+listener.Addr().String()+"/metrics")
		missing := missing(page, wanted)
		if len(missing) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %s on\n%s", strings.Join(missing, "\nno "), page)
		}
	}
}

func missing(page string, wanted []string) (missing []string) {
	for _, line := range wanted {
		if !strings.Contains(page, "\n"+line) {
			missing = append(missing, line)
		}
	}
	return missing
}

func get(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	page, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}
