package redisson

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A step for several locks together does what a step for each would do: the same is there
// afterwards, the same was published, and each has the answer that it would have alone.
func TestTogetherAsApart(t *testing.T) {
	states := map[string][]string{
		"free":         nil,
		"own":          {"hset", "KEY", "A:1", "1"},
		"own, twice":   {"hset", "KEY", "A:1", "2"},
		"another's":    {"hset", "KEY", "B:1", "1"},
		"with more":    {"hset", "KEY", "A:1", "1", "B:1", "1"},
		"a string":     {"set", "KEY", "text"},
		"a list":       {"rpush", "KEY", "x"},
		"not a number": {"hset", "KEY", "A:1", "x"},
	}
	var mixed []string
	for state := range states {
		mixed = append(mixed, state)
	}
	slices.Sort(mixed)
	cases := map[string][]string{
		"all free": {"free", "free", "free"}, "all own": {"own", "own"}, "all": mixed,
		"but the last": {"free", "free", "another's"},
	}
	everywhere(t, func(t *testing.T, s *store) {
		for name, places := range cases {
			for _, step := range []string{"acquire", "release"} {
				s := *s
				s.t = t
				setUp := func() (calls []Call) {
					s.do("flushall")
					for i, state := range places {
						key := "{x}" + strconv.Itoa(i)
						if words := slices.Clone(states[state]); words != nil {
							words[1] = key
							s.do(words...)
							s.do("pexpire", key, strconv.FormatInt(20*unit.Milliseconds(), 10))
						}
						if step == "acquire" {
							calls = append(calls, Acquire(backend.AcquireRequest{
								Name: key, Owner: "A:1", Lease: 50 * unit,
							}))
						} else {
							calls = append(calls, Release(backend.ReleaseRequest{
								Name: key, Owner: "A:1", Lease: 50 * unit,
							}))
						}
					}
					s.published()
					return calls
				}
				words := func(r Reply) string {
					if r.Err != nil {
						return fmt.Sprint(backend.KindOf(r.Err), " ",
							errors.Is(r.Err, backend.ErrConflict))
					}
					if n, ok := r.Value.(int64); ok && step == "acquire" {
						return units(n)
					}
					return fmt.Sprint(r.Value)
				}
				reply := func(c Call) Reply {
					value, err := s.run(c)
					return Reply{Value: value, Err: err}
				}
				var want, got []string
				for _, call := range setUp() {
					want = append(want, words(reply(call)))
				}
				state, told := s.state(), s.published()
				calls := setUp()
				joint, firsts := joinSteps(calls, nil)
				if len(joint) != 1 || firsts[0] != 0 {
					t.Fatalf("%d scripts", len(joint))
				}
				for _, r := range reply(joint[0]).each(len(calls)) {
					got = append(got, words(r))
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s, %s: %q; want %q", step, name, got, want)
				}
				if got := s.state(); got != state {
					t.Errorf("%s, %s: there is\n%s; want\n%s", step, name, got, state)
				}
				if got := s.published(); got != told {
					t.Errorf("%s, %s: published %s; want %s", step, name, got, told)
				}
			}
		}
	})
}

// Those in a row go together whose names have one hash tag and that differ in name and owner only.
func TestJoinSteps(t *testing.T) {
	lock := func(name, owner string, lease int) Call {
		return Acquire(backend.AcquireRequest{
			Name: name, Owner: owner, Lease: unit * time.Duration(lease),
		})
	}
	release := func(d Dialect, name, owner string) Call {
		return d.Release(backend.ReleaseRequest{Name: name, Owner: owner, Lease: unit})
	}
	fenced := func(name string) Call {
		return AcquireFenced(backend.AcquireRequest{Name: name, Owner: "o", Lease: unit})
	}
	plain, sharding := Dialect{}, Dialect{Sharded: true}
	three := []Call{
		release(plain, "{x}a", "o"), release(plain, "{x}b", "o"), release(plain, "{x}c", "o"),
	}
	asks := func(i int) map[int]Command { return map[int]Command{i: {Verb: "PUBSUB"}} }
	for name, test := range map[string]struct {
		calls  []Call
		asks   map[int]Command
		firsts []int
	}{
		"none":         {nil, nil, nil},
		"one":          {[]Call{lock("{x}a", "o", 1)}, nil, []int{0}},
		"one tag":      {[]Call{lock("{x}a", "o", 1), lock("b{x}", "p", 1)}, nil, []int{0}},
		"no tag":       {[]Call{lock("a", "o", 1), lock("b", "o", 1)}, nil, []int{0, 1}},
		"an empty tag": {[]Call{lock("{}a", "o", 1), lock("{}b", "o", 1)}, nil, []int{0, 1}},
		"two tags":     {[]Call{lock("{x}a", "o", 1), lock("{y}a", "o", 1)}, nil, []int{0, 1}},
		"one name":     {[]Call{lock("{x}a", "o", 1), lock("{x}a", "p", 1)}, nil, []int{0, 1}},
		"two leases":   {[]Call{lock("{x}a", "o", 1), lock("{x}b", "o", 2)}, nil, []int{0, 1}},
		"another kind": {[]Call{fenced("{x}a"), fenced("{x}b")}, nil, []int{0, 1}},
		"in their order": {[]Call{
			lock("{x}a", "o", 1), lock("{x}b", "o", 1), lock("{y}a", "o", 1), lock("{x}c", "o", 1),
		}, nil, []int{0, 2, 3}},
		"releases": {three, nil, []int{0}},
		"sharded ones": {[]Call{
			release(sharding, "{x}a", "o"), release(sharding, "{x}b", "o"),
		}, nil, []int{0}},
		"the first asks": {three, asks(0), []int{0, 1}},
		"one asks":       {three, asks(1), []int{0, 1, 2}},
		"the last asks":  {three, asks(2), []int{0, 2}},
	} {
		joint, firsts := joinSteps(test.calls, test.asks)
		if !slices.Equal(firsts, test.firsts) || len(joint) != len(firsts) {
			t.Errorf("%s: %v; want %v", name, firsts, test.firsts)
		}
	}
	calls := []Call{release(sharding, "{x}a", "o"), release(sharding, "{x}b", "p")}
	joint, _ := joinSteps(calls, nil)
	c := joint[0]
	if got := fmt.Sprint(c.Keys, c.Args); got != "[{x}a {x}b redisson_lock__channel:{x}a "+
		"redisson_lock__channel:{x}b] [0 "+millis(unit)+" o p]" ||
		!strings.Contains(c.Script.Text, "'spublish'") {
		t.Errorf("%s, script %s", got, c.Script.Text)
	}
}

