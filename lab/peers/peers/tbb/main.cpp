// The workloads of lab/bench/src/workqueue/mod.rs on oneTBB: its words in, its line out. Those of
// lab/peers/src/fork/mod.rs are in fork.hpp.
//
// Best documented settings: an arena without a slot for outside threads and a global_control that
// allows as many workers as were asked for (TBB would start one less), task_arena::enqueue from
// outside, task_group::run from inside a task. TBB takes the memory of its tasks from its own pools.
#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/parallel_invoke.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_group.h>
#include <oneapi/tbb/task_scheduler_observer.h>

#include <linux/futex.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

std::map<std::string, std::string> words;

long number(const char *key) {
  auto found = words.find(key);
  return found == words.end() ? 0 : std::stol(found->second);
}

bool given(const char *key) { return words.count(key) != 0; }

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

void sleep_until(int64_t ns) {
  timespec t{ns / 1000000000LL, ns % 1000000000LL};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr) != 0) {
  }
}

void spin_for(int64_t ns) {
  for (int64_t end = now_ns() + ns; now_ns() < end;) {
  }
}

void pin(long cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) throw std::runtime_error("cannot pin");
}

// The waiter of every peer: one futex, no spinning.
class Waiter {
  std::atomic<int> token_{0};

  long futex(int operation, int value) {
    return syscall(SYS_futex, reinterpret_cast<int *>(&token_), operation | FUTEX_PRIVATE_FLAG,
                   value, nullptr, nullptr, 0);
  }

public:
  void wait() {
    for (;;) {
      int one = 1;
      if (token_.compare_exchange_strong(one, 0, std::memory_order_acquire)) return;
      int zero = 0;
      if (!token_.compare_exchange_strong(zero, -1, std::memory_order_acquire)) continue;
      while (token_.load(std::memory_order_relaxed) == -1) futex(FUTEX_WAIT, -1);
    }
  }
  void wake() {
    if (token_.exchange(1, std::memory_order_release) == -1) futex(FUTEX_WAKE, 1);
  }
};

struct Used {
  int64_t cpu_ns, switches;
  double rss;
};

Used used() {
  rusage u;
  getrusage(RUSAGE_SELF, &u);
  auto ns = [](timeval t) { return t.tv_sec * 1000000000LL + t.tv_usec * 1000LL; };
  return {ns(u.ru_utime) + ns(u.ru_stime), u.ru_nvcsw, double(u.ru_maxrss) * 1024};
}

int64_t thread_cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

long threads_now() {
  FILE *file = fopen("/proc/self/status", "r");
  if (!file) return 0;
  char line[200];
  long threads = 0;
  while (fgets(line, sizeof line, file))
    if (sscanf(line, "Threads: %ld", &threads) == 1) break;
  fclose(file);
  return threads;
}

// The metrics of the line.
class Line {
  std::string text_;

public:
  void set(const std::string &metric, double value) {
    char number[60];
    snprintf(number, sizeof number, "%.4f", value);
    text_ += (text_.empty() ? "\"" : ",\"") + metric + "\":" + number;
  }
  void print() {
    printf("{\"case\":\"%s\",\"runtime\":\"%s\",\"metrics\":{%s}}\n", words["case"].c_str(),
           words["runtime"].c_str(), text_.c_str());
  }
};

