package redisson_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seed951563bd/distsync/backend"
)

// inspectCases are about an Inspector's view of Java's locks.
var inspectCases = []testCase{
	{"what Java has", seesJava},
	{"a line of both", seesLine},
	{"permits of both", seesPermits},
}

// saw returns a session's report on a lock, in words. It also checks that the session lists the
// lock, unless it is free.
func saw(t *testing.T, s backend.Session, name string) string {
	t.Helper()
	i, err := s.(backend.Inspector).Inspect(t.Context(), backend.InspectRequest{Name: name})
	wantNil(t, "inspect", err)
	text := fmt.Sprint(i.Kind)
	for _, h := range i.Holders {
		text += fmt.Sprintf(", %v %s %d", h.Kind, h.Owner, h.Count)
		if h.Remaining == 0 || h.Remaining > longLease {
			t.Errorf("%s has it for %v", h.Owner, h.Remaining)
		}
	}
	if len(i.Line) > 0 {
		text += fmt.Sprint(" before ", i.Line)
	}
	listed, req := false, backend.ListRequest{Prefix: name, Limit: 1000}
	for begun := false; !begun || req.After != ""; begun = true {
		res, err := s.(backend.Lister).List(t.Context(), req)
		wantNil(t, "list", err)
		listed = listed || slices.ContainsFunc(res.Locks, func(i backend.Inspection) bool {
			return i.Name == name
		})
		req.After = res.Next
	}
	if listed == i.Free() {
		t.Errorf("%s is listed: %v, and free: %v", name, listed, i.Free())
	}
	return text
}

func seesJava(t *testing.T, l *lab) {
	s := l.backend(t).Open()
	defer s.Close()
	want := func(name, want string) {
		t.Helper()
		if got := saw(t, s, name); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
	java, second := l.java.thread(t), l.java.thread(t)
	for _, prefix := range []string{"", "fenced.", "fair."} {
		name := lockName(t) + "/" + prefix
		want(name, "exclusive")
		for n := 1; n <= 2; n++ {
			java.want("locked", prefix+"lock", name)
			want(name, fmt.Sprintf("exclusive, exclusive %s %d", java.owner, n))
		}
		java.want("unlocked", prefix+"unlock", name)
		java.want("unlocked", prefix+"unlock", name)
		want(name, "exclusive")
	}

	name := lockName(t) + "/{rw}"
	java.want("locked", "write.lock", name)
	want(name, "write, write "+java.owner+" 1")
	java.want("locked", "read.lock", name)
	java.want("locked", "read.lock", name)
	want(name, "write, write "+java.owner+" 1, read "+java.owner+" 2")
	java.want("unlocked", "write.unlock", name)
	want(name, "write, read "+java.owner+" 2")
	second.want("locked", "read.lock", name)
	java.want("unlocked", "read.unlock", name)
	java.want("unlocked", "read.unlock", name)
	want(name, "write, read "+second.owner+" 1")
	second.want("unlocked", "read.unlock", name)
}

func seesLine(t *testing.T, l *lab) {
	name := lockName(t)
	s := l.backend(t).Open()
	defer s.Close()
	holder := l.fairThread(t)
	holder.want("locked", "lock", name)
	line := []entrant{
		l.queueThread(t, name), l.queueVisitor(t, name, longLease), l.queueThread(t, name),
	}
	var owners []string
	for _, e := range line {
		owners = append(owners, e.owner)
	}
	if got, want := saw(t, s, name), fmt.Sprintf("exclusive, exclusive %s 1 before %v",
		holder.owner, owners); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	holder.want("unlocked", "unlock", name)
	for i, e := range line {
		e.await()
		want := fmt.Sprintf("exclusive, exclusive %s 1", e.owner)
		if i < len(line)-1 {
			want += fmt.Sprintf(" before %v", owners[i+1:])
		}
		if got := saw(t, s, name); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
		e.leave()
	}
}

func seesPermits(t *testing.T, l *lab) {
	name := lockName(t)
	s := l.backend(t).Open()
	defer s.Close()
	java := l.permitsThread(t)
	java.want("true", "trySetPermits", name, 5)
	// one of the two permits never ends
	ids := append(java.take(name, 1, longLease), java.take(name, 1)...)
	_, err := s.Acquire(t.Context(), backend.AcquireRequest{
		Kind: backend.Permits, Name: name, Owner: "ours:1", Lease: longLease / 2, Permits: 2,
	})
	wantNil(t, "acquire", err)
	got := strings.Split(saw(t, s, name), ", ")
	if len(got) != 4 || !strings.HasSuffix(got[1], " 2") ||
		got[2] != fmt.Sprint("permits ", ids[0], " 1") ||
		got[3] != fmt.Sprint("permits ", ids[1], " 1") {
		t.Errorf("%q; want ours, which end first, and %v", got, ids)
	}
	i, err := s.(backend.Inspector).Inspect(t.Context(), backend.InspectRequest{Name: name})
	if err != nil || i.Limit != 5 || i.Holders[2].Remaining >= 0 {
		t.Errorf("%+v, %v", i, err)
	}
	java.give(name, ids...)
	if got := strings.Split(saw(t, s, name), ", "); len(got) != 2 {
		t.Errorf("%q; want ours", got)
	}
}
