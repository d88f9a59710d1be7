import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;

import org.redisson.Redisson;
import org.redisson.api.RAtomicLong;
import org.redisson.api.RBucket;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RExpirable;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * Does with Redisson's locks what it is told on standard input, until that ends.
 *
 * <p>A line names a thread, what it is to do, the lock, and what else there is to say, in milliseconds
 * where it is a time. What it is to do is a method of the lock; where that isn't an RLock, its kind
 * and a dot come first: read, write, fenced, fair, permits or latch. Threads are made when they are first named. When a
 * thread is done it answers with a line: its name and the result. Before all that, a line says that
 * the program is ready.
 */
public final class Peer {
    private static final Set<Thread.State> WAITING = EnumSet.of(Thread.State.WAITING, Thread.State.TIMED_WAITING);

    private final RedissonClient redisson;
    private final Map<String, RLock> locks = new ConcurrentHashMap<>();

    private Peer(RedissonClient redisson) {
        this.redisson = redisson;
    }

    /** The argument is Redisson's configuration, as YAML. */
    public static void main(String[] args) throws Exception {
        Peer peer = new Peer(Redisson.create(Config.fromYAML(args[0])));
        answer("ready", "");
        Map<String, ExecutorService> threads = new HashMap<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            threads.computeIfAbsent(words[0], name -> Executors.newSingleThreadExecutor())
                    .execute(() -> answer(words[0], peer.reply(words)));
        }
        System.exit(0);
    }

    private static synchronized void answer(String thread, String text) {
        System.out.println(thread + " " + text.replace('\n', ' '));
    }

    private String reply(String[] words) {
        try {
            String[] arguments = Arrays.copyOfRange(words, 3, words.length);
            int dot = words[1].indexOf('.');
            String kind = words[1].substring(0, Math.max(dot, 0));
            String method = words[1].substring(dot + 1);
            if (kind.equals("latch")) {
                return String.valueOf(count(redisson.getCountDownLatch(words[2]), method, numbers(arguments)));
            }
            if (kind.equals("permits")) {
                return String.valueOf(call(redisson.getPermitExpirableSemaphore(words[2]), method, arguments));
            }
            return String.valueOf(call(kind, method, words[2], numbers(arguments)));
        } catch (Throwable e) {
            return e.toString();
        }
    }

    private static Object count(RCountDownLatch latch, String method, long... n) throws InterruptedException {
        switch (method + "/" + n.length) {
            case "trySetCount/1":
                return latch.trySetCount(n[0]);
            case "countDown/0":
                latch.countDown();
                return "counted";
            case "getCount/0":
                return latch.getCount();
            case "await/0":
                latch.await();
                return "open";
            case "delete/0":
                return latch.delete();
            default:
                throw new IllegalArgumentException(method);
        }
    }

    private static long[] numbers(String... arguments) {
        return Arrays.stream(arguments).mapToLong(Long::parseLong).toArray();
    }

    /** Returns the lock that is called so, always the same: Redisson's remember leases. */
    private RLock lock(String kind, String name) {
        return locks.computeIfAbsent(kind + " " + name, key -> switch (kind) {
            case "" -> redisson.getLock(name);
            case "read" -> redisson.getReadWriteLock(name).readLock();
            case "write", "both" -> redisson.getReadWriteLock(name).writeLock();
            case "fenced" -> redisson.getFencedLock(name);
            case "fair" -> redisson.getFairLock(name);
            default -> throw new IllegalArgumentException(kind);
        });
    }

    private Object call(String kind, String method, String name, long... n) throws InterruptedException {
        RLock lock = lock(kind, name);
        switch (method + "/" + n.length) {
            case "lock/0":
                lock.lock();
                return "locked";
            case "lock/1":
                lock.lock(n[0], TimeUnit.MILLISECONDS);
                return "locked";
            case "tryLock/0":
                return lock.tryLock();
            case "tryLock/1":
                return lock.tryLock(n[0], TimeUnit.MILLISECONDS);
            case "tryLock/2":
                return lock.tryLock(n[0], n[1], TimeUnit.MILLISECONDS);
            case "unlock/0":
                lock.unlock();
                return "unlocked";
            case "forceUnlock/0":
                return lock.forceUnlock();
            case "isLocked/0":
                return lock.isLocked();
            case "isHeldByCurrentThread/0":
                return lock.isHeldByCurrentThread();
            case "getHoldCount/0":
                return lock.getHoldCount();
            case "remainTimeToLive/0":
                return lock.remainTimeToLive();
            case "lockAndGetToken/0":
                return ((RFencedLock) lock).lockAndGetToken();
            case "tryLockAndGetToken/2":
                return ((RFencedLock) lock).tryLockAndGetToken(n[0], n[1], TimeUnit.MILLISECONDS);
            case "getToken/0":
                return ((RFencedLock) lock).getToken();
            case "delete/0":
                return ((RExpirable) lock).delete();
            case "expire/1":
                return ((RExpirable) lock).expire(Duration.ofMillis(n[0]));
            case "increment/1":
                for (long i = 0; i < n[0]; i++) {
                    increment(lock);
                }
                return n[0];
            case "compare/1":
                for (long i = 0; i < n[0]; i++) {
                    compare(lock);
                }
                return n[0];
            case "work/2":
                return work(lock, kind.equals("both") ? lock("read", name) : null, n[0], n[1]);
            case "sleeps/0":
                return sleeps(name);
            case "interrupt/0":
                thread(name).interrupt();
                return "interrupted";
            case "owner/0":
                return redisson.getId() + ":" + Thread.currentThread().getId();
            default:
                throw new IllegalArgumentException(method);
        }
    }

    /** Calls a method of a semaphore. Where there are several permits, their number comes before times. */
    private Object call(RPermitExpirableSemaphore semaphore, String method, String... arguments) throws InterruptedException {
        List<String> ids = List.of(arguments);
        switch (method) {
            case "tryRelease":
                return ids.size() == 1 ? semaphore.tryRelease(ids.get(0)) : semaphore.tryRelease(ids);
            case "updateLeaseTime":
                return semaphore.updateLeaseTime(ids.get(0), Long.parseLong(ids.get(1)), TimeUnit.MILLISECONDS);
            default:
        }
        long[] n = numbers(arguments);
        switch (method + "/" + n.length) {
            case "acquire/1":
                return list(semaphore.acquire((int) n[0]));
            case "acquire/2":
                return list(semaphore.acquire((int) n[0], n[1], TimeUnit.MILLISECONDS));
            case "tryAcquire/1":
                return list(semaphore.tryAcquire((int) n[0]));
            case "tryAcquire/3":
                return list(semaphore.tryAcquire((int) n[0], n[1], n[2], TimeUnit.MILLISECONDS));
            case "availablePermits/0":
                return semaphore.availablePermits();
            case "getPermits/0":
                return semaphore.getPermits();
            case "acquiredPermits/0":
                return semaphore.acquiredPermits();
            case "trySetPermits/1":
                return semaphore.trySetPermits((int) n[0]);
            case "setPermits/1":
                semaphore.setPermits((int) n[0]);
                return "set";
            case "addPermits/1":
                semaphore.addPermits((int) n[0]);
                return "added";
            case "delete/0":
                return semaphore.delete();
            case "enter/3":
                for (long i = 0; i < n[0]; i++) {
                    enter(semaphore, (int) n[1], n[2]);
                }
                return n[0];
            case "work/4":
                return work(semaphore, (int) n[0], n[1], n[2], n[3]);
            default:
                throw new IllegalArgumentException(method);
        }
    }

    /** Returns the ids of permits in a word. */
    private static String list(List<String> ids) {
        return ids == null || ids.isEmpty() ? "none" : String.join(",", ids);
    }

    /** Has some permits for a moment, and sees to it that no more are out than there are. */
    private void enter(RPermitExpirableSemaphore semaphore, int permits, long limit) throws InterruptedException {
        RAtomicLong inside = redisson.getAtomicLong(semaphore.getName() + ":inside");
        List<String> ids = semaphore.acquire(permits);
        try {
            long out = inside.addAndGet(permits);
            if (out > limit) {
                throw new IllegalStateException(out + " inside");
            }
            inside.addAndGet(-permits);
        } finally {
            semaphore.release(ids);
        }
    }

    /**
     * Adds one to a counter again and again, for some time, and stays inside for a while each time. It
     * loses what somebody else adds meanwhile. If there is somewhere to read it does that every fourth
     * time. Returns how often it has added, and read.
     */
    private String work(RLock lock, RLock reads, long inside, long time) throws InterruptedException {
        RBucket<String> counter = redisson.getBucket(lock.getName() + ":counter", StringCodec.INSTANCE);
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(time);
        long added = 0;
        long read = 0;
        while (System.nanoTime() < end) {
            RLock now = reads != null && (added + read) % 4 == 3 ? reads : lock;
            now.lock();
            try {
                String n = counter.get();
                Thread.sleep(inside);
                if (now == lock) {
                    counter.set(String.valueOf(n == null ? 1 : Long.parseLong(n) + 1));
                    added++;
                } else if (!Objects.equals(counter.get(), n)) {
                    throw new IllegalStateException("somebody writes");
                } else {
                    read++;
                }
            } finally {
                now.unlock();
            }
        }
        return added + "," + read;
    }

    /** Has some permits again and again, for some time, and a while each time. Returns how often. */
    private String work(RPermitExpirableSemaphore semaphore, int permits, long limit, long inside, long time)
            throws InterruptedException {
        RAtomicLong out = redisson.getAtomicLong(semaphore.getName() + ":inside");
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(time);
        long n = 0;
        while (System.nanoTime() < end) {
            List<String> ids = semaphore.acquire(permits);
            try {
                if (out.addAndGet(permits) > limit) {
                    throw new IllegalStateException("too many inside");
                }
                Thread.sleep(inside);
                out.addAndGet(-permits);
                n++;
            } finally {
                semaphore.release(ids);
            }
        }
        return n + ",0";
    }

    /** Returns the thread of this program that is an owner. */
    private static Thread thread(String owner) {
        long id = Long.parseLong(owner.substring(owner.lastIndexOf(':') + 1));
        return Thread.getAllStackTraces().keySet().stream().filter(t -> t.getId() == id).findAny().orElseThrow();
    }

    /** Says whether an owner waits for a message about the lock that it wants. */
    private static boolean sleeps(String owner) {
        Thread thread = thread(owner);
        return WAITING.contains(thread.getState()) && Arrays.stream(thread.getStackTrace())
                .anyMatch(frame -> frame.getClassName().equals(Semaphore.class.getName()));
    }

    /** Adds one to a counter, in two steps, and sees to it that nobody else does meanwhile. */
    private void increment(RLock lock) {
        RBucket<String> inside = redisson.getBucket(lock.getName() + ":inside", StringCodec.INSTANCE);
        RBucket<String> counter = redisson.getBucket(lock.getName() + ":counter", StringCodec.INSTANCE);
        lock.lock();
        try {
            if (!inside.setIfAbsent(redisson.getId())) {
                throw new IllegalStateException("inside with " + inside.get());
            }
            String n = counter.get();
            counter.set(String.valueOf(n == null ? 1 : Long.parseLong(n) + 1));
            inside.delete();
        } finally {
            lock.unlock();
        }
    }

    /** Reads the counter twice, and sees to it that nobody adds to it meanwhile. */
    private void compare(RLock lock) {
        RBucket<String> inside = redisson.getBucket(lock.getName() + ":inside", StringCodec.INSTANCE);
        RBucket<String> counter = redisson.getBucket(lock.getName() + ":counter", StringCodec.INSTANCE);
        lock.lock();
        try {
            String n = counter.get();
            if (inside.get() != null || !Objects.equals(counter.get(), n)) {
                throw new IllegalStateException("somebody writes");
            }
        } finally {
            lock.unlock();
        }
    }
}
