// The workloads of lab/peers/src/fork/mod.rs on oneTBB: `parallel_invoke` joins, `parallel_for` maps. The
// calling thread is one of the arena's.

struct Plain {
  static void join(auto &&a, auto &&b) { a(), b(); }
};

struct Tbb {
  static void join(auto &&a, auto &&b) { tbb::parallel_invoke(a, b); }
};

template <class F> uint64_t fib(uint64_t n) {
  if (n < 2) return n;
  uint64_t a, b;
  F::join([&] { a = fib<F>(n - 1); }, [&] { b = fib<F>(n - 2); });
  return a + b;
}

struct Node {
  uint64_t value = 1;
  Node *left = nullptr, *right = nullptr;
};

// Allocates the one or the other child first, by its place, as the Rust side does.
Node *tree(int levels, uint64_t place) {
  Node *node = new Node;
  if (levels == 0) return node;
  auto left = [&] { node->left = tree(levels - 1, 2 * place); };
  auto right = [&] { node->right = tree(levels - 1, 2 * place + 1); };
  if (place * 0x9e3779b97f4a7c15 >> 63 == 0) {
    left(), right();
  } else {
    right(), left();
  }
  return node;
}

uint64_t sum(const Node *node) {
  if (!node->left) return node->value;
  uint64_t a, b;
  Tbb::join([&] { a = sum(node->left); }, [&] { b = sum(node->right); });
  return node->value + a + b;
}

void sort(uint32_t *from, uint32_t *to) {
  if (to - from <= 4096) return std::sort(from, to);
  uint32_t first = *from, middle = from[(to - from - 1) / 2], last = to[-1];
  uint32_t pivot = std::max(std::min(first, middle), std::min(std::max(first, middle), last));
  uint32_t *left = from, *right = to - 1;
  for (;; left++, right--) {
    while (*left < pivot) left++;
    while (*right > pivot) right--;
    if (left >= right) break;
    std::swap(*left, *right);
  }
  Tbb::join([=] { sort(from, left); }, [=] { sort(left, to); });
}

uint64_t mixed(uint64_t number, uint64_t steps) {
  number += 0x9e3779b97f4a7c15;
  for (uint64_t step = 0; step < steps; step++)
    number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9;
  return number ^ (number >> 31);
}

// A pass, given its input; and what it gives.
struct Work {
  std::string kind;
  size_t items, times, steps;
  uint64_t number = 0;
  Node *root = nullptr;
  std::vector<uint32_t> unsorted, sorted;
  std::vector<uint64_t> mapped;

  explicit Work(const std::string &kind)
      : kind(kind), items(number_of("items")), times(number_of("times")),
        steps(number_of("quick_steps")) {
    if (kind == "tree") root = tree(std::bit_width(items) - 1, 1);
    if (kind == "sort")
      for (size_t i = 0; i < items; i++) unsorted.push_back(uint32_t(mixed(i, 2)));
  }

  static size_t number_of(const char *key) { return size_t(::number(key)); }

  uint64_t fib_of(size_t n) const {
    uint64_t a = 0, b = 1;
    while (n-- > 0) a = std::exchange(b, a + b);
    return a;
  }

  double count() const {
    if (kind == "forks" || kind == "fib") return double(fib_of(items + 1) - 1);
    if (kind == "tree") return double((std::bit_floor(items + 1) - 1) * times);
    return double(items);
  }

  // Not timed.
  void blank() {
    sorted = unsorted;
  }

  uint64_t steps_of(uint64_t item) const {
    return kind == "map-tiny" ? steps : mixed(item, 2) % (2 * steps + 1);
  }

  void pass() {
    if (kind == "forks" || kind == "fib") number = fib<Tbb>(items);
    if (kind == "sort") sort(sorted.data(), sorted.data() + sorted.size());
    if (kind == "tree") {
      number = 0;
      for (size_t i = 0; i < times; i++) number += sum(root);
    }
    if (kind.starts_with("map-")) {
      mapped.clear();
      mapped.resize(items);
      tbb::parallel_for(tbb::blocked_range<size_t>(0, items), [this](auto &range) {
        for (size_t i = range.begin(); i < range.end(); i++) mapped[i] = mixed(i, steps_of(i));
      });
    }
  }

  bool right() const {
    if (kind == "forks" || kind == "fib") return number == fib_of(items);
    if (kind == "tree") return double(number) == count();
    if (kind == "sort") return std::is_sorted(sorted.begin(), sorted.end());
    for (size_t i = 0; i < items; i += 199)
      if (mapped[i] != mixed(i, steps_of(i))) return false;
    return true;
  }
};

// Measures passes, and what they used.
class Passes {
  std::vector<int64_t> spans_;
  int64_t cpu_ns_ = 0, switches_ = 0;

public:
  void time(auto &&pass) {
    Used before = used();
    int64_t began = now_ns();
    pass();
    spans_.push_back(now_ns() - began);
    Used after = used();
    cpu_ns_ += after.cpu_ns - before.cpu_ns, switches_ += after.switches - before.switches;
  }
  double span() const { return median(std::vector<double>(spans_.begin(), spans_.end())); }
  double cpu() const { return double(cpu_ns_) / double(spans_.size()); }
  void end(Line &line, double items) {
    line.set("makespan_p50", span());
    line.set("items_per_second", items / span() * 1e9);
    line.set("cpu_per_item", cpu() / items);
    line.set("cpu_seconds", double(cpu_ns_) / 1e9);
    line.set("voluntary_switches", double(switches_) / double(spans_.size()) / items * 1e6);
    line.set("peak_rss", used().rss);
  }
};

bool is_fork_join(const std::string &kind) {
  return kind == "forks" || kind == "fib" || kind == "tree" || kind == "sort" ||
         kind.starts_with("map-");
}

void fork_join(Line &line, const std::string &kind) {
  // Threads that are made from now on inherit it.
  if (given("worker_cpu")) pin(number("worker_cpu"));
  size_t workers = size_t(number("workers"));
  tbb::global_control control(tbb::global_control::max_allowed_parallelism, workers);
  tbb::task_arena arena(static_cast<int>(workers), 1);
  Work work(kind);
  auto checked = [&](Passes &passes) {
    work.blank();
    passes.time([&] { arena.execute([&] { work.pass(); }); });
    if (!work.right()) throw std::runtime_error("a wrong result");
  };
  Passes dropped, passes, plain;
  checked(dropped);
  for (long i = 0; i < number("passes"); i++) {
    checked(passes);
    if (kind == "forks") plain.time([&] { work.number = fib<Plain>(work.items); });
  }
  passes.end(line, work.count());
  if (kind != "forks") return;
  line.set("fork_ns", (passes.span() - plain.span()) / work.count());
  line.set("fork_cpu_ns", (passes.cpu() - plain.cpu()) / work.count());
}
