package shards

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

// Errors that [context.Cause] returns for the contexts of a run. It may also return a
// [*dlock.Loss], [dlock.ErrClosed], or the cause of the context that Run was given.
var (
	// ErrMoved says that the shard now belongs to another member.
	ErrMoved = errors.New("the shard is another member's")

	// ErrOverdue says that the run has gone on for longer than its grace period (see [Grace]).
	ErrOverdue = errors.New("the run is overdue")
)

// Default values of the options.
const (
	DefaultGrace  = 15 * time.Second
	DefaultStarts = 256
)

// Option configures a [Set]. An invalid option makes [Set.Run] return an error.
type Option func(*Set)

// Grace sets how long [Shard.Finishing] outlasts the context of a run. A run that hasn't returned
// by then is logged as overdue. It keeps the shard, since otherwise two members would run the
// shard. If it hangs, end the process. The default is [DefaultGrace].
func Grace(d time.Duration) Option { return func(s *Set) { s.grace = d } }

// Settle sets how long a newcomer waits for a free seat before the others make room for it. That
// should be longer than a deploy takes from the start of a new replica to the end of the old one.
// The default is two thirds of the client's lease.
func Settle(d time.Duration) Option { return func(s *Set) { s.settle = d } }

// Weight sets this member's share of the work, like [Set.SetWeight]. The default is 1.
func Weight(n int) Option { return func(s *Set) { s.weight = n } }

// Cap sets the maximum number of shards that this member runs, so that the remaining members aren't
// overwhelmed after a failure. Shards for which no member has room stay free, and are logged. The
// default is 0, which means no limit.
func Cap(n int) Option { return func(s *Set) { s.most = n } }

// Address sets the address that [Set.Owner] and [Set.Members] return for this member. It is
// at most 100 bytes long. The default is empty.
func Address(text string) Option { return func(s *Set) { s.address = text } }

// Starts sets the number of shards that this member tries to acquire at the same time. The default
// is [DefaultStarts].
func Starts(n int) Option { return func(s *Set) { s.starts = n } }

// WithLogger sets the logger for events that no call can report as an error. The default is
// [slog.Default].
func WithLogger(l *slog.Logger) Option { return func(s *Set) { s.log = l } }

// WithTrace sets the functions that the set calls when certain events happen (see [Trace]). By
// default there are none.
func WithTrace(t Trace) Option { return func(s *Set) { s.trace = t } }

// A Set is this process's membership in a group of processes that share work. Use [New] to create
// one. A Set is safe for concurrent use, and must not be copied.
type Set struct {
	client  *dlock.Client
	name    string
	grace   time.Duration
	settle  time.Duration
	most    int
	address string
	starts  int
	log     *slog.Logger
	trace   Trace
	joined  chan struct{}
	once    sync.Once // closes joined

	mu      sync.Mutex
	weight  int
	names   []string // sorted, without duplicates
	list    list
	wrong   error // the error in the list
	running bool  // a Run is under way
	changed chan struct{}
	runs    map[string]*run
	seen    []*member
	owners  map[string]*member // by shard, from the members seen last
}

// New returns a Set for the work with the given name, in which this process takes part. The list
// contains the names of all shards, in any order. A name may be any non-empty string. Creating a
// Set is cheap, and does no I/O.
//
// Members should have the same list. While lists differ, as in a deploy, each shard of any list is
// run by a member that knows it, and loads may be uneven. Lists from [Numbered] can differ in
// length: members then agree on the shards that they all know.
func New(client *dlock.Client, name string, list []string, opts ...Option) *Set {
	s := &Set{
		client: client, name: name, grace: DefaultGrace, weight: 1, starts: DefaultStarts,
		joined: make(chan struct{}), changed: make(chan struct{}, 1), runs: map[string]*run{},
	}
	s.SetList(list)
	for _, opt := range opts {
		opt(s)
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	return s
}

// Name returns the name of the work.
func (s *Set) Name() string { return s.name }

// SetList replaces the list of shards, even during Run. Each member starts the new shards that its
// seats own. The runs of removed shards end with cause [ErrMoved]. A list with an empty or repeated
// name is refused: Run returns an error. If Run is already under way, the error is logged, and the
// old list stays.
func (s *Set) SetList(names []string) {
	names = slices.Sorted(slices.Values(names))
	err := checkList(names)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.names, s.list, s.wrong = names, newList(names), nil
		s.wake()
	case s.running:
		s.log.Error("shards: the list isn't taken", "set", s.name, "err", err)
	default:
		s.wrong = err
	}
}

