package redisson

import "github.com/seed951563bd/distsync/backend"

// A kind is how the locks of one kind are kept: what is sent for each step, and what the replies mean.
type kind struct {
	acquire  func(backend.AcquireRequest) Call
	acquired func(reply any) (backend.AcquireResult, error)
	count    func(name, owner string) Command // asks how many holds the owner has

	release  func(Dialect, backend.ReleaseRequest) Call
	released func(reply any) (backend.ReleaseResult, error)
	renew    func(backend.RenewRequest) Call
	renewed  func(reply any) (backend.RenewResult, error)

	// What is sent when a release or a renewal has done nothing, for a reason that may not hold.
	releaseAgain  func(Dialect, backend.ReleaseRequest) Call
	releasedAgain func(reply any) (backend.ReleaseResult, error)
	renewAgain    func(backend.RenewRequest) Call
	renewedAgain  func(reply any) (backend.RenewResult, error)

	// renewTogether does what renew does for many locks with one lease. The reply says for each whether it is held.
	renewTogether func(reqs []backend.RenewRequest) Call

	force  func(Dialect, backend.ForceReleaseRequest) Call
	forced func(reply any) (backend.ForceReleaseResult, error)

	look   func(backend.LookRequest) []Command
	looked func(backend.LookRequest, []Reply) (backend.LookResult, error)

	channel func(name string) string // on which releases are published
	wakeup  func(message string) (backend.Wakeup, bool)
	keys    func(name, owner string) []string // all that the steps use: a cluster must have them in one slot
}

// kinds are those that there are.
var kinds = [...]kind{
	backend.Exclusive: {
		acquire:       Acquire,
		acquired:      ParseAcquire,
		count:         func(name, owner string) Command { return ask("HGET", name, owner) },
		release:       Dialect.Release,
		released:      ParseRelease,
		renew:         Renew,
		renewed:       ParseRenew,
		releaseAgain:  Dialect.ReleaseAgain,
		releasedAgain: ParseReleaseAgain,
		renewAgain:    RenewAgain,
		renewedAgain:  ParseRenewAgain,
		renewTogether: renewTogether,
		force:         Dialect.ForceRelease,
		forced:        ParseForceRelease,
		look:          look,
		looked:        looked,
		channel:       Channel,
		wakeup:        Wakeup,
		keys:          func(name, _ string) []string { return []string{name, Channel(name)} },
	},
}

// kindOf returns what is known of a kind, or nil.
func kindOf(k backend.Kind) *kind {
	if int(k) < len(kinds) {
		return &kinds[k]
	}
	return nil
}
