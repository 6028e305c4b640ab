package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go/aws"
)

const shardLen = 4 << 20

// writeAt takes "DESIGN SIZE_HINT SHARDS PIECE OPS COUNT" and returns nanoseconds, allocations, allocated bytes and
// contended waits inside WriteAt, each per operation. The waits are counted only if COUNT is 1: the profile costs time.
func writeAt(words []string) ([]float64, error) {
	var design string
	var hint, shards, piece, ops, count int
	if _, err := fmt.Sscan(strings.Join(words, " "), &design, &hint, &shards, &piece, &ops, &count); err != nil {
		return nil, err
	}
	source := make([]byte, piece)
	for i := range source {
		source[i] = byte(i)
	}
	fresh, ok := designs[design]
	if !ok {
		return nil, errors.New("no such design: " + design)
	}
	if count == 1 {
		defer runtime.SetMutexProfileFraction(runtime.SetMutexProfileFraction(1))
	}
	runtime.GC()
	waits := waitsInWriteAt()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	for range ops {
		if err := fill(fresh(hint), shards, source); err != nil {
			return nil, err
		}
	}
	elapsed := time.Since(start)
	runtime.ReadMemStats(&after)
	per := 1 / float64(ops)
	return []float64{
		float64(elapsed.Nanoseconds()) * per,
		float64(after.Mallocs-before.Mallocs) * per,
		float64(after.TotalAlloc-before.TotalAlloc) * per,
		float64(waitsInWriteAt()-waits) * per,
	}, nil
}

// fill writes every shard in pieces, one goroutine a shard.
func fill(buffer io.WriterAt, shards int, piece []byte) error {
	var wait sync.WaitGroup
	var failed atomic.Pointer[error]
	for shard := range shards {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for at := 0; at < shardLen; at += len(piece) {
				if _, err := buffer.WriteAt(piece, int64(shard*shardLen+at)); err != nil {
					cause := err // Its own variable, so that only a failure allocates.
					failed.Store(&cause)
				}
			}
		}()
	}
	wait.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// waitsInWriteAt sums the mutex profile's events below a WriteAt, leaving out those of the runtime and of WaitGroup.
func waitsInWriteAt() int64 {
	records := make([]runtime.BlockProfileRecord, 1024)
	n, ok := runtime.MutexProfile(records)
	for !ok {
		records = make([]runtime.BlockProfileRecord, 2*n)
		n, ok = runtime.MutexProfile(records)
	}
	var sum int64
	for _, record := range records[:n] {
		frames := runtime.CallersFrames(record.Stack())
		for more := true; more; {
			var frame runtime.Frame
			frame, more = frames.Next()
			if strings.HasSuffix(frame.Function, ".WriteAt") {
				sum += record.Count
				break
			}
		}
	}
	return sum
}

var designs = map[string]func(hint int) io.WriterAt{
	// What Kraken had: one mutex held while copying; grown to exactly what is needed.
	"aws": func(hint int) io.WriterAt {
		buffer := aws.NewWriteAtBuffer(make([]byte, 0, hint))
		buffer.GrowthCoeff = 1
		return buffer
	},
	"rwmutex": func(hint int) io.WriterAt { return &rwBuffer{bytes: make([]byte, hint)} },
}

// rwBuffer is what Kraken's pull request 616 describes: writers within the buffer share a read lock, growth to exactly
// what is needed takes the write lock, and the extent is the highest end written.
type rwBuffer struct {
	mutex   sync.RWMutex
	bytes   []byte
	written atomic.Int64
}

func (b *rwBuffer) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errors.New("negative offset")
	}
	if len(p) == 0 {
		return 0, nil
	}
	if off > math.MaxInt64-int64(len(p)) {
		return 0, errors.New("offset and length overflow")
	}
	end := off + int64(len(p))
	b.mutex.RLock()
	if end <= int64(len(b.bytes)) {
		copy(b.bytes[off:end], p)
		b.raise(end)
		b.mutex.RUnlock()
		return len(p), nil
	}
	b.mutex.RUnlock()
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if end > int64(len(b.bytes)) {
		grown := make([]byte, end)
		copy(grown, b.bytes)
		b.bytes = grown
	}
	copy(b.bytes[off:end], p)
	b.raise(end)
	return len(p), nil
}

func (b *rwBuffer) raise(end int64) {
	for {
		old := b.written.Load()
		if end <= old || b.written.CompareAndSwap(old, end) {
			return
		}
	}
}
