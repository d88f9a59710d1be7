import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;

import org.redisson.Redisson;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * The Java side of what docs/porting.md says of Redisson. It carries out the orders on its standard input: the name of a
 * method and of a lock. When it has the lock it says "inside", and goes on when it reads a line; then it says what came of
 * it. Before all that it says which methods Redisson's locks have, and "ready".
 */
final class Before {
    private static final BufferedReader IN = new BufferedReader(new InputStreamReader(System.in));

    /** What is done while the lock is held. */
    private static void work() throws IOException {
        System.out.println("inside");
        IN.readLine();
    }

    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + args[0]).setConnectionMinimumIdleSize(1).setSubscriptionConnectionMinimumIdleSize(1);
        RedissonClient redisson = Redisson.create(config);
        methods();
        System.out.println("ready");
        for (String line = IN.readLine(); line != null; line = IN.readLine()) {
            String[] words = line.split(" ");
            try {
                System.out.println(Before.class.getDeclaredMethod(words[0], RedissonClient.class, String.class).invoke(null, redisson, words[1]));
            } catch (ReflectiveOperationException e) {
                System.out.println(e.getCause());
            }
        }
        System.exit(0); // Redisson's threads would go on
    }

    private static void methods() {
        List<Class<?>> locks = List.of(RLock.class, RFencedLock.class, RReadWriteLock.class, RSemaphore.class,
                RPermitExpirableSemaphore.class, RCountDownLatch.class);
        for (Class<?> type : locks) {
            for (Method m : type.getMethods()) {
                Class<?> from = m.getDeclaringClass();
                if (from == type || from == Lock.class || from == ReadWriteLock.class) {
                    System.out.println("method " + type.getSimpleName() + " " + m.getName());
                }
            }
        }
        for (Method m : RedissonClient.class.getMethods()) {
            if (locks.contains(m.getReturnType())) {
                System.out.println("method RedissonClient " + m.getName());
            }
        }
    }

    static String take(RedissonClient redisson, String name) throws Exception {
        RLock lock = redisson.getLock(name);
        lock.lock();
        try {
            work();
        } finally {
            lock.unlock();
        }
        return "done";
    }

    static String tryOnce(RedissonClient redisson, String name) throws Exception {
        RLock lock = redisson.getLock(name);
        if (!lock.tryLock()) {
            return "skipped"; // another is at it
        }
        try {
            work();
        } finally {
            lock.unlock();
        }
        return "done";
    }

    static String bounded(RedissonClient redisson, String name) throws Exception {
        RLock lock = redisson.getLock(name);
        if (!lock.tryLock(100, 60_000, TimeUnit.MILLISECONDS)) { // wait, lease
            return "skipped";
        }
        try {
            work();
        } finally {
            lock.unlock();
        }
        return "done";
    }

    static String again(RedissonClient redisson, String name) throws Exception {
        RLock lock = redisson.getLock(name);
        lock.lock();
        try {
            lock.lock(); // the same thread
            try {
                work();
            } finally {
                lock.unlock();
            }
        } finally {
            lock.unlock();
        }
        return "done";
    }

    static String stillMine(RedissonClient redisson, String name) throws Exception {
        RLock lock = redisson.getLock(name);
        lock.lock();
        try {
            work();
            if (!lock.isHeldByCurrentThread()) {
                return "lost";
            }
        } finally {
            lock.unlock(); // IllegalMonitorStateException, if it was lost
        }
        return "done";
    }

    static String fair(RedissonClient redisson, String name) throws Exception {
        RLock lock = redisson.getFairLock(name);
        lock.lock();
        try {
            work();
        } finally {
            lock.unlock();
        }
        return "done";
    }

    static String read(RedissonClient redisson, String name) throws Exception {
        RReadWriteLock rw = redisson.getReadWriteLock(name);
        rw.readLock().lock();
        try {
            work();
        } finally {
            rw.readLock().unlock();
        }
        return "done";
    }

    static String write(RedissonClient redisson, String name) throws Exception {
        RReadWriteLock rw = redisson.getReadWriteLock(name);
        rw.writeLock().lock();
        try {
            work();
        } finally {
            rw.writeLock().unlock();
        }
        return "done";
    }

    static String fenced(RedissonClient redisson, String name) throws Exception {
        RFencedLock lock = redisson.getFencedLock(name);
        Long token = lock.lockAndGetToken();
        try {
            work();
        } finally {
            lock.unlock();
        }
        return token.toString();
    }

    static String semaphore(RedissonClient redisson, String name) throws Exception {
        RSemaphore semaphore = redisson.getSemaphore(name);
        semaphore.trySetPermits(2);
        semaphore.acquire();
        try {
            work();
        } finally {
            semaphore.release(); // if the process is killed before this the permit is gone for ever
        }
        return "done";
    }

    static String permit(RedissonClient redisson, String name) throws Exception {
        RPermitExpirableSemaphore semaphore = redisson.getPermitExpirableSemaphore(name);
        semaphore.trySetPermits(2);
        String permit = semaphore.acquire(60, TimeUnit.SECONDS); // updateLeaseTime, if it takes longer
        try {
            work();
        } finally {
            semaphore.release(permit);
        }
        return "done";
    }

    static String several(RedissonClient redisson, String name) throws Exception {
        RLock both = redisson.getMultiLock(redisson.getLock(name + ":a"), redisson.getLock(name + ":b"));
        both.lock();
        try {
            work();
        } finally {
            both.unlock();
        }
        return "done";
    }

    static String condition(RedissonClient redisson, String name) {
        return redisson.getLock(name).newCondition().toString();
    }

    static String look(RedissonClient redisson, String name) {
        RLock lock = redisson.getLock(name);
        if (lock.isLocked() && lock.remainTimeToLive() > 0) { // by whom it doesn't say
            lock.forceUnlock();
        }
        return "done";
    }
}
