package testservers

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// etcdModule is the folder of the module that builds the etcd server and its tools.
const etcdModule = "internal/test/etcdserver"

// etcdProgram returns the path of an etcd server. It prefers the one on the PATH. Otherwise it
// builds one. It uses only modules that are already in the module cache, since tests must not
// download anything. The first build takes a minute.
var etcdProgram = sync.OnceValues(func() (string, error) {
	if path, err := exec.LookPath("etcd"); err == nil {
		return path, nil
	}
	return buildEtcd("etcdserver")
})

// EtcdTool returns the path of etcdctl or etcdutl, in the version of the server that etcdProgram
// builds. It ignores the PATH, where the tool may be too old for the server.
func EtcdTool(t TB, name string) string {
	t.Helper()
	path, err := buildEtcd("go.etcd.io/etcd/" + name + "/v3")
	return need(t, path, err)
}

// buildEtcd builds one of etcd's programs with the go command, and returns its path.
func buildEtcd(program string) (string, error) {
	dir, err := moduleFolder(etcdModule)
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "-C", dir, "tool", "-n", program)
	cmd.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=-mod=readonly", "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		return "",
			fmt.Errorf("%s cannot be built; `go -C %s tool -n %[1]s` downloads and builds it",
				program, etcdModule)
	}
	return strings.TrimSpace(string(out)), nil
}

// moduleFolder returns the path of a module's folder in this repository. The working directory must
// be inside the repository.
func moduleFolder(name string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
			return path, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("etcd is not installed, and there is no %s to build it of", name)
		}
		dir = up
	}
}

func etcdPath(t TB) string {
	t.Helper()
	path, err := etcdProgram()
	return need(t, path, err)
}

// need returns the path of a program. If err isn't nil, it skips the test. With
// DISTSYNC_REQUIRE_SERVERS=1, it fails the test instead.
func need(t TB, path string, err error) string {
	t.Helper()
	switch {
	case err == nil:
	case required():
		t.Fatalf("%v; DISTSYNC_REQUIRE_SERVERS=1 asks for it", err)
	default:
		t.Skip(err)
	}
	return path
}

// Etcd starts a cluster of a single etcd server, and passes it the additional arguments args.
func Etcd(t TB, args ...string) *Server {
	t.Helper()
	path := etcdPath(t)
	t.TempDir() // created before the server, so that it is removed after the server has exited
	return Start(t, Spec{
		Program: path,
		Args: func(port int, dir string) []string {
			peer := etcdURL(FreePort(t))
			return append(etcdArgs("single", port, peer, dir),
				append([]string{"--initial-cluster", "single=" + peer}, args...)...)
		},
		Ready: etcdReady,
	})
}

// EtcdCluster starts an etcd cluster of n members. [Server.Restart] keeps a member's data.
func EtcdCluster(t TB, n int, args ...string) []*Server {
	t.Helper()
	path := etcdPath(t)
	members := make([]*Server, n)
	names := make([]string, n)
	peers := make([]string, n)
	var all []string
	for i := range members {
		names[i], peers[i] = fmt.Sprint("member", i), etcdURL(FreePort(t))
		all = append(all, names[i]+"="+peers[i])
	}
	for i := range members {
		dir, port := t.TempDir(), FreePort(t)
		s := &Server{
			t: t, path: path, port: port, Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		}
		s.spec = Spec{
			Program: path,
			Args: func(port int, _ string) []string {
				return append(etcdArgs(names[i], port, peers[i], dir),
					append([]string{"--initial-cluster", strings.Join(all, ",")}, args...)...)
			},
			Ready: etcdReady,
		}
		t.Cleanup(s.Kill)
		members[i] = s
	}
	errs := make([]error, n)
	var starting sync.WaitGroup // a member isn't ready until most members have started
	for i, s := range members {
		starting.Go(func() { errs[i] = s.start() })
	}
	starting.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return members
}

// EtcdLearner adds a learner to an etcd cluster, and starts it. A learner has no vote, and doesn't
// serve clients.
func EtcdLearner(t TB, members ...*Server) *Server {
	t.Helper()
	path, peer := etcdPath(t), etcdURL(FreePort(t))
	var added struct {
		Members []struct {
			Name     string
			PeerURLs []string
		}
	}
	add := func() error {
		// the request fails until there is a leader, and all members have been connected for a
		// while
		ask := strings.NewReader(fmt.Sprintf(`{"peerURLs":[%q],"isLearner":true}`, peer))
		url := "http://" + members[0].Addr + "/v3/cluster/member/add"
		res, err := etcdHealth.Post(url, "application/json", ask)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("etcd: adding a learner: %s", res.Status)
		}
		return json.NewDecoder(res.Body).Decode(&added)
	}
	var err error
	Until(t, "a learner is added", func() bool { err = add(); return err == nil })
	var all []string
	for _, m := range added.Members {
		name := m.Name
		if name == "" {
			name = "learner" // the new member has no name before it starts
		}
		all = append(all, name+"="+m.PeerURLs[0])
	}
	more := []string{
		"--initial-cluster", strings.Join(all, ","), "--initial-cluster-state", "existing",
	}
	return Start(t, Spec{
		Program: path,
		Args: func(port int, dir string) []string {
			return append(etcdArgs("learner", port, peer, dir), more...)
		},
		Ready: func(addr string) error { // a learner is never healthy
			res, err := etcdHealth.Get("http://" + addr + "/readyz/serializable_read")
			if err == nil {
				res.Body.Close()
			}
			return err
		},
	})
}

func etcdURL(port int) string { return "http://127.0.0.1:" + strconv.Itoa(port) }

func etcdArgs(name string, port int, peer, dir string) []string {
	return []string{
		"--name", name, "--data-dir", filepath.Join(dir, "etcd"), "--log-level", "error",
		// Tests kill processes, but not machines.
		"--unsafe-no-fsync",
		"--listen-client-urls", etcdURL(port), "--advertise-client-urls", etcdURL(port),
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
	}
}

var etcdHealth = &http.Client{
	Timeout:   time.Second,
	Transport: &http.Transport{DisableKeepAlives: true}, // so that no goroutine is left
}

func etcdReady(addr string) error {
	res, err := etcdHealth.Get("http://" + addr + "/health")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd: health: %s", res.Status)
	}
	return nil
}
