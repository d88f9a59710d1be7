package lockdebug_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/lockdebug"
	"github.com/seed951563bd/distsync/membackend"
)

// newClient returns a client without a log.
func newClient(t testing.TB, b backend.Backend, opts ...dlock.Option) *dlock.Client {
	c := dlock.New(b, append([]dlock.Option{dlock.WithLogger(slog.New(slog.DiscardHandler))},
		opts...)...)
	t.Cleanup(func() { c.Close() })
	return c
}

func acquire(t testing.TB, l *dlock.Locker, opts ...dlock.AcquireOption) *dlock.Hold {
	t.Helper()
	h, err := l.Acquire(t.Context(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// waits makes a goroutine wait for a lock until the test ends.
func waits(t testing.TB, l *dlock.Locker, opts ...dlock.AcquireOption) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { l.Do(ctx, func(context.Context) error { return nil }, opts...) })
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// request sends a request to h. more has names and values of headers in turn.
func request(h http.Handler, method, target string, more ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	for pair := range slices.Chunk(more, 2) {
		r.Header.Add(pair[0], pair[1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// get returns the page.
func get(t testing.TB, h http.Handler, target string) string {
	t.Helper()
	w := request(h, "GET", target)
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("GET %s: %d, %s\n%s", target, w.Code, w.Header(), w.Body)
	}
	return w.Body.String()
}

var (
	cells = regexp.MustCompile(`<(td|th)[ >]`)
	tags  = regexp.MustCompile(`(?s)<[^>]*>`)
)

func plain(markup string) string {
	return strings.Join(strings.Fields(html.UnescapeString(tags.ReplaceAllString(markup, " "))),
		" ")
}

// markup returns the HTML of a section of a page, or "" if the page doesn't have it.
func markup(page, id string) string {
	_, after, _ := strings.Cut(page, `<section id="`+id+`"`)
	inside, _, _ := strings.Cut(after, "</section>")
	_, inside, _ = strings.Cut(inside, ">")
	return inside
}

// section returns a section of a page as text.
func section(page, id string) string { return plain(markup(page, id)) }

// rows returns the rows of a section's table. The cells are separated by bars.
func rows(page, id string) []string {
	_, body, _ := strings.Cut(markup(page, id), "<tbody>")
	body, _, _ = strings.Cut(body, "</tbody>")
	var all []string
	for row := range strings.SplitSeq(body, "</tr>") {
		if strings.Contains(row, "<tr>") {
			all = append(all, strings.TrimPrefix(plain(cells.ReplaceAllString(row, "|$0")), "| "))
		}
	}
	return all
}

func wantRows(t *testing.T, page, id string, want ...string) {
	t.Helper()
	if got := rows(page, id); !slices.Equal(got, want) {
		t.Errorf("section %s:\n%s\nwant\n%s", id, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// An answer is the JSON of the page, with the fields that the package comment lists.
type answer struct {
	Time    time.Time
	Clients []struct {
		ID       string
		Closed   bool
		Counters map[string]uint64
	}
	Losses []struct {
		Client, Name, Kind, Holder, Reason, By, Error string
		Bytes                                         []byte `json:"name_base64"`
		At                                            time.Time
		Held, Renewed, Paused                         float64
	}
	Holds []struct {
		Client, Name, Kind, Holder, By string
		Bytes                          []byte `json:"name_base64"`
		Since, Until                   time.Time
		Held, Remaining, Lease         float64
		Renewed                        bool
		EndsSoon                       bool `json:"ends_soon"`
		Count, Permits                 int
		Token                          uint64
	}
	Waits []struct {
		Client, Name, Kind, By string
		Bytes                  []byte `json:"name_base64"`
		Since                  time.Time
		Until                  *time.Time
		Waited                 float64
		Long                   bool
		Place, Permits         int
		HeldBy                 *struct {
			Holders []holderOf
			More    int
		} `json:"held_by"`
	}
	Sets []struct {
		Name    string
		Bytes   []byte `json:"name_base64"`
		Members []memberOf
		Shards  []struct {
			Name, State, Error string
			Bytes              []byte `json:"name_base64"`
			Since              time.Time
			For                float64
			Token              uint64
		}
	}
	Store *struct {
		Client, Prefix, Name string
		Locks                []struct {
			Name, Kind string
			Bytes      []byte `json:"name_base64"`
			Holders    []holderOf
			More       int
			Line       []string
			Limit      int
		}
		More  bool
		Error string
	}
}

type holderOf struct {
	ID, Client, Kind string
	Here             bool
	Count            int
	Remaining        *float64
}

type memberOf struct {
	Client, Run, Address, State, List string
	Seats                             []int
	Weight, Cap                       int
}

func getJSON(t testing.TB, h http.Handler, target string) answer {
	t.Helper()
	w := request(h, "GET", target, "Accept", "application/json")
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("GET %s: %d, %s\n%s", target, w.Code, w.Header(), w.Body)
	}
	var a answer
	d := json.NewDecoder(w.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		t.Fatalf("GET %s: %v", target, err)
	}
	return a
}

// play runs a scene of 31 seconds in which clients of one store hold, wait for and lose locks.
func play(t *testing.T, c, other *dlock.Client) {
	acquire(t, c.Locker("job"))
	acquire(t, c.FencedLocker("account"))
	acquire(t, c.RWLocker("prices").Reader())
	if _, err := c.Semaphore("slots", 10).Acquire(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	acquire(t, other.FairLocker("till"))
	waits(t, c.FairLocker("till"))
	acquire(t, c.Locker("soon"), dlock.FixedLease(40*time.Second))
	waits(t, c.Locker("job"), dlock.Wait(time.Hour))
	synctest.Wait()

	acquire(t, c.Locker("forced"))
	c.Locker("forced").ForceUnlock(t.Context())
	acquire(t, c.Locker("lease"), dlock.FixedLease(time.Second))
	acquire(t, c.Locker("gone"))
	other.Locker("gone").ForceUnlock(t.Context())
	acquire(t, c.Locker("taken"))
	other.Locker("taken").ForceUnlock(t.Context())
	acquire(t, other.Locker("taken"))
	time.Sleep(31 * time.Second)
	acquire(t, c.Locker("job2"))
	waits(t, c.Locker("job2"))
	time.Sleep(time.Second)
	synctest.Wait()
}

func TestPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := newClient(t, store, dlock.WithClientID("a")),
			newClient(t, store, dlock.WithClientID("b"))
		play(t, c, other)
		page := get(t, lockdebug.Handler(c), "/")

		lost := rows(page, "lost")
		if len(lost) != 3 {
			t.Fatal(lost)
		}
		for i, want := range []string{
			`^gone exclusive \| gone the store has it no more, and had it 9.3 s ago \| a:\d+ ` +
				`\| 9.3 s \| 22 s ago$`,
			`^taken exclusive \| taken by b:\d+ \| a:\d+ \| 9.3 s \| 22 s ago$`,
			`^forced exclusive \| forced by this client \| a:\d+ \| 0 ms \| 32 s ago$`,
		} {
			if i == 0 && strings.HasPrefix(lost[0], "taken") {
				lost[0], lost[1] = lost[1], lost[0] // their order is random
			}
			if !regexp.MustCompile(want).MatchString(lost[i]) {
				t.Errorf("lost: %q, want %s", lost[i], want)
			}
		}
		for id, want := range map[string][]string{
			"ending": {`soon exclusive \| a:\d+ \| owner \d+ \| 32 s \| 7.6 s fixed`},
			"long": {
				`till fair \| b:\d+ \| owner \d+ \| 1 \| 32 s \| –`,
				`job exclusive \| a:\d+ here \| owner \d+ \| 1 \| 32 s \| 59 min 28 s`,
			},
			"waiting": {
				`till fair \| b:\d+ \| owner \d+ \| 1 \| 32 s \| –`,
				`job exclusive \| a:\d+ here \| owner \d+ \| 1 \| 32 s \| 59 min 28 s`,
				`job2 exclusive \| a:\d+ here \| owner \d+ \| 1 \| 1.0 s \| –`,
			},
			"ranout":  {`lease exclusive \| lease \| a:\d+ \| 990 ms \| 31 s ago`},
			"clients": {`a \| 10 \| 0 \| 0 \| 0 \| 0 \| 0 \| 0 \| 0 \| 0 \| 4 \| \d+ \| \d+`},
			"held": {`account fenced · token 1 \| a:\d+ \| owner \d+ \| 32 s \| 2\d s renewed`,
				`job exclusive .*`, `prices read .*`, `slots permits × 3 \| a:\d+ \| permits \| .*`,
				`soon exclusive .*`, `job2 exclusive .*`},
		} {
			got := rows(page, id)
			if len(got) != len(want) {
				t.Errorf("%s: %q", id, got)
				continue
			}
			slices.Sort(got)
			slices.Sort(want)
			for i := range want {
				if !regexp.MustCompile("^" + want[i] + "$").MatchString(got[i]) {
					t.Errorf("%s: %q, want %s", id, got[i], want[i])
				}
			}
		}
		// Important rows come first, and the title of the page counts them.
		var order []string
		for _, m := range regexp.MustCompile(`<section id="(\w+)"`).
			FindAllStringSubmatch(page, -1) {
			order = append(order, m[1])
		}
		if got := strings.Join(order,
			" "); got != "lost ending long held waiting ranout store clients" {
			t.Error("sections:", got)
		}
		if !strings.Contains(page,
			"<title>3 lost · 1 ending soon · 2 waiting long · 6 held · Locks</title>") {
			t.Error("the title isn't as it should be")
		}
	})
}

// If the client records callers, the page shows the source lines that acquired locks or wait for
// them.
func TestPageNamesCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, membackend.New(), dlock.WithCallers())
		acquire(t, c.Locker("job"))
		waits(t, c.Locker("job"))
		synctest.Wait()
		page := get(t, lockdebug.Handler(c), "/")
		line := regexp.MustCompile(`\| owner \d+ /.*/lockdebug_test\.go:\d+ \|`)
		for _, id := range []string{"held", "waiting"} {
			if got := rows(page, id); len(got) != 1 || !line.MatchString(got[0]) {
				t.Errorf("section %s: %q", id, got)
			}
		}
		if text := request(lockdebug.Handler(c), "GET", "/?format=json").
			Body.String(); strings.Count(text, "lockdebug_test.go:") != 2 {
			t.Error(text)
		}
	})
}

func TestNothingToSay(t *testing.T) {
	for name, h := range map[string]http.Handler{
		"no clients": lockdebug.Handler(),
		"idle":       lockdebug.Handler(newClient(t, membackend.New())),
	} {
		page := get(t, h, "/?all=1")
		if len(rows(page, "lost"))+len(rows(page, "held"))+len(rows(page, "waiting")) > 0 ||
			!strings.Contains(section(page, "held"), "Nothing is held.") {
			t.Errorf("%s: %s", name, page)
		}
		body := request(h, "GET", "/?format=json").Body.String()
		for _, field := range []string{`"losses": []`, `"holds": []`, `"waits": []`,
			`"clients": [`} {
			if !strings.Contains(body, field) {
				t.Errorf("%s: no %s in %s", name, field, body)
			}
		}
	}
}

func TestJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := newClient(t, store, dlock.WithClientID("a")),
			newClient(t, store, dlock.WithClientID("b"))
		play(t, c, other)
		a := getJSON(t, lockdebug.Handler(c, other), "/?store=2")

		if !a.Time.Equal(time.Now()) || len(a.Clients) != 2 || a.Clients[0].ID != "a" ||
			a.Clients[1].ID != "b" || a.Clients[0].Counters["lost"] != 4 ||
			a.Clients[0].Counters["from_store"] != 10 {
			t.Errorf("%v, %+v", a.Time, a.Clients)
		}
		reasons := make(map[string]int)
		for i, l := range a.Losses {
			reasons[l.Reason]++
			if i > 0 && l.At.After(a.Losses[i-1].At) {
				t.Error("losses aren't sorted")
			}
			if l.Reason == "taken" &&
				(l.Client != "a" || l.Name != "taken" || l.Kind != "exclusive" ||
					!strings.HasPrefix(l.Holder, "a:") || !strings.HasPrefix(l.By, "b:") ||
					l.Held != 9.375 || l.Renewed != 9.375) {
				t.Errorf("%+v", l)
			}
		}
		if len(a.Losses) != 4 || len(reasons) != 4 {
			t.Errorf("losses: %v", reasons)
		}
		if len(a.Holds) != 8 || len(a.Waits) != 3 {
			t.Errorf("%d holds, %d waits", len(a.Holds), len(a.Waits))
		}
		for i, h := range a.Holds {
			if i > 0 && h.Since.Before(a.Holds[i-1].Since) {
				t.Error("holds aren't sorted")
			}
			if !strings.HasPrefix(h.Holder, h.Client+":") || h.EndsSoon != (h.Name == "soon") ||
				h.Renewed != (h.Name != "soon") || h.Count != 1 {
				t.Errorf("%+v", h)
			}
			if h.Name == "soon" &&
				(!h.Since.Equal(a.Time.Add(-32*time.Second)) || h.Held != 32 ||
					h.Remaining != 7.6 || !h.Until.Equal(a.Time.Add(7600*time.Millisecond)) ||
					h.Lease != 40) {
				t.Errorf("%+v", h)
			}
			if (h.Token == 1) != (h.Name == "account") || (h.Permits == 3) != (h.Name == "slots") {
				t.Errorf("%+v", h)
			}
		}
		for _, w := range a.Waits {
			if w.Long != (w.Name != "job2") || w.Place != 1 || w.Client != "a" ||
				(w.Until != nil) != (w.Name == "job") {
				t.Errorf("%+v", w)
			}
			if by := w.HeldBy; by == nil || len(by.Holders) != 1 ||
				by.Holders[0].Client == w.Client != (w.Name != "till") {
				t.Errorf("%s is held by %+v", w.Name, by)
			}
			if w.Name == "job" && (w.Waited != 32 || !w.Until.Equal(w.Since.Add(time.Hour))) {
				t.Errorf("%+v", w)
			}
		}
		s := a.Store
		if s == nil || s.Client != "b" || s.More || s.Error != "" {
			t.Fatalf("%+v", s)
		}
		var names []string
		for _, l := range s.Locks {
			names = append(names, l.Name)
			here := l.Holders[0]
			if len(l.Holders) != 1 || !here.Here || !strings.HasPrefix(here.ID, here.Client+":") ||
				here.Remaining == nil || *here.Remaining <= 0 || here.Count != max(1, l.Limit/3) ||
				(l.Limit == 10) != (l.Name == "slots") || (len(l.Line) == 1) != (l.Name == "till") {
				t.Errorf("%+v", l)
			}
		}
		if got := strings.Join(names, " "); got != "account job job2 prices slots soon taken till" {
			t.Error("in the store:", got)
		}
	})
}

