package redisson

import (
	"strings"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/pubsub"
)

// Kinds is the set of kinds of lock that this package supports.
var Kinds = backend.KindsOf(backend.Fenced, backend.Read, backend.Write, backend.Fair,
	backend.Permits)

// A kind describes how the locks of one kind are stored. It creates the commands for each step, and
// interprets the replies.
type kind struct {
	// owner converts the name of an owner to its name in the store. It is nil if both are the same.
	owner func(string) string

	// refuse returns an error if a lock of this kind can't have the given name. It is nil if all
	// names are allowed.
	refuse func(name string) error

	acquire  func(Dialect, backend.AcquireRequest) Call
	acquired func(reply any) (backend.AcquireResult, error)

	// count asks how many holds the owner has. It is nil if the reply to acquire includes that
	// number.
	count func(name, owner string) Command

	// blind reports whether acquire might mistake other data for a held lock of this kind, and so
	// refuse the caller.
	blind bool

	// holders asks who holds a lock, so that the session learns of Redisson's clients (see
	// strangers). It is nil if the kind doesn't need that. holder returns the client that an owner
	// belongs to, and whether it is one of Redisson's clients. If the owners of this kind don't
	// reveal their clients, untold is true, and holder returns a string that identifies the owner
	// instead of the client.
	holders func(name string) Command
	holder  func(owner string) (client string, stranger bool)
	untold  bool

	// line reports whether the store keeps a line of waiters (see turns). A kind with a line has no
	// channel for releases.
	line bool

	release  func(Dialect, backend.ReleaseRequest) Call
	released func(reply any) (backend.ReleaseResult, error)

	// keep is like release, but the lock stays taken after the last release. The outcome
	// [backend.NotHeld] is reliable. keep is nil if the kind doesn't support this.
	keep func(Dialect, backend.ReleaseRequest) Call

	renew   func(Dialect, backend.RenewRequest) Call
	renewed func(reply any) (backend.RenewResult, error)

	// These functions repeat a release or a renewal that found no hold, using a script whose answer
	// is reliable (see again.go). They are nil if the first answer is already reliable.
	releaseAgain  func(Dialect, backend.ReleaseRequest) Call
	releasedAgain func(reply any) (backend.ReleaseResult, error)
	renewAgain    func(backend.RenewRequest) Call
	renewedAgain  func(reply any) (backend.RenewResult, error)

	// renewTogether is like renew, but for many locks with one lease. [ParseRenewals] reads the
	// reply.
	renewTogether func(Dialect, []backend.RenewRequest) Call

	force  func(Dialect, backend.ForceReleaseRequest) Call
	forced func(reply any) (backend.ForceReleaseResult, error)

	// look asks about a lock. looked reads the replies, and reports whether they are certain. If
	// they aren't, the caller must check two things: whether the key is something other than a lock
	// of this kind, and whether the lock was released but stays taken.
	look   func(backend.LookRequest) []Command
	looked func(backend.LookRequest, []Reply) (res backend.LookResult, certain bool, err error)

	channel func(name string) string // returns the channel for releases
	decode  pubsub.Decoder
	// keys returns the keys that the steps use, other than the lock's name.
	keys func(name, owner string) []string
}

// kinds lists all kinds of this package.
var kinds = [...]kind{
	backend.Exclusive: exclusive,
	backend.Fenced:    fenced(),
	backend.Read: {
		owner:         inside,
		acquire:       inAny(AcquireRead),
		acquired:      ParseGrant,
		release:       Dialect.ReleaseRead,
		released:      ParseRelease,
		renew:         inAny(one(RenewReads)),
		renewed:       parseRenewal,
		renewTogether: inAny(RenewReads),
		force:         Dialect.ForceReleaseRead,
		forced:        ParseForceRelease,
		look:          askScript(LookRead),
		looked:        lookedRW,
		channel:       RWChannel,
		decode:        Unlocked,
		keys: func(name, owner string) []string {
			return []string{RWChannel(name), notes(name), timeout(name, reader(owner))}
		},
	},
	backend.Write: {
		owner:         inside,
		holders:       hashed,
		holder:        hashedHolder,
		acquire:       inAny(AcquireWrite),
		acquired:      ParseGrant,
		release:       Dialect.ReleaseWrite,
		released:      ParseRelease,
		keep:          Dialect.KeepWrite,
		renew:         inAny(one(RenewWrites)),
		renewed:       parseRenewal,
		renewTogether: inAny(RenewWrites),
		force:         Dialect.ForceReleaseWrite,
		forced:        ParseForceRelease,
		look:          askScript(LookWrite),
		looked:        lookedRW,
		channel:       RWChannel,
		decode:        Unlocked,
		keys: func(name, _ string) []string {
			return []string{RWChannel(name), notes(name)}
		},
	},
	backend.Fair: {
		owner:         inLine,
		refuse:        refuseBraces("fair lock", "line"),
		acquire:       Dialect.AcquireFair,
		acquired:      ParseQueued,
		line:          true,
		release:       Dialect.ReleaseFair,
		released:      ParseRelease,
		keep:          Dialect.KeepFair,
		renew:         oneIn(Dialect.RenewFair),
		renewed:       parseRenewal,
		renewTogether: Dialect.RenewFair,
		force:         Dialect.ForceReleaseFair,
		forced:        ParseForceRelease,
		look:          look,
		looked:        looked,
		keys:          func(name, _ string) []string { return fairKeys(name)[1:] },
	},
	backend.Permits: {
		owner:         holder,
		holders:       permitted,
		holder:        permitHolder,
		untold:        true,
		refuse:        refuseBraces("semaphore", "list of permits"),
		acquire:       Dialect.AcquirePermits,
		acquired:      ParsePermits,
		release:       Dialect.ReleasePermits,
		released:      ParseRelease,
		keep:          Dialect.KeepPermits,
		renew:         oneIn(Dialect.RenewPermits),
		renewed:       parseRenewal,
		renewTogether: Dialect.RenewPermits,
		force:         Dialect.ForceReleasePermits,
		forced:        ParseForceRelease,
		look:          askScript(LookPermits),
		looked:        lookedPermits,
		channel:       PermitsChannel,
		decode:        Available,
		keys:          func(name, _ string) []string { return permitsKeys(name)[1:] },
	},
}

