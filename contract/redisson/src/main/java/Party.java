import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.RandomAccessFile;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.channels.FileChannel;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

import org.redisson.Redisson;
import org.redisson.api.RLock;
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
                case "loop" -> loop(redisson.getLock(args[2]), millis(args[4]), millis(args[5]), args[6]);
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

    /** Has two threads contend for a lock of their own, so that all classes are loaded that it takes. */
    private static void warmUp(RedissonClient redisson, String name) throws Exception {
        RLock lock = redisson.getLock(name);
        LongBuffer section = LongBuffer.allocate(2);
        Callable<Turns> turns = () -> new Turns(section).take(lock, millis("500"), millis("1"));
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

    /** Locks and unlocks until the time is over. The file is where the critical section is. */
    private static String loop(RLock lock, long duration, long inside, String file) throws Exception {
        try (RandomAccessFile f = new RandomAccessFile(file, "rw")) {
            LongBuffer section = f.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, 2 * Long.BYTES)
                    .order(ByteOrder.nativeOrder()).asLongBuffer();
            ready();
            return new Turns(section).take(lock, duration, inside).toString();
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
        private final LongBuffer section; // who is inside, or 0; and how many have been
        private long count;
        private long entries;
        private long clashes;
        private long longest; // wait, in nanoseconds

        Turns(LongBuffer section) {
            this.section = section;
        }

        Turns take(RLock lock, long duration, long time) throws InterruptedException {
            long me = (ProcessHandle.current().pid() << 16) + 1;
            long begin = System.nanoTime();
            for (long called = begin; called - begin < duration; called = System.nanoTime()) {
                lock.lock();
                long inside = System.nanoTime();
                longest = Math.max(longest, inside - called);
                clashes += section.get(0) == 0 ? 0 : 1;
                section.put(0, me).put(1, section.get(1) + 1);
                entries++;
                TimeUnit.NANOSECONDS.sleep(time);
                clashes += section.get(0) == me ? 0 : 1;
                section.put(0, 0);
                lock.unlock();
                if (inside - begin < duration) {
                    count++;
                }
            }
            return this;
        }

        @Override
        public String toString() {
            return String.format("{\"Counts\":[%d],\"Entries\":%d,\"Clashes\":%d,\"Longest\":%d}", count, entries, clashes, longest);
        }
    }
}