// The page shows a renewal that the store didn't answer before the lock is lost, and the reason
// after that.
func TestNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, sessions{membackend.New(), func(s backend.Session) backend.Session {
			return unrenewed{s}
		}})
		h := lockdebug.Handler(c)
		acquire(t, c.Locker("x"))
		acquire(t, c.Locker("fixed"), dlock.FixedLease(time.Minute))
		time.Sleep(14 * time.Second)
		if got := rows(get(t, h, "/"), "ending"); got != nil {
			t.Error(got)
		}
		time.Sleep(time.Second)
		if got := rows(get(t, h, "/"), "ending"); len(got) != 1 ||
			!strings.Contains(got[0], "x exclusive") ||
			!strings.Contains(got[0], "| 15 s | 14 s not renewed") {
			t.Error(got)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		page := get(t, h, "/")
		if got := rows(page, "lost"); len(got) != 1 ||
			!strings.Contains(got[0], "expired not renewed for 29 s:") ||
			!strings.Contains(got[0], `<no "room">\x1b[2J`) {
			t.Error(got)
		}
		if a := getJSON(t, h, "/"); len(a.Losses) != 1 ||
			!strings.Contains(a.Losses[0].Error, "<no \"room\">\x1b[2J") ||
			a.Clients[0].Counters["not_renewed"] == 0 {
			t.Errorf("%+v", a)
		}
	})
}

