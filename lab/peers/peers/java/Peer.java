// The workloads of lab/bench/src/workqueue/mod.rs on Java's ForkJoinPool: its words in, its line
// out. Those of lab/peers/src/fork/mod.rs are in Fork.java.
//
// Best documented settings: async mode (first in, first out), which the documentation gives for tasks
// that are never joined; tasks are ForkJoinTasks, so that nothing wraps them; execute from outside,
// fork from inside; a ManagedBlocker as the hint. The virtual machine is warm before anything counts.
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.ForkJoinTask;
import java.util.concurrent.ForkJoinWorkerThread;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

public final class Peer {
    static final Map<String, String> WORDS = new HashMap<>();
    static final Map<String, Double> METRICS = new LinkedHashMap<>();
    /** The compiler has warmed up after that many nanoseconds of the workload. */
    static final long WARM_NS = 700_000_000;

    /** Zero for a word that was left out. */
    static int number(String key) {
        return Integer.parseInt(WORDS.getOrDefault(key, "0"));
    }

    /**
     * What the process has used so far. The CPU time comes in steps of 10 ms; aliveNs is exact, and
     * leaves out threads that have ended, as switches does.
     */
    record Used(double cpuNs, double aliveNs, long switches) {
        static Used now() throws IOException {
            long switches = 0;
            double aliveNs = 0;
            try (var tasks = Files.newDirectoryStream(Path.of("/proc/self/task"))) {
                for (Path task : tasks) {
                    try {
                        switches += field(task.resolve("status"), "voluntary_ctxt_switches:");
                        String ns = Files.readString(task.resolve("schedstat")).split(" ")[0];
                        aliveNs += Long.parseLong(ns);
                    } catch (IOException gone) {
                        // The thread has ended.
                    }
                }
            }
            var system = (com.sun.management.OperatingSystemMXBean)
                    java.lang.management.ManagementFactory.getOperatingSystemMXBean();
            return new Used(system.getProcessCpuTime(), aliveNs, switches);
        }

        /** Puts what was used since then. */
        void end(double items, double cpuNs) throws IOException {
            METRICS.put("cpu_per_item", cpuNs / items);
            METRICS.put("cpu_seconds", cpuNs / 1e9);
            METRICS.put("voluntary_switches", (now().switches - switches) / items * 1e6);
            METRICS.put("peak_rss", field(Path.of("/proc/self/status"), "VmHWM:") * 1024.0);
        }

        static long field(Path file, String name) throws IOException {
            for (String line : Files.readAllLines(file)) {
                if (line.startsWith(name)) {
                    return Long.parseLong(line.substring(name.length()).replaceAll("[^0-9]", ""));
                }
            }
            return 0;
        }
    }

    static int threads() {
        return new java.io.File("/proc/self/task").list().length;
    }

    /** CPU time of the current thread. */
    static double ownNs() {
        return java.lang.management.ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
    }

    /** Binds the thread of this name, which is alive, to a CPU. */
    static void pin(String thread, String cpu) throws Exception {
        try (var tasks = Files.newDirectoryStream(Path.of("/proc/self/task"))) {
            for (Path task : tasks) {
                if (Files.readString(task.resolve("comm")).strip().equals(thread)) {
                    String id = task.getFileName().toString();
                    var taskset = new ProcessBuilder("taskset", "-pc", cpu, id);
                    taskset.redirectOutput(ProcessBuilder.Redirect.DISCARD);
                    if (taskset.start().waitFor() != 0) {
                        throw new IOException("taskset failed");
                    }
                    return;
                }
            }
        }
        throw new IOException("no thread " + thread);
    }

