package main

import (
	"fmt"
	"slices"
)

// A run is one exploration and what is expected of it.
type run struct {
	name    string
	big     bool     // it takes long, and the tests leave it out
	mutant  mutation // which rule is broken, if any
	known   []string // a run of the protocol as it is: the properties that don't hold, and no others
	breaks  []string // a run with a rule broken: the properties that it must break
	explore func(want []string) Result
}

const limit = 1_500_000 // states

// surprise says what is not as expected, or nothing.
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

// What is modelled. Where a goroutine of A nests, its client B is ideal, unless a run says otherwise.
var (
	one = Holds{
		Goroutines: [2]int{1, 0}, Numbers: [2]int{1, 1}, Nested: [2]bool{true, false}, Depth: 2,
		Count: 3, Requests: 3, Lease: 2, Rival: true, SureOnly: true,
	}
	twice    = with(one, func(m *Holds) { m.Numbers[0] = 2 })
	deep     = with(one, func(m *Holds) { m.Depth, m.Count, m.Requests = 3, 5, 4 })
	both     = with(one, func(m *Holds) { m.Rival, m.Goroutines, m.Nested = false, [2]int{1, 1}, [2]bool{true, true} })
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
	handPair    = with(hand, func(m *Holds) { m.Goroutines[0], m.Nested[0], m.Pair = 3, false, true })
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
	shareAged   = with(share, func(m *Shares) { m.Window, m.Lease = 1, 3 })
	share3      = with(share, func(m *Shares) { m.Parties[0] = 3 })
	plain       = with(shareAged, func(m *Shares) { m.Plain = true })
	nested      = with(share, func(m *Shares) { m.Parties[0], m.Writers[0], m.Numbers[0] = 1, 1, 1 })
	shareMixed  = with(share, func(m *Shares) { m.Writers[0] = 1 })
	nestedPair  = with(nested, func(m *Shares) { m.Parties[0], m.Pair = 2, true })
	shareHand   = with(share, func(m *Shares) { m.Writers[0], m.Numbers[0], m.HandOvers = 2, 1, 1 })
	shareForced = with(share, func(m *Shares) { m.Forces, m.Answered = 1, true })
	window      = with(shareForced, func(m *Shares) { m.Window, m.Lease = 1, 3 })
	plainForced = with(window, func(m *Shares) { m.Plain = true })

	note1 = Notes{Clients: [2]string{"WR", "R"}, Unknowns: 1, HandOver: true, Punctual: true}
	note2 = Notes{Clients: [2]string{"WRW", "R"}, Unknowns: 1, HandOver: true, Punctual: true}
	note3 = Notes{Clients: [2]string{"D", "RW"}, Unknowns: 1, HandOver: true, Punctual: true}

	wait2 = Waits{Waiters: 2, Breaks: 2, Others: 3, Unknowns: 1, Forces: 1, HandOver: true}
	wait3 = Waits{Waiters: 3, Breaks: 1, Others: 3, Unknowns: 1, HandOver: true}
)

// with returns m changed.
func with[M any](m M, change func(*M)) M {
	change(&m)
	return m
}

