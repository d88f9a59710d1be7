package monitoring

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlock/shards"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/oteldlock"
)

var promql = parser.NewParser(parser.Options{})

// series is what oteldlock exports: of each metric the labels, and of each label the values.
type series map[string]map[string][]string

// scraped has clients and shards do all that is measured, and returns what Prometheus scrapes then.
func scraped(t *testing.T) series {
	t.Helper()
	all := make(series)
	synctest.Test(t, func(t *testing.T) {
		registry := prom.NewRegistry()
		exporter, err := prometheus.New(prometheus.WithRegisterer(registry))
		must(t, err)
		provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
		defer provider.Shutdown(context.Background())
		use(t, oteldlock.WithMeterProvider(provider))
		answer := httptest.NewRecorder()
		handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
		handler.ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
		all.read(t, answer.Body)
	})
	return all
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// read adds the series of an answer in the text format.
func (all series) read(t *testing.T, text io.Reader) {
	t.Helper()
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		metric, err := promql.ParseMetric(line[:strings.LastIndex(line, " ")])
		must(t, err)
		name := metric.Get(model.MetricNameLabel)
		known := all[name]
		if known == nil {
			// Prometheus adds these
			known = map[string][]string{"job": {"shop"}, "instance": {"a:80"}}
			all[name] = known
		}
		metric.Range(func(l labels.Label) {
			if !slices.Contains(known[l.Name], l.Value) {
				known[l.Name] = append(known[l.Name], l.Value)
			}
		})
	}
	must(t, lines.Err())
}

// use has a client and shards do all that is measured.
func use(t *testing.T, provider oteldlock.Option) {
	t.Helper()
	ctx, quiet := t.Context(), slog.New(slog.DiscardHandler)
	trace, err := oteldlock.New(provider, oteldlock.WithNameLabel(func(name string) string {
		return name
	}))
	must(t, err)
	store := &fragile{Backend: membackend.New()}
	c := dlock.New(store, dlock.WithTrace(trace), dlock.WithLogger(quiet))
	defer c.Close()

	must(t, c.Locker("a").Do(ctx, func(context.Context) error {
		if _, err := c.Locker("a").
			Acquire(ctx, dlock.Wait(0)); !errors.Is(err, dlock.ErrNotAcquired) {
			t.Error(err)
		}
		time.Sleep(time.Minute) // it is renewed
		return nil
	}))
	h, err := c.Locker("b").Acquire(ctx)
	must(t, err)
	store.broken.Store(true)
	<-h.Lost()
	if _, err := c.Locker("a").Acquire(ctx, dlock.Wait(0)); !errors.Is(err, dlock.ErrUnavailable) {
		t.Error(err)
	}
	store.broken.Store(false)

	measured, err := oteldlock.Shards(provider)
	must(t, err)
	set := shards.New(c, "work", []string{"1", "2"}, shards.Grace(time.Second),
		shards.WithTrace(measured),
		shards.WithLogger(quiet))
	end, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		set.Run(end, func(ctx context.Context, s *shards.Shard) error {
			<-ctx.Done()
			time.Sleep(2 * time.Second) // which is overdue
			return nil
		})
	}()
	time.Sleep(time.Minute)
	cancel()
	<-ended
}

// fragile is a store that can be broken: then it refuses.
type fragile struct {
	backend.Backend
	broken atomic.Bool
}

func (f *fragile) Open() backend.Session { return session{f.Backend.Open().(whole), f} }

// whole can do what a session in memory can, except renew in batches.
type whole interface {
	backend.Session
	backend.Notifier
	backend.Liner
	backend.Inspector
}

type session struct {
	whole
	f *fragile
}

var errDown = &backend.Error{Kind: backend.Refused, Err: errors.New("down")}

func (s session) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	if s.f.broken.Load() {
		return backend.AcquireResult{}, errDown
	}
	return s.whole.Acquire(ctx, req)
}

func (s session) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	if s.f.broken.Load() {
		return backend.RenewResult{}, errDown
	}
	return s.whole.Renew(ctx, req)
}

