// The workloads of lab/bench/src/workqueue/mod.rs on Go: its words in, its line out. Those of
// lab/peers/src/fork/mod.rs are in fork.go.
//
// runtime=go-goroutine starts a goroutine per item. runtime=go-channel sends closures to workers that
// range over a buffered channel; where items are reused it sends two words, which allocates nothing.
// GOMAXPROCS and the collector are left as they come. Producers are goroutines and share the Ps with
// the workers; clients that are timed one item at a time are threads of their own.
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

var words = map[string]string{}

// number is 0 for a word that was left out.
func number(key string) int {
	text, given := words[key]
	if !given {
		return 0
	}
	value, err := strconv.Atoi(text)
	if err != nil {
		fail(key + "=" + text + " is no number")
	}
	return value
}

func fail(text string) {
	fmt.Fprintln(os.Stderr, text)
	os.Exit(1)
}

// pin binds this goroutine's thread to one CPU.
func pin(cpu int) {
	runtime.LockOSThread()
	var mask [16]uint64
	mask[cpu/64] = 1 << (cpu % 64)
	_, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, unsafe.Sizeof(mask),
		uintptr(unsafe.Pointer(&mask)))
	if errno != 0 {
		fail("cannot pin: " + errno.Error())
	}
}

// confine starts the program again with one CPU for all its threads: client and worker share it, and
// the runtime knows.
func confine(cpu int) {
	if len(online()) == 1 {
		return
	}
	pin(cpu)
	self, err := os.Executable()
	if err == nil {
		err = syscall.Exec(self, os.Args, os.Environ())
	}
	fail("cannot start again: " + err.Error())
}

