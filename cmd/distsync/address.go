package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
)

// An address is a store's URL, taken apart. Unlike in a [url.URL] there may be several hosts.
type address struct {
	scheme string
	user   *url.Userinfo
	hosts  []string
	path   string // as it was written
	query  string // likewise
}

// String returns the address for people: nothing in it is secret.
func (a *address) String() string {
	return escape(a.scheme + "://" + strings.Join(a.hosts, ","))
}

// parseAddress takes a URL apart. Its errors don't cite what may be a password, also where that is not where it should be.
func parseAddress(raw string) (*address, error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || strings.Trim(scheme, "abcdefghijklmnopqrstuvwxyz+") != "" || scheme == "" {
		return nil, errors.New("it doesn't begin with a scheme such as redis://")
	}
	a := &address{scheme: scheme}
	authority := rest
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, rest = rest[:i], rest[i:]
	} else {
		rest = ""
	}
	if strings.ContainsAny(rest, "@#") {
		return nil, errors.New("in a user, a password or an option / must be written %2F, ? %3F, # %23, and @ %40")
	}
	a.path, a.query, _ = strings.Cut(rest, "?")
	if _, err := url.ParseQuery(a.query); err != nil {
		return nil, errors.New("what follows the ? has a % that isn't followed by two hexadecimal digits, or a semicolon")
	}
	if i := strings.LastIndex(authority, "@"); i >= 0 {
		var err error
		if a.user, err = parseUser(authority[:i]); err != nil {
			return nil, err
		}
		authority = authority[i+1:]
	}
	if authority != "" {
		a.hosts = strings.Split(authority, ",")
	}
	for _, h := range a.hosts {
		if err := checkHost(h); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// parseUser parses what is before the @.
func parseUser(text string) (*url.Userinfo, error) {
	name, password, has := strings.Cut(text, ":")
	name, err := url.PathUnescape(name)
	password, err2 := url.PathUnescape(password)
	if err != nil || err2 != nil {
		return nil, errors.New("in the user and the password % must be written %25")
	}
	if !has {
		return url.User(name), nil
	}
	return url.UserPassword(name, password), nil
}

// checkHost returns an error unless text is a host and perhaps a port. What is in the place of the port isn't cited: of a URL
// without its host it is the password.
func checkHost(text string) error {
	host, port, err := net.SplitHostPort(withPort(text, "1"))
	if err != nil || strings.Trim(port, "0123456789") != "" || port == "" || len(port) > 5 {
		before, _, _ := strings.Cut(text, ":")
		return fmt.Errorf("what follows the host %q isn't a port (an IPv6 address is written [::1]:6379)", before)
	}
	if host == "" {
		return errors.New("a host is empty")
	}
	if strings.ContainsFunc(host, func(r rune) bool { return hidden(r) || strings.ContainsRune(`%&"'<>\^{}|`, r) }) {
		return fmt.Errorf("%q isn't the name of a host", host)
	}
	return nil
}

// withPort adds a port to a host that has none.
func withPort(host, port string) string {
	if i := strings.LastIndex(host, ":"); i < 0 || strings.HasSuffix(host, "]") {
		return host + ":" + port
	}
	return host
}

// port returns the port of hosts that are given without one.
func (a *address) port() string {
	switch {
	case strings.HasPrefix(a.scheme, "etcd"):
		return "2379"
	case strings.HasPrefix(a.scheme, "postgres"):
		return "5432"
	case a.sentinels():
		return "26379"
	default:
		return "6379"
	}
}

// sentinels says whether the hosts are sentinels, who know where the master is.
func (a *address) sentinels() bool {
	return strings.HasSuffix(a.scheme, "+sentinel") || a.option("master_name") != "" || a.option("master_set") != ""
}

// url returns the address in the form that the clients' own parsers take: with another scheme, one host, and the others as
// options.
func (a *address) url(scheme string) string {
	u := url.URL{Scheme: scheme, User: a.user, Path: a.path, RawPath: a.path, RawQuery: a.query}
	if path, err := url.PathUnescape(a.path); err == nil {
		u.Path = path
	}
	for i, h := range a.hosts {
		if i == 0 {
			u.Host = withPort(h, a.port())
			continue
		}
		if u.RawQuery != "" {
			u.RawQuery += "&"
		}
		u.RawQuery += "addr=" + url.QueryEscape(withPort(h, a.port()))
	}
	return u.String()
}

// option takes a value from the options: the last that is given, or nothing.
func (a *address) option(name string) string {
	q, _ := url.ParseQuery(a.query)
	if v := q[name]; len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}

// dial returns nil if one of the hosts accepts a connection. The clients would try for longer, and some only say that they
// have waited for long enough. What they say of TLS is as little in the case of etcd's: for that config isn't nil.
func (a *address) dial(ctx context.Context, config *tls.Config) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	network, addrs := "tcp", make([]string, len(a.hosts))
	for i, h := range a.hosts {
		addrs[i] = withPort(h, a.port())
	}
	if a.scheme == "unix" {
		path, _ := url.PathUnescape(a.path) // the parser says what is wrong with it
		network, addrs = "unix", []string{path}
	}
	dial := new(net.Dialer).DialContext
	if config != nil {
		dial = (&tls.Dialer{Config: config}).DialContext
	}
	results := make(chan error, len(addrs))
	for _, addr := range addrs {
		go func() {
			conn, err := dial(ctx, network, addr)
			if err == nil {
				err = conn.Close()
			}
			results <- err
		}()
	}
	var errs []error
	for range addrs {
		err := <-results
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// only returns an error if there is an option that isn't one of those.
func (a *address) only(names []string) error {
	q, _ := url.ParseQuery(a.query)
	for name := range q {
		if !slices.Contains(names, name) {
			return fmt.Errorf("unknown option %q; there are %s", name, strings.Join(names, ", "))
		}
	}
	return nil
}