type sessions struct {
	backend.Backend
	wrap func(backend.Session) backend.Session
}

func (b sessions) Open() backend.Session { return b.wrap(b.Backend.Open()) }

type unrenewed struct{ backend.Session }

func (unrenewed) Renew(context.Context, backend.RenewRequest) (backend.RenewResult, error) {
	return backend.RenewResult{}, &backend.Error{
		Kind: backend.Unknown, Err: errors.New("<no \"room\">\x1b[2J"),
	}
}

func TestTwoClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, other := newClient(t, membackend.New(), dlock.WithClientID("<a>")),
			newClient(t, membackend.New(), dlock.WithClientID("b"))
		acquire(t, c.Locker("x"))
		time.Sleep(time.Second)
		acquire(t, other.Locker("x"))
		waits(t, other.Locker("x"))
		synctest.Wait()
		h := lockdebug.Handler(c, other)
		page := get(t, h, "/?store=2")
		held := rows(page, "held")
		if len(held) != 2 || !strings.Contains(held[0], "<a>:") ||
			!strings.Contains(held[1], "b:") {
			t.Error(held)
		}
		if got := rows(page, "waiting"); len(got) != 1 ||
			!strings.HasPrefix(got[0], "x exclusive | b:") ||
			!strings.Contains(got[0], " here | b | owner ") {
			t.Error(got)
		}
		if !strings.Contains(page, `<option value="2" selected>b</option>`) ||
			!strings.Contains(page, `<option value="1">&lt;a&gt;</option>`) {
			t.Error("one can't choose a store")
		}
		if got := rows(page, "store"); len(got) != 1 || !strings.Contains(got[0], "b:") {
			t.Error(got)
		}
		// The link of a name asks the store of the row's own client.
		if got := rows(get(t, h, follow(t, page, "held", 1)), "store"); len(got) != 1 ||
			!strings.Contains(got[0], "b:") {
			t.Error(got)
		}
	})
}

