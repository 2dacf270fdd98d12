// The workloads of lab/peers/src/fork/mod.rs on Java's ForkJoinPool.
//
// Best documented settings: the pool's default mode, last in, first out; a task forks one half, computes the
// other and joins. Maps are Arrays.parallelSetAll from inside the pool.
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.RecursiveAction;
import java.util.concurrent.RecursiveTask;
import java.util.function.IntToLongFunction;

final class Fork {
    private Fork() {}

    static final class Fib extends RecursiveTask<Long> {
        private static final long serialVersionUID = 1;
        final int n;

        Fib(int n) {
            this.n = n;
        }

        @Override
        protected Long compute() {
            if (n < 2) {
                return (long) n;
            }
            Fib other = new Fib(n - 2);
            other.fork();
            return new Fib(n - 1).compute() + other.join();
        }
    }

    static long plainFib(int n) {
        return n < 2 ? n : plainFib(n - 1) + plainFib(n - 2);
    }

    /** fib by a loop. */
    static long fibOf(int n) {
        long a = 0;
        long b = 1;
        for (int i = 0; i < n; i++) {
            long sum = a + b;
            a = b;
            b = sum;
        }
        return a;
    }

    static final class Node {
        final long value = 1;
        final Node left;
        final Node right;

        /** Allocates the one or the other child first, by its place, as the Rust side does. */
        Node(int levels, long place) {
            if (levels == 0) {
                left = null;
                right = null;
            } else if (place * 0x9e3779b97f4a7c15L >= 0) {
                left = new Node(levels - 1, 2 * place);
                right = new Node(levels - 1, 2 * place + 1);
            } else {
                right = new Node(levels - 1, 2 * place + 1);
                left = new Node(levels - 1, 2 * place);
            }
        }
    }

    static final class Sum extends RecursiveTask<Long> {
        private static final long serialVersionUID = 1;
        final transient Node node;

        Sum(Node node) {
            this.node = node;
        }

        @Override
        protected Long compute() {
            if (node.left == null) {
                return node.value;
            }
            Sum other = new Sum(node.right);
            other.fork();
            return node.value + new Sum(node.left).compute() + other.join();
        }
    }

    /** Of signed numbers, which Java's own sort has. */
    static final class Sort extends RecursiveAction {
        private static final long serialVersionUID = 1;
        final int[] numbers;
        final int from;
        final int to;

        Sort(int[] numbers, int from, int to) {
            this.numbers = numbers;
            this.from = from;
            this.to = to;
        }

        @Override
        protected void compute() {
            if (to - from <= 4096) {
                Arrays.sort(numbers, from, to);
                return;
            }
            int first = numbers[from];
            int middle = numbers[from + (to - from - 1) / 2];
            int last = numbers[to - 1];
            int pivot = Math.max(Math.min(first, middle), Math.min(Math.max(first, middle), last));
            int left = from;
            int right = to - 1;
            while (true) {
                while (numbers[left] < pivot) {
                    left++;
                }
                while (numbers[right] > pivot) {
                    right--;
                }
                if (left >= right) {
                    break;
                }
                int swapped = numbers[left];
                numbers[left++] = numbers[right];
                numbers[right--] = swapped;
            }
            Sort other = new Sort(numbers, left, to);
            other.fork();
            new Sort(numbers, from, left).compute();
            other.join();
        }
    }

    static long mixed(long number, long steps) {
        long mixed = number + 0x9e3779b97f4a7c15L;
        for (long step = 0; step < steps; step++) {
            mixed = (mixed ^ (mixed >>> 30)) * 0xbf58476d1ce4e5b9L;
        }
        return mixed ^ (mixed >>> 31);
    }

    /** A pass. */
    interface Pass {
        void run();
    }

    /** A pass, what comes before it and isn't timed, how many items it has, and whether it was right. */
    record Work(Pass pass, Pass blank, double count, java.util.function.BooleanSupplier right) {}

    static final class Result {
        long number;
    }

