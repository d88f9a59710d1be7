package lockdebug_test

import (
	"context"
	"fmt"
	"html"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/lockdebug"
	"github.com/seed951563bd/distsync/membackend"
)

// names returns the first cell of each row of a section.
func names(page, id string) (all []string) {
	for _, row := range rows(page, id) {
		name, _, _ := strings.Cut(row, " ")
		all = append(all, name)
	}
	return all
}

// sorted returns the URL that the head of a column links to.
func sorted(t testing.TB, page, id, title string) string {
	t.Helper()
	head := regexp.MustCompile(`<th scope="col"[^>]*><a href="([^"]*)#` + id + `">` + title +
		`</a>`)
	link := head.FindStringSubmatch(markup(page, id))
	if link == nil {
		t.Fatalf("in %s one can't sort by %s", id, title)
	}
	return "/" + html.UnescapeString(link[1])
}

// A click on the head of a column sorts by it, and another click reverses the order. Numbers begin
// with the largest.
func TestSort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := newClient(t, store), newClient(t, store)
		h := lockdebug.Handler(c)
		for i, name := range []string{"b", "c", "a"} {
			acquire(t, c.Locker(name), dlock.FixedLease(time.Duration(100-10*i)*time.Second))
			acquire(t, c.Locker("lost-"+name))
			c.Locker("lost-" + name).ForceUnlock(t.Context())
			acquire(t, other.Locker("wait-"+name))
			waits(t, c.Locker("wait-"+name), dlock.Wait(time.Duration(100-10*i)*time.Second))
			synctest.Wait()
			time.Sleep(time.Second)
		}
		waits(t, c.Locker("wait-a")) // without a deadline
		synctest.Wait()
		for _, tt := range []struct{ id, title, before, once, twice string }{
			{"held", "Lock", "b c a", "a b c", "c b a"},
			{"held", "Holder", "b c a", "b c a", "a c b"}, // the numbers of holders ascend
			{"held", "Held for", "b c a", "b c a", "a c b"},
			{"held", "Ends in", "b c a", "b c a", "a c b"},
			{"lost", "Lock", "a c b", "a b c", "c b a"},
			{"lost", "Lost", "a c b", "b c a", "a c b"},
			{"waiting", "Lock", "b c a a", "a a b c", "c b a a"},
			{"waiting", "Waits for", "b c a a", "b c a a", "a a c b"},
			{"waiting", "Gives up in", "b c a a", "a b c a", "a c b a"},
			{"waiting", "Place", "b c a a", "a b c a", "b c a a"},
		} {
			page := get(t, h, "/?refresh=5")
			check := func(what, want string) {
				t.Helper()
				got := names(page, tt.id)
				for i := range got {
					got[i] = strings.TrimPrefix(strings.TrimPrefix(got[i], "wait-"), "lost-")
				}
				if strings.Join(got, " ") != want {
					t.Errorf("%s by %s, %s: %q, want %s", tt.id, tt.title, what, got, want)
				}
			}
			check("not sorted", tt.before)
			target := sorted(t, page, tt.id, tt.title)
			if !strings.Contains(target, "refresh=5") {
				t.Errorf("%s forgets what was asked for", target)
			}
			page = get(t, h, target)
			check("once", tt.once)
			if n := strings.Count(markup(page, tt.id), "aria-sort="); n != 1 {
				t.Errorf("%s by %s: %d columns say that they are sorted", tt.id, tt.title, n)
			}
			page = get(t, h, sorted(t, page, tt.id, tt.title))
			check("twice", tt.twice)
		}
		if got := names(get(t, h, "/?store=1&sort=-name"), "store"); !slices.IsSortedFunc(got,
			func(a, b string) int { return strings.Compare(b, a) }) || len(got) != 6 {
			t.Errorf("what is in the store: %q", got)
		}
	})
}

// A search shows the matching rows, and the number of matches.
func TestFind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := many(t, 1_000)
		time.Sleep(8 * time.Second)
		synctest.Wait()
		page := get(t, h, "/?refresh=5&sort=-name&find=ORDERS:00012")
		want := []string{"lock:orders:000129", "lock:orders:000128"}
		if got := names(page, "held"); len(got) != 10 || !slices.Equal(got[:2], want) {
			t.Errorf("found %q", got)
		}
		if text := section(page, "held"); !strings.HasPrefix(text, "Held 10 of 1,001 match.") {
			t.Errorf("it isn't said how many there are: %.60s", text)
		}
		// Important rows are never hidden silently. The page counts those that don't match.
		if text := section(page, "ending"); text != "Ending soon 0 of 1 match." {
			t.Error(text)
		}
		if !strings.Contains(page, "<b>1</b> ending soon") ||
			!strings.Contains(page, "<b>1,001</b> held") {
			t.Error("what doesn't match isn't counted")
		}
		if !strings.Contains(page, `name="find" value="ORDERS:00012"`) ||
			!strings.Contains(page, `<input type="hidden" name="sort" value="-name">`) ||
			!strings.Contains(page, `<a href="?refresh=5&amp;sort=-name">Show all</a>`) {
			t.Error("one can't go on from here")
		}
		page = get(t, h, "/?find=orders:00")
		if got := names(page, "held"); len(got) != 200 {
			t.Errorf("%d rows", len(got))
		}
		if text := section(page, "held"); !strings.HasSuffix(text,
			"and 800 more: all , or as JSON") {
			t.Errorf("%s", text[len(text)-60:])
		}
		if got := getJSON(t, h, "/?find=orders:00012").Holds; len(got) != 10 {
			t.Errorf("in JSON there are %d", len(got))
		}
	})
}

