package main

import (
	"fmt"
	"slices"
)

// A run is one exploration with its expected result.
type run struct {
	name   string
	big    bool     // the run takes a long time, so tests skip it
	mutant mutation // the broken rule, if any
	// known lists the properties that the run violates even though no rule is broken.
	known   []string
	breaks  []string // the properties that the run must violate because of the broken rule
	explore func(want []string) Result
}

const limit = 12_000_000 // the maximum number of states in one exploration

// surprise describes how a result deviates from the expected one. It returns "" if they agree.
func (r *run) surprise(res Result) string {
	for _, p := range slices.Concat(r.known, r.breaks) {
		if _, ok := res.found(p); !ok {
			return p + " should be broken, and isn't"
		}
	}
	for _, v := range res.Found {
		if r.mutant == unchanged && !slices.Contains(r.known, v.Property) {
			return v.Property + " is broken"
		}
	}
	if res.CutOff {
		return fmt.Sprintf("not finished after %d states", limit)
	}
	return ""
}

// The models that the runs explore. In models of type Holds and Shares, client B is ideal, except
// where a run clears the field Rival.
var (
	one = Holds{
		Goroutines: [2]int{1, 0}, Numbers: [2]int{1, 1}, Nested: [2]bool{true, false}, Depth: 2,
		Count: 3, Requests: 3, Lease: 2, Rival: true, SureOnly: true,
	}
	twice = with(one, func(m *Holds) { m.Numbers[0] = 2 })
	deep  = with(one, func(m *Holds) { m.Depth, m.Count, m.Requests = 3, 5, 4 })
	both  = with(one, func(m *Holds) {
		m.Rival, m.Goroutines, m.Nested = false, [2]int{1, 1}, [2]bool{true, true}
	})
	punctual = with(one, func(m *Holds) { m.Punctual = true })
	pair     = with(one, func(m *Holds) { m.Goroutines[0], m.Nested[0], m.Pair = 2, false, true })

	shorter = with(one, func(m *Holds) { m.Fixed = 1 })
	longer  = with(one, func(m *Holds) { m.Fixed, m.Lease = 2, 1 })

	forced     = with(one, func(m *Holds) { m.Forces = 1 })
	failing    = with(one, func(m *Holds) { m.Failovers = 1 })
	forcedOnce = with(forced, func(m *Holds) { m.Depth = 1 })
	answered   = with(forced, func(m *Holds) { m.Answered = true })

	hand         = with(one, func(m *Holds) { m.Goroutines[0], m.HandOvers, m.Requests = 2, 1, 2 })
	handTwice    = with(hand, func(m *Holds) { m.Numbers[0], m.HandOvers = 2, 2 })
	handPunctual = with(hand, func(m *Holds) { m.Numbers[0], m.Punctual = 2, true })
	handBoth     = with(handTwice, func(m *Holds) {
		m.Rival, m.Goroutines, m.HandOvers, m.Count = false, [2]int{2, 1}, 1, 2
	})
	handPair = with(hand, func(m *Holds) {
		m.Goroutines[0], m.Nested[0], m.Pair = 3, false, true
	})
	handShorter = with(hand, func(m *Holds) { m.Fixed = 1 })
	handLonger  = with(hand, func(m *Holds) { m.Fixed, m.Lease = 2, 1 })
	handForced  = with(hand, func(m *Holds) { m.Forces, m.Depth = 1, 1 })
	chain       = with(handForced, func(m *Holds) { m.Chain, m.Lease = 1, 3 })
	heirs       = with(hand, func(m *Holds) {
		m.Forces, m.Requests, m.AllNested, m.Answered, m.Later = 1, 3, true, true, true
	})
	unsure = func(m Holds) Holds { m.SureOnly = false; return m }

	share = Shares{
		Parties: [2]int{2, 0}, Numbers: [2]int{2, 1}, Count: 2, Requests: 2, Lease: 2, Rival: true,
	}
	shareAged     = with(share, func(m *Shares) { m.Window, m.Lease = 1, 3 })
	sharePunctual = with(share, func(m *Shares) { m.Punctual = true })
	shareForced   = with(shareAged, func(m *Shares) { m.Forces, m.Answered = 1, true })
	plain         = with(shareAged, func(m *Shares) { m.Plain = true })
	plainForced   = with(shareForced, func(m *Shares) { m.Plain = true })
	shareMixed    = with(share, func(m *Shares) { m.Writers[0] = 1 })
	shareBoth     = with(share, func(m *Shares) {
		m.Rival, m.Parties, m.Writers, m.Numbers = false, [2]int{1, 1}, [2]int{1, 1}, [2]int{1, 1}
	})
	under = with(share, func(m *Shares) {
		m.Parties[0], m.Writers[0], m.Numbers[0] = 1, 1, 1
	})
	underBeside   = with(under, func(m *Shares) { m.Parties[0] = 2 })
	underPair     = with(underBeside, func(m *Shares) { m.Pair = true })
	underPunctual = with(underPair, func(m *Shares) { m.Punctual = true })
	underHand     = with(underBeside, func(m *Shares) { m.Writers[0], m.HandOvers = 2, 1 })
	lent          = with(share, func(m *Shares) {
		m.Writers[0], m.Numbers[0], m.Count, m.HandOvers, m.Lends, m.Window, m.Lease = 2, 1, 1, 2,
			true, 1, 3
	})
	lentOnce     = with(lent, func(m *Shares) { m.Writers[0], m.HandOvers = 1, 1 })
	lentPunctual = with(lentOnce, func(m *Shares) { m.Punctual = true })
	lentForced   = with(lentOnce, func(m *Shares) { m.Forces, m.Answered = 1, true })
	lentStruck   = with(lentPunctual, func(m *Shares) { m.Forces = 1 })
	lentRenewed  = with(lentOnce, func(m *Shares) { m.Answered, m.Renewals = true, true })

	noteOf = func(a, b string) Notes {
		return Notes{Clients: [2]string{a, b}, Unknowns: 1, HandOver: true, Punctual: true}
	}
	note      = noteOf("WR", "R")
	noteWaits = noteOf("RRW", "")
	noteDies  = with(noteOf("R", "WR"), func(m *Notes) { m.Crashes, m.Losses = 1, 1 })
	certain   = func(m Notes) Notes { m.Unknowns = 0; return m }

	line = Line{
		Calls: [2]int{1, 0}, Rival: 1, Requests: 2, Grants: 1, Unknowns: 1, Short: 1, Lease: 2,
	}
	linePunctual = with(line, func(m *Line) { m.Punctual = true })
	lineTwo      = with(line, func(m *Line) { m.Calls[0], m.Rival, m.Lease = 2, 0, 1 })
	lineThree    = with(line, func(m *Line) { m.Calls[0], m.Lease, m.Requests = 2, 1, 1 })
	lineBoth     = with(lineTwo, func(m *Line) { m.Calls = [2]int{1, 1} })
	lineShorter  = with(line, func(m *Line) { m.Short, m.Fixed, m.Renewals = 2, 1, true })
	punctually   = func(m Line) Line { m.Punctual = true; return m }

	permits = Permits{
		Wants: [3]uint8{1, 2}, Limits: [3]uint8{2, 2}, Requests: 2, Unknowns: 1, Lease: 2,
	}
	permitsThree    = with(permits, func(m *Permits) { m.Wants[2], m.Limits[2], m.Lease = 1, 2, 1 })
	permitsPunctual = with(permits, func(m *Permits) { m.Punctual = true })
	permitsPart     = with(permits, func(m *Permits) { m.Reclaims = 1 })

	clock        = Clocks{Short: 2, End: 9, Delay: 4, Look: 9}
	clockStepped = with(clock, func(m *Clocks) { m.Steps = [2]int8{-3, 3} })
	clockBack    = with(clock, func(m *Clocks) { m.Steps[0] = -3 })
	clockFar     = with(clock, func(m *Clocks) { m.Steps[0], m.Delay, m.Look = 8, 3, 4 })
	clockPrompt  = with(clockStepped, func(m *Clocks) { m.Delay = 0 })
	clockFails   = with(clockStepped, func(m *Clocks) { m.Failover = true })

	quorum = Quorum{
		Comes: [2]uint8{1, 1}, Rival: true, Names: 2, Lease: 2, Late: 1, Silent: often,
	}
	quorumShort = with(quorum, func(m *Quorum) { m.Lease = 1 })
	quorumDeep  = with(quorumShort, func(m *Quorum) { m.Depth = 1 })
	quorumGhost = with(quorum, func(m *Quorum) { m.Ghost, m.Lease, m.Late = true, 1, 0 })
	quorumEmpty = with(quorum, func(m *Quorum) { m.Restarts, m.Lease = 1, 1 })
	quorumBoth  = Quorum{Comes: [2]uint8{1, 1}, Slow: true, Names: 2, Late: 1, Silent: 1}
	quorumWell  = with(quorumBoth, func(m *Quorum) {
		m.Comes, m.Silent, m.Well, m.Doubts = [2]uint8{2, 2}, 0, true, true
	})
	quorumLacks = with(quorumEmpty, func(m *Quorum) {
		m.Late, m.Names, m.Silent, m.Repairs = 2, 1, 2, true
	})
	quorumBack  = with(quorumLacks, func(m *Quorum) { m.Away = true })
	quorumRolls = with(quorumLacks, func(m *Quorum) {
		m.Comes, m.Lease, m.Late, m.Silent, m.Restarts, m.Spaced = [2]uint8{1, 0}, 2, 3, 0, 3, true
	})
	quorumLeft = with(quorumBoth, func(m *Quorum) {
		m.Doubts, m.Leftover, m.Silent = true, true, 0
	})
	quorumOnce  = with(quorumBoth, func(m *Quorum) { m.AtOnce = true })
	quorumDown  = with(quorumBoth, func(m *Quorum) { m.Dead, m.Silent = true, 0 })
	quorumSplit = with(quorumDown, func(m *Quorum) { m.Crossed, m.Late = true, 0 })

	wait2 = Waits{Waiters: 2, Breaks: 2, Others: 3, Unknowns: 1, Forces: 1, HandOver: true}
	wait3 = Waits{Waiters: 3, Breaks: 1, Others: 3, Unknowns: 1, HandOver: true}
)

