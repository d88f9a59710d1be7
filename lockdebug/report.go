package lockdebug

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// A report holds all data of the page. The package comment describes its JSON.
type report struct {
	Time    time.Time `json:"time"`
	Clients []client  `json:"clients"`
	Losses  []loss    `json:"losses"`
	Holds   []hold    `json:"holds"`
	Waits   []wait    `json:"waits"`
	Sets    []set     `json:"sets,omitempty"`
	Store   *store    `json:"store,omitempty"`
}

type client struct {
	ID       string   `json:"id"`
	Closed   bool     `json:"closed"`
	Counters counters `json:"counters"`
}

// counters holds the counters of a [dlock.Stats].
type counters struct {
	FromStore   uint64 `json:"from_store"`
	HandedOver  uint64 `json:"handed_over"`
	Reentered   uint64 `json:"reentered"`
	Joined      uint64 `json:"joined"`
	Granted     uint64 `json:"granted"`
	NotAcquired uint64 `json:"not_acquired"`
	Canceled    uint64 `json:"canceled"`
	Failed      uint64 `json:"failed"`
	Released    uint64 `json:"released"`
	Lost        uint64 `json:"lost"`
	Renewed     uint64 `json:"renewed"`
	NotRenewed  uint64 `json:"not_renewed"`
	Closed      bool   `json:"-"`
}

// subject is the lock that a row is about.
type subject struct {
	client int    // the client's index, from 1
	Client string `json:"client"`
	named
	Kind string `json:"kind"`
}

type named struct {
	Name  string `json:"name"`
	Bytes []byte `json:"name_base64,omitempty"` // set if the name isn't valid UTF-8
}

func newNamed(name string) named {
	if utf8.ValidString(name) {
		return named{Name: name}
	}
	return named{name, []byte(name)}
}

type loss struct {
	subject
	Holder  string    `json:"holder"`
	Reason  string    `json:"reason"`
	At      time.Time `json:"at"`
	Held    seconds   `json:"held"`
	Renewed seconds   `json:"renewed"`
	By      string    `json:"by,omitempty"`
	Paused  seconds   `json:"paused,omitempty"`
	Error   string    `json:"error,omitempty"`
	ago     time.Duration
}

type hold struct {
	subject
	Holder    string    `json:"holder"`
	By        string    `json:"by"`
	Caller    string    `json:"caller,omitempty"`
	Since     time.Time `json:"since"`
	Held      seconds   `json:"held"`
	Until     time.Time `json:"until"`
	Remaining seconds   `json:"remaining"`
	Lease     seconds   `json:"lease"`
	Renewed   bool      `json:"renewed"`
	EndsSoon  bool      `json:"ends_soon"`
	Count     int       `json:"count"`
	Permits   int       `json:"permits"`
	Token     uint64    `json:"token"`
}

type wait struct {
	subject
	By      string    `json:"by"`
	Caller  string    `json:"caller,omitempty"`
	Since   time.Time `json:"since"`
	Waited  seconds   `json:"waited"`
	Until   time.Time `json:"until,omitzero"`
	Long    bool      `json:"long"`
	Place   int       `json:"place"`
	Permits int       `json:"permits"`
	HeldBy  *heldBy   `json:"held_by,omitempty"` // nil if it isn't known
	left    time.Duration
}

// heldBy lists the holders of a lock that a client waits for.
type heldBy struct {
	Holders []holder `json:"holders"`
	More    int      `json:"more"` // the number of holders that aren't listed
}

// seconds is a duration. In JSON it is a number of seconds, or null if it is negative, which means
// forever.
type seconds time.Duration

func (s seconds) MarshalJSON() ([]byte, error) {
	if s < 0 {
		return []byte("null"), nil
	}
	d := time.Duration(s).Round(time.Microsecond)
	return strconv.AppendFloat(nil, d.Seconds(), 'f', -1, 64), nil
}

// report collects the data of the clients and sets. It sends no requests to a store.
func (h *handler) report() *report {
	rep := &report{
		Time: time.Now(), Clients: []client{}, Losses: []loss{}, Holds: []hold{}, Waits: []wait{},
	}
	for i, c := range h.clients {
		of := func(name string, kind backend.Kind) subject {
			return subject{i + 1, c.ID(), newNamed(name), kind.String()}
		}
		stats := c.Stats()
		rep.Clients = append(rep.Clients, client{c.ID(), stats.Closed, counters(stats)})
		for _, l := range c.Losses() {
			rep.Losses = append(rep.Losses, newLoss(of(l.Name, l.Kind), l, rep.Time))
		}
		for _, h := range c.Holds() {
			rep.Holds = append(rep.Holds, newHold(of(h.Name, h.Kind), h, rep.Time))
		}
		for _, w := range c.Waits() {
			rep.Waits = append(rep.Waits, newWait(of(w.Name, w.Kind), w, rep.Time))
		}
	}
	for _, s := range h.sets {
		rep.Sets = append(rep.Sets, newSet(s, rep.Time))
	}
	slices.SortStableFunc(rep.Losses, func(a, b loss) int { return b.At.Compare(a.At) })
	slices.SortStableFunc(rep.Holds, func(a, b hold) int { return a.Since.Compare(b.Since) })
	slices.SortStableFunc(rep.Waits, func(a, b wait) int { return a.Since.Compare(b.Since) })
	return rep
}

