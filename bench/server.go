package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A usage contains the number of commands that clients have sent to a server, and the CPU time that
// the server has used.
type usage struct {
	commands float64
	cpu      time.Duration
}

// look returns the usage of a contender's server so far.
func look(c contender, addr string) (u usage, err error) {
	switch {
	case c.store == onEtcd:
		return lookEtcd(addr)
	case c.store == onPostgres:
		return lookPostgres(addr)
	case !c.store.isRESP():
		return usage{}, nil
	}
	for _, one := range c.store.answering(addr) {
		if err := u.addRESP(one, c.scripted); err != nil {
			return u, err
		}
	}
	return u, nil
}

// usageOf calls a function, and returns the usage of a contender's server during that call.
func usageOf(c contender, addr string, do func() error) (usage, error) {
	before, err := look(c, addr)
	if err != nil {
		return usage{}, err
	}
	if err := do(); err != nil {
		return usage{}, err
	}
	after, err := look(c, addr)
	return usage{after.commands - before.commands, after.cpu - before.cpu}, err
}

func (u *usage) addRESP(addr string, scripted []string) error {
	info, err := testservers.Do(addr, "INFO", "all")
	if err != nil {
		return err
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch command, ok := strings.CutPrefix(name, "cmdstat_"); {
		case name == "used_cpu_sys", name == "used_cpu_user":
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return err
			}
			u.cpu += time.Duration(seconds * float64(time.Second))
		case ok && command != "info" && command != "flushall" &&
			!slices.Contains(scripted, command):
			calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
			n, err := strconv.ParseFloat(calls, 64)
			if err != nil {
				return err
			}
			u.commands += n
		}
	}
	return nil
}

// lookEtcd returns the usage of an etcd server. It counts every message that the server received as
// a command, including messages on streams.
func lookEtcd(addr string) (u usage, err error) {
	res, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		return u, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		isCPU := name == "process_cpu_seconds_total"
		if !isCPU && !strings.HasPrefix(name, "grpc_server_msg_received_total{") {
			continue
		}
		x, err := strconv.ParseFloat(value, 64)
		switch {
		case err != nil:
			return u, err
		case isCPU:
			u.cpu = time.Duration(x * float64(time.Second))
		default:
			u.commands += x
		}
	}
	return u, lines.Err()
}

// serverVersion returns a server's product and version.
func serverVersion(s store, addr string) (string, error) {
	if s == onPostgres {
		version, err := testservers.SQL(addr, `SHOW server_version;`)
		version, _, _ = strings.Cut(version, " ")
		return "PostgreSQL " + version, err
	}
	if s == onEtcd {
		res, err := http.Get("http://" + addr + "/version")
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		var v struct{ Etcdserver string }
		err = json.NewDecoder(res.Body).Decode(&v)
		return "etcd " + v.Etcdserver, err
	}
	info, err := testservers.Do(addresses(addr)[0], "INFO", "server")
	if err != nil {
		return "", err
	}
	name := onRedis
	if s == onValkey {
		name = onValkey
	}
	_, rest, _ := strings.Cut(info, strings.ToLower(string(name))+"_version:")
	version, _, _ := strings.Cut(rest, "\r\n")
	return string(name) + " " + version, nil
}

// flush deletes all data on a server. It does nothing for etcd and PostgreSQL, where each trial
// uses new names and old locks expire.
func flush(s store, addr string) error {
	if !s.isRESP() {
		return nil
	}
	for _, one := range s.answering(addr) {
		if _, err := testservers.Do(one, "FLUSHALL"); err != nil {
			return err
		}
	}
	return nil
}

// usageDuring measures the usage for the duration d. It returns the CPU time that this process and
// its contender's server used, as fractions of one CPU, and the number of commands per second.
func (c *child) usageDuring(d time.Duration) (client, server, commands float64, err error) {
	who := contenderBy(c.Contender)
	before, err := look(who, c.Server)
	if err != nil {
		return 0, 0, 0, err
	}
	clientBefore, begin := processCPU(), time.Now()
	time.Sleep(d)
	took := time.Since(begin)
	clientAfter := processCPU()
	after, err := look(who, c.Server)
	if err != nil {
		return 0, 0, 0, err
	}
	return float64(clientAfter-clientBefore) / float64(took),
		float64(after.cpu-before.cpu) / float64(took),
		(after.commands - before.commands) / took.Seconds(), nil
}

func goVersion() string { return runtime.Version() }

// packageVersions returns the versions of the compared packages.
func packageVersions() (all []string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	for _, m := range info.Deps {
		switch m.Path {
		case "github.com/redis/go-redis/v9", "github.com/valkey-io/valkey-go",
			"go.etcd.io/etcd/client/v3",
			"github.com/go-redsync/redsync/v4", "github.com/bsm/redislock",
			"github.com/jackc/pgx/v5":
			all = append(all, fmt.Sprintf("%s %s", m.Path, m.Version))
		}
	}
	return all
}