func runs() []run {
	return []run{
		// The protocol as it is.
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
		holds("failover, what counts is answered", with(failing, func(m *Holds) { m.Answered = true }), "S1"),

		holds("hand-over", hand),
		holds("hand-over, no request is later than its lease", with(handPunctual, func(m *Holds) { m.Numbers[0] = 1 })),
		holds("hand-over, fixed leases, shorter ones", handShorter),
		holds("hand-over, fixed leases, longer ones", handLonger),
		holds("hand-over, in doubt as well", unsure(handShorter)),
		holds("hand-over, a client crashes", with(hand, func(m *Holds) { m.Crashes = 1 })),
		holds("hand-over, ForceUnlock", handForced, "E0"),
		holds("hand-over, ForceUnlock, the time of a chain", chain, "E0"),
		holds("hand-over, ForceUnlock, who was answered", heirs, "E0"),
		holds("hand-over, failover, the time of a chain", with(chain, func(m *Holds) { m.Forces, m.Failovers = 0, 1 }), "E0"),

		waits("2 waiters, 2 breaks, ForceUnlock", wait2),
		waits("3 waiters", wait3),
		waits("3 waiters, no hand-over", with(wait3, func(m *Waits) { m.HandOver = false })),
		waits("2 waiters, turns", with(wait2, func(m *Waits) { m.Turns = true })),
		waits("3 waiters, turns, no hand-over", with(wait3, func(m *Waits) { m.Turns, m.HandOver = true, false })),
		waits("3 waiters, no notification", with(wait3, func(m *Waits) { m.Polls = true })),

		shares("readers share", share),
		shares("three readers", share3),
		shares("claims age", shareAged),
		shares("X mixed", shareMixed),
		shares("X mixed hand", with(shareMixed, func(m *Shares) { m.HandOvers = 1; m.Writers[0] = 2; m.Requests = 1 })),
		shares("X full", with(share, func(m *Shares) {
			m.Rival = false
			m.Parties = [2]int{1, 1}
			m.Writers = [2]int{1, 1}
			m.Numbers = [2]int{1, 1}
		})),
		shares("X unanswered", with(shareForced, func(m *Shares) { m.Answered = false })),
		shares("X crash", with(share, func(m *Shares) { m.Crashes = 1 })),
		shares("X renewals", with(share, func(m *Shares) { m.Renewals = true })),
		shares("X punctual", with(shareMixed, func(m *Shares) { m.Punctual = true })),
		shares("plain readers", plain),
		shares("a writer reads", nested),
		shares("X pair", nestedPair),
		shares("X pair punctual", with(nestedPair, func(m *Shares) { m.Punctual = true })),
		shares("a writer reads, punctual", with(nested, func(m *Shares) { m.Punctual = true })),
		shares("readers and a writer, hand-over", shareHand),
		shares("punctual", with(share, func(m *Shares) { m.Punctual = true })),
		shares("ForceUnlock", shareForced),
		shares("ForceUnlock, plain", plainForced),
		shares("ForceUnlock, window", window),

		big(holds("an owner acquires twice", twice)),
		big(holds("an owner re-enters 3 deep, 4 requests", deep)),
		big(holds("both clients in full", both)),
		big(holds("2 hand-overs, 2 acquisitions", handTwice)),
		big(holds("2 hand-overs, 2 acquisitions, in doubt as well", unsure(handTwice))),
		big(holds("hand-over, 2 acquisitions, punctual", handPunctual)),
		big(holds("hand-over, both clients in full", handBoth)),
		big(holds("hand-over, a pair is one owner", handPair)),
		big(holds("hand-over, a pair is one owner, 2 acquisitions", with(handPair, func(m *Holds) { m.Numbers[0] = 2 }))),

		// Each rule broken.
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

		notes("X one writer", note1),
		notes("X one writer, no punct", with(note1, func(m *Notes) { m.Punctual = false })),
		notes("X RRW", with(note1, func(m *Notes) { m.Clients = [2]string{"RRW", ""} })),
		notes("X RRW W", with(note1, func(m *Notes) { m.Clients = [2]string{"RRW", "W"} })),
		notes("X WRT", with(note1, func(m *Notes) { m.Clients = [2]string{"WRT", ""} })),
		notesWithout(grantsAheadOfTrying, with(note1, func(m *Notes) { m.Clients = [2]string{"WRT", ""} }), "W2"),
		notes("X DR", with(note1, func(m *Notes) { m.Clients = [2]string{"D", "R"} })),
		notes("X crash", with(note1, func(m *Notes) { m.Crashes = 1; m.Losses = 1; m.Clients = [2]string{"R", "WR"} })),
		notes("X two writers", note2),
		notes("X downgrade", note3),
		notesWithout(neverBarred, note1, "W1"),
		notesWithout(refreshesYounger, note1, "W1"),
		notesWithout(placeTooShort, note1, "W1"),
		notesWithout(noNoteTimer, with(note1, func(m *Notes) { m.Crashes = 1; m.Clients = [2]string{"R", "WR"} }), "L2"),
		notesWithout(barredDeaf, note1, "L2m"),
		notesWithout(givesUpLeavingNote, note1, "G3"),
		notesWithout(givesUpQuietly, note1, "L2m"),
		notesWithout(noteTakenBackOnce, note1, "G3"),
		notesWithout(entersKeepingNote, note1, "G3"),
		notesWithout(handedKeepingNote, note2, "G3"),
		notesWithout(backWaits, note3, "G3"),
		notesWithout(downgradesQuietly, note3, "L2m"),
		notesWithout(lastReaderQuiet, note1, "L2m"),
		notesWithout(joinsAhead, with(note1, func(m *Notes) { m.Clients = [2]string{"RRW", ""} }), "W2"),
		notesWithout(grantsAhead, with(note1, func(m *Notes) { m.Clients = [2]string{"RRW", "W"} }), "W2"),

		sharesWithout(joinsLost, share, "S4"),
		sharesWithout(joinsReleased, share, "S1"),
		sharesWithout(joinsNested, with(nested, func(m *Shares) { m.Parties[0] = 2 }), "S1"),
		sharesWithout(joinsForever, window, "E1"),
		sharesWithout(joinedUnseen, share, "S4"),
		sharesWithout(joinedDropped, share, "L1"),
		sharesWithout(leaverReleases, share, "S1"),
		sharesWithout(lastStays, share, "L1"),
		sharesWithout(leftToLease, with(share, func(m *Shares) { m.Punctual = true }), "G1"),
		sharesWithout(tellsOne, shareForced, "S1"),
		sharesWithout(revivesClaim, share, "T1"),
		sharesWithout(lossUnheard, plainForced, "T1"),
		sharesWithout(nestedReleasedEarly, nested, "S1"),
		sharesWithout(nestedTakenBackEarly, nested, "S1"),
		sharesWithout(grantsEnded, nestedPair, "S1"),
		sharesWithout(endedForgotten, with(nestedPair, func(m *Shares) { m.Punctual = true }), "G1"),
		sharesWithout(handsOnRead, shareHand, "S1"),

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

func holds(name string, m Holds, known ...string) run {
	return run{name: "holds: " + name, known: known, explore: func(want []string) Result { return explore(&m, want, limit) }}
}

func waits(name string, m Waits, known ...string) run {
	return run{name: "waits: " + name, known: known, explore: func(want []string) Result { return explore(&m, want, limit) }}
}

func shares(name string, m Shares, known ...string) run {
	return run{name: "shares: " + name, known: known, explore: func(want []string) Result { return explore(&m, want, limit) }}
}

func sharesWithout(rule mutation, m Shares, breaks ...string) run {
	m.Mutation = rule
	r := shares("", m)
	r.name, r.mutant, r.known, r.breaks = "broken: "+rule.String(), rule, nil, breaks
	return r
}

func notes(name string, m Notes, known ...string) run {
	return run{name: "notes: " + name, known: known, explore: func(want []string) Result { return explore(&m, want, limit) }}
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
