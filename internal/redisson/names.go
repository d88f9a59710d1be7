package redisson

import (
	"fmt"
	"strings"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/pubsub"
)

const channelPrefix = "redisson_lock__channel:"

// What is published on a lock's channel.
const (
	unlockMessage     = "0" // one waiter of each client may get in
	readUnlockMessage = "1" // every waiter may
	keptMessage       = "2" // nobody may; our own, and only for those who watch. Redisson ignores it
)

// Channel returns the name of the channel on which releases of the named lock are published. Its
// braces make a cluster put it where the lock is; a name that brings a brace is taken as it is,
// which does not always achieve that: see checkSlots.
func Channel(name string) string {
	return tagged(channelPrefix, name, "")
}

// tagged puts a name into that of a key that a cluster shall keep in one slot with it.
func tagged(before, name, after string) string {
	if strings.Contains(name, "{") {
		return before + name + after
	}
	return before + "{" + name + "}" + after
}

// apart is [tagged] for a key of our own. One for a name that brings a brace is another than all
// for names that don't.
func apart(before, name string) string {
	if strings.Contains(name, "{") {
		return before + ":" + name
	}
	return tagged(before, name, "")
}

// unbraced returns the name without the braces that it consists of, if it does, and has no others:
// [tagged] makes one key of the two names.
func unbraced(name string) (inside string, ok bool) {
	inside, begins := strings.CutPrefix(name, "{")
	inside, ends := strings.CutSuffix(inside, "}")
	return inside, begins && ends && inside != "" && !strings.Contains(inside, "{")
}

// refuseBraces returns a check for kinds of lock of which a part is kept, as Redisson does it,
// under one key for a name and for the same in braces.
func refuseBraces(kind, part string) func(name string) error {
	return func(name string) error {
		if inside, ok := unbraced(name); ok {
			return fmt.Errorf("%q cannot be the name of a %s: its %s would be kept with that of %q", name, kind, part, inside)
		}
		return nil
	}
}

// Unlocked says whether a message on a lock's channel tells of a release. Others are none of the
// protocol's: anybody may publish on a channel.
func Unlocked(message string) (pubsub.Meaning, bool) {
	return pubsub.Freed, message == unlockMessage || message == readUnlockMessage
}

// unlockedOrKept is [Unlocked] for a lock of which is told, too, that it is kept.
func unlockedOrKept(message string) (pubsub.Meaning, bool) {
	if message == keptMessage {
		return pubsub.Kept, true
	}
	return Unlocked(message)
}

// woken returns how a subscriber hears of a message.
func woken(req backend.SubscribeRequest) func(pubsub.Meaning) {
	return func(why pubsub.Meaning) {
		if why != pubsub.Kept || req.Watches {
			req.Wake(0)
		}
	}
}

// checkSlots returns an error of kind [backend.Refused] if a cluster keeps a lock and other keys of it, of which
// its channel is one, in different slots: there such a lock could be acquired but never released.
func checkSlots(name string, others ...string) error {
	slot := Slot(name)
	for _, key := range others {
		if other := Slot(key); other != slot {
			return &backend.Error{Kind: backend.Refused, Err: fmt.Errorf(
				"lock name %q cannot be used in a cluster: its braces put the key into slot %d and %q into slot %d",
				name, slot, key, other)}
		}
	}
	return nil
}

// Slots is how many slots a cluster has.
const Slots = 16384

// Slot is the cluster slot of a key: of the part in its first braces, if there is one.
func Slot(key string) uint16 {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	return crc16(key) % Slots
}

// crc16 is the XMODEM variant, as the cluster specification asks.
func crc16(s string) uint16 {
	var crc uint16
	for i := range len(s) {
		crc ^= uint16(s[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc
}
