// Google's transfer manager, which the download buffer of Kraken grew for, as a peer of Bywash.
//
// It reads one case a line from standard input, "KEY BYTES SHARD WORKERS", downloads that object of the bucket `bench`, and
// prints seconds, processor seconds, the max resident memory meanwhile in bytes and the number of times that threads slept,
// or "error: " and a reason.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"cloud.google.com/go/storage"
	"cloud.google.com/go/storage/transfermanager"
)

func main() {
	ctx := context.Background()
	// It finds the store in STORAGE_EMULATOR_HOST.
	client, err := storage.NewClient(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		figures, err := download(ctx, client, strings.Fields(lines.Text()))
		if err != nil {
			fmt.Println("error:", err)
			continue
		}
		fmt.Println(figures)
	}
}

func download(ctx context.Context, client *storage.Client, words []string) (string, error) {
	if len(words) != 4 {
		return "", fmt.Errorf("want KEY BYTES SHARD WORKERS, have %q", words)
	}
	var sizes [3]int
	for at := range sizes {
		size, err := strconv.Atoi(words[at+1])
		if err != nil {
			return "", err
		}
		sizes[at] = size
	}
	forgetPeak()
	begun, before := time.Now(), usage()
	manager, err := transfermanager.NewDownloader(client,
		transfermanager.WithPartSize(int64(sizes[1])), transfermanager.WithWorkers(sizes[2]))
	if err != nil {
		return "", err
	}
	into := transfermanager.NewDownloadBuffer(make([]byte, sizes[0]))
	object := &transfermanager.DownloadObjectInput{Bucket: "bench", Object: words[0], Destination: into}
	if err := manager.DownloadObject(ctx, object); err != nil {
		return "", err
	}
	results, err := manager.WaitAndClose()
	if err != nil {
		for _, result := range results {
			err = fmt.Errorf("%w %w", err, result.Err)
		}
		return "", err
	}
	if len(results) != 1 || results[0].Err != nil || len(into.Bytes()) != sizes[0] {
		return "", fmt.Errorf("%d results, %d bytes", len(results), len(into.Bytes()))
	}
	took, after := time.Since(begun), usage()
	worked := cpuTime(after) - cpuTime(before)
	return fmt.Sprintf("%g %g %d %d", took.Seconds(), worked.Seconds(), peakBytes(), after.Nvcsw-before.Nvcsw), nil
}

func usage() syscall.Rusage {
	var usage syscall.Rusage
	// It fails for an address or a word it does not know, and these are right.
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return usage
}

func cpuTime(usage syscall.Rusage) time.Duration {
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// The peak is set back to what is resident now (man 5 proc_pid_clear_refs, value 5).
func forgetPeak() {
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
}

func peakBytes() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for _, line := range strings.Split(string(status), "\n") {
		if value, found := strings.CutPrefix(line, "VmHWM:"); found {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kib << 10
		}
	}
	return 0
}