// follow returns the URL that the link of a row's name points to.
func follow(t testing.TB, page, id string, row int) string {
	t.Helper()
	links := regexp.MustCompile(`<th scope="row"><a href="([^"]*)#store"`).
		FindAllStringSubmatch(markup(page, id), -1)
	if row >= len(links) {
		t.Fatalf("no row %d in %s", row, id)
	}
	return "/debug/" + html.UnescapeString(links[row][1])
}

func TestClosedClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, membackend.New(), dlock.WithClientID("<a>"))
		acquire(t, c.Locker("x"))
		h := lockdebug.Handler(c)
		if page := get(t, h, "/"); strings.Contains(page, "is closed") {
			t.Error("it isn't closed")
		}
		c.Close()
		page := get(t, h, "/?store=1")
		if !strings.Contains(page, "&lt;a&gt;</bdi> is closed") ||
			!strings.Contains(section(page, "store"), "closed") || rows(page, "held") != nil {
			t.Error(page)
		}
		if a := getJSON(t, h, "/?store=1"); !a.Clients[0].Closed || a.Store.Error == "" ||
			a.Store.More {
			t.Errorf("%+v", a)
		}
	})
}

func TestMethods(t *testing.T) {
	h := lockdebug.Handler(newClient(t, membackend.New()))
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE",
		"PROPFIND"} {
		if w := request(h, method, "/?store=1&name=x"); w.Code != http.StatusMethodNotAllowed ||
			w.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: %d, %v", method, w.Code, w.Header())
		}
	}
	head, get := request(h, "HEAD", "/some/where"), request(h, "GET", "/some/where")
	if head.Code != http.StatusOK || head.Body.Len() > 0 ||
		head.Header().Get("Content-Length") == "" ||
		get.Header().Get("Content-Length") != strconv.Itoa(get.Body.Len()) {
		t.Errorf("HEAD: %d, %v, %d bytes", head.Code, head.Header(), head.Body.Len())
	}
}

