// The call workloads of lab/bench/src/calls/mod.rs on Go's channels: their words in, their line
// out.
//
// Best documented settings: a buffered channel of one message each way. A goroutine is on a CPU only
// if it is locked to a thread that is pinned there, so the caller and every called one are: what
// passes from one to the other passes from thread to thread.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

var words = map[string]string{}

func number(key string) int {
	value, _ := strconv.Atoi(words[key])
	return value
}

// Locks the goroutine to its thread, and pins that one.
func pin(cpu int) {
	runtime.LockOSThread()
	var set [128]byte
	set[cpu/8] = 1 << (cpu % 8)
	_, _, failed := syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, uintptr(len(set)),
		uintptr(unsafe.Pointer(&set)))
	if failed != 0 {
		panic(failed)
	}
}

// The CPUs that are online, in order.
func online() (cpus []int) {
	text, _ := os.ReadFile("/sys/devices/system/cpu/online")
	for _, part := range strings.Split(strings.TrimSpace(string(text)), ",") {
		from, to, ranged := strings.Cut(part, "-")
		first, _ := strconv.Atoi(from)
		last := first
		if ranged {
			last, _ = strconv.Atoi(to)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// User and system time of the process.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

type target struct {
	requests chan int
	answers  chan int
}

func (t target) serve(cpu int) {
	pin(cpu)
	for number := range t.requests {
		t.answers <- number + 1
	}
}

func percentile(sorted []time.Duration, percent float64) int64 {
	rank := int(percent*float64(len(sorted))/100-1e-6) + 1
	return int64(sorted[min(max(rank, 1), len(sorted))-1])
}

func main() {
	for _, word := range os.Args[1:] {
		if key, value, found := strings.Cut(word, "="); found {
			words[key] = value
		}
	}
	client, called, own := number("client_cpu"), []int{number("server_cpu")}, 0
	if many, found := strings.CutPrefix(words["case"], "broadcast/"); found {
		count, _ := strconv.Atoi(many)
		called = nil
		for _, cpu := range online()[:count] {
			if cpu == client {
				own = 1
			} else {
				called = append(called, cpu)
			}
		}
	}
	// Beside the pinned ones a thread for the runtime's own work, as there is by default.
	runtime.GOMAXPROCS(max(runtime.NumCPU(), len(called)+1))
	var targets []target
	for _, cpu := range called {
		t := target{make(chan int, 1), make(chan int, 1)}
		go t.serve(cpu)
		targets = append(targets, t)
	}
	var over atomic.Bool
	if words["case"] == "roundtrip/busy" {
		go func() {
			pin(called[0])
			for !over.Load() {
			}
		}()
	}
	pin(client)
	gap, items := time.Duration(number("gap_us"))*time.Microsecond, max(number("items"), 1)
	last := 0
	calls := func(count int) []time.Duration {
		samples := make([]time.Duration, 0, count)
		for range count {
			if gap > 0 {
				time.Sleep(gap)
			}
			last++
			before := time.Now()
			sum := own * (last + 1)
			for _, t := range targets {
				t.requests <- last
			}
			for _, t := range targets {
				sum += <-t.answers
			}
			samples = append(samples, time.Since(before))
			if sum != (len(targets)+own)*(last+1) {
				panic("a wrong answer")
			}
		}
		return samples
	}
	calls((items + 9) / 10)
	before := cpuTime()
	samples := calls(items)
	cpu := cpuTime() - before
	over.Store(true)
	sort.Slice(samples, func(i, j int) bool { return samples[i] < samples[j] })
	metrics := fmt.Sprintf("\"latency_p50\":%d,\"latency_p99\":%d", percentile(samples, 50),
		percentile(samples, 99))
	if len(samples) >= 5000 {
		metrics += fmt.Sprintf(",\"latency_p999\":%d", percentile(samples, 99.9))
	}
	if words["case"] != "roundtrip/busy" {
		metrics += fmt.Sprintf(",\"cpu_per_item\":%d", int64(cpu)/int64(items))
	}
	fmt.Printf("{\"case\":%q,\"runtime\":%q,\"metrics\":{%s}}\n", words["case"], words["runtime"],
		metrics)
}