    /** The CPUs that the process may use. */
    static List<Integer> online() throws IOException {
        List<Integer> cpus = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("Cpus_allowed_list:")) {
                for (String range : line.substring(line.indexOf(':') + 1).strip().split(",")) {
                    String[] ends = range.split("-");
                    int last = Integer.parseInt(ends[ends.length - 1]);
                    for (int cpu = Integer.parseInt(ends[0]); cpu <= last; cpu++) {
                        cpus.add(cpu);
                    }
                }
            }
        }
        return cpus;
    }

    static final class Count {
        final AtomicLong left;
        final CountDownLatch over = new CountDownLatch(1);
        final Count outer;

        Count(long items, Count outer) {
            left = new AtomicLong(items);
            this.outer = outer;
        }

        void done() {
            if (left.decrementAndGet() != 0) {
                return;
            }
            if (outer != null) {
                outer.done();
            } else {
                over.countDown();
            }
        }
    }

    abstract static class Task extends ForkJoinTask<Void> {
        private static final long serialVersionUID = 1;

        @Override
        public final Void getRawResult() {
            return null;
        }

        @Override
        protected final void setRawResult(Void nothing) {}

        @Override
        protected final boolean exec() {
            body();
            return true;
        }

        abstract void body();
    }

    static final class Leaf extends Task {
        private static final long serialVersionUID = 1;
        final long index;
        final transient Count count;

        Leaf(long index, Count count) {
            this.index = index;
            this.count = count;
        }

        @Override
        void body() {
            count.done();
        }
    }

    static Task task(Runnable body) {
        return new Task() {
            private static final long serialVersionUID = 1;

            @Override
            void body() {
                body.run();
            }
        };
    }

    static void percentiles(String stem, long[] samples, String... names) {
        Map<String, Double> percents = Map.of("p50", 50.0, "p90", 90.0, "p95", 95.0, "p99", 99.0,
                "p999", 99.9, "max", 100.0);
        Arrays.sort(samples);
        for (String name : names) {
            int rank = (int) Math.ceil(percents.get(name) * samples.length / 100 - 1e-6);
            METRICS.put(stem + "_" + name, (double) samples[Math.max(rank, 1) - 1]);
        }
    }

    interface Once {
        double run(int items) throws Exception;
    }

    static void passes(Once once) throws Exception {
        int items = number("items");
        int passes = number("passes");
        for (long end = System.nanoTime() + WARM_NS; System.nanoTime() < end;) {
            once.run(items);
        }
        System.gc();
        Used before = Used.now();
        double[] rates = new double[passes];
        for (int i = 0; i < passes; i++) {
            rates[i] = once.run(items);
        }
        before.end((double) items * passes, Used.now().cpuNs - before.cpuNs);
        Arrays.sort(rates);
        METRICS.put("items_per_second", (rates[(passes - 1) / 2] + rates[passes / 2]) / 2);
    }

    static double storm(ForkJoinPool pool, int items, int producers, boolean striped)
            throws Exception {
        Count count = new Count(striped ? Math.min(items, producers) : items, null);
        CountDownLatch ready = new CountDownLatch(producers);
        CountDownLatch go = new CountDownLatch(1);
        List<Thread> threads = new ArrayList<>();
        for (int p = 0; p < producers; p++) {
            int share = items / producers + (p < items % producers ? 1 : 0);
            Count mine = striped ? new Count(share, count) : count;
            Thread thread = new Thread(() -> {
                ready.countDown();
                await(go);
                for (int i = 0; i < share; i++) {
                    pool.execute(new Leaf(i, mine));
                }
            });
            thread.start();
            threads.add(thread);
        }
        ready.await();
        long began = System.nanoTime();
        go.countDown();
        count.over.await();
        double rate = items * 1e9 / (System.nanoTime() - began);
        for (Thread thread : threads) {
            thread.join();
        }
        return rate;
    }

    static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
        }
    }

    static double inside(ForkJoinPool pool, int items) throws Exception {
        Count count = new Count(items, null);
        long began = System.nanoTime();
        pool.execute(task(() -> {
            for (int i = 0; i < items; i++) {
                new Leaf(i, count).fork();
            }
        }));
        count.over.await();
        return items * 1e9 / (System.nanoTime() - began);
    }

    static final int WIDTH = 64;
    static final int TASKS = 1 + WIDTH + WIDTH * WIDTH;

    static long fanOnce(ForkJoinPool pool) throws Exception {
        Count count = new Count(TASKS, null);
        long began = System.nanoTime();
        pool.execute(task(() -> {
            for (int i = 0; i < WIDTH; i++) {
                int row = i;
                task(() -> {
                    for (int j = 0; j < WIDTH; j++) {
                        new Leaf((long) row * WIDTH + j, count).fork();
                    }
                    count.done();
                }).fork();
            }
            count.done();
        }));
        count.over.await();
        return System.nanoTime() - began;
    }

    static void fan(ForkJoinPool pool, int times) throws Exception {
        for (long end = System.nanoTime() + WARM_NS; System.nanoTime() < end;) {
            fanOnce(pool);
        }
        Used before = Used.now();
        long[] spans = new long[times];
        long began = System.nanoTime();
        for (int i = 0; i < times; i++) {
            spans[i] = fanOnce(pool);
        }
        double items = (double) times * TASKS;
        METRICS.put("items_per_second", items * 1e9 / (System.nanoTime() - began));
        before.end(items, Used.now().cpuNs - before.cpuNs);
        percentiles("makespan", spans, "p50", "p90", "p99");
    }

    static void kernelTest(ForkJoinPool pool, int threads, int items) throws Exception {
        List<Integer> cpus = online();
        long[] calls = new long[threads * items];
        long[] trips = new long[threads * items];
        CountDownLatch named = new CountDownLatch(threads);
        CountDownLatch pinned = new CountDownLatch(1);
        CountDownLatch warm = new CountDownLatch(threads);
        CountDownLatch go = new CountDownLatch(1);
        CountDownLatch over = new CountDownLatch(threads);
        CountDownLatch end = new CountDownLatch(1);
        for (int t = 0; t < threads; t++) {
            int thread = t;
            Thread client = new Thread(() -> {
                named.countDown();
                await(pinned);
                Semaphore done = new Semaphore(0);
                long warmUntil = System.nanoTime() + WARM_NS;
                while (System.nanoTime() < warmUntil) {
                    pool.execute(task(done::release));
                    done.acquireUninterruptibly();
                }
                warm.countDown();
                await(go);
                for (int i = 0; i < items; i++) {
                    long a = System.nanoTime();
                    pool.execute(task(done::release));
                    long b = System.nanoTime();
                    done.acquireUninterruptibly();
                    calls[thread * items + i] = b - a;
                    trips[thread * items + i] = System.nanoTime() - a;
                }
                over.countDown();
                await(end);
            }, "client" + t);
            client.setDaemon(true);
            client.start();
        }
        named.await();
        for (int t = 0; t < threads; t++) {
            pin("client" + t, Integer.toString(cpus.get(t % cpus.size())));
        }
        pinned.countDown();
        warm.await();
        Used before = Used.now();
        long began = System.nanoTime();
        go.countDown();
        over.await();
        double n = (double) threads * items;
        METRICS.put("items_per_second", n * 1e9 / (System.nanoTime() - began));
        before.end(n, Used.now().aliveNs - before.aliveNs);
        end.countDown();
        percentiles("call", calls, "p50", "p90", "p95", "p99");
        percentiles("latency", trips, "p50", "p90", "p99");
    }

    static void pingPong(ForkJoinPool pool, int pings, int gapUs) throws Exception {
        Semaphore done = new Semaphore(0);
        pool.execute(task(done::release));
        done.acquire();
        if (WORDS.containsKey("worker_cpu")) {
            pin("worker", WORDS.get("worker_cpu"));
        }
        if (WORDS.containsKey("client_cpu")) {
            pin("client", WORDS.get("client_cpu"));
        }
        for (long end = System.nanoTime() + WARM_NS; System.nanoTime() < end;) {
            ping(pool, done, gapUs / 10);
        }
        long[] trips = new long[pings];
        Used before = Used.now();
        for (int i = 0; i < pings; i++) {
            trips[i] = ping(pool, done, gapUs);
        }
        before.end(pings, Used.now().aliveNs - before.aliveNs);
        percentiles("latency", trips, "p50", "p90", "p99", "max");
        if (pings >= 5_000) {
            percentiles("latency", trips, "p999");
        }
    }

    static long ping(ForkJoinPool pool, Semaphore done, int gapUs) {
        if (gapUs > 0) {
            sleepUntil(System.nanoTime() + gapUs * 1000L);
        }
        long began = System.nanoTime();
        pool.execute(task(done::release));
        done.acquireUninterruptibly();
        return System.nanoTime() - began;
    }

    static void sleepUntil(long due) {
        for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }

    /** Blocks for a while, and says so. */
    static void managedSleep(long due) {
        try {
            ForkJoinPool.managedBlock(new ForkJoinPool.ManagedBlocker() {
                @Override
                public boolean block() {
                    sleepUntil(due);
                    return true;
                }

                @Override
                public boolean isReleasable() {
                    return System.nanoTime() >= due;
                }
            });
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
        }
    }

    static long counter;

    static long splitMix() {
        counter += 0x9e3779b97f4a7c15L;
        long z = counter;
        z = (z ^ (z >>> 30)) * 0xbf58476d1ce4e5b9L;
        z = (z ^ (z >>> 27)) * 0x94d049bb133111ebL;
        return z ^ (z >>> 31);
    }

    static long mixOnce(ForkJoinPool pool, int items, long[] late) throws Exception {
        double rate = number("rate");
        long blockNs = number("block_us") * 1000L;
        long shortNs = number("short_us") * 1000L;
        boolean hint = number("hint") != 0;
        Count count = new Count(items, null);
        double gaps = 0;
        long began = System.nanoTime();
        for (int n = 0; n < items; n++) {
            int i = n;
            gaps += -Math.log(1 - (splitMix() >>> 11) / 9007199254740992.0) / rate;
            boolean blocks = Long.remainderUnsigned(splitMix(), 10) == 0;
            long due = began + (long) (gaps * 1e9);
            while (System.nanoTime() < due) {
                Thread.yield();
            }
            pool.execute(task(() -> {
                long now = System.nanoTime();
                if (blocks && hint) {
                    managedSleep(now + blockNs);
                } else if (blocks) {
                    sleepUntil(now + blockNs);
                } else {
                    while (System.nanoTime() - now < shortNs) {
                    }
                }
                late[i] = blocks ? -1 : System.nanoTime() - due;
                count.done();
            }));
        }
        count.over.await();
        return System.nanoTime() - began;
    }

    static void mix(ForkJoinPool pool, int threadsBefore) throws Exception {
        int items = number("items");
        long[] late = new long[items];
        counter = number("seed");
        for (long end = System.nanoTime() + WARM_NS; System.nanoTime() < end;) {
            mixOnce(pool, Math.max(items / 10, 1), late);
        }
        Used before = Used.now();
        double own = ownNs();
        long wall = mixOnce(pool, items, late);
        before.end(items, Used.now().aliveNs - before.aliveNs - (ownNs() - own));
        METRICS.put("items_per_second", items * 1e9 / wall);
        METRICS.put("threads", (double) (threads() - threadsBefore));
        long[] shorts = Arrays.stream(late).filter(t -> t >= 0).toArray();
        percentiles("short", shorts, "p50", "p90", "p99", "p999", "max");
    }

    static void idle(ForkJoinPool pool, int threadsBefore) throws Exception {
        storm(pool, number("items"), 1, false);
        // The compiler's threads have more to do than the pool's at first.
        Thread.sleep(1_000);
        Used before = Used.now();
        Thread.sleep(number("rest_ms"));
        Used after = Used.now();
        METRICS.put("cpu_seconds", (after.aliveNs - before.aliveNs) / 1e9);
        // The one who slept through it isn't the runtime's.
        METRICS.put("voluntary_switches", Math.max(after.switches - before.switches - 1.0, 0));
        METRICS.put("threads", (double) (threads() - threadsBefore));
    }

    static void run() throws Exception {
        int threadsBefore = threads();
        String name = WORDS.get("case");
        if (Fork.isCase(name.split("/")[0])) {
            Fork.run(name.split("/")[0]);
            return;
        }
        ForkJoinPool.ForkJoinWorkerThreadFactory factory = owner -> {
            ForkJoinWorkerThread thread =
                    ForkJoinPool.defaultForkJoinWorkerThreadFactory.newThread(owner);
            thread.setName("worker");
            return thread;
        };
        ForkJoinPool pool = new ForkJoinPool(number("workers"), factory, null, true);
        int items = number("items");
        int producers = number("producers");
        switch (name.split("/")[0]) {
            case "storm", "oversubscribed" -> {
                boolean striped = name.endsWith("/striped");
                passes(n -> storm(pool, n, producers, striped));
            }
            case "inside" -> passes(n -> inside(pool, n));
            case "fan" -> fan(pool, items);
            case "kernel_test" -> kernelTest(pool, producers, items);
            case "pingpong" -> pingPong(pool, items, number("gap_us"));
            case "mix" -> mix(pool, threadsBefore);
            case "idle" -> idle(pool, threadsBefore);
            default -> throw new IllegalArgumentException("no case " + name);
        }
    }

    /** Why the case cannot be run, or null. */
    static String unsupported() {
        String name = WORDS.get("case");
        if (name.endsWith("/inline")) {
            return "a task that was executed cannot be taken back from outside";
        } else if (name.contains("/reused")) {
            return "its tasks are made anew; the collector makes that cheap";
        } else if (number("count") != 0) {
            return "the virtual machine counts bytes, not allocations";
        }
        return null;
    }

    public static void main(String[] texts) throws Exception {
        for (String text : texts) {
            int equals = text.indexOf('=');
            WORDS.put(text.substring(0, equals), text.substring(equals + 1));
        }
        String why = unsupported();
        Throwable[] failure = new Throwable[1];
        if (why == null) {
            Thread client = new Thread(() -> {
                try {
                    run();
                } catch (Throwable problem) {
                    failure[0] = problem;
                }
            }, "client");
            client.start();
            client.join();
        }
        if (failure[0] != null) {
            failure[0].printStackTrace();
            System.exit(1);
        }
        StringBuilder line = new StringBuilder();
        line.append("{\"case\":\"").append(WORDS.get("case")).append("\",\"runtime\":\"");
        line.append(WORDS.get("runtime")).append('"');
        if (why != null) {
            line.append(",\"unsupported\":\"").append(why).append('"');
        }
        line.append(",\"metrics\":{");
        String comma = "";
        for (Map.Entry<String, Double> metric : METRICS.entrySet()) {
            line.append(comma).append('"').append(metric.getKey()).append("\":");
            line.append(String.format(Locale.ROOT, "%.4f", metric.getValue()));
            comma = ",";
        }
        System.out.println(line.append("}}"));
        System.exit(0);
    }
}