// The page's headers forbid scripts, foreign content, and frames around the page.
func TestHeaders(t *testing.T) {
	h := lockdebug.Handler(newClient(t, membackend.New()))
	for _, target := range []string{"/", "/?format=json", "/?format=csv"} {
		for key, want := range map[string]string{
			"X-Content-Type-Options": "nosniff",
			"Cache-Control":          "no-store",
			"Referrer-Policy":        "no-referrer",
			"Vary":                   "Accept",
		} {
			if got := request(h, "GET", target).Header().Get(key); got != want {
				t.Errorf("%s: %s is %q", target, key, got)
			}
		}
	}
	w := request(h, "GET", "/?store=1&refresh=7")
	if got := w.Header().Get("Refresh"); got != "7" {
		t.Errorf("Refresh is %q", got)
	}
	styles := regexp.MustCompile(`(?s)<style>(.*?)</style>`).
		FindAllStringSubmatch(w.Body.String(), -1)
	if len(styles) != 1 {
		t.Fatalf("%d styles", len(styles))
	}
	sum := sha256.Sum256([]byte(styles[0][1]))
	want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
	if got := w.Header().Get("Content-Security-Policy"); got != want {
		t.Errorf("Content-Security-Policy is %q, want %q", got, want)
	}
	if bad := regexp.MustCompile(`(?i)<script|<iframe|<img|<link|\sstyle=|\son\w+=|javascript:`).
		FindString(w.Body.String()); bad != "" {
		t.Errorf("the page has %q", bad)
	}
}

func TestBadParameters(t *testing.T) {
	h := lockdebug.Handler(newClient(t, membackend.New()))
	for _, query := range []string{"format=xml", "format=<script>", "store=2", "store=-1",
		"store=x", "store=99999999999999999999", "refresh=-1", "refresh=3601",
		"refresh=1;url=http://x", "all=perhaps",
		"who=perhaps", "sort=size", "sort=--for", "sort=-"} {
		w := request(h, "GET", "/?"+url.PathEscape(query))
		if w.Code != http.StatusBadRequest ||
			w.Header().Get("Content-Type") != "text/plain; charset=utf-8" ||
			strings.Contains(w.Body.String(), "script") {
			t.Errorf("%s: %d, %s", query, w.Code, w.Body)
		}
	}
	for _, query := range []string{"store=0", "store=&name=&prefix=", "all=0", "format=html",
		"refresh=0", "unknown=1", "name=x", "%zz",
		"who=0", "who=1", "sort=for", "sort=-for", "sort=", "find=x", "find=%1b%ff"} {
		if w := request(h, "GET", "/?"+query); w.Code != http.StatusOK {
			t.Errorf("%s: %d, %s", query, w.Code, w.Body)
		}
	}
}

func TestNilClient(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Handler took a nil client")
		}
	}()
	lockdebug.Handler(nil)
}

// hostile are names that the page must show as mere text.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `'><svg/onload=alert(1)>`,
	`</style><script>alert(1)</script>`, `javascript:alert(1)`, `{{.Title}}`, `&lt;b&gt;`,
	`a&name=b#c?d%41`,
	"\x1b]0;owned\x07\x1b[31m", "a\x00b\r\nSet-Cookie: c", "\u202egnp.exe", "\u2066isolate",
	"\u009b31m", "\ufeff", "\xff\xfe\xfd", "half \xe2\x82", "-->", "]]>", " ", "a\u2028b", `C:\x`,
	strings.Repeat("long", 1000),
}

func TestHostileNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c := newClient(t, store, dlock.WithClientID(`<b id="owned">`+"\u202e\x1b[2J"))
		h := lockdebug.Handler(c, c)
		for _, name := range hostile {
			acquire(t, c.Locker(name))
			waits(t, c.Locker(name))
			acquire(t, c.Locker("2"+name))
			c.Locker("2" + name).ForceUnlock(t.Context())
			time.Sleep(time.Second)
		}
		synctest.Wait()
		page := get(t, h, "/?all=1&store=1")
		for _, p := range []string{page,
			get(t, h, "/?store=1&prefix="+url.QueryEscape(hostile[1]+"\x1b\u202e")),
			get(t, h, "/?store=1&name="+url.QueryEscape(hostile[1]+"\x1b\u202e"))} {
			for _, r := range p {
				if r != '\n' && !strconv.IsPrint(r) {
					t.Errorf("the page has %U", r)
				}
			}
			for _, bad := range []string{"<script", "<img", "<svg", "<b id", "</style><",
				`"javascript:`} {
				if strings.Contains(p, bad) {
					t.Errorf("the page has %s", bad)
				}
			}
		}
		a := getJSON(t, h, "/?store=1")
		raw := request(h, "GET", "/?format=json&store=1").Body.String()
		for _, r := range raw {
			if r != '\n' && !strconv.IsPrint(r) || r == '<' {
				t.Errorf("the JSON has %U", r)
			}
		}
		if len(a.Losses) != 2*len(hostile) || len(a.Waits) != 2*len(hostile) {
			t.Errorf("%d losses, %d waits", len(a.Losses), len(a.Waits))
		}
		held := rows(page, "held")
		// Each name is shown, is unchanged in JSON, and has a link that leads to the lock.
		for i, name := range hostile {
			shown := strings.Trim(strconv.Quote(name), `"`)
			shown = strings.ReplaceAll(shown, `\"`, `"`)
			if len(name) > 1000 {
				shown = "longlong"
			}
			if got := held[2*i]; !strings.HasPrefix(got, strings.Join(strings.Fields(shown), " ")) {
				t.Errorf("%q is shown as %q", name, got)
			}
			back := a.Holds[2*i].Name
			if a.Holds[2*i].Bytes != nil {
				back = string(a.Holds[2*i].Bytes)
			}
			if back != name {
				t.Errorf("%q in JSON is %q", name, back)
			}
			target := follow(t, page, "held", 2*i)
			u, err := url.Parse(target)
			if err != nil || u.Query().Get("name") != name {
				t.Errorf("the link of %q is %s, %v", name, target, err)
			}
			if got := rows(get(t, h, target), "store"); len(got) != 1 ||
				!strings.Contains(got[0], "here") {
				t.Errorf("behind the link of %q is %q", name, got)
			}
		}
		if len(page) > 1<<20 {
			t.Errorf("the page has %d bytes", len(page))
		}
	})
}

func TestStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := newClient(t, store, dlock.WithClientID("a")),
			newClient(t, store, dlock.WithClientID("b"))
		rw := other.RWLocker("rw")
		acquire(t, rw.Writer())
		for range 7 {
			if _, err := other.Semaphore("slots", 20).
				Acquire(t.Context(), 2, dlock.FixedLease(time.Minute)); err != nil {
				t.Fatal(err)
			}
		}
		acquire(t, other.FairLocker("till"))
		for range 6 {
			waits(t, c.FairLocker("till"))
		}
		acquire(t, c.Locker("mine"))
		synctest.Wait()
		h := lockdebug.Handler(c)

		if got := section(get(t, h, "/"), "store"); strings.Contains(got, "mine") {
			t.Error("the store is asked without need")
		}
		got := strings.Join(rows(get(t, h, "/?store=1"), "store"), "\n")
		for _, want := range []string{"mine exclusive | a:", " here 30 s left | –\n",
			"rw read-write | b:", " write, 30 s left | –\n", "slots permits · 14 of 20 out | b:",
			" × 2, 1 min 0 s left", "and 2 more | –\n", "till exclusive | b:", "and 1 more"} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in\n%s", want, got)
			}
		}
		if got := rows(get(t, h, "/?store=1&prefix=t"), "store"); len(got) != 1 ||
			!strings.HasPrefix(got[0], "till") {
			t.Error(got)
		}
		if got := section(get(t, h, "/?store=1&prefix=<x>"), "store"); !strings.Contains(got,
			"There are no locks whose names begin with <x> .") {
			t.Error(got)
		}
		// A single lock is shown with all its data.
		if got := rows(get(t, h, "/?store=1&name=slots"), "store"); len(got) != 1 ||
			strings.Count(got[0], "b:") != 7 || strings.Contains(got[0], "more") {
			t.Error(got)
		}
		wantRows(t, get(t, h, "/?store=1&name=free"), "store", "free exclusive | nobody | –")
	})
}

