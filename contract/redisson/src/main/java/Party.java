import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.RandomAccessFile;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Takes part in what bench/ measures, with Redisson's locks: the jobs are those of Go processes there,
 * and so is the way to talk. When all is set up it says "ready", begins at a line on its input, and then
 * writes what it has measured, as JSON. It ends at once if its input does.
 *
 * <p>The arguments are the job, the server's address, the name of the lock, the watchdog's lease in
 * milliseconds, and what else the job takes.
 */
public final class Party {
    public static void main(String[] args) {
        try {
            Config config = new Config();
            config.useSingleServer().setAddress("redis://" + args[1]);
            config.setLockWatchdogTimeout(Long.parseLong(args[3]));
            RedissonClient redisson = Redisson.create(config);
            warmUp(redisson, "warm:" + args[2] + ":" + redisson.getId());
            System.out.println(switch (args[0]) {
                case "loop" -> loop(way(redisson, args), Integer.parseInt(args[8]), millis(args[4]), millis(args[5]), args[6]);
                case "await" -> await(redisson, args[2], Integer.parseInt(args[4]));
                default -> throw new IllegalArgumentException(args[0]);
            });
            System.exit(0);
        } catch (Throwable e) { // Redisson's threads would go on
            e.printStackTrace();
            System.exit(1);
        }
    }

    private static long millis(String n) {
        return TimeUnit.MILLISECONDS.toNanos(Long.parseLong(n));
    }

    /** A way into the critical section and out of it again. */
    private interface Way {
        Object in() throws Exception; // what out needs

        void out(Object in) throws Exception;

        /** Returns how many may be inside together. */
        default int most() {
            return 1;
        }
    }

    private static Way locking(RLock lock) {
        return new Way() {
            @Override
            public Object in() {
                lock.lock();
                return null;
            }

            @Override
            public void out(Object in) {
                lock.unlock();
            }
        };
    }

    /** Returns the kind of way that the arguments ask for. */
    private static Way way(RedissonClient redisson, String[] args) throws Exception {
        switch (args[7]) {
            case "permits":
                break;
            case "fair":
                return locking(redisson.getFairLock(args[2]));
            case "all":
                return locking(redisson.getMultiLock(IntStream.range(0, Integer.parseInt(args[10]))
                        .mapToObj(i -> redisson.getLock("{" + args[2] + "}:" + i)).toArray(RLock[]::new)));
            default:
                return locking(redisson.getLock(args[2]));
        }
        int most = Integer.parseInt(args[9]);
        RPermitExpirableSemaphore semaphore = redisson.getPermitExpirableSemaphore(args[2]);
        semaphore.trySetPermits(most);
        return new Way() {
            @Override
            public Object in() throws Exception {
                return semaphore.acquire();
            }

            @Override
            public void out(Object in) {
                semaphore.release((String) in);
            }

            @Override
            public int most() {
                return most;
            }
        };
    }

    /** Has two threads contend for a lock of their own, so that all classes are loaded that it takes. */
    private static void warmUp(RedissonClient redisson, String name) throws Exception {
        Way way = locking(redisson.getLock(name));
        ByteBuffer section = ByteBuffer.allocateDirect(3 * Long.BYTES);
        Callable<Turns> turns = () -> new Turns(section, 1).take(way, millis("500"), millis("1"));
        together(List.of(turns, turns));
    }

