package redisson

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Permissions are documented in three places: all that the steps of a kind need is there.
func TestDocumentedCommands(t *testing.T) {
	for _, path := range []string{
		"../../redisbackend/doc.go", "../../valkeybackend/doc.go", "../../docs/operations.md",
	} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// Each part of a text is about one kind, and goes on to where the next begins.
		parts := map[backend.Kind][2]string{
			backend.Exclusive: {"needs the commands EVAL", "For fenced locks"},
			backend.Fenced:    {"For fenced locks", "For read-write locks"},
			backend.Write:     {"For read-write locks", "For permits"},
			backend.Permits:   {"For permits", "For fair locks"},
			backend.Fair:      {"For fair locks", "For latches"},
			backend.Latch:     {"For latches", "To inspect a lock"},
		}
		if strings.HasSuffix(path, ".md") {
			parts = map[backend.Kind][2]string{
				backend.Exclusive: {"run: redis: a user -->", "Fenced locks:"},
				backend.Fenced:    {"Fenced locks:", "Read-write locks:"},
				backend.Write:     {"Read-write locks:", "Fair locks:"},
				backend.Fair:      {"Fair locks:", "Permits:"},
				backend.Permits:   {"Permits:", "Latches:"},
				backend.Latch:     {"Latches:", "A user that only looks"},
			}
		}
		words := func(kind backend.Kind) []string {
			part := string(text)
			for i, mark := range parts[kind] {
				before, after, found := strings.Cut(part, mark)
				if !found {
					t.Fatalf("%s: no %q", path, mark)
				}
				part = []string{after, before}[i]
			}
			return strings.FieldsFunc(strings.ToLower(part), func(r rune) bool {
				return r < 'a' || r > 'z'
			})
		}
		parts[backend.Read] = parts[backend.Write]
		needed := map[backend.Kind][]string{backend.Latch: latchCommands(t)}
		for kind := range kinds {
			needed[backend.Kind(kind)] = everyCommand(&kinds[kind])
		}
		for kind, commands := range needed {
			documented := make(map[string]bool)
			for _, word := range append(words(backend.Exclusive), words(kind)...) {
				documented[word] = true
			}
			for _, command := range commands {
				if !documented[command] {
					t.Errorf("%s doesn't say that %v needs %s", path, kind,
						strings.ToUpper(command))
				}
			}
		}
	}
}

// latchCommands returns the commands of all steps of latches.
func latchCommands(t *testing.T) (commands []string) {
	s := Open(Options{Transport: &fakeTransport{answer: func(cmd Command) Reply {
		commands = append(commands, commandsOf(cmd)...)
		return Reply{Value: []any{int64(0), nil}}
	}}}).(backend.Latcher)
	for _, step := range []backend.LatchStep{backend.LookAtLatch, backend.SetLatch,
		backend.CountDown} {
		if _, err := s.Latch(t.Context(), backend.LatchRequest{
			Step: step, Name: "n", Count: 1,
		}); err != nil {
			t.Fatal(err)
		}
	}
	return commands
}

// scriptCommand is a command in a script.
var scriptCommand = regexp.MustCompile(`redis\.p?call\('([a-z]+)'`)

// everyCommand returns the commands of all the scripts of a kind.
func everyCommand(k *kind) (commands []string) {
	var d Dialect
	calls := []Call{
		k.acquire(d, backend.AcquireRequest{}),
		k.renew(d, backend.RenewRequest{}),
		k.renewTogether(d, []backend.RenewRequest{{}}),
		k.release(d, backend.ReleaseRequest{}),
		k.force(d, backend.ForceReleaseRequest{}),
	}
	if k.keep != nil {
		calls = append(calls, k.keep(d, backend.ReleaseRequest{}))
	}
	if k.releaseAgain != nil {
		calls = append(calls, k.releaseAgain(d, backend.ReleaseRequest{}),
			k.renewAgain(backend.RenewRequest{}), IsForeign(""), IsKept(""))
	}
	if k.line {
		calls = append(calls, d.KeepPlaces(backend.PlacesRequest{Owners: []string{"a:1"}})...)
	}
	for _, call := range calls {
		for _, m := range scriptCommand.FindAllStringSubmatch(call.Script.Text, -1) {
			commands = append(commands, m[1])
		}
	}
	for _, cmd := range k.look(backend.LookRequest{}) {
		commands = append(commands, commandsOf(cmd)...)
	}
	return commands
}

// commandsOf returns what is sent, or the commands of the script that is.
func commandsOf(cmd Command) (commands []string) {
	if cmd.Script == "" {
		return []string{strings.ToLower(cmd.Verb)}
	}
	for _, m := range scriptCommand.FindAllStringSubmatch(cmd.Script, -1) {
		commands = append(commands, m[1])
	}
	return commands
}

// fakeTransport answers commands by a function.
type fakeTransport struct {
	Transport
	answer func(Command) Reply
}

func (f *fakeTransport) Send(_ context.Context, cmd Command) Reply { return f.answer(cmd) }
func (f *fakeTransport) Reach(context.Context, string) error       { return nil }

// Where a script was refused something half-way, the next acquisition of the kind isn't sent, and
// is refused in words: a server that can't be asked beforehand doesn't keep a call for ever.
func TestDenied(t *testing.T) {
	const sha = "8a1cc32fa58d1a5e8a51cebe0a33a92efac552c0"
	for text, says := range map[string]string{
		"ERR Error running script (call to f_" + sha + "): @user_script:2: @user_script: 2: " +
			"-NOPERM this user has no permissions to run the 'pexpire' command or its " +
			"subcommand": "permissions",
		"ERR Error running script (call to " + sha + "): @user_script:24: " +
			"script tried accessing undeclared key, key: " +
			"redisson_lock_queue:{n}": "allow-undeclared-keys",
		"ERR Unknown Redis command called from script script: " + sha +
			", on @user_script:3.": "must have the commands",
	} {
		sent, answer := 0, Reply{Refusal: text, Err: ServerError(text, errors.New(text))}
		s := Open(Options{Transport: &fakeTransport{answer: func(Command) Reply {
			sent++
			return answer
		}}})
		req := backend.AcquireRequest{Name: "n", Owner: "o", Lease: time.Second}
		for i, want := range []backend.ErrorKind{backend.Unknown, backend.Refused, backend.Unknown,
			backend.Refused} {
			_, err := s.Acquire(t.Context(), req)
			if backend.KindOf(err) != want || !strings.Contains(err.Error(), says) ||
				!strings.Contains(err.Error(), text) {
				t.Errorf("attempt %d: %v, kind %v; want kind %v and %q", i, err,
					backend.KindOf(err), want, says)
			}
		}
		if sent != 2 {
			t.Errorf("%q: sent %d times", text, sent)
		}
		answer = Reply{}
		if res, err := s.Acquire(t.Context(), req); !res.Acquired {
			t.Errorf("after it went away: %v", err)
		}
	}
}