double percentile(std::vector<int64_t> &sorted, double percent) {
  size_t rank = static_cast<size_t>(percent * double(sorted.size()) / 100.0 - 1e-6) + 1;
  return double(sorted[std::min(std::max<size_t>(rank, 1), sorted.size()) - 1]);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

struct Count {
  alignas(128) std::atomic<int64_t> left;
  alignas(128) Waiter waiter;
  Count *outer;
  explicit Count(int64_t items, Count *outer = nullptr) : left(items), outer(outer) {}
  void done() {
    if (left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    outer ? outer->done() : waiter.wake();
  }
};

// Sixteen bytes of payload, as in every peer.
struct Leaf {
  uint64_t index;
  Count *count;
  void operator()() const {
    asm volatile("" : : "r"(index));
    count->done();
  }
};

// What the measured part used, by item.
class Figures {
  Used before_ = used();

public:
  void end(Line &line, double items, int64_t not_counted_ns = 0) {
    Used after = used();
    double cpu = double(after.cpu_ns - before_.cpu_ns - not_counted_ns);
    line.set("cpu_per_item", cpu / items);
    line.set("cpu_seconds", cpu / 1e9);
    line.set("voluntary_switches", double(after.switches - before_.switches) / items * 1e6);
    line.set("peak_rss", after.rss);
  }
};

void percentiles(Line &line, const std::string &stem, std::vector<int64_t> &samples,
                 std::vector<std::pair<const char *, double>> which) {
  std::sort(samples.begin(), samples.end());
  for (auto [name, percent] : which) line.set(stem + name, percentile(samples, percent));
}

using Arena = tbb::task_arena;

double storm_once(Arena &arena, long items, long producers, bool striped) {
  // A waker may still be in the futex call when the waiter has gone on: a count is never freed.
  Count *count = new Count(striped ? std::min(producers, items) : items);
  std::atomic<long> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> threads;
  for (long p = 0; p < producers; p++) {
    long share = items / producers + (p < items % producers ? 1 : 0);
    Count *mine = striped ? new Count(share, count) : count;
    threads.emplace_back([&, share, mine] {
      ready.fetch_add(1);
      ready.notify_one();
      go.wait(false);
      for (long i = 0; i < share; i++) arena.enqueue(Leaf{uint64_t(i), mine});
    });
  }
  for (long r; (r = ready.load()) < producers;) ready.wait(r);
  int64_t began = now_ns();
  go.store(true);
  go.notify_all();
  count->waiter.wait();
  double rate = double(items) / double(now_ns() - began) * 1e9;
  for (auto &thread : threads) thread.join();
  return rate;
}

double inside_once(Arena &arena, long items) {
  Count *count = new Count(items);
  Waiter *over = new Waiter;
  int64_t began = now_ns();
  arena.enqueue([=] {
    tbb::task_group group;
    for (long i = 0; i < items; i++) group.run(Leaf{uint64_t(i), count});
    group.wait();
    over->wake();
  });
  count->waiter.wait();
  double rate = double(items) / double(now_ns() - began) * 1e9;
  over->wait();
  return rate;
}

void passes(Line &line, auto &&once) {
  long items = number("items"), count = number("passes");
  once(std::max(items / 10, 1L));
  Figures figures;
  std::vector<double> rates;
  for (long i = 0; i < count; i++) rates.push_back(once(items));
  line.set("items_per_second", median(rates));
  figures.end(line, double(items) * double(count));
}

void fan(Line &line, Arena &arena, long times) {
  const long width = 64, tasks = 1 + width + width * width;
  auto once = [&] {
    Count *count = new Count(tasks);
    int64_t began = now_ns();
    Waiter *over = new Waiter;
    arena.enqueue([=] {
      tbb::task_group group;
      for (long i = 0; i < width; i++)
        group.run([=, &group] {
          for (long j = 0; j < width; j++) group.run(Leaf{uint64_t(i * width + j), count});
          count->done();
        });
      count->done();
      group.wait();
      over->wake();
    });
    // All have run where the group's wait is over: that is the flush, too.
    over->wait();
    return now_ns() - began;
  };
  for (long i = 0; i < std::max(times / 10, 1L); i++) once();
  std::vector<int64_t> spans;
  Figures figures;
  int64_t began = now_ns();
  for (long i = 0; i < times; i++) spans.push_back(once());
  line.set("items_per_second", double(times * tasks) / double(now_ns() - began) * 1e9);
  figures.end(line, double(times * tasks));
  percentiles(line, "makespan", spans, {{"_p50", 50}, {"_p90", 90}, {"_p99", 99}});
}

void kernel_test(Line &line, Arena &arena, long threads, long items) {
  cpu_set_t online;
  sched_getaffinity(0, sizeof online, &online);
  std::vector<long> cpus;
  for (long cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &online)) cpus.push_back(cpu);
  std::vector<std::vector<int64_t>> calls(threads), trips(threads);
  std::atomic<long> ready{0};
  std::atomic<bool> go{false};
  auto body = [&](long t, long n, bool keep) {
    Waiter *waiter = new Waiter;
    for (long i = 0; i < n; i++) {
      int64_t a = now_ns();
      arena.enqueue([waiter] { waiter->wake(); });
      int64_t b = now_ns();
      waiter->wait();
      if (keep) calls[t].push_back(b - a), trips[t].push_back(now_ns() - a);
    }
  };
  std::vector<std::thread> all;
  for (long t = 0; t < threads; t++) {
    calls[t].reserve(items), trips[t].reserve(items);
    all.emplace_back([&, t] {
      pin(cpus[t % cpus.size()]);
      body(t, std::max(items / 10, 1L), false);
      ready.fetch_add(1);
      ready.notify_one();
      go.wait(false);
      body(t, items, true);
    });
  }
  for (long r; (r = ready.load()) < threads;) ready.wait(r);
  Figures figures;
  int64_t began = now_ns();
  go.store(true);
  go.notify_all();
  for (auto &thread : all) thread.join();
  line.set("items_per_second", double(threads * items) / double(now_ns() - began) * 1e9);
  figures.end(line, double(threads * items));
  std::vector<int64_t> call, trip;
  for (auto &c : calls) call.insert(call.end(), c.begin(), c.end());
  for (auto &c : trips) trip.insert(trip.end(), c.begin(), c.end());
  percentiles(line, "call", call, {{"_p50", 50}, {"_p90", 90}, {"_p95", 95}, {"_p99", 99}});
  percentiles(line, "latency", trip, {{"_p50", 50}, {"_p90", 90}, {"_p99", 99}});
}

void ping_pong(Line &line, Arena &arena, long pings, long gap_us) {
  Waiter *waiter = new Waiter;
  prctl(PR_SET_TIMERSLACK, 1);
  auto once = [&] {
    if (gap_us > 0) sleep_until(now_ns() + gap_us * 1000);
    int64_t a = now_ns();
    arena.enqueue([waiter] { waiter->wake(); });
    waiter->wait();
    return now_ns() - a;
  };
  for (long i = 0; i < std::max(pings / 10, 1L); i++) once();
  std::vector<int64_t> trips;
  Figures figures;
  for (long i = 0; i < pings; i++) trips.push_back(once());
  figures.end(line, double(pings));
  percentiles(line, "latency", trips, {{"_p50", 50}, {"_p90", 90}, {"_p99", 99}, {"_max", 100}});
  if (pings >= 5000) line.set("latency_p999", percentile(trips, 99.9));
}

uint64_t split_mix(uint64_t &counter) {
  uint64_t z = counter += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

void mix(Line &line, Arena &arena, long threads_before) {
  long rate = number("rate"), block_us = number("block_us"), short_us = number("short_us");
  uint64_t counter = uint64_t(number("seed"));
  auto run = [&](long n, std::vector<int64_t> &late) {
    Count *count = new Count(n);
    int64_t began = now_ns();
    double due_ns = 0;
    for (long i = 0; i < n; i++) {
      uint64_t r = split_mix(counter);
      due_ns += -std::log(1 - double(r >> 11) / 9007199254740992.0) / double(rate) * 1e9;
      bool blocks = split_mix(counter) % 10 == 0;
      int64_t due = began + int64_t(due_ns);
      while (now_ns() < due) sched_yield();
      int64_t *mine = &late[i];
      arena.enqueue([=] {
        if (blocks)
          sleep_until(now_ns() + block_us * 1000);
        else
          spin_for(short_us * 1000);
        *mine = blocks ? -1 : now_ns() - due;
        count->done();
      });
    }
    count->waiter.wait();
    return now_ns() - began;
  };
  long items = number("items");
  std::vector<int64_t> late(items);
  run(std::max(items / 10, 1L), late);
  Figures figures;
  int64_t own = thread_cpu_ns();
  int64_t wall = run(items, late);
  own = thread_cpu_ns() - own;
  line.set("items_per_second", double(items) / double(wall) * 1e9);
  figures.end(line, double(items), own);
  line.set("threads", double(threads_now() - threads_before));
  std::erase(late, -1);
  percentiles(line, "short", late,
              {{"_p50", 50}, {"_p90", 90}, {"_p99", 99}, {"_p999", 99.9}, {"_max", 100}});
}

void idle(Line &line, Arena &arena, long threads_before) {
  storm_once(arena, number("items"), 1, false);
  usleep(100000);
  Used before = used();
  sleep_until(now_ns() + number("rest_ms") * 1000000);
  Used after = used();
  line.set("cpu_seconds", double(after.cpu_ns - before.cpu_ns) / 1e9);
  // The one who slept through it isn't the runtime's.
  line.set("voluntary_switches", std::max(0.0, double(after.switches - before.switches - 1)));
  line.set("threads", double(threads_now() - threads_before));
}

class Pin : public tbb::task_scheduler_observer {
  long cpu_;

public:
  Pin(Arena &arena, long cpu) : tbb::task_scheduler_observer(arena), cpu_(cpu) { observe(true); }
  ~Pin() override { observe(false); }
  void on_scheduler_entry(bool) override { pin(cpu_); }
};

#include "fork.hpp"

void run() {
  std::string name = words["case"], workload = name.substr(0, name.find('/'));
  if (is_fork_join(workload)) {
    Line line;
    fork_join(line, workload);
    return line.print();
  }
  long workers = number("workers"), threads_before = threads_now();
  tbb::global_control control(tbb::global_control::max_allowed_parallelism, size_t(workers) + 1);
  Arena arena(static_cast<int>(workers), 0);
  arena.initialize();
  std::unique_ptr<Pin> pinned;
  if (given("worker_cpu")) pinned = std::make_unique<Pin>(arena, number("worker_cpu"));
  if (given("client_cpu")) pin(number("client_cpu"));
  auto unsupported = [&](const char *why) {
    printf("{\"case\":\"%s\",\"runtime\":\"%s\",\"unsupported\":\"%s\"}\n", name.c_str(),
           words["runtime"].c_str(), why);
  };
  if (number("count") != 0) return unsupported("it takes memory from its own pools, uncounted");
  if (number("hint") != 0) return unsupported("it has no way to say that a task blocks");
  if (name.ends_with("/inline")) return unsupported("it has no wait that takes a task back");
  if (name.find("/reused") != std::string::npos) return unsupported("its tasks run once");
  Line line;
  long items = number("items");
  if (workload == "storm" || workload == "oversubscribed") {
    bool striped = name.ends_with("/striped");
    passes(line, [&](long n) { return storm_once(arena, n, number("producers"), striped); });
  } else if (workload == "inside") {
    passes(line, [&](long n) { return inside_once(arena, n); });
  } else if (workload == "fan") {
    fan(line, arena, items);
  } else if (workload == "kernel_test") {
    kernel_test(line, arena, number("producers"), items);
  } else if (workload == "pingpong") {
    ping_pong(line, arena, items, number("gap_us"));
  } else if (workload == "mix") {
    mix(line, arena, threads_before);
  } else if (workload == "idle") {
    idle(line, arena, threads_before);
  } else {
    throw std::runtime_error("no case " + name);
  }
  line.print();
}

} // namespace

int main(int count, char **values) {
  for (int i = 1; i < count; i++) {
    std::string text = values[i];
    size_t equals = text.find('=');
    if (equals == std::string::npos) {
      fprintf(stderr, "not key=value: %s\n", values[i]);
      return 2;
    }
    words[text.substr(0, equals)] = text.substr(equals + 1);
  }
  try {
    run();
  } catch (const std::exception &error) {
    fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
