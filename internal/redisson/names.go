package redisson

import (
	"fmt"
	"strings"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/pubsub"
)

const channelPrefix = "redisson_lock__channel:"

// These messages are published on a lock's channel.
const (
	// unlockMessage means that one waiter of each client should try to acquire the lock.
	unlockMessage = "0"

	// readUnlockMessage means that every waiter should try to acquire the lock.
	readUnlockMessage = "1"

	// keptMessage means that the lock was released but stays taken, so no waiter should try to
	// acquire it. This message is our own, for subscribers that watch the lock instead of waiting
	// for it. Redisson ignores it.
	keptMessage = "2"
)

// Channel returns the name of the channel on which releases of the named lock are published. It
// puts braces around the lock's name, so that a cluster keeps the lock and the channel in one slot.
// If the name already contains a brace, Channel adds none, and the slots may differ. See
// checkSlots.
func Channel(name string) string {
	return tagged(channelPrefix, name, "")
}

// tagged returns a key for data of the named lock. It puts braces around the name, so that a
// cluster keeps the key in the same slot as the lock. If the name already contains a brace, tagged
// adds none, and the slots may differ.
func tagged(before, name, after string) string {
	if strings.Contains(name, "{") {
		return before + name + after
	}
	return before + "{" + name + "}" + after
}

// apart is like [tagged], but for our own keys. It never returns the same key for a name with a
// brace and a name without one.
func apart(before, name string) string {
	if strings.Contains(name, "{") {
		return before + ":" + name
	}
	return tagged(before, name, "")
}

// unbraced removes the braces around a name. It returns false if there are no such braces, or if
// the text between them is empty or contains an opening brace. [tagged] returns the same key for
// the name with and without these braces.
func unbraced(name string) (inside string, ok bool) {
	inside, begins := strings.CutPrefix(name, "{")
	inside, ends := strings.CutSuffix(inside, "}")
	return inside, begins && ends && inside != "" && !strings.Contains(inside, "{")
}

// refuseBraces returns a check that refuses names in braces for a kind of lock. Redisson keeps a
// part of such a lock under a key that would be the same for the name without the braces.
func refuseBraces(kind, part string) func(name string) error {
	return func(name string) error {
		if inside, ok := unbraced(name); ok {
			return fmt.Errorf("%q cannot be the name of a %s: "+
				"its %s would have the same key as that of %q", name, kind, part, inside)
		}
		return nil
	}
}

// Unlocked reports whether a message on a lock's channel announces a release. It ignores other
// messages, since any program may publish on a channel.
func Unlocked(message string) (pubsub.Meaning, bool) {
	return pubsub.Freed, message == unlockMessage || message == readUnlockMessage
}

// unlockedOrKept is like [Unlocked], but also decodes keptMessage.
func unlockedOrKept(message string) (pubsub.Meaning, bool) {
	if message == keptMessage {
		return pubsub.Kept, true
	}
	return Unlocked(message)
}

// woken returns a function that wakes the subscriber of req after a message. A message that the
// lock is kept wakes only subscribers that watch the lock.
func woken(req backend.SubscribeRequest) func(pubsub.Meaning) {
	return func(why pubsub.Meaning) {
		if why != pubsub.Kept || req.Watches {
			req.Wake(0)
		}
	}
}

// checkSlots returns an error of kind [backend.Refused] if a cluster keeps a lock's key and its
// other keys, including the channel, in different slots. Such a lock could be acquired but never
// released.
func checkSlots(name string, others ...string) error {
	slot := Slot(name)
	for _, key := range others {
		if other := Slot(key); other != slot {
			return &backend.Error{Kind: backend.Refused, Err: fmt.Errorf(
				"lock name %q cannot be used in a cluster: its braces put the key into slot %d "+
					"and %q into slot %d",
				name, slot, key, other)}
		}
	}
	return nil
}

// Slots is the number of slots of a cluster.
const Slots = 16384

// Slot returns the cluster slot of a key. If the key has a hash tag, the tag determines the slot.
func Slot(key string) uint16 {
	if tag := hashTag(key); tag != "" {
		key = tag
	}
	return crc16(key) % Slots
}

// hashTag returns the text in the first braces of a key, or "".
func hashTag(key string) string {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok {
			return tag
		}
	}
	return ""
}

// crc16 computes the XMODEM variant of CRC-16, as the cluster specification requires.
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
