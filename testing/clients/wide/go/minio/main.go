// Command minio does one operation of MinIO's library for Go.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

var (
	background = context.Background()
	bucket     = os.Getenv("WIDE_BUCKET")
)

func main() {
	client, err := minio.New(strings.TrimPrefix(os.Getenv("WIDE_URL"), "http://"), &minio.Options{
		Creds:  credentials.NewStaticV4(os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"), ""),
		Region: os.Getenv("AWS_REGION"),
	})
	if err == nil {
		err = run(client, os.Args[1], os.Args[2:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(client *minio.Client, operation string, words []string) error {
	switch operation {
	case "put":
		_, err := client.FPutObject(background, bucket, words[1], words[0], minio.PutObjectOptions{})
		return err
	case "upload":
		_, err := client.FPutObject(background, bucket, words[1], words[0], minio.PutObjectOptions{PartSize: 5 << 20})
		return err
	case "get":
		return client.FGetObject(background, bucket, words[0], words[1], minio.GetObjectOptions{})
	case "range":
		return span(client, words)
	case "list":
		options := minio.ListObjectsOptions{Prefix: words[0], Recursive: true}
		for object := range client.ListObjects(background, bucket, options) {
			if object.Err != nil {
				return object.Err
			}
			fmt.Println(object.Key)
		}
		return nil
	case "copy":
		_, err := client.CopyObject(background,
			minio.CopyDestOptions{Bucket: bucket, Object: words[1]},
			minio.CopySrcOptions{Bucket: bucket, Object: words[0]})
		return err
	case "delete":
		return client.RemoveObject(background, bucket, words[0], minio.RemoveObjectOptions{})
	case "version":
		return version("github.com/minio/minio-go/v7")
	}
	return fmt.Errorf("no operation %s", operation)
}

func span(client *minio.Client, words []string) error {
	first, _ := strconv.ParseInt(words[1], 10, 64)
	count, _ := strconv.ParseInt(words[2], 10, 64)
	options := minio.GetObjectOptions{}
	if err := options.SetRange(first, first+count-1); err != nil {
		return err
	}
	object, err := client.GetObject(background, bucket, words[0], options)
	if err != nil {
		return err
	}
	defer object.Close()
	file, err := os.Create(words[3])
	if err != nil {
		return err
	}
	if _, err := io.Copy(file, object); err != nil {
		return err
	}
	return file.Close()
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