// SetWeight gives this member n times the share of a member with weight 1, even during Run. With 0
// it stays a member, but hands over all its shards. A number below 0 counts as 0, and one above 32
// as 32.
func (s *Set) SetWeight(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.weight = min(max(n, 0), mostWeight)
	s.wake()
}

// mostWeight is the maximum weight of a member. It limits the length of a member's note.
const mostWeight = 32

// wake makes Run look at the members again.
func (s *Set) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Joined returns a channel that is closed once this process is a member: the store has answered,
// and all others can see the member. Report readiness then, and don't wait for shards. In a deploy
// a newcomer has no shards until an old replica leaves, and the old replica stays until the
// newcomer is ready.
func (s *Set) Joined() <-chan struct{} { return s.joined }

// ShardInfo is the known state of a shard.
type ShardInfo struct {
	Name  string
	State State
	Owner string    // the id of the owner's client; empty if the shard has no owner
	Token uint64    // see [Shard.Token]; 0 if not known
	Since time.Time // when the state began; zero if not known
	Err   error     // the error of the last run or attempt; nil if there was none
}

// State is the state of a shard.
type State string

// The states of a shard.
const (
	Free      State = "free"      // in Table: no member holds it
	Held      State = "held"      // in Table: a member holds it
	Waiting   State = "waiting"   // in Mine: this member waits for the shard's lock
	Running   State = "running"   // in Mine: fn runs
	Finishing State = "finishing" // in Mine: fn was told to return
	Overdue   State = "overdue"   // in Mine: fn hasn't returned within its grace period
	Failing   State = "failing"   // in Mine: fn returned early, and will be called again soon
)

// Mine returns the shards that this member runs or waits for, sorted by name. It doesn't ask the
// store.
func (s *Set) Mine() []ShardInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]ShardInfo, 0, len(s.runs))
	for _, r := range s.runs {
		info := r.info
		if info.State != Waiting {
			info.Owner = s.client.ID()
		}
		all = append(all, info)
	}
	slices.SortFunc(all, func(a, b ShardInfo) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Member describes a member of a set, with the data that it publishes about itself.
type Member struct {
	Client  string // its client's id: see [dlock.WithClientID]
	Run     string // distinguishes members of that client
	Address string // see [Address]
	State   string // "waiting" for a seat, "young", "seated" or "leaving"
	Seats   []int
	Weight  int
	Cap     int           // see [Cap]; 0 for no limit
	List    string        // identifies its list; the same for all members with that list
	Shards  int           // the length of its list if that is from [Numbered]; otherwise 0
	Left    time.Duration // the time until it counts as gone, unless it renews its hold
}

func (m *member) public() Member {
	state := map[state]string{waits: "waiting", young: "young", seated: "seated",
		leaving: "leaving"}
	list := m.list.digest
	if m.list.numbered > 0 {
		list = fmt.Sprintf("numbered %d", m.list.numbered)
	}
	return Member{
		Client: m.client, Run: m.run, Address: m.address, State: state[m.state],
		Seats: slices.Clone(m.seats), Weight: m.weight, Cap: m.most, List: list,
		Shards: m.list.numbered, Left: m.left,
	}
}

// Owner returns the member that owns a shard, and reports whether there is one. It relies on what
// this member saw when it last looked at the members. The result is only a hint for routing, since
// the shard may be moving. Owner doesn't ask the store, and finds no owner before Run has joined.
func (s *Set) Owner(shard string) (Member, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.owners[shard]; m != nil {
		return m.public(), true
	}
	return Member{}, false
}

// Seen returns the members that this member saw when it last looked, in the order of Members. It
// doesn't ask the store, and returns none before Run has joined.
func (s *Set) Seen() []Member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return public(s.seen)
}