// The page shows some of a very large number of locks, and says that there are more. For a lock
// that is only kept, it says that it has no holder.
func TestStoreWithWhatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, membackend.New(), dlock.WithClientID("a"))
		if ran, err := c.Once(t.Context(), "job", "now", time.Minute, func(context.Context) error {
			return nil
		}); !ran || err != nil {
			t.Fatal(ran, err)
		}
		h := lockdebug.Handler(c)
		if got, want := strings.Join(rows(get(t, h, "/?store=1"), "store"),
			"\n"), "1 min 0 s left, given back and kept"; !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
		if w := request(h, "GET", "/?store=1", "Accept",
			"application/json"); !strings.Contains(w.Body.String(), `"kept": true`) &&
			!strings.Contains(w.Body.String(), `"kept":true`) {
			t.Errorf("as JSON: %s", w.Body)
		}
	})
}

func TestStoreWithMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, membackend.New())
		for i := range 201 {
			acquire(t, c.Locker(fmt.Sprintf("%03d", i)))
		}
		h := lockdebug.Handler(c)
		page := get(t, h, "/?store=1")
		if got := len(rows(page, "store")); got != 200 ||
			!strings.Contains(section(page, "store"), "There are more: give a prefix.") {
			t.Errorf("%d rows: %s", got, section(page, "store")[:200])
		}
		page = get(t, h, "/?store=1&all=1")
		if got := len(rows(page, "store")); got != 201 ||
			strings.Contains(section(page, "store"), "more") {
			t.Errorf("%d rows", got)
		}
		page = get(t, h, "/?store=1&prefix=1")
		if got := len(rows(page, "store")); got != 100 ||
			strings.Contains(section(page, "store"), "more") {
			t.Errorf("%d rows", got)
		}
		if a := getJSON(t, h, "/?store=1"); len(a.Store.Locks) != 201 || a.Store.More {
			t.Errorf("%d locks", len(a.Store.Locks))
		}
	})
}

// lists is a session with a List, and none of the other optional interfaces.
type lists struct {
	backend.Session
	list func(context.Context, backend.ListRequest) (backend.ListResult, error)
}

func (s lists) List(ctx context.Context, req backend.ListRequest) (backend.ListResult, error) {
	return s.list(ctx, req)
}

// The page always answers, and reports the store's error.
func TestStoreThatDoesNotAnswer(t *testing.T) {
	some := backend.ListResult{
		Next: "2", Locks: []backend.Inspection{{
			Name: "x", Holders: []backend.Holder{{Owner: "u<id>:1", Count: 1, Remaining: -1}},
		}},
	}
	stuck := make(chan struct{})
	for name, c := range map[string]struct {
		list  func(context.Context, backend.ListRequest) (backend.ListResult, error)
		want  string
		locks int
		more  bool
		took  time.Duration
	}{
		"refuses": {
			list: func(context.Context, backend.ListRequest) (backend.ListResult, error) {
				return backend.ListResult{}, &backend.Error{
					Kind: backend.Refused, Err: errors.New("NOPERM <b>SCAN</b>\x1b[0m"),
				}
			},
			want: `NOPERM <b>SCAN</b>\x1b[0m`,
		},
		"hangs": {
			list: func(ctx context.Context, _ backend.ListRequest) (backend.ListResult, error) {
				<-ctx.Done()
				return backend.ListResult{}, ctx.Err()
			},
			want: "the store didn't answer within a second There may be more: give a prefix.",
			more: true, took: time.Second,
		},
		"hangs whatever the context says": {
			list: func(context.Context, backend.ListRequest) (backend.ListResult, error) {
				<-stuck
				return backend.ListResult{}, nil
			},
			want: "the store didn't answer within a second", more: true, took: time.Second,
		},
		"hangs after a page": {
			list: func(ctx context.Context, req backend.ListRequest) (backend.ListResult, error) {
				if req.After == "" {
					return some, nil
				}
				<-ctx.Done()
				return backend.ListResult{}, ctx.Err()
			},
			want: "x exclusive u<id>:1 never ends – The list ends here: the store didn't answer " +
				"within a second There may be more", locks: 1, more: true, took: time.Second,
		},
		"goes on for ever": {
			list: func(context.Context, backend.ListRequest) (backend.ListResult, error) {
				time.Sleep(time.Millisecond)
				return some, nil
			},
			want: "x exclusive u<id>:1 never ends – The list ends here: the store didn't answer " +
				"within a second", locks: 1, more: true, took: time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stuck = make(chan struct{})
				client := newClient(t, sessions{membackend.New(), func(
					s backend.Session,
				) backend.Session {
					return lists{s, c.list}
				}})
				acquire(t, client.Locker("held"))
				h := lockdebug.Handler(client)
				began := time.Now()
				page := get(t, h, "/?store=1")
				if took := time.Since(began); took != c.took {
					t.Errorf("it took %v", took)
				}
				if got := section(page, "store"); !strings.Contains(got, c.want) {
					t.Errorf("it says %q", got)
				}
				if len(rows(page, "held")) != 1 {
					t.Error("the holds aren't shown")
				}
				a := getJSON(t, h, "/?store=1")
				if len(a.Store.Locks) != c.locks || a.Store.More != c.more || a.Store.Error == "" {
					t.Errorf("%+v", a.Store)
				}
				if c.locks > 0 && a.Store.Locks[0].Holders[0].Remaining != nil {
					t.Errorf("%+v", a.Store)
				}
				close(stuck)
			})
		})
	}
}

