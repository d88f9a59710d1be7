package recipes

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

// A shop ships orders, each once.
type shop struct {
	locks *dlock.Client
	ship  func(ctx context.Context, id string) error
}

var errShipped = errors.New("shipped already")

func (s *shop) shipWrong(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	// This waits for as long as the HTTP client does.
	err := s.locks.Locker("lock:orders:"+id).Do(r.Context(), func(ctx context.Context) error {
		return s.ship(ctx, id)
	})
	if err != nil { // the same status for every error
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func (s *shop) shipOrder(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second) // for the wait and the work
	defer cancel()
	id, shipped := r.PathValue("id"), false
	err := s.locks.Locker("lock:orders:"+id).Do(ctx, func(ctx context.Context) error {
		err := s.ship(ctx, id) // errShipped if it was shipped before
		shipped = err == nil
		return err
	}, dlock.Wait(500*time.Millisecond)) // for the lock, and for a store that doesn't answer
	if shipped && !errors.Is(err, dlock.ErrLost) { // any other error: the unlock was not confirmed
		w.WriteHeader(http.StatusNoContent)
		return
	}
	refuse(w, r, err)
}

// refuse answers a request whose order might not have been shipped.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case r.Context().Err() != nil: // the client is gone: write nothing
	case errors.Is(err, errShipped): // another attempt is no use
		http.Error(w, "this was done before", http.StatusConflict)
	case errors.Is(err, dlock.ErrLost): // lost during the work: check the order before a retry
		http.Error(w, "broken off", http.StatusInternalServerError)
	case errors.Is(err, dlock.ErrHeld):
		w.Header().Set("Retry-After", "1") // about as long as such work takes
		http.Error(w, "another is at it", http.StatusLocked)
	case errors.Is(err, dlock.ErrUnavailable), errors.Is(err, dlock.ErrClosed): // or we shut down
		w.Header().Set("Retry-After", "10")
		http.Error(w, "try again later", http.StatusServiceUnavailable)
	default:
		http.Error(w, "failed", http.StatusInternalServerError)
	}
}
