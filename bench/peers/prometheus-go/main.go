// Prometheus' head appender as a peer of Bywash's handles.
//
// It reads one case a line from standard input, "LOG SERIES THREADS ROWS BATCH RUN", appends ROWS rows from each of THREADS by
// reference, BATCH of them a commit and RUN of a series in a row, and prints nanoseconds of the clock a row, and of the
// processor. LOG is "off" or "on": a commit then writes to the log, and syncs nothing. "check" counts all rows of the head and
// prints their number, or an error if some are missing. An error is "error: " and a reason.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/wlog"
)

// Series are drawn for so many rows in advance, as in the Rust sides.
const scriptLen = 1 << 18

// A head as Prometheus opens it, but that one chunk range takes all rows: they are never cut into blocks.
type workload struct {
	log    string
	count  int
	head   *tsdb.Head
	refs   []storage.SeriesRef
	script []uint32
	// Of the next row, and how many rows were appended.
	clock  int64
	rows   int
	folder string
}

func newWorkload(log string, count int) (*workload, error) {
	folder, err := os.MkdirTemp("", "bywash-prometheus")
	if err != nil {
		return nil, err
	}
	options := tsdb.DefaultHeadOptions()
	options.ChunkDirRoot = folder
	options.ChunkRange = 1 << 40
	var wal *wlog.WL
	if log == "on" {
		wal, err = wlog.NewSize(slog.New(slog.DiscardHandler), nil, folder+"/wal", wlog.DefaultSegmentSize, wlog.CompressionNone)
		if err != nil {
			return nil, err
		}
	}
	head, err := tsdb.NewHead(nil, slog.New(slog.DiscardHandler), wal, nil, options, nil)
	if err != nil {
		return nil, err
	}
	if err := head.Init(0); err != nil {
		return nil, err
	}
	w := &workload{log: log, count: count, head: head, folder: folder, clock: 1}
	appender := head.Appender(context.Background())
	for n := range count {
		name := labels.FromStrings("source", fmt.Sprintf("host_%06d", n/10), "metric", fmt.Sprintf("usage_metric_%d", n%10))
		ref, err := appender.Append(0, name, w.clock, 0)
		if err != nil {
			return nil, err
		}
		w.refs = append(w.refs, ref)
	}
	if err := appender.Commit(); err != nil {
		return nil, err
	}
	w.clock++
	w.rows = count
	// Knuth's MMIX generator, as in the Rust sides.
	var state uint64
	w.script = make([]uint32, scriptLen)
	for n := range w.script {
		state = state*6364136223846793005 + 1442695040888963407
		w.script[n] = uint32((state >> 33) * uint64(count) >> 31)
	}
	return w, nil
}

func (w *workload) close() error {
	return errors.Join(w.head.Close(), os.RemoveAll(w.folder))
}

// write appends the rows of one thread, whose series are its own: of two threads in one, the head would refuse the older row.
// Timestamps ascend by one a row, as in the Rust sides.
func (w *workload) write(thread, threads, rows, batch, run int) error {
	from := thread * (scriptLen / threads)
	for first := 0; first < rows; first += batch {
		appender := w.head.Appender(context.Background())
		for n := first; n < min(first+batch, rows); n++ {
			of := int(w.script[(from+n/run)%scriptLen])/threads*threads + thread
			if _, err := appender.Append(w.refs[of], labels.EmptyLabels(), w.clock+int64(n), float64(n)); err != nil {
				return err
			}
		}
		if err := appender.Commit(); err != nil {
			return err
		}
	}
	return nil
}

func (w *workload) turn(threads, rows, batch, run int) (string, error) {
	runtime.GC()
	failed := make([]error, threads)
	var all sync.WaitGroup
	before, begun := processorTime(), time.Now()
	for thread := range threads {
		all.Go(func() { failed[thread] = w.write(thread, threads, rows, batch, run) })
	}
	all.Wait()
	wall, cpu := time.Since(begun), processorTime()-before
	w.clock += int64(rows)
	w.rows += threads * rows
	count := float64(rows * threads)
	return fmt.Sprintf("%g %g", float64(wall.Nanoseconds())/count, float64(cpu.Nanoseconds())/count), errors.Join(failed...)
}

func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// check counts the rows that are there: a commit drops silently what it does not take.
func (w *workload) check() (string, error) {
	querier, err := tsdb.NewBlockQuerier(tsdb.NewRangeHead(w.head, 0, w.clock), 0, w.clock)
	if err != nil {
		return "", err
	}
	defer querier.Close()
	found := 0
	all := querier.Select(context.Background(), false, nil, labels.MustNewMatcher(labels.MatchRegexp, "source", ".+"))
	var rows chunkenc.Iterator
	for all.Next() {
		rows = all.At().Iterator(rows)
		for rows.Next() != chunkenc.ValNone {
			found++
		}
	}
	if found != w.rows {
		return "", fmt.Errorf("%d of %d rows are there", found, w.rows)
	}
	return strconv.Itoa(found), all.Err()
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	var kept *workload
	for lines.Scan() {
		figures, err := one(&kept, lines.Text())
		if err != nil {
			fmt.Println("error:", err)
			continue
		}
		fmt.Println(figures)
	}
	if kept != nil {
		if err := kept.close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

// one runs a case. What a workload holds is kept from round to round, and one workload at a time.
func one(kept **workload, line string) (string, error) {
	if line == "check" {
		if *kept == nil {
			return "", errors.New("there is no head to check")
		}
		return (*kept).check()
	}
	var log string
	var count, threads, rows, batch, run int
	if _, err := fmt.Sscan(line, &log, &count, &threads, &rows, &batch, &run); err != nil {
		return "", err
	}
	if w := *kept; w == nil || w.log != log || w.count != count {
		if w != nil {
			if err := w.close(); err != nil {
				return "", err
			}
		}
		w, err := newWorkload(log, count)
		if err != nil {
			return "", err
		}
		*kept = w
	}
	return (*kept).turn(threads, rows, batch, run)
}
