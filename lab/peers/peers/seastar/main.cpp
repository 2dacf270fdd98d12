// The call workloads of lab/bench/src/calls/mod.rs on Seastar: its words in, its line out.
//
// Best documented settings: a shard for each CPU that takes part, pinned to it (--cpuset), and
// smp::submit_to, its way from shard to shard. The caller is a coroutine of its shard. `seastar`:
// the defaults, an idle shard polls for 200 us and then sleeps. `seastar-poll-mode`: --poll-mode,
// it never sleeps.
#include <seastar/core/app-template.hh>
#include <seastar/core/coroutine.hh>
#include <seastar/core/reactor.hh>
#include <seastar/core/sleep.hh>
#include <seastar/core/smp.hh>

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

std::map<std::string, std::string> words;

long number(const char *key) {
  auto found = words.find(key);
  return found == words.end() ? 0 : std::stol(found->second);
}

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int64_t cpu_ns() {
  rusage u;
  getrusage(RUSAGE_SELF, &u);
  auto ns = [](timeval t) { return t.tv_sec * 1000000000LL + t.tv_usec * 1000LL; };
  return ns(u.ru_utime) + ns(u.ru_stime);
}

// The CPUs that are online, in order.
std::vector<long> online() {
  std::ifstream file("/sys/devices/system/cpu/online");
  std::vector<long> cpus;
  long first, last;
  char sign = ',';
  while (sign == ',' && file >> first) {
    last = first;
    if (file.get(sign) && sign == '-') file >> last >> std::noskipws >> sign;
    for (long cpu = first; cpu <= last; cpu++) cpus.push_back(cpu);
  }
  return cpus;
}

double percentile(const std::vector<int64_t> &sorted, double percent) {
  size_t rank = static_cast<size_t>(percent * double(sorted.size()) / 100.0 - 1e-6) + 1;
  return double(sorted[std::min(std::max<size_t>(rank, 1), sorted.size()) - 1]);
}

// Ordinary work on a CPU.
class Busy {
  std::atomic<bool> over_{false};
  std::thread thread_;

public:
  explicit Busy(long cpu)
      : thread_([this, cpu] {
          cpu_set_t set;
          CPU_ZERO(&set);
          CPU_SET(cpu, &set);
          pthread_setaffinity_np(pthread_self(), sizeof set, &set);
          while (!over_.load(std::memory_order_relaxed)) {
          }
        }) {}
  ~Busy() {
    over_ = true;
    thread_.join();
  }
};

struct Client {
  std::vector<unsigned> shards;  // those that are called, but its own
  bool own = false;              // whether it answers itself too
  int64_t number = 0;
  std::vector<int64_t> samples;

  seastar::future<> calls(long count, std::chrono::microseconds gap) {
    samples.reserve(count);
    for (long i = 0; i < count; i++) {
      if (gap.count() != 0) co_await seastar::sleep<std::chrono::steady_clock>(gap);
      int64_t question = ++number, sum = own ? question + 1 : 0;
      int64_t before = now_ns();
      if (shards.size() == 1) {
        sum += co_await seastar::smp::submit_to(shards[0], [question] { return question + 1; });
      } else {
        std::vector<seastar::future<int64_t>> answers;
        answers.reserve(shards.size());
        for (unsigned shard : shards)
          answers.push_back(
              seastar::smp::submit_to(shard, [question] { return question + 1; }));
        for (auto &answer : answers) sum += co_await std::move(answer);
      }
      samples.push_back(now_ns() - before);
      if (sum != int64_t(shards.size() + own) * (question + 1))
        throw std::runtime_error("a wrong answer");
    }
  }
};

// Runs on the caller's shard.
seastar::future<> run(std::vector<unsigned> shards, bool own) {
  const std::string &name = words["case"];
  prctl(PR_SET_TIMERSLACK, 1UL);
  long items = std::max(number("items"), 1L);
  auto gap = std::chrono::microseconds(number("gap_us"));
  Client client;
  client.shards = std::move(shards);
  client.own = own;
  co_await client.calls((items + 9) / 10, gap);
  client.samples.clear();
  int64_t before = cpu_ns();
  co_await client.calls(items, gap);
  int64_t cpu = cpu_ns() - before;
  auto &samples = client.samples;
  std::sort(samples.begin(), samples.end());
  printf("{\"case\":\"%s\",\"runtime\":\"%s\",\"metrics\":{\"latency_p50\":%.0f,\"latency_p99\":%.0f",
         name.c_str(), words["runtime"].c_str(), percentile(samples, 50), percentile(samples, 99));
  if (samples.size() >= 5000) printf(",\"latency_p999\":%.0f", percentile(samples, 99.9));
  if (name != "roundtrip/busy") printf(",\"cpu_per_item\":%.1f", double(cpu) / double(items));
  printf("}}\n");
  fflush(stdout);
}

long client_cpu;
std::set<long> called;  // the CPUs that are called, but its own
bool own = false;       // whether the caller answers too

// Runs on shard 0.
seastar::future<> start() {
  // Which shard is where isn't promised, so each is asked.
  unsigned caller = 0;
  std::vector<unsigned> shards;
  for (unsigned shard = 0; shard < seastar::smp::count; shard++) {
    long cpu = co_await seastar::smp::submit_to(shard, [] { return long(sched_getcpu()); });
    if (cpu == client_cpu) caller = shard;
    if (called.count(cpu)) shards.push_back(shard);
  }
  std::unique_ptr<Busy> busy;
  if (words["case"] == "roundtrip/busy") busy = std::make_unique<Busy>(*called.begin());
  co_await seastar::smp::submit_to(caller, [shards] { return run(shards, own); });
}

}  // namespace

int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    std::string word = argv[i];
    auto at = word.find('=');
    if (at != std::string::npos) words[word.substr(0, at)] = word.substr(at + 1);
  }
  const std::string many = "broadcast/";
  const std::string &name = words["case"];
  client_cpu = number("client_cpu");
  called = {number("server_cpu")};
  if (name.rfind(many, 0) == 0) {
    called.clear();
    auto all = online();
    size_t count = std::min<size_t>(std::stoul(name.substr(many.size())), all.size());
    called.insert(all.begin(), all.begin() + count);
    own = called.erase(client_cpu) != 0;
  }
  std::set<long> cpus = called;
  cpus.insert(client_cpu);
  std::string cpuset;
  for (long cpu : cpus) cpuset += (cpuset.empty() ? "" : ",") + std::to_string(cpu);
  std::string smp = std::to_string(cpus.size());
  std::vector<std::string> arguments{argv[0], "--smp",    smp,    "--cpuset", cpuset,
                                     "--memory", std::to_string(128 * cpus.size()) + "M",
                                     "--default-log-level", "error", "--blocked-reactor-notify-ms",
                                     "1000000"};
  if (words["runtime"] == "seastar-poll-mode") arguments.push_back("--poll-mode");
  std::vector<char *> pointers;
  for (auto &argument : arguments) pointers.push_back(argument.data());

  seastar::app_template app;
  return app.run(int(pointers.size()), pointers.data(), start);
}
