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

// An address is a parsed store URL. Unlike a [url.URL] it can have several hosts.
type address struct {
	scheme string
	user   *url.Userinfo
	hosts  []string
	path   string // not decoded
	query  string // not decoded
}

// String returns the address without the user and password, for use in messages.
func (a *address) String() string {
	return escape(a.scheme + "://" + strings.Join(a.hosts, ","))
}

// parseAddress parses a store's URL. Its errors never quote anything that may be a password, not
// even a misplaced one.
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
		return nil,
			errors.New("in a user, password or option write / as %2F, ? as %3F, # as %23, " +
				"and @ as %40")
	}
	a.path, a.query, _ = strings.Cut(rest, "?")
	if _, err := url.ParseQuery(a.query); err != nil {
		return nil, errors.New("in its options write % as %25, or with the two hexadecimal " +
			"digits of a character, and ; as %3B")
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

// parseUser parses the user and the password, which precede the @ in a URL.
func parseUser(text string) (*url.Userinfo, error) {
	name, password, has := strings.Cut(text, ":")
	name, err := url.PathUnescape(name)
	password, err2 := url.PathUnescape(password)
	if err != nil || err2 != nil {
		return nil, errors.New("in the user and password write % as %25")
	}
	if !has {
		return url.User(name), nil
	}
	return url.UserPassword(name, password), nil
}

// checkHost returns an error unless text is a host with an optional port. The error omits the part
// after the colon, because that is the password if the URL lacks a host.
func checkHost(text string) error {
	host, port, err := net.SplitHostPort(withPort(text, "1"))
	if err != nil || strings.Trim(port, "0123456789") != "" || port == "" || len(port) > 5 {
		before, _, _ := strings.Cut(text, ":")
		return fmt.Errorf("the host %q has an invalid port (write an IPv6 address as "+
			"[::1]:6379)", before)
	}
	if host == "" {
		return errors.New("a host is empty")
	}
	if strings.ContainsFunc(host, func(r rune) bool {
		return hidden(r) || strings.ContainsRune(`%&"'<>\^{}|`, r)
	}) {
		return fmt.Errorf("%q isn't the name of a host", host)
	}
	return nil
}

// withPort returns host with port appended, unless host already has a port.
func withPort(host, port string) string {
	if i := strings.LastIndex(host, ":"); i < 0 || strings.HasSuffix(host, "]") {
		return host + ":" + port
	}
	return host
}

// port returns the default port of the store.
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

// sentinels reports whether the hosts are Redis Sentinels, which know the master's address.
func (a *address) sentinels() bool {
	return strings.HasSuffix(a.scheme, "+sentinel") || a.option("master_name") != "" ||
		a.option("master_set") != ""
}

// url returns the address as a URL for a client library's parser. The URL has the given scheme and
// the first host. The other hosts become addr options.
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

// option returns the last value of a URL option, or "" if the option isn't set.
func (a *address) option(name string) string {
	q, _ := url.ParseQuery(a.query)
	if v := q[name]; len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}

// dial returns nil once one of the hosts accepts a connection. It fails sooner than the client
// libraries, since they retry, and its errors contain more details. If config isn't nil, dial also
// performs a TLS handshake, since etcd's client hides TLS errors.
func (a *address) dial(ctx context.Context, config *tls.Config) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	network, addrs := "tcp", make([]string, len(a.hosts))
	for i, h := range a.hosts {
		addrs[i] = withPort(h, a.port())
	}
	if a.scheme == "unix" {
		path, _ := url.PathUnescape(a.path) // the client's parser reports the error
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

// only allows the given options. It returns an error if the URL has any other option.
func (a *address) only(names []string) error {
	q, _ := url.ParseQuery(a.query)
	for name := range q {
		if !slices.Contains(names, name) {
			return fmt.Errorf("unknown option %q; known are %s", name, strings.Join(names, ", "))
		}
	}
	return nil
}