    static Work work(String kind, ForkJoinPool pool) {
        int items = Peer.number("items");
        int times = Peer.number("times");
        long steps = Peer.number("quick_steps");
        Pass nothing = () -> {};
        Result result = new Result();
        switch (kind) {
            case "forks", "fib" -> {
                long right = fibOf(items);
                return new Work(() -> result.number = pool.invoke(new Fib(items)), nothing,
                        fibOf(items + 1) - 1.0, () -> result.number == right);
            }
            case "tree" -> {
                int levels = 31 - Integer.numberOfLeadingZeros(items);
                Node root = new Node(levels, 1);
                long all = times * ((2L << levels) - 1);
                return new Work(() -> result.number = pool.invoke(new RecursiveTask<Long>() {
                    private static final long serialVersionUID = 1;

                    @Override
                    protected Long compute() {
                        long sum = 0;
                        for (int i = 0; i < times; i++) {
                            sum += new Sum(root).compute();
                        }
                        return sum;
                    }
                }), nothing, all, () -> result.number == all);
            }
            case "sort" -> {
                int[] unsorted = new int[items];
                Arrays.setAll(unsorted, i -> (int) mixed(i, 2));
                int[] numbers = new int[items];
                return new Work(() -> pool.invoke(new Sort(numbers, 0, items)),
                        () -> System.arraycopy(unsorted, 0, numbers, 0, items), items, () -> {
                            for (int i = 1; i < items; i++) {
                                if (numbers[i - 1] > numbers[i]) {
                                    return false;
                                }
                            }
                            return true;
                        });
            }
            default -> {
                IntToLongFunction f = kind.equals("map-tiny")
                        ? item -> mixed(item, steps)
                        : item -> mixed(item, Long.remainderUnsigned(mixed(item, 2), 2 * steps + 1));
                long[] results = new long[items];
                return new Work(
                        () -> pool.submit(() -> Arrays.parallelSetAll(results, f)).join(), nothing,
                        items, () -> {
                            for (int i = 0; i < items; i += 199) {
                                if (results[i] != f.applyAsLong(i)) {
                                    return false;
                                }
                            }
                            return true;
                        });
            }
        }
    }

    static boolean isCase(String kind) {
        return Arrays.asList("forks", "fib", "tree", "sort", "map-tiny", "map-uneven").contains(kind);
    }

    static double median(double[] values) {
        Arrays.sort(values);
        int n = values.length;
        return (values[(n - 1) / 2] + values[n / 2]) / 2;
    }

    static void checked(Work work) {
        work.blank.run();
        work.pass.run();
        if (!work.right.getAsBoolean()) {
            throw new IllegalStateException("a wrong result");
        }
    }

    static void run(String kind) throws Exception {
        if (Peer.WORDS.containsKey("worker_cpu")) {
            String process = Long.toString(ProcessHandle.current().pid());
            var taskset = new ProcessBuilder("taskset", "-apc", Peer.WORDS.get("worker_cpu"), process);
            taskset.redirectOutput(ProcessBuilder.Redirect.DISCARD);
            if (taskset.start().waitFor() != 0) {
                throw new IllegalStateException("taskset failed");
            }
        }
        Work work = work(kind, new ForkJoinPool(Peer.number("workers")));
        boolean isDifference = kind.equals("forks");
        int items = Peer.number("items");
        for (long end = System.nanoTime() + Peer.WARM_NS; System.nanoTime() < end;) {
            checked(work);
            if (isDifference && plainFib(items) != fibOf(items)) {
                throw new IllegalStateException("a wrong result");
            }
        }
        System.gc();
        int passes = Peer.number("passes");
        double[] spans = new double[passes];
        double[] plain = new double[passes];
        double cpu = 0;
        double plainCpu = 0;
        Peer.Used before = Peer.Used.now();
        for (int i = 0; i < passes; i++) {
            work.blank.run();
            double used = Peer.Used.now().aliveNs();
            long began = System.nanoTime();
            work.pass.run();
            spans[i] = System.nanoTime() - began;
            cpu += Peer.Used.now().aliveNs() - used;
            if (isDifference) {
                used = Peer.Used.now().aliveNs();
                began = System.nanoTime();
                plainFib(items);
                plain[i] = System.nanoTime() - began;
                plainCpu += Peer.Used.now().aliveNs() - used;
            }
        }
        before.end(work.count * passes, cpu);
        double span = median(spans);
        Peer.METRICS.put("makespan_p50", span);
        Peer.METRICS.put("items_per_second", work.count * 1e9 / span);
        if (isDifference) {
            Peer.METRICS.put("fork_ns", (span - median(plain)) / work.count);
            Peer.METRICS.put("fork_cpu_ns", (cpu - plainCpu) / passes / work.count);
        }
    }
}
