package redisson_test

import (
	"crypto/sha1"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

var update = flag.Bool("update", false, "write what is recorded into docs/redisson-commands.md")

const document = "../../docs/redisson-commands.md"

// A story has the commands that a party sends to the servers, by step. Each command has a line, and
// a script's effects follow in the next lines.
type story map[string][]string

var steps = func() (titles []string) {
	for _, k := range all {
		for _, step := range []string{
			"lock", "re-entry", "another reads", "another waits", "is it locked", "do I hold it",
			"how often", "for how long",
			"unlock, one hold left", "unlock, another reads on", "read besides",
			"unlock, and read on",
			"unlock", "the other is woken", "force unlock", "renewal",
		} {
			if k.has(step) {
				titles = append(titles, k.step(step))
			}
		}
	}
	for _, step := range permitSteps {
		titles = append(titles, permitStep(step))
	}
	for _, step := range latchSteps {
		titles = append(titles, latchStep(step))
	}
	return titles
}()

// permitSteps are the steps of a semaphore.
var permitSteps = []string{
	"set up", "acquire", "another waits", "how many are available", "release", "the other is woken",
	"renewal",
}

func permitStep(step string) string { return "permits: " + step }

// latchSteps are the steps of a latch.
var latchSteps = []string{
	"set", "set again", "how many are left", "another waits", "count down", "count down to zero",
	"the other is woken",
	"count down when it is open", "delete",
}

func latchStep(step string) string { return "latch: " + step }

// has says whether the document shows the step for that kind of lock. It leaves out steps that are
// the same as for a plain lock.
func (k kind) has(step string) bool {
	switch step {
	case "lock", "re-entry":
		return true
	case "do I hold it", "how often", "for how long":
		return k.ours == backend.Exclusive
	case "another reads", "unlock, another reads on":
		return k.ours == backend.Read
	case "read besides", "unlock, and read on":
		return k.ours == backend.Write
	case "is it locked":
		return k.ours != backend.Fenced && k.ours != backend.Fair
	default:
		return k.ours != backend.Fenced
	}
}

// step returns the title of a step of that kind of lock.
func (k kind) step(step string) string {
	if k.ours == backend.Exclusive {
		return step
	}
	return k.name + ": " + step
}

// TestRecord compares the commands of all parties with docs/redisson-commands.md.
func TestRecord(t *testing.T) {
	needJava(t)
	t.Parallel()
	places := []*place{redisPlace(t), clusterPlace(t)}
	stories := make([][2]story, len(parties)) // of each party, at each place
	t.Run("by", func(t *testing.T) {
		for i, party := range parties {
			for j, p := range places {
				t.Run(party.name, func(t *testing.T) {
					t.Parallel()
					stories[i][j] = tell(t, p, party.meet(t, p))
				})
			}
		}
	})
	if t.Failed() {
		return
	}
	blocks := make(map[string]*block)
	for i, party := range parties {
		add(blocks, party.name, stories[i][0], stories[i][1])
	}
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	got := insert(t, string(text), blocks)
	switch {
	case got == string(text):
	case *update:
		if err := os.WriteFile(document, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is out of date; with -update this test makes it\n%s", document, got)
	}
}

// A block is a part of the document.
type block struct {
	who  []string // the parties that sent each text
	text []string
}

func (b *block) add(who string, lines []string) {
	text := strings.Join(lines, "\n")
	if len(lines) == 0 {
		text = "(nothing)"
	}
	if i := slices.Index(b.text, text); i >= 0 {
		b.who[i] += ", " + who
		return
	}
	b.who = append(b.who, who)
	b.text = append(b.text, text)
}

// add adds the stories of a party on one server and in a cluster. Of the cluster it adds only the
// lines that differ.
func add(blocks map[string]*block, who string, one, many story) {
	to := func(title string, lines []string) {
		if blocks[title] == nil {
			blocks[title] = new(block)
		}
		blocks[title].add(who, lines)
	}
	var different []string
	for _, step := range steps {
		to(step, abridge(one[step]))
		if other := abridge(differences(one[step], many[step])); len(other) > 0 {
			different = append(different, slices.Concat([]string{"## " + step}, other)...)
		}
	}
	to("in a cluster", different)
	to("scripts", scripts(one, many))
}

// scripts returns the scripts of a party, each with the first step that runs it.
func scripts(one, many story) (lines []string) {
	known := make(map[string]bool)
	note := func(s story, step, where string) {
		for _, line := range s[step] {
			if script := hash.FindString(line); script != "" && !known[script] {
				known[script] = true
				lines = append(lines, script+"  "+step+where)
			}
		}
	}
	for _, step := range steps {
		note(one, step, "")
		note(many, step, ", in a cluster")
	}
	return lines
}

// differences returns the lines that differ from those in from.
func differences(from, lines []string) (other []string) {
	for i, line := range lines {
		if i >= len(from) || line != from[i] || len(from) != len(lines) {
			other = append(other, line)
		}
	}
	return other
}

var hash = regexp.MustCompile(`\b[0-9a-f]{40}\b`)

// abridge shortens the hash of each script to its first digits.
func abridge(lines []string) (short []string) {
	for _, line := range lines {
		short = append(short, hash.ReplaceAllStringFunc(line, func(h string) string {
			return h[:8]
		}))
	}
	return short
}

var recorded = regexp.MustCompile("(?s)(<!-- recorded: ([^>]*) -->\n)```text\n.*?```\n")

// insert replaces the recorded parts of a document.
func insert(t *testing.T, document string, blocks map[string]*block) string {
	t.Helper()
	missing := maps.Clone(blocks)
	document = recorded.ReplaceAllStringFunc(document, func(old string) string {
		match := recorded.FindStringSubmatch(old)
		b := blocks[match[2]]
		if b == nil {
			t.Errorf("the document shows %q, which is not recorded", match[2])
			return old
		}
		delete(missing, match[2])
		text := match[1] + "```text\n"
		for i := range b.who {
			text += "# " + b.who[i] + "\n" + b.text[i] + "\n"
		}
		return text + "```\n"
	})
	for step := range missing {
		t.Errorf("the document doesn't show %q", step)
	}
	return document
}

// A party is a version of the software, which plays all roles. meet lets it join a place, and each
// call of arrive returns a new cast for a kind of lock.
type party struct {
	name string
	meet func(t *testing.T, p *place) (arrive func(kind) cast)
}

// A cast has two persons that want the same lock, and one whose lock is renewed.
type cast struct {
	kind                    kind
	name, other             string // names of the lock of the two, and of the renewer's
	holder, waiter, renewer person
	renews                  bool // whether it renews permits
	listens                 bool // whether it stays subscribed for a while after a wait
}

var parties = func() []party {
	all := []party{{"distsync", ours}}
	for _, version := range versions {
		all = append(all, party{"Redisson " + version, theirs(version)})
	}
	return all
}()

// A person holds locks, on one side.
type person struct {
	owner   string // its field in the hash, or the beginning of it
	at      func(k kind, name string) actor
	permits func(name string) permitActor
	latch   func(name string) latchActor
}

// An actor does things with one lock.
type actor struct {
	lock   func() (wait func())
	ask    map[string]func() // by question
	unlock func()
	force  func()
}

// A permitActor does things with one semaphore, of two permits.
type permitActor struct {
	setUp   func()
	acquire func(n int) (wait func() (release func()))
	ask     func()
}

// A latchActor does things with one latch.
type latchActor struct {
	set       func(want bool) // sets the count to 2
	countDown func()
	wait      func() (opened func())
	ask       func() // asks a latch whose count is 2
	del       func() // deletes a latch that has a count
}

// recordLease is the lease of locks that are not renewed while they are recorded.
const recordLease = 10 * time.Minute

func ours(t *testing.T, p *place) func(kind) cast {
	come := func(lease time.Duration) person {
		client, owner := p.client(t, dlock.WithLease(lease)), dlock.NewOwner()
		at := func(k kind, name string) actor {
			l := k.locker(client, name).For(owner)
			return actor{
				lock: func() func() {
					locked := lock(t, l)
					return func() { wantLock(t, locked) }
				},
				ask: map[string]func(){
					"is it locked": func() { wantIs(t, "IsLocked", true, l.IsLocked) },
					"do I hold it": func() { wantIs(t, "IsHeld", true, l.IsHeld) },
					"how often":    func() { wantIs(t, "HoldCount", 2, l.HoldCount) },
					"for how long": func() { _, err := l.TTL(t.Context()); wantNil(t, "TTL", err) },
				},
				unlock: func() { wantNil(t, "unlock", l.UnlockContext(t.Context())) },
				force:  func() { wantIs(t, "ForceUnlock", true, l.ForceUnlock) },
			}
		}
		permits := func(name string) permitActor {
			s := client.Semaphore(name, 2)
			return permitActor{
				setUp: func() {}, // nothing to do, since each call of Go's names the limit
				acquire: func(n int) func() func() {
					got := make(chan acquired, 1)
					go func() {
						h, err := s.Acquire(t.Context(), n)
						got <- acquired{h, err}
					}()
					return func() func() {
						h := wantHold(t, got)
						return func() { release(t, h) }
					}
				},
				ask: func() { wantIs(t, "Available", 0, s.Available) },
			}
		}
		latch := func(name string) latchActor {
			l := client.Latch(name)
			return latchActor{
				set: func(want bool) {
					set, err := l.Set(t.Context(), 2)
					if wantNil(t, "set", err); set != want {
						t.Errorf("Set: %v; want %v", set, want)
					}
				},
				countDown: func() { wantNil(t, "count down", l.CountDown(t.Context())) },
				wait: func() func() {
					open := make(chan error, 1)
					go func() { open <- l.Wait(t.Context()) }()
					return func() { wantNil(t, "wait", receive(t, "the latch is open", open)) }
				},
				ask: func() {
					if n, err := l.Count(t.Context()); n != 2 || err != nil {
						t.Errorf("Count: %d, %v; want 2", n, err)
					}
				},
				del: func() {}, // Go can't delete a latch
			}
		}
		return person{client.ID(), at, permits, latch}
	}
	return func(k kind) cast {
		return cast{
			k, recordName(t, k, 1), recordName(t, k, 2), come(recordLease), come(recordLease),
			come(shortLease), true, k.ours == backend.Fair,
		}
	}
}

func theirs(version string) func(t *testing.T, p *place) func(kind) cast {
	return func(t *testing.T, p *place) func(kind) cast {
		java := startPeer(t, version, p.config, shortLease)
		come := func(lease ...any) person {
			th := java.thread(t)
			at := func(k kind, name string) actor {
				return actor{
					lock: func() func() {
						locked := th.start(k.java+"lock", name, lease...)
						return func() { wantLocked(t, locked) }
					},
					ask: map[string]func(){
						"is it locked": func() { th.want("true", k.java+"isLocked", name) },
						"do I hold it": func() {
							th.want("true", k.java+"isHeldByCurrentThread", name)
						},
						"how often":    func() { th.want("2", k.java+"getHoldCount", name) },
						"for how long": func() { th.do(k.java+"remainTimeToLive", name) },
					},
					unlock: func() { th.want("unlocked", k.java+"unlock", name) },
					force:  func() { th.want("true", k.java+"forceUnlock", name) },
				}
			}
			permits := func(name string) permitActor {
				return permitActor{
					setUp: func() { th.want("true", "permits.trySetPermits", name, 2) },
					acquire: func(n int) func() func() {
						got := th.start("permits.acquire", name, n, recordLease)
						return func() func() {
							ids := wantIDs(t, n, got)
							return func() { th.do("permits.tryRelease", name, ids...) }
						}
					},
					ask: func() { th.want("0", "permits.availablePermits", name) },
				}
			}
			latch := func(name string) latchActor {
				return latchActor{
					set: func(want bool) {
						th.want(fmt.Sprint(want), "latch.trySetCount", name, 2)
					},
					countDown: func() { th.want("counted", "latch.countDown", name) },
					wait: func() func() {
						opened := th.start("latch.await", name)
						return func() {
							if got := receive(t, "the latch is open", opened); got != "open" {
								t.Errorf("await: %s", got)
							}
						}
					},
					ask: func() { th.want("2", "latch.getCount", name) },
					del: func() { th.want("true", "latch.delete", name) },
				}
			}
			return person{th.owner, at, permits, latch}
		}
		return func(k kind) cast {
			return cast{
				k, recordName(t, k, 1), recordName(t, k, 2), come(recordLease), come(recordLease),
				come(), false, false,
			}
		}
	}
}

func recordName(t *testing.T, k kind, n int) string {
	return fmt.Sprintf("%s/%s/%d", t.Name(), k.name, n)
}

// tell returns the story of a party.
func tell(t *testing.T, p *place, arrive func(kind) cast) story {
	t.Helper()
	s := make(story)
	for _, k := range all {
		// the rehearsal makes the scripts known to the server
		rehearsal := &narrator{t, p, arrive(k), make(story)}
		rehearsal.tell()
		n := &narrator{t, p, arrive(k), make(story)}
		n.tell()
		n.tellOfRenewal()
		for step, lines := range n.story {
			if k.has(step) {
				s[k.step(step)] = lines
			}
		}
	}
	permits := kind{name: "permits", ours: backend.Permits}
	(&narrator{t, p, arrive(permits), make(story)}).tellOfPermits()
	n := &narrator{t, p, arrive(permits), make(story)}
	n.tellOfPermits()
	for step, lines := range n.story {
		s[permitStep(step)] = lines
	}
	latch := kind{name: "latch"}
	(&narrator{t, p, arrive(latch), make(story)}).tellOfLatch()
	n = &narrator{t, p, arrive(latch), make(story)}
	n.tellOfLatch()
	for step, lines := range n.story {
		s[latchStep(step)] = lines
	}
	return s
}

func (n *narrator) tell() {
	n.t.Helper()
	n.tellOfTwo()
	switch n.cast.kind.ours {
	case backend.Read:
		n.tellOfReaders()
	case backend.Write:
		n.tellOfDowngrade()
	}
}

func (n *narrator) tellOfTwo() {
	n.t.Helper()
	c := n.cast
	holder, waiter := c.holder.at(c.kind, c.name), c.waiter.at(c.kind.rival(), c.name)
	n.record("lock", func() { holder.lock()() }, anything)
	n.record("re-entry", func() { holder.lock()() }, anything)
	var woken func()
	waits := n.watch(c.name, func() { woken = waiter.lock() },
		func(cs []command) bool { return waiting(cs) > 0 })
	n.story["another waits"] = n.lines(waits[:waiting(waits)])
	for question, ask := range holder.ask {
		n.record(question, ask, anything)
	}
	n.record("unlock, one hold left", holder.unlock, settled)
	quiet := unsubscribed
	if c.listens {
		quiet = settled
	}
	end := n.withoutLooks(n.watch(c.name, func() { holder.unlock(); woken() }, quiet))
	if c.listens { // the waiter is granted the lock, and renews it at some time
		end = slices.DeleteFunc(end, func(c command) bool {
			return c.renews() && c.mentions(n.cast.waiter.owner)
		})
	}
	isHolders := func(c command) bool {
		return c.mentions(n.cast.holder.owner) || c.mentions(latch)
	}
	isWaiters := func(c command) bool { return !isHolders(c) }
	n.story["unlock"] = n.lines(slices.DeleteFunc(slices.Clone(end), isWaiters))
	n.story["the other is woken"] = n.lines(slices.DeleteFunc(end, isHolders))
	n.watch(c.name, waiter.unlock, settled)
	holder.lock()()
	n.record("force unlock", holder.force, anything)
}

// tellOfReaders is about two readers.
func (n *narrator) tellOfReaders() {
	n.t.Helper()
	c := n.cast
	holder, another := c.holder.at(c.kind, c.name+"/shared"), c.waiter.at(c.kind, c.name+"/shared")
	holder.lock()()
	n.record("another reads", func() { another.lock()() }, anything)
	n.record("unlock, another reads on", another.unlock, settled)
	holder.unlock()
}

// tellOfDowngrade is about one person that writes and reads.
func (n *narrator) tellOfDowngrade() {
	n.t.Helper()
	c := n.cast
	writes, reads := c.holder.at(c.kind, c.name+"/shared"), c.holder.at(kinds[3], c.name+"/shared")
	writes.lock()()
	n.record("read besides", func() { reads.lock()() }, anything)
	n.record("unlock, and read on", writes.unlock, settled)
	reads.unlock()
}

func (n *narrator) tellOfRenewal() {
	n.t.Helper()
	renewer := n.cast.renewer.at(n.cast.kind, n.cast.other)
	renewer.lock()()
	renewals := n.watch(n.cast.other, func() {}, twice)
	renewer.unlock()
	n.story["renewal"] = n.lines(renewals[len(renewals)-1:])
}

// tellOfPermits is about a holder of both permits, and a waiter for one. Only Go renews permits.
func (n *narrator) tellOfPermits() {
	n.t.Helper()
	c := n.cast
	holder, waiter, renewer := c.holder.permits(c.name), c.waiter.permits(c.name),
		c.renewer.permits(c.other)
	n.record("set up", holder.setUp, anything)
	var release, releaseOther func()
	n.record("acquire", func() { release = holder.acquire(2)() }, anything)
	var woken func() func()
	waits := n.watch(c.name, func() { woken = waiter.acquire(1) },
		func(cs []command) bool { return waiting(cs) > 0 })
	n.story["another waits"] = n.lines(waits[:waiting(waits)])
	n.record("how many are available", holder.ask, anything)
	end := n.watch(c.name, func() { release(); releaseOther = woken() }, unsubscribed)
	n.story["release"], n.story["the other is woken"] = n.lines(end[:1]), n.lines(end[1:])
	releaseOther()

	n.story["renewal"] = nil
	if c.renews {
		renewer.setUp()
		release = renewer.acquire(2)()
		renewals := n.watch(c.other, func() {}, twice)
		n.story["renewal"] = n.lines(renewals[len(renewals)-1:])
		release()
	}
	for _, name := range []string{c.name, c.other} {
		if err := n.place.admin.Del(n.t.Context(), name, permitsKey(name)).Err(); err != nil {
			n.t.Fatal(err)
		}
	}
}

// tellOfLatch is about a latch that one person counts down and another waits for.
func (n *narrator) tellOfLatch() {
	n.t.Helper()
	name := n.cast.name
	counts, waits := n.cast.holder.latch(name), n.cast.waiter.latch(name)
	n.record("set", func() { counts.set(true) }, anything)
	n.record("set again", func() { counts.set(false) }, anything)
	n.record("how many are left", counts.ask, anything)
	var opened func()
	looks := n.watch(name, func() { opened = waits.wait() },
		func(cs []command) bool { return looking(cs) > 0 })
	n.story["another waits"] = slices.Compact(n.lines(looks[:looking(looks)]))

	// Waiters poll now and then, so commands before the script don't belong to these steps.
	step := func(commands []command) []command {
		return commands[slices.IndexFunc(commands, isScript):]
	}
	down := step(n.watch(name, counts.countDown, anything))
	n.story["count down"] = n.lines(down[:1])
	end := step(n.watch(name, func() { counts.countDown(); opened() }, unsubscribed))
	n.story["count down to zero"] = n.lines(end[:1])
	n.story["the other is woken"] = slices.Compact(n.lines(end[1:]))
	n.record("count down when it is open", counts.countDown, anything)
	counts.set(true)
	n.record("delete", counts.del, anything)
	if err := n.place.admin.Del(n.t.Context(), name).Err(); err != nil {
		n.t.Fatal(err)
	}
}

func isScript(c command) bool { return len(c.effects) > 0 }

// looking returns the number of commands that a waiter sent until it had subscribed and then read a
// latch. It is 0 if it hasn't done so yet.
func looking(commands []command) int {
	subscribed := false
	for i, c := range commands {
		switch {
		case c.is("subscribe"), c.is("ssubscribe"):
			subscribed = true
		case subscribed && c.is("get"):
			return i + 1
		}
	}
	return 0
}

// latch begins the names of the keys in which Redisson notes that it has carried out an unlock.
const latch = "redisson_unlock_latch:"

// A narrator turns commands into text.
type narrator struct {
	t     *testing.T
	place *place
	cast  cast
	story story // by step, without the kind of lock
}

// record adds a step with the commands about the lock of the two.
func (n *narrator) record(step string, do func(), enough func([]command) bool) {
	n.t.Helper()
	n.story[step] = n.lines(n.withoutLooks(n.watch(n.cast.name, do, enough)))
}

// withoutLooks leaves out commands that a client in Go repeats each second. A waiting writer asks
// again, and a waiter in line keeps its place.
func (n *narrator) withoutLooks(commands []command) []command {
	return slices.DeleteFunc(commands, func(c command) bool {
		return c.refused() && c.mentions(n.cast.waiter.owner)
	})
}

// watch calls do, and returns the commands about a lock that are sent from then on, until enough
// says that they are all.
func (n *narrator) watch(lock string, do func(), enough func([]command) bool) (commands []command) {
	n.t.Helper()
	testservers.Until(n.t, "what was locked before lasts for a whole lease no longer", func() bool {
		return n.place.left(n.t, lock) != recordLease &&
			n.place.left(n.t, lock+"/shared") != recordLease
	})
	n.place.monitor.sync()
	before := len(n.about(lock))
	do()
	n.place.monitor.sync()
	testservers.Until(n.t, "the commands of this step", func() bool {
		commands = n.about(lock)[before:]
		return enough(commands)
	})
	n.place.monitor.sync() // to get all effects of the last command
	return n.about(lock)[before:][:len(commands)]
}

// about returns the commands so far about a lock, and about the channel on which the waiter is
// notified of a grant. It leaves out two things from Go: the unsubscribing from that channel, some
// time after the wait, and the reading of the lock's holder.
func (n *narrator) about(lock string) []command {
	return slices.DeleteFunc(n.place.monitor.about(lock, grantsPrefix+n.cast.waiter.owner),
		func(c command) bool {
			return c.identifies() || (c.is("unsubscribe") || c.is("sunsubscribe")) &&
				c.mentions(grantsPrefix)
		})
}

// anything is for calls after whose return there is nothing to wait for. A call may send no
// command, since Go counts some reads itself.
func anything([]command) bool { return true }

// twice says whether two scripts have been carried out. The last one is a script that the server
// knew.
func twice(commands []command) bool {
	carriedOut := 0
	for _, c := range commands {
		if len(c.effects) > 0 {
			carriedOut++
		}
	}
	return carriedOut >= 2
}

// waiting returns the number of commands that a waiter sent until it had subscribed and then been
// refused. It is 0 if that hasn't happened yet.
func waiting(commands []command) int {
	subscribed := false
	for i, c := range commands {
		switch {
		case c.is("subscribe"), c.is("ssubscribe"):
			subscribed = true
		case subscribed && len(c.effects) > 0:
			return i + 1
		}
	}
	return 0
}

// unsubscribed says whether a client has unsubscribed, so that no more commands come.
func unsubscribed(commands []command) bool {
	isIt := func(c command) bool { return c.is("unsubscribe") || c.is("sunsubscribe") }
	return slices.ContainsFunc(commands, isIt) && settled(commands)
}

// settled says whether all latches that scripts have set are deleted, so that no more commands
// come.
func settled(commands []command) bool {
	left := 0
	for _, c := range commands {
		switch {
		case c.is("del"):
			left--
		case c.mentions(latch) && len(c.effects) > 0:
			left++
		}
	}
	return left == 0
}

// lines returns commands in the form of the document.
func (n *narrator) lines(commands []command) (lines []string) {
	for _, c := range commands {
		words := slices.Clone(c.args)
		words[0] = strings.ToUpper(words[0])
		if words[0] == "EVAL" {
			sum := sha1.Sum([]byte(words[1]))
			words[1] = "(text of " + hex.EncodeToString(sum[:]) + ")"
		}
		lines = append(lines, n.plain(words))
		for _, effect := range c.effects {
			effect = slices.Clone(effect)
			if c.happens(effect) {
				continue
			}
			lines = append(lines, "    "+n.plain(effect))
		}
	}
	return lines
}

var (
	ownNumber = regexp.MustCompile(`\b(HOLDER|WAITER):\d+`)
	requestID = regexp.MustCompile(`(` + latch + `\S+):[0-9a-f]{32}`)
	granted   = regexp.MustCompile(
		`(publish distsync_fair_grants:\S+ MILLISECONDS 1000) \d+ orders(WAITER):\d+`)
	instant   = regexp.MustCompile(`\b1\d{12}\b`)
	latchTime = regexp.MustCompile(`(` + latch + `.*) \d+$`)
	noteTimes = regexp.MustCompile(`(hset distsync_rwlock_notes:\S+ \S+) \d+ \d+ (\d+)$`)
	waited    = regexp.MustCompile(
		`(EVALSHA \S+ \d orders .*distsync_rwlock_notes:\S+ \d+ (?:\S+ )?\S+:write) \d+`)
	// 3 s, plus the time to the server
	kept     = regexp.MustCompile(`(distsync_fair_grants:\S*) 3\d{3} (1 WAITER:fair)$`)
	newToken = regexp.MustCompile(`(set redisson_lock_token:\S+) \d{16}$`)
	// the lease, and the time that was left
	longer  = regexp.MustCompile(`(pexpire orders) 1[12]\d{5}$`)
	shorter = regexp.MustCompile(`(pexpire orders) 5\d{5}$`)
)

// withoutIDs replaces the ids of permits in a command. Go's ids are a hash of the owner, and a
// number.
func withoutIDs(words []string) {
	for i, word := range words[1:] {
		switch {
		case len(word) == 12:
			words[i+1] = "HASH"
		case len(word) == 16 && strings.HasPrefix(word[12:], "\x00\x00\x00"):
			words[i+1] = fmt.Sprintf("HASH+%d", word[15])
		case len(word) == 16:
			words[i+1] = "ID"
		}
	}
}

// plain returns a command as a line, without the parts that differ from run to run.
func (n *narrator) plain(words []string) string {
	c := n.cast
	if c.kind.ours == backend.Permits {
		withoutIDs(words)
	}
	line := strings.NewReplacer(c.name+"/shared", "orders", c.name, "orders", c.other, "orders",
		c.holder.owner, "HOLDER", c.waiter.owner, "WAITER", c.renewer.owner, "HOLDER").
		Replace(strings.Join(words, " "))
	line = ownNumber.ReplaceAllString(line, "$1")
	line = requestID.ReplaceAllString(line, "$1:REQUEST")
	line = noteTimes.ReplaceAllString(line, "$1 SINCE END $2")
	line = waited.ReplaceAllString(line, "$1 WAITED")
	line = kept.ReplaceAllString(line, "$1 KEPT $2")
	line = newToken.ReplaceAllString(line, "$1 MICROSECONDS")
	line = longer.ReplaceAllString(line, "$1 LEFT+600000")
	line = shorter.ReplaceAllString(line, "$1 LEFT")
	line = instant.ReplaceAllString(line, "MILLISECONDS")
	line = granted.ReplaceAllString(line, "$1 LENGTH orders$2")
	line = latchTime.ReplaceAllString(line, "$1 LATCHTIME")
	return strings.TrimRight(line, " ") // a look may name no owner
}