// with returns a changed copy of m.
func with[M any](m M, change func(*M)) M {
	change(&m)
	return m
}

func runs() []run {
	return []run{
		// Runs of the unchanged protocol.
		holds("an owner re-enters", one),
		holds("a pair of goroutines is one owner", pair),
		holds("no request is later than its lease", punctual),
		holds("fixed leases, shorter ones", shorter),
		holds("fixed leases, longer ones", longer),
		holds("a client crashes", with(one, func(m *Holds) { m.Crashes = 1 })),
		holds("ForceUnlock", forced, "S1", "S2"),
		holds("ForceUnlock, nobody re-enters", forcedOnce),
		holds("ForceUnlock, what counts is answered", answered),
		holds("failover", failing, "S1"),
		holds("failover, nobody re-enters", with(failing, func(m *Holds) { m.Depth = 1 })),
		holds("failover, what counts is answered", with(failing, func(m *Holds) {
			m.Answered = true
		}), "S1"),

		holds("hand-over", hand),
		holds("hand-over, no request is later than its lease", with(handPunctual, func(m *Holds) {
			m.Numbers[0] = 1
		})),
		holds("hand-over, fixed leases, shorter ones", handShorter),
		holds("hand-over, fixed leases, longer ones", handLonger),
		holds("hand-over, in doubt as well", unsure(handShorter)),
		holds("hand-over, a client crashes", with(hand, func(m *Holds) { m.Crashes = 1 })),
		holds("hand-over, ForceUnlock", handForced, "E0"),
		holds("hand-over, ForceUnlock, the time of a chain", chain, "E0"),
		holds("hand-over, ForceUnlock, who was answered", heirs, "E0"),
		holds("hand-over, failover, the time of a chain", with(chain, func(m *Holds) {
			m.Forces, m.Failovers = 0, 1
		}), "E0"),

		waits("2 waiters, 2 breaks, ForceUnlock", wait2),
		waits("3 waiters", wait3),
		waits("3 waiters, no hand-over", with(wait3, func(m *Waits) { m.HandOver = false })),
		waits("2 waiters, turns", with(wait2, func(m *Waits) { m.Turns = true })),
		waits("3 waiters, turns, no hand-over", with(wait3, func(m *Waits) {
			m.Turns, m.HandOver = true, false
		})),
		waits("3 waiters, no notification", with(wait3, func(m *Waits) { m.Polls = true })),

		shares("readers share", share),
		shares("readers share, no request is later than its lease", sharePunctual),
		shares("readers share, claims age", shareAged),
		shares("readers share, a client crashes", with(share, func(m *Shares) { m.Crashes = 1 })),
		shares("readers share, ForceUnlock", shareForced),
		shares("readers share, plain calls, ForceUnlock", plainForced),
		shares("a writer reads", under),
		shares("a writer reads, a pair of goroutines is one owner", underPair),
		shares("a writer reads, hand-over", underHand),
		shares("a write is lent", lent),
		shares("a write is lent to two", with(lentOnce, func(m *Shares) {
			m.Parties[0], m.Requests, m.Answered = 3, 1, true
		})),
		shares("a write is lent once, no request is later than its lease", lentPunctual),
		shares("a write is lent once, ForceUnlock", lentForced),

		notes("a writer and two readers, all is answered", certain(note)),
		notes("two readers and a writer, one client", noteWaits),
		notes("a reader tries out of turn", noteOf("WRT", "")),
		notes("a writer goes on reading", noteOf("D", "R")),

		lines("one waits", line),
		lines("one waits, no request is later than its lease", linePunctual),
		lines("one waits, the other party comes twice", with(line, func(m *Line) { m.Rival = 2 })),
		lines("one waits, and re-enters", with(line, func(m *Line) { m.Depth = 2 })),
		lines("one waits, renewals take time", with(line, func(m *Line) { m.Renewals = true })),
		lines("one waits, a message comes twice", with(line, func(m *Line) {
			m.Doubles, m.Short = 1, 2
		})),
		lines("one waits, a place is lost", with(line, func(m *Line) { m.Lapses = 1 })),
		lines("one waits, its client crashes", with(line, func(m *Line) { m.Crashes = 1 })),
		lines("one waits, a fixed lease, shorter than a grant", lineShorter),
		lines("one waits, a fixed lease, longer than a grant", with(line, func(m *Line) {
			m.Fixed, m.Renewals = 2, true
		})),
		lines("one waits, ForceUnlock", with(line, func(m *Line) { m.Forces = 1 }), "S2"),
		lines("two wait, and another party", lineThree),

		semaphore("two parties", permits),
		semaphore("two parties, no request is later than its lease", permitsPunctual),
		semaphore("three parties", permitsThree),
		semaphore("three parties, the number changes", with(permitsThree, func(m *Permits) {
			m.Limits[2] = 3
		})),
		semaphore("a part is reclaimed", permitsPart),
		semaphore("ForceUnlock", with(permits, func(m *Permits) { m.Forces = 1 })),

		clocks("a clock that is right", clock),
		clocks("a clock that is stepped back", clockBack),
		clocks("a clock that is stepped, messages are prompt", clockPrompt),
		clocks("a clock that is stepped, messages are late", clockStepped, "S1"),
		clocks("a clock that is stepped far ahead", clockFar),
		clocks("a failover to another clock", clockFails),

		quorums("requests are late, or without an answer", quorumShort),
		quorums("a client re-enters", quorumDeep),
		quorums("a client crashes", with(quorumShort, func(m *Quorum) { m.Crashes = 1 })),
		quorums("a give-back is late, and comes twice", quorumGhost),
		quorums("a store restarts empty, after a lease", with(quorumEmpty, func(m *Quorum) {
			m.Away = true
		})),
		quorums("a store restarts empty, within a lease", quorumEmpty, "S1"),
		quorums("a store that lacks a hold is asked for it again", with(quorumLacks, func(
			m *Quorum,
		) {
			m.Restarts = 0
		})),
		quorums("a store that restarts empty, after a lease, is asked for it again", quorumBack),
		quorums("a store that restarts empty, within a lease, is asked for it again", quorumLacks,
			"S1"),
		quorums("each store restarts empty in turn", quorumRolls),
		quorums("both clients in full, all is well", quorumWell),
		quorums("both clients in full", quorumBoth),
		quorums("both clients in full, at once", quorumOnce),
		quorums("both clients in full, at once, all is well", with(quorumOnce, func(m *Quorum) {
			m.Comes, m.Silent, m.Doubts = [2]uint8{2, 1}, 0, true
		})),
		quorums("both clients in full, at once, the store that is asked first is down",
			with(quorumDown, func(m *Quorum) { m.AtOnce = true })),
		quorums("both clients in full, the store that is asked first is down", quorumDown),
		quorums("both clients in full, they begin elsewhere", quorumSplit),
		quorums("both clients in full, a leftover in the store that is asked first", quorumLeft),

		big(quorums("requests are late, or without an answer, leases of 2", quorum)),
		big(quorums("a client locks twice", with(quorumShort, func(m *Quorum) { m.Comes[0] = 2 }))),
		big(quorums("both clients in full, they look at all stores",
			with(quorumBoth, func(m *Quorum) { m.Doubts = true }))),
		big(quorums("both clients in full, 2 silences", with(quorumBoth, func(m *Quorum) {
			m.Silent = 2
		}))),
		big(quorums("both clients in full, the store that is asked first is down, a silence",
			with(quorumDown, func(m *Quorum) { m.Silent = 1 }))),

		big(lines("one waits, 2 requests without an answer", with(linePunctual, func(m *Line) {
			m.Unknowns = 2
		}))),
		big(lines("one waits, and re-enters, ForceUnlock", with(line, func(m *Line) {
			m.Depth, m.Forces = 2, 1
		}), "S2", "N")),
		big(lines("two wait", lineTwo)),
		big(lines("two wait, no request is later than its lease", punctually(lineTwo))),
		big(lines("two wait, a place is lost", with(lineTwo, func(m *Line) { m.Lapses = 1 }))),
		big(lines("two wait, and another party, 2 requests", with(lineThree, func(m *Line) {
			m.Requests = 2
		}))),
		big(lines("one of each of two clients waits", lineBoth)),
		big(lines("one of each of two clients waits, a client crashes",
			with(lineBoth, func(m *Line) { m.Crashes = 1 }))),

		big(shares("readers share, plain calls of one variable", plain)),
		big(shares("readers share, ForceUnlock, unanswered", with(shareForced, func(m *Shares) {
			m.Answered = false
		}), "T1")),
		big(shares("three readers", with(share, func(m *Shares) { m.Parties[0] = 3 }))),
		big(shares("readers share, renewals take time", with(share, func(m *Shares) {
			m.Renewals = true
		}))),
		big(shares("a reader and a writer, one request at a time", with(shareMixed, func(
			m *Shares,
		) {
			m.Requests = 1
		}))),
		big(shares("a reader and a writer", with(shareMixed, func(m *Shares) { m.Count = 1 }))),
		big(shares("both clients in full, one request at a time", with(shareBoth, func(m *Shares) {
			m.Requests = 1
		}))),
		big(shares("both clients in full", with(shareBoth, func(m *Shares) {
			m.Lease, m.Count = 1, 1
		}))),
		big(shares("a writer reads, punctual", underPunctual)),
		big(shares("a write is lent, a client crashes", with(lent, func(m *Shares) {
			m.Crashes = 1
		}))),
		big(shares("a write is lent, no request is later than its lease", with(lent, func(
			m *Shares,
		) {
			m.Punctual = true
		}))),
		big(shares("a write is lent, ForceUnlock", with(lentForced, func(m *Shares) {
			m.Writers[0], m.HandOvers = 2, 2
		}))),
		big(shares("a write is lent once, ForceUnlock, unanswered", lentStruck, "T1")),
		big(shares("a write is lent once, renewals take time", lentRenewed)),
		big(shares("a write is lent to two, and handed back", with(lent, func(m *Shares) {
			m.Parties[0], m.Requests, m.Answered = 3, 1, true
		}))),
		big(notes("a writer and two readers", note)),
		big(notes("a writer and two readers, requests are late", with(note, func(m *Notes) {
			m.Punctual = false
		}))),
		big(notes("a client crashes, a message is lost", noteDies)),
		big(notes("a writer goes on reading, others wait", noteOf("D", "RW"))),
		big(notes("two writers wait", certain(noteOf("RRW", "W")))),
		big(notes("two writers of one client", certain(noteOf("WRW", "R")))),
		big(notes("a writer and a reader in each client", certain(noteOf("WR", "WR")))),

		big(holds("an owner acquires twice", twice)),
		big(holds("an owner re-enters 3 deep, 4 requests", deep)),
		big(holds("both clients in full", both)),
		big(holds("2 hand-overs, 2 acquisitions", handTwice)),
		big(holds("2 hand-overs, 2 acquisitions, in doubt as well", unsure(handTwice))),
		big(holds("hand-over, 2 acquisitions, punctual", handPunctual)),
		big(holds("hand-over, both clients in full", handBoth)),
		big(holds("hand-over, a pair is one owner", handPair)),
		big(holds("hand-over, a pair is one owner, 2 acquisitions", with(handPair, func(m *Holds) {
			m.Numbers[0] = 2
		}))),

		// Runs that each break one rule.
		holdsWithout(numberPerOwner, twice, "S1", "S3"),
		holdsWithout(lockerIsOwner, hand, "S1"),
		holdsWithout(libraryRepeats, one, "S1"),
		holdsWithout(partialRepeated, one, "S1"),
		holdsWithout(releasesOnce, punctual, "G1"),
		holdsWithout(renewsAfterUnlock, one, "L1"),
		holdsWithout(unlocksDuringReentry, pair, "S1"),
		holdsWithout(unknownReentryCounts, one, "S1"),
		holdsWithout(countIgnored, answered, "S1"),

		holdsWithout(deadlineFromReply, one, "S1"),
		holdsWithout(acceptsLate, one, "S4"),
		holdsWithout(revivesLost, one, "S1"),
		holdsWithout(reentryShortens, shorter, "S1"),
		holdsWithout(releaseShortens, shorter, "S1"),
		holdsWithout(doubtIgnored, shorter, "S1"),
		holdsWithout(doubtEnds, shorter, "S1"),

		holdsWithout(neverTakenBack, punctual, "G1"),
		holdsWithout(takenBackOnce, punctual, "G1"),
		holdsWithout(takenBackInTimeOnly, punctual, "G1"),
		holdsWithout(takenBackEarly, one, "S1"),
		holdsWithout(reentryNotTakenBack, punctual, "G1"),
		holdsWithout(errorNotTakenBack, punctual, "G1"),

		holdsWithout(handsOnLate, hand, "S4"),
		holdsWithout(handsOnLost, handForced, "S1"),
		holdsWithout(handsOnUnsure, heirs, "S1"),
		holdsWithout(handsOnReleased, hand, "S1"),
		holdsWithout(handsOnNested, hand, "S1"),
		holdsWithout(handsOnDuringReentry, handPair, "S1"),
		holdsWithout(handsOnForever, chain, "E1"),
		holdsWithout(chainFromFirstHandOver, chain, "E1"),
		holdsWithout(chainFromAnswer, chain, "E1"),
		holdsWithout(handOverIsNewLease, hand, "S1"),
		holdsWithout(handOverForgetsUnsure, unsure(handPunctual), "G1"),
		holdsWithout(handOverForgetsDoubt, unsure(handShorter), "S1"),
		holdsWithout(entersOthersTenure, handPair, "S1"),
		holdsWithout(attemptForgotten, handPunctual, "G1"),
		holdsWithout(handedDropped, hand, "L1"),
		holdsWithout(handedUnseen, hand, "S4"),

		sharesWithout(joinsLost, share, "S4"),
		sharesWithout(joinsReleased, share, "S1"),
		sharesWithout(joinsNested, underBeside, "S1"),
		sharesWithout(joinsForever, shareForced, "E1"),
		sharesWithout(joinedUnseen, share, "S4"),
		sharesWithout(joinedDropped, share, "L1"),
		sharesWithout(leaverReleases, share, "S1"),
		sharesWithout(lastStays, share, "L1"),
		sharesWithout(leftToLease, sharePunctual, "G1"),
		sharesWithout(tellsOne, shareForced, "S1"),
		sharesWithout(revivesClaim, share, "T1"),
		sharesWithout(lossUnheard, plainForced, "T1"),
		sharesWithout(nestedReleasedEarly, under, "S1"),
		sharesWithout(nestedTakenBackEarly, under, "S1"),
		sharesWithout(handsOnRead, underHand, "S1"),
		sharesWithout(grantsEnded, underPair, "S1"),
		sharesWithout(endedForgotten, underPunctual, "G1"),

		sharesWithout(lendsLate, lentForced, "E1"),
		sharesWithout(passesOnLate, lent, "S1"),
		sharesWithout(flipsEarly, lent, "S1"),
		sharesWithout(keepsDeadline, lentRenewed, "S1"),
		sharesWithout(flipForgetsUnsure, lentPunctual, "G1"),
		sharesWithout(writeLeft, lentPunctual, "G1"),
		sharesWithout(downgradeForgotten, lentPunctual, "G1"),
		sharesWithout(refusedForgotten, lentStruck, "G1"),
		sharesWithout(downgradeUnheard, lentForced, "T1"),
		sharesWithout(believesOldRenewal, lentRenewed, "S1"),

		notesWithout(neverBarred, note, "W1"),
		notesWithout(refreshesYounger, note, "W1"),
		notesWithout(placeTooShort, note, "W1"),
		notesWithout(noNoteTimer, noteDies, "L2"),
		notesWithout(barredDeaf, note, "L2m"),
		notesWithout(givesUpLeavingNote, note, "G3"),
		notesWithout(givesUpQuietly, note, "L2m"),
		notesWithout(noteTakenBackOnce, note, "G3"),
		notesWithout(entersKeepingNote, note, "G3"),
		notesWithout(handedKeepingNote, noteOf("WRW", "R"), "G3"),
		notesWithout(backWaits, noteOf("D", "RW"), "G3"),
		notesWithout(downgradesQuietly, noteOf("D", "R"), "L2m"),
		notesWithout(lastReaderQuiet, note, "L2m"),
		notesWithout(joinsAhead, noteWaits, "W2"),
		notesWithout(grantsAhead, noteOf("RRW", "W"), "W2"),
		notesWithout(grantsAheadOfTrying, noteOf("WRT", ""), "W2"),

		lineWithout(keepsUnanswered, with(lineThree, func(m *Line) { m.Requests = 2 }), "O"),
		lineWithout(asksByAttempt, line, "O"),
		lineWithout(comesBackLast, line, "O"),
		lineWithout(grantKeepsPlace, linePunctual, "G"),
		lineWithout(releaseKeepsPlace, linePunctual, "G"),
		lineWithout(releaseUnsettled, line, "H"),
		lineWithout(keepForgotten, linePunctual, "G"),
		lineWithout(keepForgottenInside, linePunctual, "G"),
		lineWithout(keepUnderWayForgotten, linePunctual, "G"),
		lineWithout(attemptForgottenInside, with(linePunctual, func(m *Line) {
			m.Unknowns = 2
		}), "G"),
		lineWithout(attemptShortens, lineShorter, "S1"),
		lineWithout(renewalShortens, lineShorter, "S1"),
		lineWithout(grantFromReceipt, line, "S1"),
		lineWithout(grantRevives, line, "S1"),
		lineWithout(grantProlongs, with(line, func(m *Line) { m.Doubles, m.Short = 1, 2 }), "S1"),
		lineWithout(keptFromReply, line, "S1"),
		lineWithout(keptRevives, line, "S1"),
		lineWithout(keepDeaf, with(line, func(m *Line) { m.Deaf = true }), "L1"),
		lineWithout(believesOldAnswer, line, "N"),
		lineWithout(believesOldPlaces, line, "N"),

		lineWithout(takenBackOnce, linePunctual, "G"),

		permitsWithout(permitsDrawnAnew, permitsPunctual, "G"),
		permitsWithout(takenBackOnce, permitsPunctual, "G"),
		permitsWithout(partKept, permitsPart, "S1"),
		permitsWithout(partStays, with(permitsPunctual, func(m *Permits) { m.Reclaims = 1 }), "G"),

		quorumWithout(oneName, quorumGhost, "S1"),
		quorumWithout(reentriesCounted, quorumDeep, "S1"),
		quorumWithout(renewedByFew, quorum, "S1"),
		quorumWithout(silenceCounts, quorum, "S1"),
		quorumWithout(deadlineFromReply, quorum, "S1"),
		quorumWithout(acceptsLate, quorum, "S4"),
		quorumWithout(refutedCounts, quorumEmpty, "T2"),
		quorumWithout(asksAllAtOnce, quorumWell, "V"),
		quorumWithout(firstFreedFirst, quorumWell, "V"),
		quorumWithout(keepsSplit, quorumBoth, "L1"),
		quorumWithout(ownUnheard, quorumBoth, "L2"),
		quorumWithout(asksSameAgain, quorumBoth, "Z"),
		quorumWithout(silentLeft, quorumBoth, "G"),
		quorumWithout(lateVoteLeft, quorumBoth, "G"),
		quorumWithout(refutedForgotten, quorumBoth, "G"),
		quorumWithout(takenBackOnce, quorumBoth, "G"),
		quorumWithout(neverTakenBack, quorumBoth, "G"),
		quorumWithout(neverRepaired, quorumRolls, "K"),
		quorumWithout(forgivenAtOnce, quorumLacks, "T2"),
		quorumWithout(forgivenUnasked, quorumLacks, "T2"),
		quorumWithout(confirmsItself, quorumLacks, "T2"),
		quorumWithout(freedOnce, quorumLacks, "G"),
		quorumWithout(waitsForTheLast, quorumSplit, "L1"),
		quorumWithout(believesFirst, quorumLeft, "L1"),
		quorumWithout(listensToLeftover, quorumLeft, "L1"),

		clocksWithout(sinceReceipt, clock, "S1"),
		clocksWithout(lookFromAnswer, clock, "S1"),
		clocksWithout(stepsUnseen, clockFar, "S1"),
		clocksWithout(clockUnbounded, clockPrompt, "S1"),
		clocksWithout(looksOutliveBreaks, clockFails, "S1"),

		waitsWithout(noTimer, wait2, "L2"),
		waitsWithout(noShortTimer, with(wait3, func(m *Waits) { m.Polls = true }), "L2"),
		waitsWithout(passesForGood, with(wait2, func(m *Waits) { m.Turns = true }), "L2m"),
		waitsWithout(noPassOn, wait3, "L2"),
		waitsWithout(noSecondTry, wait2, "L2m"),
		waitsWithout(wokenWhenAsked, wait2, "L2m"),
		waitsWithout(noWakeOnReconnect, wait2, "L2m"),
		waitsWithout(wokenBeforeReconnect, wait2, "L2m"),
		waitsWithout(reusesEnding, wait2, "L2m"),
		waitsWithout(messageWakesSleepersOnly, wait2, "L2m"),
		waitsWithout(clearedAfterwards, wait2, "L2m"),
		waitsWithout(grantLeft, wait2, "G2"),
	}
}

