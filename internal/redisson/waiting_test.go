package redisson

import (
	"errors"
	"testing"

	"github.com/seed951563bd/distsync/backend"
)

func TestAddWaiting(t *testing.T) {
	const (
		may    = -1
		nobody = 0
		others = 1
	)
	add := func(d Dialect, reply any, err error, cluster bool, least, most int) int {
		var res backend.ReleaseResult
		d.AddWaiting(&res, reply, err, cluster, least, most)
		if !res.Counted {
			return may
		}
		return res.Waiting
	}
	said := func(n any) any { return []any{"channel", n} }
	for _, c := range []struct {
		reply       any
		least, most int
		one, nodes  int // on one server or with sharded channels, and on one node of several
	}{
		{said(int64(0)), 0, 0, nobody, may},
		{said(int64(1)), 0, 0, others, others},
		{said(int64(0)), 1, 1, nobody, may}, // the session's connection has broken
		{said(int64(1)), 1, 1, nobody, may},
		{said(int64(2)), 1, 1, others, others},
		{said(int64(0)), 0, 1, nobody, may},
		{said(int64(1)), 0, 1, may, may},
		{said(int64(2)), 0, 1, others, others},
		{said(int64(7)), 1, 1, 6, 6},
		{nil, 0, 0, may, may},
		{int64(2), 0, 0, may, may},
		{[]any{}, 0, 0, may, may},
		{said("2"), 0, 0, may, may},
		{said(int64(-1)), 0, 0, may, may},
	} {
		for d, cluster := range map[Dialect]bool{{}: false, {Sharded: true}: true} {
			if got := add(d, c.reply, nil, cluster, c.least, c.most); got != c.one {
				t.Errorf("%+v, %v with %d to %d: %d, want %d", d, c.reply, c.least, c.most, got,
					c.one)
			}
		}
		if got := add(Dialect{}, c.reply, nil, true, c.least, c.most); got != c.nodes {
			t.Errorf("a cluster, %v with %d to %d: %d, want %d", c.reply, c.least, c.most, got,
				c.nodes)
		}
		if got := add(Dialect{}, c.reply, errors.New("refused"), false, c.least,
			c.most); got != may {
			t.Errorf("an error: %d", got)
		}
	}
}