// online is the CPUs that the process may use.
func online() (cpus []int) {
	var mask [16]uint64
	syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, 0, unsafe.Sizeof(mask),
		uintptr(unsafe.Pointer(&mask)))
	for cpu := range 64 * len(mask) {
		if mask[cpu/64]&(1<<(cpu%64)) != 0 {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

func exactTimers() {
	const setTimerSlack = 29
	syscall.RawSyscall(syscall.SYS_PRCTL, setTimerSlack, 1, 0)
}

func threads() int {
	tasks, _ := os.ReadDir("/proc/self/task")
	return len(tasks)
}

type used struct {
	cpu      time.Duration
	switches int64
	rss      int64
}

func use(who int) used {
	var u syscall.Rusage
	syscall.Getrusage(who, &u)
	return used{time.Duration(u.Utime.Nano() + u.Stime.Nano()), u.Nvcsw, u.Maxrss * 1024}
}

func mallocs() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.Mallocs
}

var metrics = map[string]float64{}

// figures starts to count, and gives a function that ends it.
func figures() func(items float64, notCounted time.Duration) {
	allocated, before := mallocs(), use(syscall.RUSAGE_SELF)
	return func(items float64, notCounted time.Duration) {
		after := use(syscall.RUSAGE_SELF)
		if number("count") != 0 {
			metrics["allocations_per_item"] = float64(mallocs()-allocated) / items
		}
		cpu := after.cpu - before.cpu - notCounted
		metrics["cpu_per_item"] = float64(cpu.Nanoseconds()) / items
		metrics["cpu_seconds"] = cpu.Seconds()
		metrics["voluntary_switches"] = float64(after.switches-before.switches) / items * 1e6
		metrics["peak_rss"] = float64(after.rss)
	}
}

func percentiles(stem string, samples []time.Duration, which ...string) {
	slices.SortFunc(samples, func(a, b time.Duration) int { return cmp.Compare(a, b) })
	percents := map[string]float64{"p50": 50, "p90": 90, "p95": 95, "p99": 99, "p999": 99.9, "max": 100}
	for _, name := range which {
		rank := int(math.Ceil(percents[name]*float64(len(samples))/100 - 1e-6))
		metrics[stem+"_"+name] = float64(samples[max(rank, 1)-1].Nanoseconds())
	}
}

type count struct {
	_     [128]byte
	left  atomic.Int64
	_     [128]byte
	outer *count
	over  chan struct{}
}

func newCount(items int, outer *count) *count {
	c := &count{over: make(chan struct{}, 1), outer: outer}
	c.left.Store(int64(items))
	return c
}

func (c *count) done() {
	if c.left.Add(-1) != 0 {
		return
	}
	if c.outer != nil {
		c.outer.done()
	} else {
		c.over <- struct{}{}
	}
}

// look is what an item does with its sixteen bytes.
//
//go:noinline
func look(index int, c *count) {
	c.done()
}

type message struct {
	index int
	count *count
}

// runner is the runtime: how a leaf, and how any function is given to it.
type runner struct {
	leaf func(index int, c *count)
	run  func(func())
}

func newRunner(workload string, reused bool) runner {
	workers := number("workers")
	// A task that fills the channel itself would wait for room that it makes.
	room := 1024
	switch workload {
	case "storm", "inside", "oversubscribed":
		room = 2 * number("items")
	case "fan":
		room = 3 * 4161
	}
	switch {
	case words["runtime"] == "go-goroutine":
		return runner{func(index int, c *count) { go look(index, c) }, func(f func()) { go f() }}
	case words["runtime"] != "go-channel":
		fail("no runtime " + words["runtime"])
	case reused:
		work := make(chan message, room)
		for range workers {
			go func() {
				for m := range work {
					look(m.index, m.count)
				}
			}()
		}
		return runner{func(index int, c *count) { work <- message{index, c} }, nil}
	}
	work := make(chan func(), room)
	for worker := range workers {
		go func() {
			if cpu, pinned := words["worker_cpu"]; pinned && worker == 0 {
				at, _ := strconv.Atoi(cpu)
				pin(at)
			}
			for f := range work {
				f()
			}
		}()
	}
	leaf := func(index int, c *count) { work <- func() { look(index, c) } }
	return runner{leaf, func(f func()) { work <- f }}
}

func passes(once func(items int) float64) {
	items, passes := number("items"), number("passes")
	once(max(items/10, 1))
	end := figures()
	var rates []float64
	for range passes {
		rates = append(rates, once(items))
	}
	end(float64(items*passes), 0)
	slices.Sort(rates)
	metrics["items_per_second"] = (rates[(passes-1)/2] + rates[passes/2]) / 2
}

func storm(r runner, items, producers int, striped bool) float64 {
	c := newCount(items, nil)
	if striped {
		c = newCount(min(items, producers), nil)
	}
	release := make(chan struct{})
	var ready sync.WaitGroup
	for p := range producers {
		share, mine := items/producers, c
		if p < items%producers {
			share++
		}
		if striped {
			mine = newCount(share, c)
		}
		ready.Add(1)
		go func() {
			ready.Done()
			<-release
			for i := range share {
				r.leaf(i, mine)
			}
		}()
	}
	ready.Wait()
	began := time.Now()
	close(release)
	<-c.over
	return float64(items) / time.Since(began).Seconds()
}

func inside(r runner, items int) float64 {
	c := newCount(items, nil)
	began := time.Now()
	r.run(func() {
		for i := range items {
			r.leaf(i, c)
		}
	})
	<-c.over
	return float64(items) / time.Since(began).Seconds()
}

func fan(r runner, times int) {
	const width, tasks = 64, 1 + 64 + 64*64
	once := func() time.Duration {
		c := newCount(tasks, nil)
		began := time.Now()
		r.run(func() {
			for i := range width {
				r.run(func() {
					for j := range width {
						r.leaf(i*width+j, c)
					}
					c.done()
				})
			}
			c.done()
		})
		<-c.over
		return time.Since(began)
	}
	for range max(times/10, 1) {
		once()
	}
	end, began := figures(), time.Now()
	spans := make([]time.Duration, 0, times)
	for range times {
		spans = append(spans, once())
	}
	metrics["items_per_second"] = float64(times*tasks) / time.Since(began).Seconds()
	end(float64(times*tasks), 0)
	percentiles("makespan", spans, "p50", "p90", "p99")
}

func kernelTest(r runner, clients, items int) {
	cpus := online()
	calls, trips := make([][]time.Duration, clients), make([][]time.Duration, clients)
	release := make(chan struct{})
	var ready, over sync.WaitGroup
	for t := range clients {
		ready.Add(1)
		over.Add(1)
		calls[t], trips[t] = make([]time.Duration, 0, items), make([]time.Duration, 0, items)
		go func() {
			pin(cpus[t%len(cpus)])
			done := make(chan struct{}, 1)
			item := func() { done <- struct{}{} }
			round := func(keep bool) {
				a := time.Now()
				r.run(item)
				b := time.Now()
				<-done
				if keep {
					calls[t], trips[t] = append(calls[t], b.Sub(a)), append(trips[t], time.Since(a))
				}
			}
			for range max(items/10, 1) {
				round(false)
			}
			ready.Done()
			<-release
			for range items {
				round(true)
			}
			over.Done()
		}()
	}
	ready.Wait()
	end, began := figures(), time.Now()
	close(release)
	over.Wait()
	metrics["items_per_second"] = float64(clients*items) / time.Since(began).Seconds()
	end(float64(clients*items), 0)
	percentiles("call", slices.Concat(calls...), "p50", "p90", "p95", "p99")
	percentiles("latency", slices.Concat(trips...), "p50", "p90", "p99")
}

func pingPong(r runner, pings int, gap time.Duration) {
	// The client is an outside thread, as it is with every peer: a goroutine beside the other would
	// be answered without any thread being woken.
	runtime.LockOSThread()
	if cpu, pinned := words["client_cpu"]; pinned {
		at, _ := strconv.Atoi(cpu)
		pin(at)
	}
	exactTimers()
	done := make(chan struct{}, 1)
	item := func() { done <- struct{}{} }
	once := func() time.Duration {
		if gap > 0 {
			sleepUntil(time.Now().Add(gap))
		}
		began := time.Now()
		r.run(item)
		<-done
		return time.Since(began)
	}
	for range max(pings/10, 1) {
		once()
	}
	trips := make([]time.Duration, 0, pings)
	end := figures()
	for range pings {
		trips = append(trips, once())
	}
	end(float64(pings), 0)
	percentiles("latency", trips, "p50", "p90", "p99", "max")
	if pings >= 5000 {
		percentiles("latency", trips, "p999")
	}
}

// sleepUntil sleeps in a system call, which the runtime finds out about by itself.
func sleepUntil(due time.Time) {
	for left := time.Until(due); left > 0; left = time.Until(due) {
		t := syscall.NsecToTimespec(left.Nanoseconds())
		syscall.Nanosleep(&t, nil)
	}
}

func splitMix(counter *uint64) uint64 {
	*counter += 0x9e3779b97f4a7c15
	z := *counter
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}

// mix sleeps in the runtime where it is to hint, and else in a system call. Its producer is a thread
// of its own, and leaves its CPU to whoever wants it.
func mix(r runner, threadsBefore int) {
	runtime.LockOSThread()
	block := time.Duration(number("block_us")) * time.Microsecond
	short := time.Duration(number("short_us")) * time.Microsecond
	rate, counter, hint := float64(number("rate")), uint64(number("seed")), number("hint") != 0
	all := func(n int, late []time.Duration) time.Duration {
		c, began, gaps := newCount(n, nil), time.Now(), 0.0
		for i := range n {
			gaps += -math.Log(1-float64(splitMix(&counter)>>11)/(1<<53)) / rate
			blocks := splitMix(&counter)%10 == 0
			due := began.Add(time.Duration(gaps * 1e9))
			for time.Now().Before(due) {
				syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
			}
			r.run(func() {
				switch {
				case blocks && hint:
					time.Sleep(block)
				case blocks:
					sleepUntil(time.Now().Add(block))
				default:
					for end := time.Now().Add(short); time.Now().Before(end); {
					}
				}
				late[i] = time.Since(due)
				if blocks {
					late[i] = -1
				}
				c.done()
			})
		}
		<-c.over
		return time.Since(began)
	}
	items := number("items")
	late := make([]time.Duration, items)
	all(max(items/10, 1), late)
	end, own := figures(), use(rusageThread)
	wall := all(items, late)
	end(float64(items), use(rusageThread).cpu-own.cpu)
	metrics["items_per_second"] = float64(items) / wall.Seconds()
	metrics["threads"] = float64(threads() - threadsBefore)
	shorts := slices.DeleteFunc(late, func(t time.Duration) bool { return t < 0 })
	percentiles("short", shorts, "p50", "p90", "p99", "p999", "max")
}

const rusageThread = 1

func idle(r runner, threadsBefore int) {
	storm(r, number("items"), 1, false)
	time.Sleep(100 * time.Millisecond)
	before := use(syscall.RUSAGE_SELF)
	time.Sleep(time.Duration(number("rest_ms")) * time.Millisecond)
	after := use(syscall.RUSAGE_SELF)
	metrics["cpu_seconds"] = (after.cpu - before.cpu).Seconds()
	// The one who slept through it isn't the runtime's.
	metrics["voluntary_switches"] = float64(max(after.switches-before.switches-1, 0))
	metrics["threads"] = float64(threads() - threadsBefore)
}

// unsupported says why this runtime cannot run the case, or nothing.
func unsupported(name string, reused bool) string {
	goroutines := words["runtime"] == "go-goroutine"
	switch {
	case strings.HasSuffix(name, "/inline"):
		return "it has no wait that takes an item back"
	case reused && goroutines:
		return "a goroutine runs once"
	case words["worker_cpu"] != "" && goroutines && strings.HasPrefix(name, "pingpong"):
		return "goroutines cannot be pinned"
	}
	return ""
}

func main() {
	for _, text := range os.Args[1:] {
		key, value, found := strings.Cut(text, "=")
		if !found {
			fail("not key=value: " + text)
		}
		words[key] = value
	}
	name := words["case"]
	workload, _, _ := strings.Cut(name, "/")
	reused := strings.Contains(name, "/reused")
	line := map[string]any{"case": name, "runtime": words["runtime"], "metrics": metrics}
	if why := unsupported(name, reused); why != "" {
		line["unsupported"] = why
	} else {
		measure(name, workload, reused)
	}
	if number("count") != 0 {
		for metric := range metrics {
			if metric != "allocations_per_item" {
				delete(metrics, metric)
			}
		}
	}
	text, err := json.Marshal(line)
	if err != nil {
		fail(err.Error())
	}
	fmt.Println(string(text))
}

func measure(name, workload string, reused bool) {
	if isForkJoin(workload) {
		forkJoin(workload)
		return
	}
	if cpu, pinned := words["client_cpu"]; pinned && cpu == words["worker_cpu"] {
		confine(number("client_cpu"))
		delete(words, "client_cpu")
		delete(words, "worker_cpu")
	}
	threadsBefore := threads()
	r := newRunner(workload, reused)
	producers, items := number("producers"), number("items")
	switch workload {
	case "storm", "oversubscribed":
		striped := strings.HasSuffix(name, "/striped")
		passes(func(items int) float64 { return storm(r, items, producers, striped) })
	case "inside":
		passes(func(items int) float64 { return inside(r, items) })
	case "fan":
		fan(r, items)
	case "kernel_test":
		kernelTest(r, producers, items)
	case "pingpong":
		pingPong(r, items, time.Duration(number("gap_us"))*time.Microsecond)
	case "mix":
		mix(r, threadsBefore)
	case "idle":
		idle(r, threadsBefore)
	default:
		fail("no case " + name)
	}
}
