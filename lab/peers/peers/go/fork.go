// The workloads of lab/peers/src/fork/mod.rs on Go: a goroutine for each second half, a WaitGroup to join
// it. Maps hand out rows of items to a goroutine a CPU, by an atomic counter.
package main

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

func fib(n int) uint64 {
	if n < 2 {
		return uint64(n)
	}
	var b uint64
	var other sync.WaitGroup
	other.Add(1)
	go func() {
		b = fib(n - 2)
		other.Done()
	}()
	a := fib(n - 1)
	other.Wait()
	return a + b
}

func plainFib(n int) uint64 {
	if n < 2 {
		return uint64(n)
	}
	return plainFib(n-1) + plainFib(n-2)
}

// fibOf is fib by a loop.
func fibOf(n int) uint64 {
	a, b := uint64(0), uint64(1)
	for range n {
		a, b = b, a+b
	}
	return a
}

type node struct {
	value       uint64
	left, right *node
}

// newTree allocates the one or the other child first, by a number made from its own place, as the
// Rust side does.
func newTree(levels int, place uint64) *node {
	if levels == 0 {
		return &node{value: 1}
	}
	if place*0x9e3779b97f4a7c15>>63 == 0 {
		left := newTree(levels-1, 2*place)
		return &node{1, left, newTree(levels-1, 2*place+1)}
	}
	right := newTree(levels-1, 2*place+1)
	return &node{1, newTree(levels-1, 2*place), right}
}

func (n *node) sum() uint64 {
	if n.left == nil {
		return n.value
	}
	var b uint64
	var other sync.WaitGroup
	other.Add(1)
	go func() {
		b = n.right.sum()
		other.Done()
	}()
	a := n.left.sum()
	other.Wait()
	return n.value + a + b
}

func join(a, b func()) {
	var other sync.WaitGroup
	other.Add(1)
	go func() {
		b()
		other.Done()
	}()
	a()
	other.Wait()
}

func quicksort(numbers []uint32) {
	if len(numbers) <= 4096 {
		slices.Sort(numbers)
		return
	}
	first, middle, last := numbers[0], numbers[(len(numbers)-1)/2], numbers[len(numbers)-1]
	pivot := max(min(first, middle), min(max(first, middle), last))
	left, right := 0, len(numbers)-1
	for {
		for numbers[left] < pivot {
			left++
		}
		for numbers[right] > pivot {
			right--
		}
		if left >= right {
			break
		}
		numbers[left], numbers[right] = numbers[right], numbers[left]
		left++
		right--
	}
	join(func() { quicksort(numbers[:left]) }, func() { quicksort(numbers[left:]) })
}

func mixed(number, steps uint64) uint64 {
	number += 0x9e3779b97f4a7c15
	for range steps {
		number = (number ^ number>>30) * 0xbf58476d1ce4e5b9
	}
	return number ^ number>>31
}

func mapped(items, workers int, f func(uint64) uint64) []uint64 {
	results := make([]uint64, items)
	row := max(items/(256*workers), 1)
	var next atomic.Int64
	var over sync.WaitGroup
	for range workers {
		over.Add(1)
		go func() {
			for {
				from := int(next.Add(int64(row))) - row
				if from >= items {
					break
				}
				for i := from; i < min(from+row, items); i++ {
					results[i] = f(uint64(i))
				}
			}
			over.Done()
		}()
	}
	over.Wait()
	return results
}

// forkWork is a pass, how many items it has, and whether the last one gave what it should; blank, which isn't
// timed, comes before each.
func forkWork(kind string) (pass, blank func(), count float64, right func() bool) {
	items, times, steps := number("items"), number("times"), uint64(number("quick_steps"))
	blank = func() {}
	var result uint64
	switch kind {
	case "forks", "fib":
		return func() { result = fib(items) }, blank, float64(fibOf(items+1) - 1),
			func() bool { return result == fibOf(items) }
	case "tree":
		levels := bits.Len(uint(items)) - 1
		root, all := newTree(levels, 1), uint64(times)*(1<<(levels+1)-1)
		pass = func() {
			result = 0
			for range times {
				result += root.sum()
			}
		}
		return pass, blank, float64(all), func() bool { return result == all }
	case "sort":
		unsorted, numbers := make([]uint32, items), make([]uint32, items)
		for i := range unsorted {
			unsorted[i] = uint32(mixed(uint64(i), 2))
		}
		return func() { quicksort(numbers) }, func() { copy(numbers, unsorted) }, float64(items),
			func() bool { return slices.IsSorted(numbers) }
	}
	f := func(item uint64) uint64 { return mixed(item, steps) }
	if kind == "map-uneven" {
		f = func(item uint64) uint64 { return mixed(item, mixed(item, 2)%(2*steps+1)) }
	}
	var results []uint64
	workers := number("workers")
	return func() { results = mapped(items, workers, f) }, blank, float64(items), func() bool {
		for i := 0; i < items; i += 199 {
			if results[i] != f(uint64(i)) {
				return false
			}
		}
		return true
	}
}

func isForkJoin(kind string) bool {
	kinds := []string{"forks", "fib", "tree", "sort", "map-tiny", "map-uneven"}
	return slices.Contains(kinds, kind)
}

func forkJoin(kind string) {
	if _, pinned := words["worker_cpu"]; pinned {
		confine(number("worker_cpu"))
	}
	pass, blank, count, right := forkWork(kind)
	timed := func(pass func()) (span, cpu time.Duration) {
		before, began := use(syscall.RUSAGE_SELF), time.Now()
		pass()
		span = time.Since(began)
		return span, use(syscall.RUSAGE_SELF).cpu - before.cpu
	}
	checked := func() (span, cpu time.Duration) {
		blank()
		span, cpu = timed(pass)
		if !right() {
			fail("a wrong result")
		}
		return span, cpu
	}
	checked()
	var spans, plain []time.Duration
	var cpu, plainCPU, notCounted time.Duration
	end := figures()
	for range number("passes") {
		before := use(syscall.RUSAGE_SELF)
		span, used := checked()
		spans, cpu = append(spans, span), cpu+used
		if kind == "forks" {
			span, used := timed(func() { plainFib(number("items")) })
			plain, plainCPU = append(plain, span), plainCPU+used
		}
		notCounted += use(syscall.RUSAGE_SELF).cpu - before.cpu - used
	}
	passes := float64(len(spans))
	end(count*passes, notCounted)
	percentiles("makespan", spans, "p50")
	span := metrics["makespan_p50"]
	metrics["items_per_second"] = count / span * 1e9
	if kind == "forks" {
		percentiles("plain", plain, "p50")
		metrics["fork_ns"] = (span - metrics["plain_p50"]) / count
		metrics["fork_cpu_ns"] = float64((cpu - plainCPU).Nanoseconds()) / passes / count
		delete(metrics, "plain_p50")
	}
}
