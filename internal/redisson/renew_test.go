package redisson

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

func TestRenewTogether(t *testing.T) {
	var reqs []backend.RenewRequest
	var chosen []int
	for i := range 3*maxTogether + 2 {
		lease := time.Second
		if i%3 == 0 {
			lease = time.Minute
		}
		reqs = append(reqs, backend.RenewRequest{
			Name: fmt.Sprint("n", i), Owner: fmt.Sprint("o", i), Lease: lease,
		})
		if i%10 != 5 {
			chosen = append(chosen, i)
		}
	}
	b := &batch{reqs: reqs}
	var grouped []int
	for _, group := range b.alike(chosen) {
		n := len(group)
		call := renewTogether(b.pick(group))
		if n > maxTogether || len(call.Keys) != n || len(call.Args) != n+1 {
			t.Fatalf("%d requests, %d keys, %d arguments", n, len(call.Keys), len(call.Args))
		}
		for i, request := range group {
			req := reqs[request]
			if call.Keys[i] != req.Name || call.Args[i+1] != req.Owner ||
				call.Args[0] != millis(req.Lease) {
				t.Errorf("request %d: %q", request, call)
			}
		}
		grouped = append(grouped, group...)
	}
	slices.Sort(grouped)
	if !slices.Equal(grouped, chosen) {
		t.Errorf("grouped are %v, of %v", grouped, chosen)
	}
}

func TestRenewedTogether(t *testing.T) {
	type reply = []any
	yes, no := int64(1), int64(0)
	for name, test := range map[string]struct {
		reply   any
		err     error
		refused bool
		held    []int
		failed  []int
		rest    []int
	}{
		"all":               {reply: reply{yes, yes, yes}, held: []int{4, 7, 9}},
		"one may be lost":   {reply: reply{yes, no, yes}, held: []int{4, 9}, rest: []int{7}},
		"refused":           {err: errors.New("WRONGTYPE"), refused: true, rest: []int{4, 7, 9}},
		"no reply":          {err: errors.New("EOF"), failed: []int{4, 7, 9}},
		"too few":           {reply: reply{yes, yes}, rest: []int{4, 7, 9}},
		"not a number":      {reply: reply{yes, "OK", yes}, rest: []int{4, 7, 9}},
		"another number":    {reply: reply{yes, int64(2), yes}, rest: []int{4, 7, 9}},
		"another reply":     {reply: yes, rest: []int{4, 7, 9}},
		"nothing, no error": {rest: []int{4, 7, 9}},
	} {
		t.Run(name, func(t *testing.T) {
			held, failed := map[int]bool{}, map[int]bool{}
			r := Reply{Value: test.reply, Err: test.err}
			if test.refused {
				r.Refusal = test.err.Error()
			}
			b := &batch{answer: func(i int, res backend.RenewResult, err error) {
				if held[i] || failed[i] {
					t.Errorf("%d is answered twice", i)
				}
				held[i], failed[i] = res.Held, err != nil
			}}
			rest := b.answerTogether([]int{4, 7, 9}, r)
			said := func(m map[int]bool) []int {
				maps.DeleteFunc(m, func(_ int, yes bool) bool { return !yes })
				return slices.Sorted(maps.Keys(m))
			}
			if got := said(held); !slices.Equal(got, test.held) {
				t.Errorf("held: %v, want %v", got, test.held)
			}
			if got := said(failed); !slices.Equal(got, test.failed) {
				t.Errorf("failed: %v, want %v", got, test.failed)
			}
			if !slices.Equal(rest, test.rest) {
				t.Errorf("left to ask: %v, want %v", rest, test.rest)
			}
		})
	}
}