// batchTransport is a fakeTransport that answers what is sent together.
type batchTransport struct {
	fakeTransport
}

func (b *batchTransport) SendTogether(_ context.Context, cmds ...Command) (replies []Reply) {
	for _, cmd := range cmds {
		replies = append(replies, b.answer(cmd))
	}
	return replies
}

// A script that may have been carried out isn't sent again. If the server has refused to run it, a
// script is sent for each request. Each request has an answer in any case.
func TestTogetherAnswered(t *testing.T) {
	refused := func(text string) Reply {
		return Reply{Err: ServerError(text, errors.New(text)), Refusal: text}
	}
	const wrongType = "WRONGTYPE Operation against a key holding the wrong kind of value"
	for name, test := range map[string]struct {
		reply Reply
		sent  int    // scripts
		want  string // of three
	}{
		"acquired": {Reply{Value: []any{nil, nil, nil}}, 1, "true true true"},
		"some":     {Reply{Value: []any{nil, int64(-1), nil}}, 1, "true false true"},
		"lost": {
			Reply{Err: &backend.Error{Err: errors.New("EOF")}}, 1, "unknown unknown unknown",
		},
		"not sent": {
			Reply{Err: &backend.Error{Kind: backend.Retry, Err: errors.New("dial")}}, 1,
			"retry retry retry",
		},
		"too few":    {Reply{Value: []any{nil, nil}}, 1, "unknown unknown unknown"},
		"one answer": {Reply{}, 1, "unknown unknown unknown"},
		"refused":    {refused("NOPERM No permissions to access a key"), 4, "true true true"},
		"no constant": {
			refused("ERR bad lua script for redis cluster, all the keys"), 4, "true true true",
		},
		"moving": {
			refused("TRYAGAIN Multiple keys request during rehashing of slot"), 4, "true true true",
		},
		"stopped": {
			refused("ERR Error running script (call to f_x): Script killed"), 1,
			"unknown unknown unknown",
		},
		"a proxy has lost it": {refused("upstream failure"), 1, "unknown unknown unknown"},
		"a proxy has not waited": {
			refused("ERR Connection timed out"), 1, "unknown unknown unknown",
		},
		"one fails": {Reply{Value: []any{nil, "-" + wrongType, nil}}, 1, "true refused true"},
		"of old": {
			Reply{Value: []any{nil, "-@user_script: 5: " + wrongType, nil}}, 1, "true refused true",
		},
		"one is full": {Reply{Value: []any{"-OOM not allowed", nil, nil}}, 1, "retry true true"},
		"one may not": {
			Reply{Value: []any{nil, nil, "-NOPERM no permissions to run the 'pexpire' command"}}, 1,
			"true true unknown",
		},
	} {
		t.Run(name, func(t *testing.T) {
			sent := 0
			transport := &batchTransport{fakeTransport{answer: func(cmd Command) Reply {
				sent++
				if len(cmd.Keys) == 3 {
					return test.reply
				}
				return Reply{}
			}}}
			s := Open(Options{Transport: transport}).(backend.Batcher)
			var reqs []backend.AcquireRequest
			for _, key := range []string{"{x}a", "{x}b", "{x}c"} {
				reqs = append(reqs, backend.AcquireRequest{Name: key, Owner: "o", Lease: unit})
			}
			got := make([]string, len(reqs))
			s.AcquireBatch(t.Context(), reqs, func(i int, res backend.AcquireResult, err error) {
				if got[i] != "" {
					t.Errorf("request %d is answered twice", i)
				}
				got[i] = fmt.Sprint(res.Acquired)
				if err != nil {
					got[i] = kindWords[backend.KindOf(err)]
				}
			})
			if all := strings.Join(got, " "); all != test.want {
				t.Errorf("%s; want %s", all, test.want)
			}
			// One that was refused the lock may look what keeps it out.
			if extra := strings.Count(test.want, "false"); sent != test.sent &&
				sent != test.sent+extra {
				t.Errorf("sent %d scripts; want %d", sent, test.sent)
			}
		})
	}
}

var kindWords = map[backend.ErrorKind]string{
	backend.Unknown: "unknown", backend.Retry: "retry", backend.Refused: "refused",
}
