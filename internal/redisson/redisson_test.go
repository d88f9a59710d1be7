package redisson

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

func TestChannel(t *testing.T) {
	for name, want := range map[string]string{
		"resource:x": "redisson_lock__channel:{resource:x}",
		"{a}b":       "redisson_lock__channel:{a}b",
		"a{b":        "redisson_lock__channel:a{b",
		"a}b":        "redisson_lock__channel:{a}b}",
	} {
		if got := Channel(name); got != want {
			t.Errorf("Channel(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestDialect(t *testing.T) {
	for _, d := range []Dialect{{}, {Sharded: true}} {
		for _, call := range []Call{
			d.Release(backend.ReleaseRequest{Name: "n", Owner: "o", Lease: time.Second}),
			d.ReleaseAgain(backend.ReleaseRequest{Name: "n", Owner: "o", Lease: time.Second}),
			d.ForceRelease(backend.ForceReleaseRequest{Name: "n"}),
		} {
			if strings.Count(call.Script.Text, "'publish'") != map[bool]int{false: 1}[d.Sharded] ||
				strings.Count(call.Script.Text, "'spublish'") != map[bool]int{true: 1}[d.Sharded] {
				t.Errorf("%+v: script %s", d, call.Script.Text)
			}
			if call.Keys[1] != "redisson_lock__channel:{n}" {
				t.Errorf("%+v: keys %q", d, call.Keys)
			}
		}
	}
}

func TestCheckSlots(t *testing.T) {
	for name, good := range map[string]bool{
		"a": true, "{a}b": true, "a{b}c": true, "{a}{b}": true, "a{b}}": true,
		"a{b": false, "{}x": false, "a}b": false, "}": false,
	} {
		err := checkSlots(name, kindOf(backend.Exclusive).keys(name, "owner")...)
		if (err == nil) != good {
			t.Errorf("checkSlots(%q) = %v", name, err)
		}
		if err != nil && backend.KindOf(err) != backend.Refused {
			t.Errorf("checkSlots(%q): kind %v", name, backend.KindOf(err))
		}
	}
}

func TestSlot(t *testing.T) {
	if got := crc16("123456789"); got != 0x31C3 {
		t.Errorf("CRC16 = %#x, want 0x31c3", got)
	}
	server := testservers.Redis(t, "--cluster-enabled", "yes", "--cluster-port",
		strconv.Itoa(testservers.FreePort(t)))
	for _, key := range []string{"a", "{a}b", "a{b", "{}x", "a}b", "x{y}{z}", "a{{b}}", "é{ü}",
		"}{a}"} {
		if got, want := strconv.Itoa(int(Slot(key))), server.Do("CLUSTER", "KEYSLOT",
			key); got != want {
			t.Errorf("Slot(%q) = %s, want %s", key, got, want)
		}
	}
}

func TestUnlocked(t *testing.T) {
	for message, want := range map[string]string{
		"0":  "0 true",
		"1":  "0 true",
		"":   "0 false",
		"2":  "0 false",
		"00": "0 false",
	} {
		why, ok := Unlocked(message)
		if got := fmt.Sprint(why, ok); got != want {
			t.Errorf("Unlocked(%q) = %s, want %s", message, got, want)
		}
	}
}

// Whatever a server answers, it is understood or an error of kind Unknown.
func TestReplies(t *testing.T) {
	replies := []any{
		nil, int64(-3), int64(-2), int64(-1), int64(0), int64(1), int64(2), int64(math.MaxInt64),
		int64(math.MinInt64),
		"", "0", "7", "-7", "7.5", "OK", "99999999999999999999", []any{int64(1)}, []any{},
		map[any]any{}, true, 1.0, errors.New("inside"),
	}
	const noLock = "refused"
	parsers := map[string]struct {
		parse func(any) (any, error)
		want  map[string]string
	}{
		"acquire": {func(r any) (any, error) { return ParseAcquire(r) }, map[string]string{
			"<nil>": "{true 0 0s 0}", "-1": "{false 0 -1ms 0}", "0": "{false 0 0s 0}",
			"1": "{false 0 1ms 0}", "2": "{false 0 2ms 0}",
			"9223372036854775807": fmt.Sprintf("{false 0 %v 0}",
				time.Duration(math.MaxInt64).Truncate(time.Millisecond)),
		}},
		"release": {func(r any) (any, error) { return ParseRelease(r) }, map[string]string{
			"<nil>": "{not held false 0 0}", "0": "{holds left false 0 0}",
			"1": "{freed false 0 0}",
		}},
		"release again": {func(r any) (any, error) {
			return ParseReleaseAgain(r)
		}, map[string]string{
			"<nil>": "{not held false 0 0}", "0": "{holds left false 0 0}",
			"1": "{freed false 0 0}", "-1": noLock,
		}},
		"keep": {func(r any) (any, error) { return ParseKeep(r) }, map[string]string{
			"<nil>": "{not held false 0 0}", "0": "{holds left false 0 0}",
			"1": "{freed false 0 0}", "2": "{kept false 0 0}", "-1": noLock,
		}},
		"is kept": {
			func(r any) (any, error) { return ParseIsKept(r) }, map[string]string{
				"0": "false", "1": "true", "-1": noLock,
			},
		},
		"renew": {
			func(r any) (any, error) { return ParseRenew(r) }, map[string]string{
				"0": "{false}", "1": "{true}",
			},
		},
		"renew again": {
			func(r any) (any, error) { return ParseRenewAgain(r) }, map[string]string{
				"0": "{false}", "1": "{true}", "-1": noLock,
			},
		},
		"force release": {
			func(r any) (any, error) { return ParseForceRelease(r) }, map[string]string{
				"0": "{false}", "1": "{true}", "-1": noLock,
			},
		},
		"count": {
			func(r any) (any, error) { return ParseCount(r) }, map[string]string{
				"<nil>": "0", `"0"`: "0", `"7"`: "7",
			},
		},
		"exists": {func(r any) (any, error) {
			return ParseLook(r, "1", int64(5))
		}, map[string]string{
			"0": "{false 0 0s 0 false}", "1": "{true 1 5ms 0 false}",
		}},
		"ttl": {func(r any) (any, error) { return ParseLook(int64(1), "1", r) }, map[string]string{
			"-2": "{false 0 0s 0 false}", "-1": "{true 1 -1ms 0 false}", "0": "{true 1 0s 0 false}",
			"1": "{true 1 1ms 0 false}", "2": "{true 1 2ms 0 false}",
			"9223372036854775807": fmt.Sprintf("{true 1 %v 0 false}",
				time.Duration(math.MaxInt64).Truncate(time.Millisecond)),
		}},
	}
	for name, p := range parsers {
		for _, reply := range replies {
			got, err := p.parse(reply)
			key := fmt.Sprintf("%v", reply)
			if s, ok := reply.(string); ok {
				key = strconv.Quote(s)
			}
			want, known := p.want[key]
			_, isInt := reply.(int64)
			known = known && (isInt || reply == nil || key[0] == '"')
			switch {
			case known && want == noLock:
				if !errors.Is(err, backend.ErrConflict) || backend.KindOf(err) != backend.Refused {
					t.Errorf("%s: reply %s is %v, %v; want ErrConflict", name, key, got, err)
				}
			case known && (err != nil || fmt.Sprint(got) != want):
				t.Errorf("%s: reply %s is %v, %v; want %s", name, key, got, err, want)
			case !known && err == nil:
				t.Errorf("%s: reply %s is %v; want an error", name, key, got)
			case !known && backend.KindOf(err) != backend.Unknown:
				t.Errorf("%s: reply %s: error of kind %v", name, key, backend.KindOf(err))
			}
		}
	}
}

func TestAcknowledged(t *testing.T) {
	cause := errors.New("cause")
	for _, c := range []struct {
		reply any
		err   error
		says  string
	}{
		{int64(2), nil, ""},
		{int64(3), nil, ""},
		{int64(1), nil, "1 of 2"},
		{int64(-1), nil, "-1 of 2"},
		{"2", nil, "unexpected"},
		{nil, nil, "unexpected"},
		{nil, cause, "cause"},
	} {
		err := Replicas{N: 2}.acknowledged(Reply{Value: c.reply, Err: c.err})
		if c.says == "" && err == nil {
			continue
		}
		if err == nil || c.says == "" || !strings.Contains(err.Error(), c.says) ||
			!errors.Is(err, ErrNotReplicated) || errors.Is(err, cause) != (c.err != nil) {
			t.Errorf("reply %v, %v: error %v, want one that says %q", c.reply, c.err, err, c.says)
		}
	}
}

func TestServerError(t *testing.T) {
	const (
		u   = backend.Unknown
		r   = backend.Retry
		ref = backend.Refused

		in7 = " script: 8a1cc32fa58d1a5e8a51cebe0a33a92efac552c0, on @user_script:3."
		in6 = "ERR Error running script (call to f_8a1cc32fa58d1a5e8a51cebe0a33a92efac552c0): " +
			"@user_script:2: "
	)
	for text, want := range map[string]backend.ErrorKind{
		"LOADING Redis is loading the dataset in memory":                                         r,
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":       r,
		"CLUSTERDOWN The cluster is down":                                                        r,
		"TRYAGAIN Multiple keys request during rehashing of slot":                                r,
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.": r,
		"BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN " +
			"NOSAVE.": r,
		"ERR max number of clients reached":                       r,
		"ERR max number of clients + cluster connections reached": r,
		"MOVED 3999 127.0.0.1:6381":                               r,
		"ASK 3999 127.0.0.1:6381":                                 r,
		"READONLY You can't write against a read only replica.":   r,
		"READONLY You can't write against a read only replica." +
			in7: r,
		"OOM command not allowed when used memory > 'maxmemory'." +
			in7: r,
		"NOREPLICAS Not enough good replicas to write." +
			in7: r,
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist " +
			"to disk." + in7: r,
		in6 +
			"@user_script: 2: -READONLY You can't write against a read only replica.": r,
		in6 +
			"@user_script: 2: -OOM command not allowed when used memory > 'maxmemory'.": r,
		in6 +
			"@user_script: 2: -MISCONF Redis is configured to save RDB snapshots": u,
		in6 +
			"@user_script: 2: -NOPERM this user has no permissions to run the 'publish' command": u,

		"WRONGTYPE Operation against a key holding the wrong kind of value": ref,
		"WRONGTYPE Operation against a key holding the wrong kind of value" +
			in7: ref,
		in6 +
			"WRONGTYPE Operation against a key holding the wrong kind of value": ref,
		"ERR Error compiling script (new function): :6: WRONGTYPE Operation against a key " +
			"holding the wrong": ref,

		"NOAUTH Authentication required.":                                                      ref,
		"WRONGPASS invalid username-password pair or user is disabled.":                        ref,
		"NOPERM this user has no permissions to run the 'evalsha' command":                     ref,
		"NOPERM User x has no permissions to access the 'n' key":                               ref,
		"NOPERM this user has no permissions to access one of the keys used as arguments":      ref,
		"CROSSSLOT Keys in request don't hash to the same slot":                                ref,
		"NOPERM ACL failure in script: User x has no permissions to run the 'publish' command": u,
		"ERR ACL failure in script: User x has no permissions to access one of the channels":   u,
		"ERR The user executing the script can't publish to the channel mentioned" +
			in7: u,
		"ERR The user executing the script can't run this command or subcommand" +
			in7: u,
		"CLUSTERDOWN something inside" +
			in7: u,
		"UNKILLABLE Sorry the script already executed write commands against the dataset.": u,
		"ERR Script attempted to access a non local key in a cluster node" +
			in7: u,
		"ERR unknown command 'evalsha', with args beginning with: '8a1c' '1' 'script' ": ref,
		"ERR unknown command `EVAL`, with args beginning with: ":                        ref,
		"ERR unknown command 'subscribe', with args beginning with: 'c' ":               ref,
		"ERR unknown command 'SSUBSCRIBE', with args beginning with: 'c' ":              ref,
		"ERR unsupported command 'unsubscribe'":                                         ref,
		"unsupported command 'evalsha'":                                                 ref,
		"ERR bad lua script for redis cluster, all the keys that the script uses should be " +
			"passed using the KEYS array": ref,
		"ERR bad lua script for redis cluster, first parameter of redis.call/redis.pcall must be " +
			"a single literal string": ref,
		"ERR unknown command 'evalsha_ro', with args beginning with: ": u,
		"ERR unknown command 'hincrby'" +
			in7: u,
		"ERR DB index is out of range":                   ref,
		"ERR SELECT is not allowed in cluster mode":      ref,
		"ERR This instance has cluster support disabled": ref,
		"ERR unknown command":                            u,
		"ERR Protocol error: invalid bulk":               u,
		"UNBLOCKED client unblocked":                     u,
		"ERR WRONGTYPE is only mentioned here":           u,
		"":                                               u,
		" ":                                              u,
	} {
		cause := errors.New(text)
		err := ServerError(text, cause)
		if got := backend.KindOf(err); got != want {
			t.Errorf("%q: kind %v, want %v", text, got, want)
		}
		if !errors.Is(err, cause) {
			t.Errorf("%q: the cause is not wrapped", text)
		}
	}
	if err := ServerError("WRONGTYPE x", errors.New("x")); !errors.Is(err, backend.ErrConflict) {
		t.Errorf("WRONGTYPE: %v", err)
	}
}

func FuzzServerError(f *testing.F) {
	f.Add("OOM x script")
	f.Fuzz(func(t *testing.T, text string) {
		if err := ServerError(text, errors.New(text)); err == nil {
			t.Error("no error")
		}
	})
}