func public(members []*member) (all []Member) {
	for _, m := range members {
		all = append(all, m.public())
	}
	return all
}

// Members asks the store for the members, in one round trip. It works whether or not Run is under
// way. It returns the errors of [dlock.Client.Inspect].
func (s *Set) Members(ctx context.Context) ([]Member, error) {
	info, err := s.client.Inspect(ctx, s.lockName())
	if err != nil {
		return nil, err
	}
	return public(newView(info.Holders).members), nil
}

// Table asks the store for the owner of each shard, with one round trip for each. It is meant for
// people, and works whether or not Run is under way. For a Set with an empty list, it finds held
// shards with [dlock.Client.Locks]. Table stops at the first error from Locks or
// [dlock.Client.Inspect].
func (s *Set) Table(ctx context.Context) iter.Seq2[ShardInfo, error] {
	return func(yield func(ShardInfo, error) bool) {
		s.mu.Lock()
		names := s.names
		s.mu.Unlock()
		for info, err := range s.locks(ctx, names) {
			if err != nil {
				yield(ShardInfo{}, err)
				return
			}
			name := strings.TrimPrefix(info.Name, s.shardLock(""))
			shard := ShardInfo{Name: shardsBack.Replace(name), State: Free}
			if len(info.Holders) > 0 {
				shard.State, shard.Owner = Held, info.Holders[0].Client
			}
			if !yield(shard, nil) {
				return
			}
		}
	}
}

// locks asks the store for the locks of the named shards or, if there are no names, of all shards.
func (s *Set) locks(ctx context.Context, names []string) iter.Seq2[dlock.LockInfo, error] {
	if len(names) == 0 {
		return s.client.Locks(ctx, s.shardLock(""))
	}
	return func(yield func(dlock.LockInfo, error) bool) {
		for _, name := range names {
			if info, err := s.client.Inspect(ctx, s.shardLock(name)); !yield(info, err) {
				return
			}
		}
	}
}

func (s *Set) lockName() string { return "shards:" + setNames.Replace(s.name) }

func (s *Set) shardLock(shard string) string {
	return s.lockName() + "@" + shardNames.Replace(shard)
}

var (
	setNames   = strings.NewReplacer("%", "%25", "@", "%40", "!", "%21")
	shardNames = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D")
	shardsBack = strings.NewReplacer("%25", "%", "%7B", "{", "%7D", "}")
)

// check returns an error if an argument or option of New is invalid.
func (s *Set) check() error {
	switch {
	case s.name == "":
		return errors.New("the name is empty")
	case strings.ContainsAny(s.name, "{}"):
		return errors.New(
			"the name has braces, which would put all shards on one server of a cluster")
	case s.wrong != nil:
		return s.wrong
	case s.grace < 0, s.settle < 0:
		return errors.New("the grace or the settling time is negative")
	case s.weight < 0, s.weight > mostWeight:
		return fmt.Errorf("the weight %d isn't between 0 and %d", s.weight, mostWeight)
	case s.most < 0:
		return fmt.Errorf("the cap %d is negative", s.most)
	case s.starts < 1:
		return fmt.Errorf("%d starts at once are less than 1", s.starts)
	case len(s.address) > mostAddress:
		return fmt.Errorf("the address has %d bytes, more than %d", len(s.address), mostAddress)
	}
	return nil
}

const mostAddress = 100

func checkList(sorted []string) error {
	switch {
	case len(sorted) > mostShards:
		return fmt.Errorf("the list has %d shards, more than %d", len(sorted), mostShards)
	case len(sorted) > 0 && sorted[0] == "":
		return errors.New("the list has a shard with an empty name")
	}
	for i := range len(sorted) - 1 {
		if sorted[i] == sorted[i+1] {
			return fmt.Errorf("the list has %q twice", sorted[i])
		}
	}
	return nil
}