func lines(name string, m Line, known ...string) run {
	return run{name: "line: " + name, known: known, explore: func(want []string) Result {
		return explore(&m, want, limit)
	}}
}

func lineWithout(rule mutation, m Line, breaks ...string) run {
	m.Mutation = rule
	r := lines("", m)
	r.name, r.mutant, r.known, r.breaks = "broken: "+rule.String()+" (line)", rule, nil, breaks
	return r
}

func semaphore(name string, m Permits, known ...string) run {
	return run{name: "permits: " + name, known: known, explore: func(want []string) Result {
		return explore(&m, want, limit)
	}}
}

func permitsWithout(rule mutation, m Permits, breaks ...string) run {
	m.Mutation = rule
	r := semaphore("", m)
	r.name, r.mutant, r.known, r.breaks = "broken: "+rule.String()+" (permits)", rule, nil, breaks
	return r
}

func quorums(name string, m Quorum, known ...string) run {
	return run{name: "quorum: " + name, known: known, explore: func(want []string) Result {
		return explore(&m, want, limit)
	}}
}

func quorumWithout(rule mutation, m Quorum, breaks ...string) run {
	m.Mutation = rule
	r := quorums("", m)
	r.name, r.mutant, r.known, r.breaks = "broken: "+rule.String()+" (quorum)", rule, nil, breaks
	return r
}

