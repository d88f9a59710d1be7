package dlock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/membackend"
)

// logged returns what slog's two handlers make of a value.
func logged(t *testing.T, v any) (fields any, text string) {
	t.Helper()
	var j, s bytes.Buffer
	slog.New(slog.NewJSONHandler(&j, nil)).Info("", "x", v)
	slog.New(slog.NewTextHandler(&s, nil)).Info("", "x", v)
	var record map[string]any
	if err := json.Unmarshal(j.Bytes(), &record); err != nil {
		t.Fatalf("%v: %s", err, j.Bytes())
	}
	return record["x"], s.String()
}

func TestWhatIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		c := New(membackend.New(), WithClientID("me"), quiet())
		defer c.Close()
		c.state.number = 0 // so that holders are known
		began := time.Now()
		loss := &Loss{
			Name: "x", Kind: backend.Fenced, Holder: "me:1", Reason: LossTaken, Held: time.Second,
			Renewed: time.Millisecond, By: "you:2",
		}
		renamed := *loss // with the new names, and nothing else
		renamed.Unconfirmed, renamed.TakenBy, renamed.Renewed, renamed.By = loss.Renewed, loss.By,
			0, ""
		if was, is := fmt.Sprint(loss.LogValue()), fmt.Sprint(renamed.LogValue()); was != is {
			t.Errorf("a loss with the old names is %s, and with the new %s", was, is)
		}
		late := &Loss{
			Name: "x", Holder: "me:1", Err: &Error{
				Op: "renew", Name: "x", Err: errors.New("no route"),
			},
		}
		l := c.FencedLocker("x")
		h, err := l.Acquire(ctx)
		must(t, err)
		var ten []*Locker
		for i := range 12 {
			ten = append(ten, c.Locker(fmt.Sprint("lock", i)))
		}
		all := All(ten...)
		two, err := All(ten[0], ten[1]).Acquire(ctx)
		must(t, err)
		go c.FencedLocker("x").LockContext(ctx, Wait(time.Minute))
		synctest.Wait()
		until, token := began.Add(protocol.Promised(DefaultLease)).Format(time.RFC3339Nano), 1.0
		names := func(n int) []any {
			var names []any
			for i := range n {
				names = append(names, fmt.Sprint("lock", i))
			}
			return names
		}
		type m = map[string]any
		lost := m{
			"name": "x", "kind": "fenced", "holder": "me:1", "reason": "taken", "held": 1e9,
			"renewed": 1e6, "by": "you:2", "msg": loss.Error(),
		}
		for name, v := range map[string]struct {
			value any
			want  any
		}{
			"a loss": {loss, lost},
			"a loss by silence": {late,
				m{"name": "x", "kind": "exclusive", "holder": "me:1", "reason": "expired",
					"held": 0.0, "renewed": 0.0, "err": `dlock: renew "x": no route`,
					"msg": late.Error()}},
			"an error about a loss": {&Error{"unlock", "x", fmt.Errorf("said: %w", loss)},
				m{"op": "unlock", "name": "x", "kind": "fenced", "holder": "me:1",
					"reason": "taken",
					"held":   1e9, "renewed": 1e6, "by": "you:2",
					"msg": `dlock: unlock "x": said: ` + loss.Error()}},
			"held": {
				&Error{"lock", "x", errHeld}, m{
					"op": "lock", "name": "x", "reason": "held",
					"msg": `dlock: lock "x": not acquired in time: held by another`,
				},
			},
			"no answer": {
				&Error{"lock", "x", both(context.Canceled, unavailable(errUnanswered))}, m{
					"op": "lock", "name": "x", "reason": "unavailable",
					"msg": `dlock: lock "x": context canceled; store unavailable: the store has not answered`,
				},
			},
			"something else": {
				&Error{"lock", "x", errEmptyName}, m{
					"op": "lock", "name": "x", "msg": `dlock: lock "x": the name is empty`,
				},
			},
			"a Locker": {l, m{"name": "x", "kind": "fenced"}},
			"a side": {
				c.RWLocker("rw").Reader(), m{"name": "rw", "kind": "read"},
			},
			"both sides": {c.RWLocker("rw"), m{"name": "rw", "kind": "write"}},
			"a semaphore": {
				c.Semaphore("s", 3), m{"name": "s", "kind": "permits", "permits": 3.0},
			},
			"a candidate": {
				c.Election("e"), m{"name": "e", "kind": "fenced", "leads": false},
			},
			"a client":   {c, m{"id": "me"}},
			"many locks": {all, m{"locks": 12.0, "names": names(10)}},
			"a Hold": {
				h, m{
					"name": "x", "kind": "fenced", "holder": "me:1", "until": until, "token": token,
				},
			},
			"a Hold of several": {
				two, m{"locks": 2.0, "names": names(2), "until": until},
			},
			"nothing": {Holder{}, nil},
			"a holder": {
				Holder{ID: "you:7", Client: "you", Kind: backend.Read, Count: 2,
					Remaining: time.Second}, m{
					"holder": "you:7", "client": "you", "kind": "read", "count": 2.0, "left": 1e9,
				},
			},
			"one that has given it back": {
				Holder{ID: "a", Remaining: time.Second, Kept: true}, m{
					"holder": "a", "kind": "exclusive", "count": 0.0, "left": 1e9, "kept": true,
				},
			},
			"who holds": {
				c.Holds()[2], m{
					"name": "x", "kind": "fenced", "holder": "me:1", "caller": c.Holds()[2].By,
					"since": began.Format(time.RFC3339Nano), "until": until, "fixed": false,
					"lease": 30e9, "count": 1.0, "token": token,
				},
			},
			"who waits": {
				c.Waits()[0], m{
					"name": "x", "kind": "fenced", "caller": "locker",
					"since": began.Format(time.RFC3339Nano),
					"until": began.Add(time.Minute).Format(time.RFC3339Nano), "place": 1.0,
				},
			},
			"a lock that is free": {
				LockInfo{Name: "x"}, m{"name": "x", "kind": "exclusive", "holders": []any{}},
			},
			"a lock that many have": {
				LockInfo{Name: "x", Kind: backend.Write, Holders: make([]Holder, 1000), More: 5},
				m{
					"name": "x", "kind": "write",
					"holders": []any{"", "", "", "", "", "", "", "", "", ""}, "more": 995.0,
				},
			},
			"one for which people stand": {
				LockInfo{Name: "x", Holders: []Holder{{ID: "a:1"}}, Line: []string{"b:2", "c:3"},
					Limit: 4}, m{
					"name": "x", "kind": "exclusive", "holders": []any{"a:1"}, "waiting": 2.0,
					"limit": 4.0,
				},
			},
			"no error":                    {(*Error)(nil), nil},
			"no loss":                     {(*Loss)(nil), nil},
			"no Locker":                   {(*Locker)(nil), nil},
			"no Hold":                     {(*Hold)(nil), nil},
			"no client":                   {(*Client)(nil), nil},
			"no locks":                    {(*MultiLocker)(nil), nil},
			"no semaphore":                {(*Semaphore)(nil), nil},
			"no candidate":                {(*Election)(nil), nil},
			"no sides":                    {(*RWLocker)(nil), nil},
			"a Hold that nobody acquired": {new(Hold), nil},
		} {
			fields, text := logged(t, v.value)
			if !reflect.DeepEqual(fields, v.want) {
				t.Errorf("%s: as JSON %v\nwant %v", name, fields, v.want)
			}
			if want, ok := v.want.(m); ok && want["msg"] != nil &&
				!strings.Contains(text, fmt.Sprintf("x.msg=%q", want["msg"])) {
				t.Errorf("%s: as text %s, without the sentence", name, text)
			}
		}
		must(t, h.Release(ctx))
		must(t, two.Release(ctx))
	})
}

