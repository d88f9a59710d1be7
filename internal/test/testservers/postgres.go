package testservers

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// PostgresVariable is the environment variable that names the folder of another PostgreSQL
// installation, for tests to use instead of the system's own. The programs are in its subfolder
// bin. If one of them is missing there, such as psql, tests use the installed program.
const PostgresVariable = "DISTSYNC_POSTGRES"

// postgresFolder returns the folder that contains the programs of PostgreSQL servers.
var postgresFolder = sync.OnceValues(func() (string, error) {
	if root := os.Getenv(PostgresVariable); root != "" {
		return filepath.Join(root, "bin"), nil
	}
	return installedPostgres()
})

// installedPostgres returns the folder of the installed PostgreSQL programs. It prefers those on
// the PATH. Otherwise it uses the newest of Debian's packages, whose programs aren't on the PATH.
var installedPostgres = sync.OnceValues(func() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path), nil
		}
	}
	folders, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(folders) == 0 {
		return "", errors.New("PostgreSQL is not installed")
	}
	return filepath.Dir(slices.MaxFunc(folders, func(a, b string) int {
		return majorOf(a) - majorOf(b)
	})), nil
})

// majorOf returns the major version in the path of a program.
func majorOf(path string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path)))) // 0 if none
	return n
}

// PostgresTool returns the path of one of PostgreSQL's programs.
func PostgresTool(t TB, name string) string {
	t.Helper()
	path, err := postgresTool(name)
	need(t, path, err)
	return path
}

func postgresTool(name string) (string, error) {
	folder, err := postgresFolder()
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	folder, err = installedPostgres()
	return filepath.Join(folder, name), err
}

// PostgresURL returns the URL with which clients connect to a server's database.
func PostgresURL(addr string) string {
	return "postgres://postgres@" + addr + "/postgres?sslmode=disable"
}

// Postgres starts a PostgreSQL server with additional settings of the form "name=value". Clients
// need no password. [Server.Restart] keeps the server's data. A crash of the machine may destroy
// the data.
func Postgres(t TB, settings ...string) *Server {
	t.Helper()
	folder, err := postgresFolder()
	need(t, folder, err)
	data := filepath.Join(unprivilegedFolder(t), "data")
	initPostgres(t, folder, data)
	return startPostgres(t, folder, data, settings)
}

// initPostgres creates the data folder of an empty PostgreSQL server. Since initdb is slow, its
// result is kept in the user's cache and copied.
func initPostgres(t TB, folder, data string) {
	t.Helper()
	args := []string{
		"-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync",
		"--wal-segsize=1", // in MB; with the default, half of the folder would be an empty log
	}
	kept := keptPostgres(t, folder, args)
	if kept != "" && exec.Command("cp", "-a", kept, data).Run() == nil {
		return
	}
	_ = os.RemoveAll(data) // a cp that failed may have left files, which initdb would refuse
	runUnprivileged(t, filepath.Join(folder, "initdb"), append(args, "-D", data)...)
	if kept == "" {
		return
	}
	// Copy the folder under another name and then rename it, so that the folder in the cache is
	// always complete, even if another test creates it at the same time.
	ours, err := os.MkdirTemp(filepath.Dir(kept), "new")
	if err != nil {
		return
	}
	defer os.RemoveAll(ours)
	copied := filepath.Join(ours, "data")
	if exec.Command("cp", "-a", data, copied).Run() == nil {
		_ = os.Rename(copied, kept) // fails if another test has created the folder
	}
}

// keptPostgres returns the folder that caches the result of initdb. The folder depends on the
// PostgreSQL program, on its user and on args. keptPostgres returns "" if the result can't be
// cached.
func keptPostgres(t TB, folder string, args []string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	program, err := os.Stat(filepath.Join(folder, "postgres"))
	if err != nil {
		return ""
	}
	cache = filepath.Join(cache, "distsync-tests")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return ""
	}
	of := fmt.Sprint(folder, program.Size(), program.ModTime().UnixNano(), unprivileged(t), args)
	return filepath.Join(cache, fmt.Sprintf("postgres-%x", sha256.Sum256([]byte(of)))[:32])
}

// PostgresStandby starts a standby of the primary, with an application name and additional
// settings.
func PostgresStandby(t TB, primary *Server, name string, settings ...string) *Server {
	t.Helper()
	folder, err := postgresFolder()
	need(t, folder, err)
	data := filepath.Join(unprivilegedFolder(t), "data")
	conninfo := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres application_name=%s",
		primary.port, name)
	runUnprivileged(t, PostgresTool(t, "pg_basebackup"), "-D", data, "-d", conninfo,
		"--checkpoint=fast", "--no-sync", "--write-recovery-conf")
	return startPostgres(t, folder, data, append(settings, "primary_conninfo="+conninfo))
}

func startPostgres(t TB, folder, data string, settings []string) *Server {
	t.Helper()
	return startIn(t, filepath.Join(folder, "postgres"), Spec{
		Program: "postgres",
		Args: func(port int, _ string) []string {
			args := []string{
				"-D", data, "-p", strconv.Itoa(port), "-h", "127.0.0.1", "-F", "-c",
				"unix_socket_directories=", "-c", "max_connections=200",
			}
			for _, setting := range settings {
				args = append(args, "-c", setting)
			}
			return args
		},
		Ready: postgresReady,
	})
}

