package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// drainWorkers is Kraken's default.
const drainWorkers = 10

// drainJob is a number of blobs of one size and content, downloaded to files.
type drainJob struct {
	client  *http.Client
	address string
	folder  string
	size    int
	memory  int
	digest  string
}

// blobTimes are of one blob, from the start of its download.
type blobTimes struct {
	begun, usable, durable time.Time
}

// drain takes "DESIGN URL FOLDER BLOBS BYTES AT_ONCE MEMORY SHA256", where URL lacks the number of a blob, and answers seconds
// until all blobs are usable and durable, the medians of a blob in milliseconds, and the peak memory in bytes.
func drain(words []string) ([]float64, error) {
	var job drainJob
	var design string
	var blobs, atOnce int
	if _, err := fmt.Sscan(strings.Join(words, " "), &design, &job.address, &job.folder, &blobs, &job.size, &atOnce,
		&job.memory, &job.digest); err != nil {
		return nil, err
	}
	job.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: atOnce}}
	defer job.client.CloseIdleConnections()
	// What earlier rounds left is no memory of this one.
	debug.FreeOSMemory()
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
	begun := time.Now()
	var times []blobTimes
	var err error
	switch design {
	case "memory":
		times, err = job.memoryFirst(blobs, atOnce)
	case "disk":
		times, err = job.diskFirst(blobs, atOnce)
	default:
		err = errors.New("no such design: " + design)
	}
	if err != nil {
		return nil, err
	}
	return append(summary(begun, times), float64(peakMemory())), nil
}

func summary(begun time.Time, times []blobTimes) []float64 {
	var usable, durable time.Time
	var untilUsable, untilDurable []float64
	for _, blob := range times {
		if blob.usable.After(usable) {
			usable = blob.usable
		}
		if blob.durable.After(durable) {
			durable = blob.durable
		}
		untilUsable = append(untilUsable, blob.usable.Sub(blob.begun).Seconds()*1e3)
		untilDurable = append(untilDurable, blob.durable.Sub(blob.begun).Seconds()*1e3)
	}
	slices.Sort(untilUsable)
	slices.Sort(untilDurable)
	middle := len(times) / 2
	return []float64{usable.Sub(begun).Seconds(), durable.Sub(begun).Seconds(), untilUsable[middle], untilDurable[middle]}
}

// each runs work for every blob, some at a time, and joins the errors.
func each(blobs, atOnce int, work func(blob int) error) error {
	next := make(chan int)
	failed := make(chan error, blobs)
	var wait sync.WaitGroup
	for range atOnce {
		wait.Go(func() {
			for blob := range next {
				failed <- work(blob)
			}
		})
	}
	for blob := range blobs {
		next <- blob
	}
	close(next)
	wait.Wait()
	close(failed)
	var all error
	for err := range failed {
		all = errors.Join(all, err)
	}
	return all
}

// memoryFirst is the write-through cache: a blob is downloaded into a buffer, can be read from there, is written to a file
// later by one of a few workers, and then released. One that the memory has no room for goes straight to a file.
func (j *drainJob) memoryFirst(blobs, atOnce int) ([]blobTimes, error) {
	times := make([]blobTimes, blobs)
	type drained struct {
		blob  int
		bytes []byte
	}
	var mutex sync.Mutex
	reserved := 0
	reserve := func() bool {
		mutex.Lock()
		defer mutex.Unlock()
		if reserved+j.size > j.memory {
			return false
		}
		reserved += j.size
		return true
	}
	release := func() {
		mutex.Lock()
		defer mutex.Unlock()
		reserved -= j.size
	}
	queue := make(chan drained, blobs)
	failed := make(chan error, blobs)
	var workers sync.WaitGroup
	for range drainWorkers {
		workers.Go(func() {
			for next := range queue {
				_, err := j.file(next.blob, bytes.NewReader(next.bytes))
				times[next.blob].durable = time.Now()
				release()
				failed <- err
			}
		})
	}
	err := each(blobs, atOnce, func(blob int) error {
		if !reserve() {
			return j.straight(blob, times)
		}
		times[blob].begun = time.Now()
		body, err := j.get(blob)
		if err != nil {
			return err
		}
		defer body.Close()
		buffer := make([]byte, j.size)
		if _, err := io.ReadFull(body, buffer); err != nil {
			return err
		}
		times[blob].usable = time.Now()
		queue <- drained{blob, buffer}
		return nil
	})
	close(queue)
	workers.Wait()
	close(failed)
	for drainError := range failed {
		err = errors.Join(err, drainError)
	}
	return times, err
}

// diskFirst downloads each blob to a temporary file and renames it.
func (j *drainJob) diskFirst(blobs, atOnce int) ([]blobTimes, error) {
	times := make([]blobTimes, blobs)
	err := each(blobs, atOnce, func(blob int) error { return j.straight(blob, times) })
	return times, err
}

func (j *drainJob) straight(blob int, times []blobTimes) error {
	times[blob].begun = time.Now()
	body, err := j.get(blob)
	if err != nil {
		return err
	}
	defer body.Close()
	written, err := j.file(blob, body)
	times[blob].usable, times[blob].durable = written, time.Now()
	return err
}

func (j *drainJob) get(blob int) (io.ReadCloser, error) {
	response, err := j.client.Get(j.address + strconv.Itoa(blob))
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, errors.New(response.Status)
	}
	return response.Body, nil
}

// file writes a temporary file, compares the digest of what it wrote, and makes it durable under its name. It answers when
// all bytes were there and compared.
func (j *drainJob) file(blob int, from io.Reader) (time.Time, error) {
	name := filepath.Join(j.folder, strconv.Itoa(blob))
	file, err := os.Create(name + ".tmp")
	if err != nil {
		return time.Time{}, err
	}
	defer file.Close()
	digest := sha256.New()
	if err := copyAndHash(file, digest, from); err != nil {
		return time.Time{}, err
	}
	if found := hex.EncodeToString(digest.Sum(nil)); found != j.digest {
		return time.Time{}, errors.New("a blob has the digest " + found)
	}
	written := time.Now()
	if err := file.Sync(); err != nil {
		return written, err
	}
	if err := os.Rename(name+".tmp", name); err != nil {
		return written, err
	}
	folder, err := os.Open(j.folder)
	if err != nil {
		return written, err
	}
	defer folder.Close()
	return written, folder.Sync()
}

func copyAndHash(file io.Writer, digest hash.Hash, from io.Reader) error {
	piece := make([]byte, 1<<20)
	_, err := io.CopyBuffer(io.MultiWriter(file, digest), struct{ io.Reader }{from}, piece)
	return err
}

func peakMemory() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if value, found := strings.CutPrefix(line, "VmHWM:"); found {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kib << 10
		}
	}
	return 0
}
