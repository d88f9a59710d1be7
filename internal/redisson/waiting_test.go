package redisson

import (
	"errors"
	"testing"

	"github.com/seed951563bd/distsync/backend"
)

func TestParseWaiting(t *testing.T) {
	const (
		may    = backend.MayWait
		nobody = backend.NobodyElse
		others = backend.OthersWait
	)
	said := func(n any) any { return []any{"channel", n} }
	for _, c := range []struct {
		reply       any
		least, most int
		one, nodes  backend.Waiting // on one server or with sharded channels, and on one node of several
	}{
		{said(int64(0)), 0, 0, nobody, may},
		{said(int64(1)), 0, 0, others, others},
		{said(int64(0)), 1, 1, nobody, may}, // the session's connection has broken
		{said(int64(1)), 1, 1, nobody, may},
		{said(int64(2)), 1, 1, others, others},
		{said(int64(0)), 0, 1, nobody, may},
		{said(int64(1)), 0, 1, may, may},
		{said(int64(2)), 0, 1, others, others},
		{nil, 0, 0, may, may},
		{int64(2), 0, 0, may, may},
		{[]any{}, 0, 0, may, may},
		{said("2"), 0, 0, may, may},
		{said(int64(-1)), 0, 0, may, may},
	} {
		for d, cluster := range map[Dialect]bool{{}: false, {Sharded: true}: true} {
			if got := d.ParseWaiting(c.reply, nil, cluster, c.least, c.most); got != c.one {
				t.Errorf("%+v, %v with %d to %d: %d, want %d", d, c.reply, c.least, c.most, got, c.one)
			}
		}
		if got := (Dialect{}).ParseWaiting(c.reply, nil, true, c.least, c.most); got != c.nodes {
			t.Errorf("a cluster, %v with %d to %d: %d, want %d", c.reply, c.least, c.most, got, c.nodes)
		}
		if got := (Dialect{}).ParseWaiting(c.reply, errors.New("refused"), false, c.least, c.most); got != may {
			t.Errorf("an error: %d", got)
		}
	}
}