// The attributes of a loss are those of the record about it.
func TestALossIsLoggedAsTheRecordHasIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logs
		c := New(membackend.New(), WithLogger(log.logger()))
		defer c.Close()
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		if _, err := c.Locker("x").ForceUnlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		_, text := logged(t, h.Err())
		for _, attr := range []string{"name", "kind", "holder", "reason", "held", "renewed"} {
			_, after, found := strings.Cut(log.lines.String(), " "+attr+"=")
			value, _, _ := strings.Cut(strings.TrimSpace(after), " ")
			if value, _, _ = strings.Cut(value, "\n"); !found ||
				!strings.Contains(text, " x."+attr+"="+value) {
				t.Errorf("%s is %q in the record, and the loss as text is %s", attr, value, text)
			}
		}
	})
}

// Records of this package have errors as sentences, whatever they are: a field that is a text here
// and a group there is of no use.
func TestErrorsInRecordsAreSentences(t *testing.T) {
	var b bytes.Buffer
	book := logbook{logger: slog.New(slog.NewJSONHandler(&b, nil))}
	lost := &Error{"unlock", "x", &Loss{Name: "x", Held: time.Second}}
	for _, err := range []error{lost, lost.Err, errors.Join(lost, lost), errEmptyName, nil} {
		b.Reset()
		book.log(warning("unlock", "name", "x", "err", err))
		var record map[string]any
		must(t, json.Unmarshal(b.Bytes(), &record))
		switch said := record["err"]; {
		case err == nil && said == nil:
		case err == nil || said != err.Error():
			t.Errorf("%v is logged as %v", err, said)
		}
	}
	handler := new(caught)
	book.logger = slog.New(handler)
	book.log(warning("unlock", "err", lost))
	if err, ok := handler.value.Any().(error); !ok || !errors.Is(err, ErrLost) {
		t.Errorf("a handler that looks finds %v", handler.value)
	}
}

// caught is a handler that keeps the last attribute.
type caught struct {
	slog.Handler
	value slog.Value
}

func (c *caught) Enabled(context.Context, slog.Level) bool { return true }

func (c *caught) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool { c.value = a.Value; return true })
	return nil
}