// kindOf returns the entry for a kind of lock, or nil if there is none.
func kindOf(k backend.Kind) *kind {
	if int(k) < len(kinds) && kinds[k].acquire != nil {
		return &kinds[k]
	}
	return nil
}

// called returns the name under which the store knows an owner.
func (k *kind) called(owner string) string {
	if k.owner == nil || owner == "" {
		return owner
	}
	return k.owner(owner)
}

// inside returns the name under which a read-write lock stores an owner. It differs from the
// owner's own name by a zero before the number at the end, or by ":0" at the end if there is no
// number. So if a script of a plain lock runs on a read-write lock by mistake, it doesn't find the
// owner.
func inside(owner string) string {
	colon := strings.LastIndexByte(owner, ':')
	if number := owner[colon+1:]; colon < 0 || number == "" ||
		strings.Trim(number, "0123456789") != "" {
		return owner + ":0"
	}
	return owner[:colon+1] + "0" + owner[colon+1:]
}

var exclusive = kind{
	acquire:       inAny(Acquire),
	acquired:      ParseAcquire,
	count:         func(name, owner string) Command { return ask("HGET", name, owner) },
	blind:         true,
	holders:       hashed,
	holder:        hashedHolder,
	release:       Dialect.Release,
	released:      ParseRelease,
	keep:          Dialect.Keep,
	renew:         inAny(Renew),
	renewed:       ParseRenew,
	releaseAgain:  Dialect.ReleaseAgain,
	releasedAgain: ParseReleaseAgain,
	renewAgain:    RenewAgain,
	renewedAgain:  ParseRenewAgain,
	renewTogether: inAny(renewTogether),
	force:         Dialect.ForceRelease,
	forced:        ParseForceRelease,
	look:          look,
	looked:        looked,
	channel:       Channel,
	decode:        unlockedOrKept,
	keys:          func(name, _ string) []string { return []string{Channel(name)} },
}

// fenced returns the entry for fenced locks. It differs from exclusive only in how a lock is
// acquired.
func fenced() kind {
	k := exclusive
	k.acquire, k.acquired, k.count, k.blind = inAny(AcquireFenced), ParseFenced, nil, false
	k.keys = func(name, _ string) []string { return []string{Channel(name), tokenKey(name)} }
	return k
}

// inAny adds a Dialect, which is ignored, to the parameters of a function. It is for functions
// whose calls publish nothing, and so are the same in every dialect.
func inAny[R any](call func(R) Call) func(Dialect, R) Call {
	return func(_ Dialect, req R) Call { return call(req) }
}

// one turns a function whose call renews many holds into a function for a single hold.
func one(renew func([]backend.RenewRequest) Call) func(backend.RenewRequest) Call {
	return func(req backend.RenewRequest) Call { return renew([]backend.RenewRequest{req}) }
}

// oneIn is like one, but for a function whose call depends on the dialect.
func oneIn(
	renew func(Dialect, []backend.RenewRequest) Call,
) func(Dialect, backend.RenewRequest) Call {
	return func(d Dialect, req backend.RenewRequest) Call {
		return renew(d, []backend.RenewRequest{req})
	}
}

func parseRenewal(reply any) (backend.RenewResult, error) {
	results, err := ParseRenewals(reply, 1)
	if err != nil {
		return backend.RenewResult{}, err
	}
	return results[0], nil
}

// askScript makes a script usable as the look function of a kind. It sends the script's text, since
// looks are rare, and the server might not know the script.
func askScript(look func(backend.LookRequest) Call) func(backend.LookRequest) []Command {
	return func(req backend.LookRequest) []Command { return []Command{look(req).byText()} }
}

func lookedRW(_ backend.LookRequest, replies []Reply) (backend.LookResult, bool, error) {
	res, err := parse(replies[0], ParseLookRW)
	return res, true, err
}
