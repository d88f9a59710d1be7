package redisson

import (
	"strings"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/pubsub"
)

// Kinds are those of the table, beside the plain lock.
var Kinds = backend.KindsOf(backend.Fenced, backend.Read, backend.Write, backend.Fair, backend.Permits)

// A kind is how the locks of one kind are kept: what is sent for each step, and what the replies mean.
type kind struct {
	// owner is what an owner is called in the store. Nil: as he is.
	owner func(string) string

	// refuse returns an error if a name can't be that of a lock of the kind. Nil: any can.
	refuse func(name string) error

	acquire  func(Dialect, backend.AcquireRequest) Call
	acquired func(reply any) (backend.AcquireResult, error)

	// count asks how many holds the owner has. It is nil if the reply to acquire says that.
	count func(name, owner string) Command

	// blind says that whoever is refused isn't told whether what keeps him out is a lock of the kind.
	blind bool

	// holders asks who has such a lock, for clients that contend with Redisson's: see strangers. Nil:
	// nobody asks. Holder returns the client of one of them, and whether it is Redisson's; or, where
	// owners are untold, what stands for the owner.
	holders func(name string) Command
	holder  func(owner string) (client string, stranger bool)
	untold  bool

	// line says that those who wait stand in line: see turns. Then there is no channel on which releases are published.
	line bool

	release  func(Dialect, backend.ReleaseRequest) Call
	released func(reply any) (backend.ReleaseResult, error)

	// keep is release for those who ask to keep what they give back, and needs no second script. It is nil if there is no such thing.
	keep func(Dialect, backend.ReleaseRequest) Call

	renew   func(Dialect, backend.RenewRequest) Call
	renewed func(reply any) (backend.RenewResult, error)

	// What is sent when a release or a renewal has done nothing, for a reason that may not hold. They are nil
	// if there is no such reason.
	releaseAgain  func(Dialect, backend.ReleaseRequest) Call
	releasedAgain func(reply any) (backend.ReleaseResult, error)
	renewAgain    func(backend.RenewRequest) Call
	renewedAgain  func(reply any) (backend.RenewResult, error)

	// renewTogether does what renew does for many locks with one lease. [ParseRenewals] reads the reply.
	renewTogether func(Dialect, []backend.RenewRequest) Call

	force  func(Dialect, backend.ForceReleaseRequest) Call
	forced func(reply any) (backend.ForceReleaseResult, error)

	// look asks about a lock. What the replies say is certain, or what was found may be no lock of the kind.
	look   func(backend.LookRequest) []Command
	looked func(backend.LookRequest, []Reply) (res backend.LookResult, certain bool, err error)

	channel func(name string) string // on which releases are published
	decode  pubsub.Decoder
	keys    func(name, owner string) []string // others than the name that the steps use
}

// kinds are those that there are.
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
		keys:          func(name, _ string) []string { return []string{RWChannel(name), notes(name)} },
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

// kindOf returns what is known of a kind, or nil.
func kindOf(k backend.Kind) *kind {
	if int(k) < len(kinds) && kinds[k].acquire != nil {
		return &kinds[k]
	}
	return nil
}

// called returns what an owner is called in the store.
func (k *kind) called(owner string) string {
	if k.owner == nil || owner == "" {
		return owner
	}
	return k.owner(owner)
}

// inside is what an owner is called in a read-write lock: his number gets a zero in front. The scripts of a plain lock
// look for a field of the owner's name, and nothing else. They must not find one in there, should he
// take the name for that of a plain lock.
func inside(owner string) string {
	colon := strings.LastIndexByte(owner, ':')
	if number := owner[colon+1:]; colon < 0 || number == "" || strings.Trim(number, "0123456789") != "" {
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

// fenced is an exclusive lock that is acquired in another way.
func fenced() kind {
	k := exclusive
	k.acquire, k.acquired, k.count, k.blind = inAny(AcquireFenced), ParseFenced, nil, false
	k.keys = func(name, _ string) []string { return []string{Channel(name), tokenKey(name)} }
	return k
}

// inAny is a call that is the same in every dialect, since it publishes nothing.
func inAny[R any](call func(R) Call) func(Dialect, R) Call {
	return func(_ Dialect, req R) Call { return call(req) }
}

// one is a script that renews many, for one.
func one(renew func([]backend.RenewRequest) Call) func(backend.RenewRequest) Call {
	return func(req backend.RenewRequest) Call { return renew([]backend.RenewRequest{req}) }
}

// oneIn is one for a script that has dialects.
func oneIn(renew func(Dialect, []backend.RenewRequest) Call) func(Dialect, backend.RenewRequest) Call {
	return func(d Dialect, req backend.RenewRequest) Call { return renew(d, []backend.RenewRequest{req}) }
}

func parseRenewal(reply any) (backend.RenewResult, error) {
	results, err := ParseRenewals(reply, 1)
	if err != nil {
		return backend.RenewResult{}, err
	}
	return results[0], nil
}

// askScript asks with a script. It sends the text: who looks does so now and then.
func askScript(look func(backend.LookRequest) Call) func(backend.LookRequest) []Command {
	return func(req backend.LookRequest) []Command { return []Command{look(req).byText()} }
}

func lookedRW(_ backend.LookRequest, replies []Reply) (backend.LookResult, bool, error) {
	res, err := parse(replies[0], ParseLookRW)
	return res, true, err
}