func clocks(name string, m Clocks, known ...string) run {
	return run{name: "clocks: " + name, known: known, explore: func(want []string) Result {
		return explore(&m, want, limit)
	}}
}

func clocksWithout(rule mutation, m Clocks, breaks ...string) run {
	m.Mutation = rule
	r := clocks("", m)
	r.name, r.mutant, r.known, r.breaks = "broken: "+rule.String(), rule, nil, breaks
	return r
}

func holds(name string, m Holds, known ...string) run {
	return run{name: "holds: " + name, known: known, explore: func(want []string) Result {
		return explore(&m, want, limit)
	}}
}

func waits(name string, m Waits, known ...string) run {
	return run{name: "waits: " + name, known: known, explore: func(want []string) Result {
		return explore(&m, want, limit)
	}}
}

func shares(name string, m Shares, known ...string) run {
	return run{name: "shares: " + name, known: known, explore: func(want []string) Result {
		return explore(&m, want, limit)
	}}
}

func sharesWithout(rule mutation, m Shares, breaks ...string) run {
	m.Mutation = rule
	r := shares("", m)
	r.name, r.mutant, r.known, r.breaks = "broken: "+rule.String(), rule, nil, breaks
	return r
}

func notes(name string, m Notes, known ...string) run {
	return run{name: "notes: " + name, known: known, explore: func(want []string) Result {
		return explore(&m, want, limit)
	}}
}

func notesWithout(rule mutation, m Notes, breaks ...string) run {
	m.Mutation = rule
	r := notes("", m)
	r.name, r.mutant, r.known, r.breaks = "broken: "+rule.String(), rule, nil, breaks
	return r
}

func holdsWithout(rule mutation, m Holds, breaks ...string) run {
	m.Mutation = rule
	r := holds("", m)
	r.name, r.mutant, r.known, r.breaks = "broken: "+rule.String(), rule, nil, breaks
	return r
}

func waitsWithout(rule mutation, m Waits, breaks ...string) run {
	m.Mutation = rule
	r := waits("", m)
	r.name, r.mutant, r.known, r.breaks = "broken: "+rule.String(), rule, nil, breaks
	return r
}

func big(r run) run {
	r.big = true
	return r
}
