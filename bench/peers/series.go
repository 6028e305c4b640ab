package main

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
)

// Catena's way of a row into memory, with three ways to share its maps: names of source and metric are looked up for each
// row, and the metric's points are locked for each point.

// A point as Catena stores it.
type point struct {
	timestamp int64
	value     float64
}

// metricPoints are the points of one series, in order as they come.
type metricPoints struct {
	mu     sync.Mutex
	points []point
}

func (m *metricPoints) insert(p point) {
	m.mu.Lock()
	m.points = append(m.points, p)
	m.mu.Unlock()
}

// A rowStore finds or makes the points of a series.
type rowStore interface {
	metric(source, metric string) *metricPoints
}

// mutexStore locks both maps for each row.
type mutexStore struct {
	mu      sync.Mutex
	sources map[string]map[string]*metricPoints
}

func (s *mutexStore) metric(source, metric string) *metricPoints {
	s.mu.Lock()
	defer s.mu.Unlock()
	metrics, ok := s.sources[source]
	if !ok {
		metrics = map[string]*metricPoints{}
		s.sources[source] = metrics
	}
	m, ok := metrics[metric]
	if !ok {
		m = &metricPoints{}
		metrics[metric] = m
	}
	return m
}

// rwStore is Catena's: read locks, and another look under the write lock.
type rwStore struct {
	mu      sync.RWMutex
	sources map[string]*rwSource
}

type rwSource struct {
	mu      sync.RWMutex
	metrics map[string]*metricPoints
}

func (s *rwStore) metric(source, metric string) *metricPoints {
	s.mu.RLock()
	of, ok := s.sources[source]
	s.mu.RUnlock()
	if !ok {
		s.mu.Lock()
		if of, ok = s.sources[source]; !ok {
			of = &rwSource{metrics: map[string]*metricPoints{}}
			s.sources[source] = of
		}
		s.mu.Unlock()
	}
	of.mu.RLock()
	m, ok := of.metrics[metric]
	of.mu.RUnlock()
	if !ok {
		of.mu.Lock()
		if m, ok = of.metrics[metric]; !ok {
			m = &metricPoints{}
			of.metrics[metric] = m
		}
		of.mu.Unlock()
	}
	return m
}

// syncStore has the standard library's concurrent map in place of both.
type syncStore struct {
	sources sync.Map
}

func (s *syncStore) metric(source, metric string) *metricPoints {
	of, ok := s.sources.Load(source)
	if !ok {
		of, _ = s.sources.LoadOrStore(source, &sync.Map{})
	}
	metrics := of.(*sync.Map)
	m, ok := metrics.Load(metric)
	if !ok {
		m, _ = metrics.LoadOrStore(metric, &metricPoints{})
	}
	return m.(*metricPoints)
}

func emptyStore(design string) (rowStore, error) {
	switch design {
	case "mutex":
		return &mutexStore{sources: map[string]map[string]*metricPoints{}}, nil
	case "rwmutex":
		return &rwStore{sources: map[string]*rwSource{}}, nil
	case "syncmap":
		return &syncStore{}, nil
	}
	return nil, errors.New("no such design: " + design)
}

// seriesWorkload is a number of series: their names, the order in which rows name them, and a store a design.
type seriesWorkload struct {
	count   int
	sources []string
	metrics []string
	script  []uint32
	kept    map[string]rowStore
	clock   int64
}

var series seriesWorkload

func newSeriesWorkload(count int) seriesWorkload {
	sources := make([]string, count)
	metrics := make([]string, count)
	for n := range count {
		sources[n] = fmt.Sprintf("host_%06d", n/10)
		metrics[n] = fmt.Sprintf("usage_metric_%d", n%10)
	}
	// Knuth's MMIX generator, as in the Rust sides.
	var state uint64
	script := make([]uint32, scriptLen)
	for n := range script {
		state = state*6364136223846793005 + 1442695040888963407
		script[n] = uint32((state >> 33) * uint64(count) >> 31)
	}
	return seriesWorkload{count: count, sources: sources, metrics: metrics, script: script, kept: map[string]rowStore{}}
}

// insertRows takes "DESIGN SERIES THREADS ROWS", ROWS of each thread, and returns nanoseconds of the clock a row,
// and of the processor.
func insertRows(words []string) ([]float64, error) {
	var design string
	var count, threads, rows int
	if _, err := fmt.Sscan(strings.Join(words, " "), &design, &count, &threads, &rows); err != nil {
		return nil, err
	}
	if series.count != count {
		series = newSeriesWorkload(count)
	}
	w := &series
	store := w.kept[design]
	if store == nil {
		var err error
		if store, err = emptyStore(design); err != nil {
			return nil, err
		}
		for n := range count {
			store.metric(w.sources[n], w.metrics[n])
		}
		w.kept[design] = store
	}
	begin := w.clock
	w.clock += int64(rows)
	jobs := make([]func() uint64, threads)
	for thread := range jobs {
		from := thread * (scriptLen / threads)
		jobs[thread] = func() uint64 {
			at := from
			for n := range int64(rows) {
				of := w.script[at]
				store.metric(w.sources[of], w.metrics[of]).insert(point{begin + n, float64(n)})
				at = (at + 1) & (scriptLen - 1)
			}
			return uint64(at)
		}
	}
	runtime.GC()
	cpu, wall := timed(jobs)
	all := float64(threads * rows)
	return []float64{float64(wall.Nanoseconds()) / all, float64(cpu.Nanoseconds()) / all}, nil
}