    /** Carries out tasks, each in a thread of its own, and returns their results. */
    private static <T> List<T> together(List<Callable<T>> tasks) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(tasks.size());
        List<T> results = new ArrayList<>();
        for (Future<T> f : threads.invokeAll(tasks)) {
            results.add(f.get());
        }
        threads.shutdown();
        return results;
    }

    /** Returns when all others are ready, too. */
    private static void ready() throws IOException {
        System.out.println("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        if (in.readLine() == null) {
            Runtime.getRuntime().halt(2);
        }
        Thread parent = new Thread(() -> {
            try {
                while (in.readLine() != null) {
                }
            } catch (IOException e) {
                // the end, too
            }
            Runtime.getRuntime().halt(2);
        });
        parent.setDaemon(true);
        parent.start();
    }

    /** Goes in and out until the time is over. The file is where the critical section is. */
    private static String loop(Way way, int threads, long duration, long inside, String file) throws Exception {
        try (RandomAccessFile f = new RandomAccessFile(file, "rw")) {
            ByteBuffer section = f.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, 3 * Long.BYTES);
            List<Callable<Turns>> tasks = new ArrayList<>();
            for (int i = 1; i <= threads; i++) {
                Turns turns = new Turns(section, i);
                tasks.add(() -> turns.take(way, duration, inside));
            }
            ready();
            return Turns.report(together(tasks), way.most() > 1);
        }
    }

    /** Waits for some locks at the same time, and says when it was inside. */
    private static String await(RedissonClient redisson, String name, int count) throws Exception {
        List<Callable<Instant>> tasks = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            RLock lock = redisson.getLock(name + ":" + i);
            tasks.add(() -> {
                lock.lock();
                Instant inside = Instant.now();
                lock.unlock();
                return inside;
            });
        }
        ready();
        return "{\"Inside\":" + together(tasks).stream().map(inside -> "\"" + inside + "\"")
                .collect(Collectors.joining(",", "[", "]")) + "}";
    }

    /** What a thread does again and again, and what became of it. */
    private static final class Turns {
        private static final VarHandle LONGS = MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.nativeOrder());

        // Who is inside, or 0; how many have been; and how many are, where several may.
        private static final int WHO = 0;
        private static final int ENTRIES = Long.BYTES;
        private static final int SHARING = 2 * Long.BYTES;

        private final ByteBuffer section;
        private final long me;
        private long count;
        private long entries;
        private long clashes;
        private long longest; // wait, in nanoseconds
        private final Map<Integer, Long> pairs = new TreeMap<>(); // of going in and out, by bucket

        Turns(ByteBuffer section, int thread) {
            this.section = section.order(ByteOrder.nativeOrder());
            this.me = (ProcessHandle.current().pid() << 16) + thread;
        }

        Turns take(Way way, long duration, long time) throws Exception {
            long begin = System.nanoTime();
            for (long called = begin; called - begin < duration; called = System.nanoTime()) {
                Object in = way.in();
                long inside = System.nanoTime();
                longest = Math.max(longest, inside - called);
                if (way.most() > 1) {
                    clashes += (long) LONGS.getAndAdd(section, SHARING, 1L) < way.most() ? 0 : 1;
                    pause(time);
                    LONGS.getAndAdd(section, SHARING, -1L);
                } else {
                    clashes += section.getLong(WHO) == 0 ? 0 : 1;
                    section.putLong(WHO, me).putLong(ENTRIES, section.getLong(ENTRIES) + 1);
                    pause(time);
                    clashes += section.getLong(WHO) == me ? 0 : 1;
                    section.putLong(WHO, 0);
                }
                entries++;
                way.out(in);
                if (inside - begin < duration) {
                    count++;
                    pairs.merge(bucket(System.nanoTime() - called), 1L, Long::sum);
                }
            }
            return this;
        }

        /** Returns where a duration is counted, as those who read the report do it. */
        private static int bucket(long nanos) {
            int exp = Long.SIZE - Long.numberOfLeadingZeros(nanos >>> 7);
            return (exp << 6) + (int) (nanos >>> exp);
        }

        private static void pause(long time) throws InterruptedException {
            if (time > 0) {
                TimeUnit.NANOSECONDS.sleep(time);
            }
        }

        /** Returns what all threads have measured. Where several may be inside, all entries are shared. */
        static String report(List<Turns> all, boolean shared) {
            long entries = all.stream().mapToLong(t -> t.entries).sum();
            Map<Integer, Long> pairs = new TreeMap<>();
            all.forEach(t -> t.pairs.forEach((bucket, n) -> pairs.merge(bucket, n, Long::sum)));
            return String.format("{\"Counts\":[%s],\"Entries\":%d,\"Reads\":%d,\"Clashes\":%d,\"Longest\":%d,\"Pairs\":{%s}}",
                    all.stream().map(t -> Long.toString(t.count)).collect(Collectors.joining(",")), entries, shared ? entries : 0,
                    all.stream().mapToLong(t -> t.clashes).sum(), all.stream().mapToLong(t -> t.longest).max().orElse(0),
                    pairs.entrySet().stream().map(e -> "\"" + e.getKey() + "\":" + e.getValue()).collect(Collectors.joining(",")));
        }
    }
}
