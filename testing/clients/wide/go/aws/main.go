// Command aws does one operation of the AWS SDK for Go.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/feature/s3/manager"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

var (
	background = context.Background()
	bucket     = aws.String(os.Getenv("WIDE_BUCKET"))
)

func main() {
	client := s3.New(s3.Options{
		BaseEndpoint:     aws.String(os.Getenv("WIDE_URL")),
		Region:           os.Getenv("AWS_REGION"),
		UsePathStyle:     true,
		RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider(
			os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"), ""),
	})
	if err := run(client, os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(client *s3.Client, operation string, words []string) error {
	switch operation {
	case "put":
		body, err := os.ReadFile(words[0])
		if err != nil {
			return err
		}
		_, err = client.PutObject(background, &s3.PutObjectInput{
			Bucket: bucket, Key: &words[1], Body: bytes.NewReader(body)})
		return err
	case "upload":
		file, err := os.Open(words[0])
		if err != nil {
			return err
		}
		defer file.Close()
		parts := func(uploader *manager.Uploader) { uploader.PartSize = 5 << 20 }
		_, err = manager.NewUploader(client, parts).Upload(background, &s3.PutObjectInput{
			Bucket: bucket, Key: &words[1], Body: file})
		return err
	case "get":
		return get(client, words[0], nil, words[1])
	case "range":
		first, _ := strconv.Atoi(words[1])
		count, _ := strconv.Atoi(words[2])
		span := fmt.Sprintf("bytes=%d-%d", first, first+count-1)
		return get(client, words[0], &span, words[3])
	case "list":
		pages := s3.NewListObjectsV2Paginator(client, &s3.ListObjectsV2Input{Bucket: bucket, Prefix: &words[0]})
		for pages.HasMorePages() {
			page, err := pages.NextPage(background)
			if err != nil {
				return err
			}
			for _, object := range page.Contents {
				fmt.Println(*object.Key)
			}
		}
		return nil
	case "copy":
		source := *bucket + "/" + strings.ReplaceAll(url.QueryEscape(words[0]), "+", "%20")
		_, err := client.CopyObject(background, &s3.CopyObjectInput{Bucket: bucket, Key: &words[1], CopySource: &source})
		return err
	case "delete":
		_, err := client.DeleteObject(background, &s3.DeleteObjectInput{Bucket: bucket, Key: &words[0]})
		return err
	case "version":
		return version("github.com/aws/aws-sdk-go-v2/service/s3")
	}
	return fmt.Errorf("no operation %s", operation)
}

func get(client *s3.Client, key string, span *string, to string) error {
	found, err := client.GetObject(background, &s3.GetObjectInput{Bucket: bucket, Key: &key, Range: span})
	if err != nil {
		return err
	}
	defer found.Body.Close()
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(file, found.Body); err != nil {
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