func TestStoreThatCannot(t *testing.T) {
	c := newClient(t, sessions{membackend.New(), func(s backend.Session) backend.Session {
		return struct{ backend.Session }{s}
	}})
	h := lockdebug.Handler(c)
	for target, want := range map[string]string{
		"/?store=1":        "can't list its locks: unsupported operation",
		"/?store=1&name=x": "can't say who has a lock: unsupported operation",
	} {
		if got := section(get(t, h, target), "store"); !strings.Contains(got, want) {
			t.Errorf("%s: %s", target, got)
		}
		if a := getJSON(t, h, target); !strings.Contains(a.Store.Error, want) || a.Store.More {
			t.Errorf("%s: %+v", target, a.Store)
		}
	}
}

// If a visitor disconnects, the request to the store ends.
func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, sessions{membackend.New(), func(s backend.Session) backend.Session {
			return lists{s, func(
				ctx context.Context, _ backend.ListRequest,
			) (backend.ListResult, error) {
				<-ctx.Done()
				return backend.ListResult{}, ctx.Err()
			}}
		}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		began := time.Now()
		lockdebug.Handler(c).ServeHTTP(httptest.NewRecorder(),
			httptest.NewRequestWithContext(ctx, "GET", "/?store=1", nil))
		if took := time.Since(began); took != time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

// many returns a handler for a client that holds a large number of locks, one of which is about to
// end.
func many(t testing.TB, n int) http.Handler {
	c := newClient(t, membackend.New())
	for i := range n {
		acquire(t, c.Locker(fmt.Sprintf("lock:orders:%06d", i)))
	}
	acquire(t, c.Locker("the one"), dlock.FixedLease(10*time.Second))
	return lockdebug.Handler(c)
}

func TestManyHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := many(t, 10_000)
		time.Sleep(8 * time.Second)
		synctest.Wait()
		page := get(t, h, "/?refresh=5")
		if got := rows(page, "ending"); len(got) != 1 ||
			!strings.HasPrefix(got[0], "the one exclusive | ") {
			t.Error(got)
		}
		if got := len(rows(page, "held")); got != 200 ||
			!strings.HasSuffix(section(page, "held"), "and 9,801 more: all , or as JSON") {
			t.Errorf("%d rows", got)
		}
		if first := strings.Index(page, "the one"); first < 0 ||
			first > strings.Index(page, `id="held"`) {
			t.Error("what matters doesn't come first")
		}
		if !strings.Contains(page, `<b>10,001</b> held`) ||
			!strings.Contains(page, `href="?all=1&amp;refresh=5"`) ||
			!strings.Contains(page, `href="?format=json"`) {
			t.Error("it isn't said how many there are, and where")
		}
		if got := strings.Count(markup(get(t, h, "/?all=1"), "held"),
			`<tr><th scope="row">`); got != 10_001 {
			t.Errorf("all are %d rows", got)
		}
		if got := len(getJSON(t, h, "/").Holds); got != 10_001 {
			t.Errorf("all are %d in JSON", got)
		}
	})
}

// The page can be requested while locks change concurrently.
func TestConcurrently(t *testing.T) {
	store := membackend.New()
	c := newClient(t, store)
	h := lockdebug.Handler(c)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 4 {
		l := c.Locker(strconv.Itoa(i % 2))
		wg.Go(func() {
			for ctx.Err() == nil {
				l.Do(ctx, func(context.Context) error { return nil })
			}
		})
	}
	for range 30 {
		get(t, h, "/?store=1")
		getJSON(t, h, "/?store=1&name=0")
	}
	cancel()
	wg.Wait()
}

func BenchmarkPage(b *testing.B) {
	h := many(b, 10_000)
	for name, target := range map[string]string{
		"first": "/",
		"all":   "/?all=1",
		"json":  "/?format=json",
		"store": "/?store=1",
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if w := request(h, "GET", target); w.Code != http.StatusOK {
					b.Fatal(w.Code)
				}
			}
		})
	}
}
