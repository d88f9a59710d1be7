package main

// A mutation breaks one rule of the protocol.
type mutation uint8

const (
	unchanged mutation = iota

	// Mutations of the rules for numbers and requests.
	numberPerOwner
	lockerIsOwner
	libraryRepeats
	partialRepeated
	releasesOnce
	renewsAfterUnlock
	unlocksDuringReentry
	unknownReentryCounts
	countIgnored

	// Mutations of the rules for time.
	deadlineFromReply
	acceptsLate
	revivesLost
	reentryShortens
	releaseShortens
	doubtIgnored
	doubtEnds

	// Mutations of the rules for releases in the background.
	neverTakenBack
	takenBackOnce
	takenBackInTimeOnly
	takenBackEarly
	reentryNotTakenBack
	errorNotTakenBack

	// Mutations of the rules for hand-over.
	handsOnLate
	handsOnLost
	handsOnUnsure
	handsOnReleased
	handsOnNested
	handsOnDuringReentry
	handsOnForever
	chainFromFirstHandOver
	chainFromAnswer
	handOverIsNewLease
	handOverForgetsUnsure
	handOverForgetsDoubt
	entersOthersTenure
	attemptForgotten
	handedDropped
	handedUnseen

	// Mutations of the rules for waiting.
	noTimer
	noSecondTry
	wokenWhenAsked
	noWakeOnReconnect
	wokenBeforeReconnect
	reusesEnding
	messageWakesSleepersOnly
	clearedAfterwards
	noPassOn
	noShortTimer
	passesForGood
	grantLeft

	// Mutations of the rules for shared reads.
	joinsLost
	joinsReleased
	joinsNested
	joinsForever
	joinedUnseen
	joinedDropped
	leaverReleases
	lastStays
	leftToLease
	tellsOne
	revivesClaim
	lossUnheard

	// Mutations of the rules for reads under a write.
	nestedReleasedEarly
	nestedTakenBackEarly
	handsOnRead
	grantsEnded
	endedForgotten

	// Mutations of the rules for write locks that are lent to readers.
	lendsLate
	passesOnLate
	flipsEarly
	keepsDeadline
	flipForgetsUnsure
	writeLeft
	downgradeForgotten
	refusedForgotten
	downgradeUnheard
	believesOldRenewal

	// Mutations of the rules for the notes of waiting writers.
	neverBarred
	refreshesYounger
	placeTooShort
	noNoteTimer
	barredDeaf
	givesUpLeavingNote
	givesUpQuietly
	noteTakenBackOnce
	entersKeepingNote
	handedKeepingNote
	backWaits
	downgradesQuietly
	lastReaderQuiet
	joinsAhead
	grantsAhead
	grantsAheadOfTrying

	// Mutations of the rules for a fair lock's line.
	keepsUnanswered
	asksByAttempt
	comesBackLast
	grantKeepsPlace
	releaseKeepsPlace
	releaseUnsettled
	keepForgotten
	keepForgottenInside
	keepUnderWayForgotten
	attemptForgottenInside
	attemptShortens
	renewalShortens
	grantFromReceipt
	grantRevives
	grantProlongs
	keptFromReply
	keptRevives
	keepDeaf
	believesOldAnswer
	believesOldPlaces

	// Mutations of the rules for converting the store's times to the client's clock.
	sinceReceipt
	lookFromAnswer
	stepsUnseen
	clockUnbounded
	looksOutliveBreaks

	// Mutations of the rules for permits.
	permitsDrawnAnew
	partKept
	partStays

	// Mutations of the rules for a quorum of three stores.
	oneName
	reentriesCounted
	renewedByFew
	silenceCounts
	refutedCounts
	asksAllAtOnce
	firstFreedFirst
	keepsSplit
	ownUnheard
	asksSameAgain
	silentLeft
	lateVoteLeft
	refutedForgotten
	neverRepaired
	forgivenAtOnce
	forgivenUnasked
	confirmsItself
	freedOnce
	waitsForTheLast
	believesFirst
	listensToLeftover
)

