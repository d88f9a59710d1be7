package lockdebug

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlock/shards"
)

// Handler returns a handler that serves the page for the given clients. The handler still works
// after the clients are closed. Handler panics if a client is nil.
func Handler(clients ...*dlock.Client) http.Handler { return HandlerOf(clients, nil) }

// HandlerOf is like [Handler], for clients and sets of shards. For each set, the page shows the
// shards that this process runs and waits for, and the set's members as last seen. HandlerOf panics
// if a client or a set is nil.
func HandlerOf(clients []*dlock.Client, sets []*shards.Set) http.Handler {
	if slices.Contains(clients, nil) {
		panic("lockdebug: Handler: a client is nil")
	}
	if slices.Contains(sets, nil) {
		panic("lockdebug: HandlerOf: a set of shards is nil")
	}
	return &handler{slices.Clone(clients), slices.Clone(sets)}
}

type handler struct {
	clients []*dlock.Client
	sets    []*shards.Set
}

//go:embed style.css
var style string

// policy is the Content-Security-Policy of the page. It allows only the page's own style sheet, and
// no scripts or other content.
var policy = func() string {
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}()

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Security-Policy", policy)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Referrer-Policy", "no-referrer")
	head.Set("Cache-Control", "no-store")
	head.Set("Vary", "Accept")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		head.Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD are allowed here", http.StatusMethodNotAllowed)
		return
	}
	q, err := h.parse(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	body, err := h.answer(r.Context(), q)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	head.Set("Content-Type", "text/html; charset=utf-8")
	if q.json {
		head.Set("Content-Type", "application/json")
	} else if q.refresh > 0 {
		head.Set("Refresh", strconv.Itoa(q.refresh))
	}
	head.Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method == http.MethodGet {
		w.Write(body)
	}
}

func (h *handler) answer(ctx context.Context, q query) ([]byte, error) {
	rep := h.report()
	if q.store > 0 {
		rep.Store = h.ask(ctx, q)
	}
	if q.json {
		rep.keep(q.find)
		h.tellHolders(ctx, q, rep.Waits)
		body, err := json.MarshalIndent(rep, "", "  ")
		return append(visible(body), '\n'), err
	}
	v := newView(rep, q)
	h.tellHolders(ctx, q, v.Long.Shown, v.Waiting.Shown)
	var b bytes.Buffer
	err := page.Execute(&b, v)
	return b.Bytes(), err
}

// A query holds the parameters of a request.
type query struct {
	json, all    bool
	unasked      bool   // don't ask who holds awaited locks
	find         string // show only rows with this text
	sort         string // column name; a leading - reverses it
	refresh      int    // refresh interval in seconds; 0: never
	store        int    // number of the asked client, or 0
	prefix, name string
}

const longestRefresh = 3600

func (h *handler) parse(r *http.Request) (query, error) {
	values := r.URL.Query()
	q := query{prefix: values.Get("prefix"), name: values.Get("name"), find: values.Get("find"),
		sort: values.Get("sort")}
	if q.sort != "" && !slices.Contains(sortable, strings.TrimPrefix(q.sort, "-")) {
		return q, fmt.Errorf("sort must be a column, as in sort=for, or sort=-for in reverse: %s",
			strings.Join(sortable, ", "))
	}
	switch values.Get("format") {
	case "":
		q.json = prefersJSON(r.Header.Values("Accept"))
	case "json":
		q.json = true
	case "html":
	default:
		return q, fmt.Errorf("format must be html or json")
	}
	var err error
	if s := values.Get("all"); s != "" {
		if q.all, err = strconv.ParseBool(s); err != nil {
			return q, fmt.Errorf("all must be 1 or empty")
		}
	}
	if s := values.Get("who"); s != "" {
		asked, err := strconv.ParseBool(s)
		if err != nil {
			return q, fmt.Errorf("who must be 0 or empty")
		}
		q.unasked = !asked
	}
	if q.refresh, err = number(values, "refresh", longestRefresh); err != nil {
		return q, err
	}
	q.store, err = number(values, "store", len(h.clients))
	return q, err
}

func number(values url.Values, key string, most int) (int, error) {
	s := values.Get(key)
	if s == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > most {
		return 0, fmt.Errorf("%s must be a number, at most %d", key, most)
	}
	return n, nil
}

// prefersJSON reports whether an Accept header prefers JSON to HTML.
func prefersJSON(accept []string) bool {
	quality := make(map[string]float64)
	for part := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		kind, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		quality[kind] = 1
		if s, ok := params["q"]; ok {
			quality[kind], _ = strconv.ParseFloat(s, 64)
		}
	}
	return quality["application/json"] > quality["text/html"]
}

// url returns the URL of the page with these parameters.
func (q query) url() string {
	values := make(url.Values)
	set := func(key, value string, said bool) {
		if said {
			values.Set(key, value)
		}
	}
	set("format", "json", q.json)
	set("all", "1", q.all)
	set("who", "0", q.unasked)
	set("find", q.find, q.find != "")
	set("sort", q.sort, q.sort != "")
	set("refresh", strconv.Itoa(q.refresh), q.refresh > 0)
	set("store", strconv.Itoa(q.store), q.store > 0)
	set("prefix", q.prefix, q.prefix != "")
	set("name", q.name, q.name != "")
	return "?" + values.Encode()
}
