package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// tokenHeader is the HTTP header that contains the sender's fencing token.
const tokenHeader = "Fencing-Token"

// A balance is a resource that rejects writes by former holders of the lock.
type balance interface {
	// open reads the balance for the holder of a token.
	open(ctx context.Context, token uint64) (int, error)

	// write sets the balance, unless a larger token was used before.
	write(ctx context.Context, token uint64, balance int) error
}

// account is a resource that refuses stale writers. It remembers the largest token that it has
// seen, in the same atomic step in which it writes. In a database, the token is a column, and the
// UPDATE has a condition:
//
//	UPDATE account SET balance = $1, token = $2 WHERE id = 42 AND token <= $2
type account struct {
	mu      sync.Mutex
	balance int
	token   uint64
}

func newAccount(balance int) *account { return &account{balance: balance} }

// ServeHTTP answers a GET with the balance. A PUT sets the balance or, if its token is stale, fails
// with status 409 (Conflict).
func (a *account) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.Method == http.MethodGet {
		fmt.Fprint(w, a.balance)
		return
	}
	token, err := strconv.ParseUint(r.Header.Get(tokenHeader), 10, 64)
	if err != nil {
		http.Error(w, "no fencing token", http.StatusPreconditionRequired)
		return
	}
	if token < a.token {
		http.Error(w, fmt.Sprintf("token %d is stale: somebody with %d has written", token,
			a.token), http.StatusConflict)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 100))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	balance, err := strconv.Atoi(string(body))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.token, a.balance = token, balance
}

// remote is an account on an HTTP server. Its value is the URL of the server.
type remote string

func (url remote) open(ctx context.Context, _ uint64) (int, error) {
	text, err := send(ctx, http.MethodGet, string(url), 0, "")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

func (url remote) write(ctx context.Context, token uint64, balance int) error {
	_, err := send(ctx, http.MethodPut, string(url), token, strconv.Itoa(balance))
	return err
}

func send(ctx context.Context, method, url string, token uint64, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set(tokenHeader, strconv.FormatUint(token, 10))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", res.Status, strings.TrimSpace(string(text)))
	}
	return string(text), nil
}