// SQL executes statements in a new session, and returns the rows of the results as text. The server
// must be PostgreSQL or a pooler. The test fails on an error.
func (s *Server) SQL(statements string) string {
	s.t.Helper()
	answer, err := SQL(s.Addr, statements)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer
}

// SQL is like [Server.SQL], but for any address.
func SQL(addr, statements string) (string, error) {
	psql, err := postgresTool("psql")
	if err != nil {
		return "", err
	}
	cmd := exec.Command(psql, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d",
		PostgresURL(addr),
		"-f", "-")
	cmd.Stdin = strings.NewReader(statements)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("psql: %w: %s", err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// PgBouncer starts PgBouncer, a connection pooler, in front of a PostgreSQL server. It adds the
// given lines to the pooler's configuration.
func PgBouncer(t TB, server *Server, lines ...string) *Server {
	t.Helper()
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/pgbouncer")
	}
	if err != nil {
		err = errors.New("PgBouncer is not installed")
	}
	need(t, path, err)
	folder := unprivilegedFolder(t)
	return startIn(t, path, Spec{
		Program: "pgbouncer",
		Args: func(port int, _ string) []string {
			config := filepath.Join(folder, "pgbouncer.ini")
			text := append([]string{
				"[databases]", fmt.Sprintf("* = host=127.0.0.1 port=%d user=postgres", server.port),
				"[pgbouncer]", "listen_addr = 127.0.0.1", fmt.Sprint("listen_port = ", port),
				"unix_socket_dir =",
				"auth_type = any", "max_client_conn = 500",
			}, lines...)
			text = append(text, "")
			if err := os.WriteFile(config, []byte(strings.Join(text, "\n")), 0o644); err != nil {
				t.Fatal(err)
			}
			return []string{config}
		},
		Ready: postgresReady,
	})
}

// startIn starts a program whose data folder already exists. The program refuses to run as root. So
// if the test runs as root, the program runs as another user.
func startIn(t TB, path string, spec Spec) *Server {
	t.Helper()
	s := &Server{t: t, spec: spec, path: path, as: unprivileged(t)}
	t.Cleanup(s.quit)
	return s.startAnywhere()
}

// postgresReady logs in, and returns nil if the server accepts the login. It uses no client
// library, because other modules import this package for their tests and would then need that
// library.
func postgresReady(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	login := append(binary.BigEndian.AppendUint32(nil, 3<<16),
		"user\x00postgres\x00database\x00postgres\x00\x00"...)
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(4+len(login))),
		login...)); err != nil {
		return err
	}
	for {
		head := make([]byte, 5)
		if _, err := io.ReadFull(conn, head); err != nil {
			return err
		}
		text := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(conn, text); err != nil {
			return err
		}
		switch head[0] {
		case 'E':
			return fmt.Errorf("postgres: %q", text)
		case 'Z': // the server is ready for a query
			_, err := conn.Write([]byte{'X', 0, 0, 0, 4})
			return err
		}
	}
}

// quit asks a server to shut down, so that it can release its resources, and kills it if it is
// still running after 5 s. A PostgreSQL server that is killed leaves shared memory behind, which
// may be scarce.
func (s *Server) quit() {
	s.mu.Lock()
	cmd, exited := s.cmd, s.exited
	s.mu.Unlock()
	if cmd != nil {
		// an error means that the process has already exited
		_ = cmd.Process.Signal(syscall.SIGQUIT)
		s.mu.Lock()
		for _, pid := range append(children(cmd.Process.Pid), cmd.Process.Pid) {
			_ = syscall.Kill(pid, syscall.SIGCONT) // if it was stopped
		}
		s.mu.Unlock()
		select {
		case <-exited:
		case <-time.After(5 * time.Second):
		}
	}
	s.Kill()
}

// unprivileged returns the user for servers that refuse to run as root. It returns nil if that is
// the test's own user.
func unprivileged(t TB) *syscall.Credential {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	t.Fatal("PostgreSQL must not run as root, and there is no other user to run it")
	return nil
}

// unprivilegedFolder returns a temporary folder for the test. It belongs to the user that the
// function unprivileged returns, if any.
func unprivilegedFolder(t TB) string {
	t.Helper()
	dir := t.TempDir()
	if as := unprivileged(t); as != nil {
		err := errors.Join(os.Chmod(filepath.Dir(dir), 0o711),
			os.Chown(dir, int(as.Uid), int(as.Gid)))
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func runUnprivileged(t TB, path string, args ...string) {
	t.Helper()
	cmd := exec.Command(path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: unprivileged(t)}
	cmd.Dir = "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", path, joined(args), err, out)
	}
}

// children returns the child processes of a process.
func children(pid int) []int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	if err != nil {
		return nil
	}
	var pids []int
	for word := range strings.FieldsSeq(string(text)) {
		if child, err := strconv.Atoi(word); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

// killAll kills processes, and waits until they are gone, but at most for Patience. A process that
// still runs could write into a folder that is being removed.
func killAll(pids []int) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL) // an error means that the process has already exited
	}
	for end := time.Now().Add(Patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if !slices.ContainsFunc(pids, runs) {
			return
		}
	}
}

// runs reports whether a process is still running. A zombie doesn't count as running.
func runs(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, found := strings.Cut(string(text), ") ")
	return err == nil && found && !strings.HasPrefix(state, "Z")
}
