package main

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// Lookups before the same names come again, as in the Rust sides.
	scriptLen = 1 << 18
	// One lookup in so many is of a new name.
	newEvery = 100
	// Larger tables are not built anew for each turn that enters names.
	builtAnew = 10_000
)

// A table maps names to numbers; a new name gets the number of names before it, or any where that costs a lock.
type table interface {
	// get looks all these names up, from the given one on and around, and adds the numbers up.
	get(script []string, from, count int) uint64
	// create is get, with each newEvery-th name a new one.
	create(script []string, from, count int, fresh []string) uint64
	enter(name string)
}

// rwTable is Catena's: a map behind a read-write mutex, looked at again under the write lock.
type rwTable struct {
	mu    sync.RWMutex
	names map[string]uint64
}

func (t *rwTable) getOrCreate(name string) uint64 {
	t.mu.RLock()
	number, ok := t.names[name]
	t.mu.RUnlock()
	if ok {
		return number
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if number, ok := t.names[name]; ok {
		return number
	}
	number = uint64(len(t.names))
	t.names[name] = number
	return number
}

func (t *rwTable) enter(name string) { t.getOrCreate(name) }

func (t *rwTable) get(script []string, from, count int) (sum uint64) {
	for at := from; count > 0; count-- {
		t.mu.RLock()
		sum += t.names[script[at]]
		t.mu.RUnlock()
		at = (at + 1) & (scriptLen - 1)
	}
	return sum
}

func (t *rwTable) create(script []string, from, count int, fresh []string) (sum uint64) {
	for at, left := from, newEvery; count > 0; count-- {
		name := script[at]
		if left--; left == 0 {
			left, name, fresh = newEvery, fresh[0], fresh[1:]
		}
		sum += t.getOrCreate(name)
		at = (at + 1) & (scriptLen - 1)
	}
	return sum
}

// syncTable is the standard library's concurrent map.
type syncTable struct {
	names sync.Map
}

func (t *syncTable) getOrCreate(name string) uint64 {
	if number, ok := t.names.Load(name); ok {
		return number.(uint64)
	}
	number, _ := t.names.LoadOrStore(name, uint64(len(name)))
	return number.(uint64)
}

func (t *syncTable) enter(name string) { t.getOrCreate(name) }

func (t *syncTable) get(script []string, from, count int) (sum uint64) {
	for at := from; count > 0; count-- {
		if number, ok := t.names.Load(script[at]); ok {
			sum += number.(uint64)
		}
		at = (at + 1) & (scriptLen - 1)
	}
	return sum
}

func (t *syncTable) create(script []string, from, count int, fresh []string) (sum uint64) {
	for at, left := from, newEvery; count > 0; count-- {
		name := script[at]
		if left--; left == 0 {
			left, name, fresh = newEvery, fresh[0], fresh[1:]
		}
		sum += t.getOrCreate(name)
		at = (at + 1) & (scriptLen - 1)
	}
	return sum
}

func emptyTable(design string) (table, error) {
	switch design {
	case "rwmutex":
		return &rwTable{names: map[string]uint64{}}, nil
	case "syncmap":
		return &syncTable{}, nil
	}
	return nil, errors.New("no such design: " + design)
}

// workload is one table size: its names, the names to look up in their order, and a table a design.
type workload struct {
	count  int
	names  []string
	script []string
	kept   map[string]table
	turns  int
}

var current workload

func nameOf(n int) string {
	return fmt.Sprintf("dc1.rack%02d.host%06d.cpu.usage_user", n%40, n)
}

// inARow makes names that lie one behind the other in memory.
func inARow(count int, name func(int) string) []string {
	var text strings.Builder
	ends := make([]int, 1, count+1)
	for n := range count {
		text.WriteString(name(n))
		ends = append(ends, text.Len())
	}
	all := text.String()
	names := make([]string, count)
	for n := range names {
		names[n] = all[ends[n]:ends[n+1]]
	}
	return names
}

func newWorkload(count int) workload {
	// Knuth's MMIX generator, as in the Rust sides.
	var state uint64
	draw := func(int) string {
		state = state*6364136223846793005 + 1442695040888963407
		return nameOf(int((state >> 33) * uint64(count) >> 31))
	}
	return workload{
		count:  count,
		names:  inARow(count, nameOf),
		script: inARow(scriptLen, draw),
		kept:   map[string]table{},
	}
}

func (w *workload) table(design string) (table, error) {
	t, err := emptyTable(design)
	if err != nil {
		return nil, err
	}
	for _, name := range w.names {
		t.enter(name)
	}
	return t, nil
}

// registry takes "DESIGN OP NAMES THREADS LOOKUPS", LOOKUPS of each thread, and returns nanoseconds of the processor and
// of the clock a lookup.
func registry(words []string) ([]float64, error) {
	var design, op string
	var count, threads, lookups int
	if _, err := fmt.Sscan(strings.Join(words, " "), &design, &op, &count, &threads, &lookups); err != nil {
		return nil, err
	}
	if current.count != count {
		current = newWorkload(count)
	}
	w := &current
	t := w.kept[design]
	if t == nil || op == "create" && count <= builtAnew {
		var err error
		if t, err = w.table(design); err != nil {
			return nil, err
		}
	}
	if op == "get" || count > builtAnew {
		w.kept[design] = t
	}
	w.turns++
	jobs := make([]func() uint64, threads)
	for thread := range jobs {
		from := thread * (scriptLen / threads)
		switch op {
		case "get":
			jobs[thread] = func() uint64 { return t.get(w.script, from, lookups) }
		case "create":
			fresh := make([]string, lookups/newEvery+1)
			for n := range fresh {
				fresh[n] = fmt.Sprintf("dc1.new%05d.host%06d.thread%02d", w.turns, n, thread)
			}
			jobs[thread] = func() uint64 { return t.create(w.script, from, lookups, fresh) }
		default:
			return nil, errors.New("no such operation: " + op)
		}
	}
	runtime.GC()
	cpu, wall := timed(jobs)
	all := float64(threads * lookups)
	return []float64{float64(cpu.Nanoseconds()) / all, float64(wall.Nanoseconds()) / all}, nil
}

// timed runs the jobs at once, each on a goroutine of its own, and returns the processor's and the clock's time.
func timed(jobs []func() uint64) (cpu, wall time.Duration) {
	start := make(chan struct{})
	sums := make([]uint64, len(jobs))
	var ready, done sync.WaitGroup
	for n, job := range jobs {
		ready.Add(1)
		done.Add(1)
		go func() {
			ready.Done()
			<-start
			sums[n] = job()
			done.Done()
		}()
	}
	ready.Wait()
	before, begun := processorTime(), time.Now()
	close(start)
	done.Wait()
	wall = time.Since(begun)
	cpu = processorTime() - before
	for _, sum := range sums {
		kept += sum
	}
	return cpu, wall
}

// kept holds the results of lookups, so that the compiler keeps them.
var kept uint64

func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