// The search text is shown as mere text.
func TestFindHostile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, membackend.New())
		h := lockdebug.Handler(c)
		for _, name := range hostile {
			acquire(t, c.Locker(name))
		}
		for _, name := range hostile {
			page := get(t, h, "/?find="+url.QueryEscape(name))
			if len(names(page, "held")) == 0 {
				t.Errorf("%q isn't found", name)
			}
			for _, bad := range []string{"<script", "<img", "<svg", "</style><"} {
				if strings.Contains(page, bad) {
					t.Errorf("the page has %s", bad)
				}
			}
		}
	})
}

// asked is a session whose Inspect calls a function.
type asked struct {
	backend.Session
	inspect func(context.Context, backend.InspectRequest) (backend.Inspection, error)
}

func (s asked) Inspect(
	ctx context.Context, req backend.InspectRequest,
) (backend.Inspection, error) {
	return s.inspect(ctx, req)
}

// The page names the holders of locks that are waited for, if the store answers soon. It asks only
// about some if there are many such locks.
func TestWhoHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		other := newClient(t, store, dlock.WithClientID("other<b>"))
		var requests atomic.Int64
		var hang atomic.Bool
		c := newClient(t, sessions{store, func(s backend.Session) backend.Session {
			return asked{s, func(
				ctx context.Context, req backend.InspectRequest,
			) (backend.Inspection, error) {
				requests.Add(1)
				if hang.Load() {
					<-ctx.Done()
					return backend.Inspection{}, ctx.Err()
				}
				return s.(backend.Inspector).Inspect(ctx, req)
			}}
		}}, dlock.WithClientID("here"))
		h := lockdebug.Handler(c)
		get(t, h, "/")
		if requests.Load() != 0 {
			t.Error("the store is asked though nobody waits")
		}
		for range 7 {
			must(other.Semaphore("slots", 14).Acquire(t.Context(), 2))
		}
		go c.Semaphore("slots", 14).Acquire(t.Context(), 1)
		synctest.Wait()
		time.Sleep(time.Second)
		acquire(t, c.Locker("mine"))
		waits(t, c.Locker("mine"))
		waits(t, c.Locker("mine"))
		synctest.Wait()
		wait := rows(get(t, h, "/"), "waiting")
		slices.Sort(wait)
		if requests.Load() != 2 {
			t.Errorf("for two locks there were %d requests", requests.Load())
		}
		for i, want := range []string{
			`^mine exclusive \| here:\d+ here \| owner`,
			`^mine exclusive \| here:\d+ here \| owner`,
			`^slots permits × 1 \| (other<b>:\d+ ){5}and 2 more \| permits`,
		} {
			if len(wait) != 3 || !regexp.MustCompile(want).MatchString(wait[i]) {
				t.Errorf("%q, want %s", wait, want)
			}
		}
		by := getJSON(t, h, "/").Waits[0].HeldBy
		if by == nil || len(by.Holders) != 5 || by.More != 2 || by.Holders[0].Client != "other<b>" {
			t.Errorf("in JSON %+v", by)
		}

		requests.Store(0)
		if wait := rows(get(t, h, "/?who=0"), "waiting"); len(wait) != 3 || requests.Load() != 0 ||
			!strings.HasPrefix(wait[0], "slots permits × 1 | ask | ") {
			t.Errorf("%d requests, %q", requests.Load(), wait)
		}
		hang.Store(true)
		began := time.Now()
		wait = rows(get(t, h, "/"), "waiting")
		if took := time.Since(began); took != time.Second/2 ||
			!strings.Contains(wait[0], "| ask |") {
			t.Errorf("a store that hangs: after %v %q", took, wait)
		}
		if by := getJSON(t, h, "/").Waits[0].HeldBy; by != nil {
			t.Errorf("a store that hangs: %+v", by)
		}
		hang.Store(false)
		requests.Store(0)
		for i := range 30 {
			acquire(t, other.Locker(fmt.Sprint(i)))
			waits(t, c.Locker(fmt.Sprint(i)))
		}
		synctest.Wait()
		if wait := rows(get(t, h, "/?sort=-for"), "waiting"); len(wait) != 33 ||
			requests.Load() != 20 {
			t.Errorf("%d rows, %d requests", len(wait), requests.Load())
		}
	})
}

func must(_ *dlock.Hold, err error) {
	if err != nil {
		panic(err)
	}
}