// check fails the test unless an expression can be evaluated, and asks only for what there is.
func (all series) check(t *testing.T, where, expression string) {
	t.Helper()
	expr, err := promql.ParseExpr(expression)
	if err != nil {
		t.Errorf("%s: %s: %v", where, expression, err)
		return
	}
	asked := 0
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch node := node.(type) {
		case *parser.VectorSelector:
			asked++
			all.checkSelector(t, where, node)
		case *parser.AggregateExpr:
			for _, s := range selectors(node) {
				for _, label := range node.Grouping {
					if all[s.Name] != nil && all[s.Name][label] == nil {
						t.Errorf("%s: %s has no label %s to group by", where, s.Name, label)
					}
				}
			}
		}
		return nil
	})
	if asked == 0 {
		t.Errorf("%s: %s asks for nothing", where, expression)
	}
}

func (all series) checkSelector(t *testing.T, where string, s *parser.VectorSelector) {
	t.Helper()
	known := all[s.Name]
	if known == nil {
		t.Errorf("%s: oteldlock exports no %s", where, s.Name)
		return
	}
	for _, m := range s.LabelMatchers {
		if m.Name == model.MetricNameLabel || slices.ContainsFunc(known[m.Name], m.Matches) {
			continue
		}
		t.Errorf("%s: %s never has %s", where, s.Name, m)
	}
	for _, m := range s.LabelMatchers { // of a regular expression each alternative is meant
		for value := range strings.SplitSeq(m.Value, "|") {
			if m.Type == labels.MatchRegexp && value != ".*" &&
				!slices.Contains(known[m.Name], value) {
				t.Errorf("%s: %s never has %s=%q", where, s.Name, m.Name, value)
			}
		}
	}
}

// selectors returns those within a node.
func selectors(node parser.Node) (all []*parser.VectorSelector) {
	parser.Inspect(node, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			all = append(all, s)
		}
		return nil
	})
	return all
}

func TestExpressions(t *testing.T) {
	known := scraped(t)
	if len(known["distsync_losses_total"]["distsync_reason"]) < 5 {
		t.Fatalf("it doesn't export what it should: %v", known)
	}
	t.Run("alerts", func(t *testing.T) {
		quiet := slog.New(slog.DiscardHandler)
		groups, errs := rulefmt.ParseFile("alerts.yml", false, model.LegacyValidation, promql,
			quiet)
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		for _, group := range groups.Groups {
			for _, rule := range group.Rules {
				known.check(t, rule.Alert, rule.Expr)
			}
		}
	})
	t.Run("dashboard", func(t *testing.T) {
		text, err := os.ReadFile("dashboard.json")
		must(t, err)
		var board struct {
			Panels []struct {
				Title, Type string
				Targets     []struct{ Expr string }
			}
			Templating struct {
				List []struct{ Name, Type, Definition string }
			}
		}
		must(t, json.Unmarshal(text, &board))
		replace := []string{"$__rate_interval", "5m", "$__range", "1h"}
		for _, v := range board.Templating.List {
			if v.Type != "query" {
				continue
			}
			replace = append(replace, "$"+v.Name, ".*")
			asked := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).
				FindStringSubmatch(v.Definition)
			if asked == nil || known[asked[1]][asked[2]] == nil {
				t.Errorf("the variable %s asks for %s", v.Name, v.Definition)
			}
		}
		for _, p := range board.Panels {
			if len(p.Targets) == 0 && p.Type != "row" {
				t.Errorf("%s shows nothing", p.Title)
			}
			for _, target := range p.Targets {
				known.check(t, p.Title, strings.NewReplacer(replace...).Replace(target.Expr))
			}
		}
	})
}

// The test finds a metric that isn't exported. Otherwise the test above would prove nothing.
func TestCheck(t *testing.T) {
	known := series{"a_total": {"kind": {"x", "y"}}}
	for _, expression := range []string{
		"sum(", "b_total", `a_total{kind="z"}`, `a_total{sort="x"}`, `a_total{kind=~"x|z"}`,
		"sum by (sort) (a_total)", "1",
	} {
		var seen testing.T
		known.check(&seen, "here", expression)
		if !seen.Failed() {
			t.Errorf("nothing is wrong with %s", expression)
		}
	}
	known.check(t, "here", `sum by (kind) (rate(a_total{kind=~"x|y"}[5m]))`)
}
