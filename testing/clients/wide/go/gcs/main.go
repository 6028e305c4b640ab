// Command gcs does one operation of Google's storage library for Go, with the credentials of its environment.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"cloud.google.com/go/storage"
	"cloud.google.com/go/storage/transfermanager"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
)

const chunk = 4 << 20

var background = context.Background()

func main() {
	client, err := storage.NewClient(background, option.WithEndpoint(os.Getenv("WIDE_GCS")+"/storage/v1/"))
	if err == nil {
		err = run(client, client.Bucket(os.Getenv("WIDE_BUCKET")), os.Args[1], os.Args[2:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(client *storage.Client, bucket *storage.BucketHandle, operation string, words []string) error {
	switch operation {
	case "put":
		// A request of its own for the whole file.
		return send(bucket.Object(words[1]), words[0], 0)
	case "upload":
		return send(bucket.Object(words[1]), words[0], chunk)
	case "get":
		return receive(bucket.Object(words[0]), 0, -1, words[1])
	case "pieces":
		return pieces(client, bucket, words[0], words[1])
	case "range":
		return receive(bucket.Object(words[0]), number(words[1]), number(words[2]), words[3])
	case "list":
		return list(bucket, words[0])
	case "copy":
		_, err := bucket.Object(words[1]).CopierFrom(bucket.Object(words[0])).Run(background)
		return err
	case "delete":
		return bucket.Object(words[0]).Delete(background)
	case "generation":
		attributes, err := bucket.Object(words[0]).Attrs(background)
		if err == nil {
			fmt.Println(attributes.Generation)
		}
		return err
	case "write":
		return write(bucket.Object(words[1]), words[0], number(words[2]))
	case "version":
		return version("cloud.google.com/go/storage")
	}
	return fmt.Errorf("no operation %s", operation)
}

func number(word string) int64 {
	value, _ := strconv.ParseInt(word, 10, 64)
	return value
}

func send(object *storage.ObjectHandle, name string, size int) error {
	source, err := os.Open(name)
	if err != nil {
		return err
	}
	defer source.Close()
	writer := object.NewWriter(background)
	writer.ChunkSize = size
	if _, err := io.Copy(writer, source); err != nil {
		writer.Close()
		return err
	}
	return writer.Close()
}

func receive(object *storage.ObjectHandle, first, count int64, name string) error {
	reader, err := object.NewRangeReader(background, first, count)
	if err != nil {
		return err
	}
	defer reader.Close()
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	if _, err := io.Copy(file, reader); err != nil {
		return err
	}
	return file.Close()
}

// pieces downloads with the transfer manager: ranges of the object at the same time.
func pieces(client *storage.Client, bucket *storage.BucketHandle, key, name string) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	downloader, err := transfermanager.NewDownloader(client, transfermanager.WithWorkers(4), transfermanager.WithPartSize(chunk))
	if err != nil {
		return err
	}
	input := &transfermanager.DownloadObjectInput{Bucket: bucket.BucketName(), Object: key, Destination: file}
	if err := downloader.DownloadObject(background, input); err != nil {
		return err
	}
	outputs, err := downloader.WaitAndClose()
	for _, output := range outputs {
		err = errors.Join(err, output.Err)
	}
	return errors.Join(err, file.Close())
}

func list(bucket *storage.BucketHandle, prefix string) error {
	objects := bucket.Objects(background, &storage.Query{Prefix: prefix})
	for {
		attributes, err := objects.Next()
		if errors.Is(err, iterator.Done) {
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Println(attributes.Name)
	}
}

// write writes if the object has the generation, 0 if there is none; it prints whether it was written.
func write(object *storage.ObjectHandle, name string, generation int64) error {
	conditions := storage.Conditions{GenerationMatch: generation, DoesNotExist: generation == 0}
	err := send(object.If(conditions), name, chunk)
	var refused *googleapi.Error
	if errors.As(err, &refused) && refused.Code == http.StatusPreconditionFailed {
		fmt.Println("refused")
		return nil
	}
	if err == nil {
		fmt.Println("written")
	}
	return err
}

// version prints the version of a module that this program was built with.
func version(module string) error {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			fmt.Println(strings.TrimPrefix(dependency.Version, "v"))
		}
	}
	return nil
}