// mutations describes each mutation.
var mutations = [...]string{
	unchanged: "the protocol as it is",

	numberPerOwner:       "all acquisitions of an owner share a number",
	lockerIsOwner:        "who locks a Locker twice re-enters",
	libraryRepeats:       "the store's client repeats a request by itself",
	partialRepeated:      "a partial release without an answer is sent again",
	releasesOnce:         "a last release isn't repeated",
	renewsAfterUnlock:    "a last release that gave up leaves the renewal on",
	unlocksDuringReentry: "a last release while a re-entry of that hold is under way",
	unknownReentryCounts: "a re-entry without an answer stays counted",
	countIgnored:         "nobody looks at the count that comes with the answer to a re-entry",

	deadlineFromReply: "a lease is counted from its answer",
	acceptsLate:       "an acquisition that is answered after its own lease counts",
	revivesLost:       "the answer to a re-entry brings back what was lost meanwhile",
	reentryShortens: "a re-entry asks for the lease that its caller wants, if the present one " +
		"is longer, too",
	releaseShortens: "a partial release asks for a short lease, if the present one is " +
		"longer, too",
	doubtIgnored: "a shorter lease that a late request may yet set does not count",
	doubtEnds: "a shorter lease that a late request may yet set counts only for as long " +
		"as it lasts",

	neverTakenBack:      "nothing is taken back",
	takenBackOnce:       "a take-back is sent once",
	takenBackInTimeOnly: "a take-back is not repeated once the lease would be over",
	takenBackEarly:      "a number is taken back while the call still tries with it",
	reentryNotTakenBack: "a re-entry without an answer is not taken back after the last release",
	errorNotTakenBack:   "a last release that gave up, or a lost hold, is left to its lease",

	handsOnLate:            "a hold is handed on after its deadline",
	handsOnLost:            "a hold that a renewal found lost is handed on",
	handsOnUnsure:          "a hold with a request in doubt is handed on",
	handsOnReleased:        "a hold is handed on after its last release was sent",
	handsOnNested:          "one hold of several is handed on",
	handsOnDuringReentry:   "a hold is handed on while a re-entry is under way",
	handsOnForever:         "a chain of hand-overs has no end",
	chainFromFirstHandOver: "the time of a chain counts from its first hand-over",
	chainFromAnswer:        "the time of a chain counts from the answer to the acquisition",
	handOverIsNewLease:     "the deadline counts from the hand-over",
	handOverForgetsUnsure:  "a hand-over forgets that there may be something to take back",
	handOverForgetsDoubt:   "a hand-over forgets that a late request may shorten the lease",
	entersOthersTenure:     "who waited to re-enter doesn't look whose hold it is by now",
	attemptForgotten: "what the waiter may have got by an attempt of its own isn't " +
		"taken back",
	handedDropped: "a waiter that is cancelled while it is handed a hold leaves it",
	handedUnseen:  "a waiter doesn't look whether what it was handed is lost by now",

	noTimer:                  "a head has no timer",
	noSecondTry:              "no attempt is made when the subscription stands",
	wokenWhenAsked:           "… it is made when the subscription is asked for",
	noWakeOnReconnect:        "no attempt is made when the subscription stands again after a break",
	wokenBeforeReconnect:     "… it is made when the connection is back",
	reusesEnding:             "a subscription that is being given up counts as standing",
	messageWakesSleepersOnly: "a message is forgotten if the head isn't asleep",
	clearedAfterwards:        "a wake-up is cleared after the attempt",
	noPassOn:                 "who follows the head doesn't try",
	noShortTimer: "a head that may be handed the lock, or waits for its message " +
		"after a chain, waits for that only",
	passesForGood: "a message that lets others come first leaves no timer",
	grantLeft:     "a waiter that is cancelled as it is handed the lock leaves it",

	joinsLost:      "a shared read is joined after its deadline",
	joinsReleased:  "a shared read is joined after its last release was sent",
	joinsNested:    "a read under a write is joined",
	joinsForever:   "a shared read is joined however old it is",
	joinedUnseen:   "a reader that has joined doesn't look whether what it joined is lost by now",
	joinedDropped:  "a reader that is cancelled as it joins leaves its place taken",
	leaverReleases: "whoever leaves a shared read releases it",
	lastStays:      "the last to leave a shared read doesn't release it",
	leftToLease:    "a shared read whose release gave up is left to its lease",
	tellsOne:       "a shared read that is lost is lost for one of its readers",
	revivesClaim:   "the answer to a renewal brings back a shared read that was lost meanwhile",
	lossUnheard:    "a release that finds a shared read lost says nothing",

	nestedReleasedEarly:  "a read under a write is released while the write goes on",
	nestedTakenBackEarly: "a read under a write is taken back while the write goes on",
	handsOnRead:          "a write under which is read is handed on",
	grantsEnded: "the answer to a read under a write counts when it comes after the end " +
		"of the write",
	endedForgotten: "… and if there is none, nothing is taken back",

	lendsLate:          "a write is lent however old it is",
	passesOnLate:       "what was lent is handed to a writer however old it is",
	flipsEarly:         "what was lent is given back when the read is asked for",
	keepsDeadline:      "who was lent a write keeps its deadline when that becomes a read",
	flipForgetsUnsure:  "a read that a write becomes forgets that it was asked for before",
	writeLeft:          "a write that becomes a read is left to its lease",
	downgradeForgotten: "a read that is granted when what was lent is over is not taken back",
	refusedForgotten: "… nor one that was asked for, without an answer, before another was " +
		"refused",
	downgradeUnheard: "a write that has become a read isn't heard of when it is found to have " +
		"been lost",
	believesOldRenewal: "the answer to the renewal of a write counts when that has become a read",

	neverBarred:      "notes don't keep readers out",
	refreshesYounger: "a note that is refreshed takes the later time of arrival",
	placeTooShort:    "a note ends before its writer looks again",
	noNoteTimer:      "a reader that a note keeps out has no timer",
	barredDeaf:       "a reader that a note keeps out waits for its end only",
	givesUpLeavingNote: "a writer that gives up leaves its note, where it was told that it " +
		"hasn't the lock",
	givesUpQuietly:      "a note that is taken back wakes nobody",
	noteTakenBackOnce:   "a note is taken back once",
	entersKeepingNote:   "a writer that gets in keeps its note",
	handedKeepingNote:   "a writer that is handed the lock leaves the note of its own number",
	backWaits:           "a write is taken back when what was read under it is over",
	downgradesQuietly:   "a writer that reads on wakes nobody",
	lastReaderQuiet:     "the last reader wakes nobody",
	joinsAhead:          "a reader joins ahead of a writer that waits here",
	grantsAhead:         "a reader that gets in takes along who queues behind a writer",
	grantsAheadOfTrying: "… if that writer's attempt is under way",

	keepsUnanswered:     "places are kept of those, too, whose attempts have no answer",
	asksByAttempt:       "who has a place looks by an attempt",
	comesBackLast:       "who has lost a place comes back last",
	grantKeepsPlace:     "who is granted the lock keeps its place in line",
	releaseKeepsPlace:   "who gives up keeps its place in line",
	releaseUnsettled:    "a release grants nothing to who is first in line",
	keepForgotten:       "that places were kept without an answer is forgotten",
	keepForgottenInside: "… by those who have the lock",
	keepUnderWayForgotten: "a number isn't taken back for longer because places of it are just " +
		"being kept",
	attemptForgottenInside: "an attempt without an answer is forgotten once the lock was granted",
	attemptShortens:        "an attempt of who has been granted the lock may shorten its time",
	renewalShortens:        "who wants a lease shorter than that of a grant renews it with that",
	grantFromReceipt:       "a grant's time counts from the message",
	grantRevives:           "a grant counts for who has given up",
	grantProlongs:          "a grant that is told twice counts twice",
	keptFromReply: "the time of the holder that is named as places are kept counts from " +
		"the answer",
	keptRevives: "who has given up is in when it is named as the holder",
	keepDeaf:    "nobody looks who is named as the holder",
	believesOldAnswer: "an attempt that is answered \"in line\" ends what was granted " +
		"meanwhile",
	believesOldPlaces: "… and so do places that are kept, where another is named, or nobody",

	sinceReceipt:   "a grant that the store tells of by its clock counts from the message",
	lookFromAnswer: "what the store's clock showed is taken for that of the answer",
	stepsUnseen: "a clock on which more time has passed than here is believed, up to the " +
		"message",
	clockUnbounded:     "… and beyond that",
	looksOutliveBreaks: "what a clock showed is believed after the connection broke",

	permitsDrawnAnew: "an attempt that is repeated draws other permits",
	partKept:         "who has a part of its permits goes on having them",
	partStays:        "a release gives nothing back where it finds a part",

	oneName:          "all attempts of a number have one name in the stores",
	reentriesCounted: "re-entries are counted in the stores",
	renewedByFew:     "a renewal counts that fewer than a majority answered",
	silenceCounts:    "a store that doesn't answer has said yes",
	refutedCounts:    "a store that has said \"not held\" counts as if it hadn't",
	asksAllAtOnce:    "all stores are asked at once",
	firstFreedFirst:  "a release frees the store first that is asked first",
	keepsSplit:       "who fails keeps what it has until it tries again",
	ownUnheard:       "nobody looks because of what it gave back itself",
	asksSameAgain:    "who was refused by a majority asks the same store first again",
	silentLeft:       "what is given back leaves out stores that didn't answer",
	lateVoteLeft:     "a release takes back nothing that is under way beside it",
	refutedForgotten: "… nor where a renewal was told \"not held\", as it overtook the acquisition",

	neverRepaired:   "a store that lacks a hold isn't asked for it again",
	forgivenAtOnce:  "a store that has a hold again has never lacked it",
	forgivenUnasked: "… that has it again since the renewal was sent that others answer",
	confirmsItself:  "… is one of the majority that says so",
	freedOnce:       "a release isn't repeated where the store has carried out two acquisitions",
	waitsForTheLast: "who has one vote, as another has, waits for the last store until it " +
		"answers",
	believesFirst:     "who is refused by the store that is asked first doesn't look at the others",
	listensToLeftover: "… listens there, though a majority has it from another",
}

func (m mutation) String() string { return mutations[m] }