func newLoss(s subject, l dlock.Loss, now time.Time) loss {
	row := loss{
		subject: s, Holder: l.Holder, Reason: l.Reason.String(), At: l.At, Held: seconds(l.Held),
		Renewed: seconds(l.Unconfirmed), By: l.TakenBy, Paused: seconds(l.Paused),
		ago: since(l.At, now),
	}
	if l.Err != nil {
		row.Error = l.Err.Error()
	}
	return row
}

func newHold(s subject, h dlock.HoldInfo, now time.Time) hold {
	return hold{subject: s, Holder: h.HolderID, By: h.By, Caller: h.Caller, Since: h.Since,
		Held: seconds(since(h.Since, now)), Until: h.Until, Remaining: seconds(since(now, h.Until)),
		Lease: seconds(h.Lease), Renewed: h.Renewed, EndsSoon: endsSoon(h, now), Count: h.Count,
		Permits: h.Permits, Token: h.Token}
}

func newWait(s subject, w dlock.WaitInfo, now time.Time) wait {
	waited := since(w.Since, now)
	return wait{
		subject: s, By: w.By, Caller: w.Caller, Since: w.Since, Waited: seconds(waited),
		Until: w.Until, Long: waited > dlock.DefaultLease, Place: w.Place, Permits: w.Permits,
		left: since(now, w.Until),
	}
}

// since returns the time from the first argument to the second, or 0 if the second is earlier.
// That can happen, because some times are read after the time of the report.
func since(from, to time.Time) time.Duration { return max(to.Sub(from), 0) }

// endsSoon reports whether a hold might end soon. A renewal is due after a third of the lease, so
// once half of the lease has passed, renewals must have failed. A hold with a fixed lease ends soon
// when less than a quarter of the lease is left.
func endsSoon(h dlock.HoldInfo, now time.Time) bool {
	left := h.Until.Sub(now)
	if h.Renewed {
		return left < h.Lease/2
	}
	return left < h.Lease/4
}

// store holds the data of one client's store.
type store struct {
	number int    // the client's index, from 1
	Client string `json:"client"`
	Prefix string `json:"prefix"`
	Name   string `json:"name"`
	Locks  []lock `json:"locks"`
	More   bool   `json:"more"`
	Error  string `json:"error,omitempty"`
}

type lock struct {
	named
	Kind    string   `json:"kind"`
	Holders []holder `json:"holders"`
	More    int      `json:"more"`
	Line    []string `json:"line"`
	Limit   int      `json:"limit"`
}

type holder struct {
	ID        string  `json:"id"`
	Client    string  `json:"client"`
	Here      bool    `json:"here"`
	Kind      string  `json:"kind"`
	Count     int     `json:"count"`
	Remaining seconds `json:"remaining"`
	Kept      bool    `json:"kept,omitempty"` // released, but still kept taken
}

// Limits on a request for a store's locks.
const (
	patience  = time.Second // the page shows this value
	mostLocks = 10_000
)

// ask asks a store for the locks that the query selects.
func (h *handler) ask(ctx context.Context, q query) *store {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c := h.clients[q.store-1]
	s := &store{number: q.store, Client: c.ID(), Prefix: q.prefix, Name: q.name, Locks: []lock{}}
	if q.name != "" {
		info, err := c.Inspect(ctx, q.name)
		if err == nil {
			s.Locks = append(s.Locks, h.newLock(info))
		}
		s.fail(err)
		return s
	}
	most := mostRows
	if q.json || q.all {
		most = mostLocks
	}
	seen := make(map[string]bool)
	for info, err := range c.Locks(ctx, q.prefix) {
		if err != nil {
			s.fail(err)
			s.More = errors.Is(err, context.DeadlineExceeded)
			break
		}
		if seen[info.Name] {
			continue
		}
		if s.More = len(s.Locks) == most; s.More {
			break
		}
		seen[info.Name] = true
		s.Locks = append(s.Locks, h.newLock(info))
	}
	slices.SortFunc(s.Locks, func(a, b lock) int { return cmp.Compare(a.Name, b.Name) })
	return s
}

// fail records the error that ended a request for the store's locks.
func (s *store) fail(err error) {
	switch {
	case err == nil:
	case errors.Is(err, context.DeadlineExceeded):
		s.Error = "the store didn't answer within a second"
	default:
		s.Error = err.Error()
	}
}

func (h *handler) newLock(info dlock.LockInfo) lock {
	return lock{
		named: newNamed(info.Name), Kind: info.Kind.String(), Holders: h.newHolders(info.Holders),
		More: info.More, Line: append([]string{}, info.Line...), Limit: info.Limit,
	}
}

func (h *handler) newHolders(infos []dlock.Holder) []holder {
	all := []holder{}
	for _, r := range infos {
		here := slices.ContainsFunc(h.clients, func(c *dlock.Client) bool {
			return c.ID() == r.Client
		})
		all = append(all, holder{
			r.ID, r.Client, here, r.Kind.String(), r.Count, seconds(r.Remaining), r.Kept,
		})
	}
	return all
}
