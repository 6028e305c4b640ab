// One operation of version 3 of the AWS SDK for JavaScript.
"use strict";
const fs = require("node:fs");
const { pipeline } = require("node:stream/promises");
const s3 = require("@aws-sdk/client-s3");
const { Upload } = require("@aws-sdk/lib-storage");

const Bucket = process.env.WIDE_BUCKET;
const client = new s3.S3Client({
  endpoint: process.env.WIDE_URL,
  region: process.env.AWS_REGION,
  forcePathStyle: true,
  maxAttempts: 1,
});

const operations = {
  async put(file, Key) {
    await client.send(new s3.PutObjectCommand({ Bucket, Key, Body: fs.readFileSync(file) }));
  },
  async upload(file, Key) {
    const params = { Bucket, Key, Body: fs.createReadStream(file) };
    await new Upload({ client, params, partSize: 5 << 20 }).done();
  },
  async get(Key, file, Range) {
    const response = await client.send(new s3.GetObjectCommand({ Bucket, Key, Range }));
    await pipeline(response.Body, fs.createWriteStream(file));
  },
  async range(key, first, count, file) {
    await operations.get(key, file, `bytes=${first}-${Number(first) + Number(count) - 1}`);
  },
  async list(Prefix) {
    for await (const page of s3.paginateListObjectsV2({ client }, { Bucket, Prefix })) {
      for (const entry of page.Contents ?? []) console.log(entry.Key);
    }
  },
  async copy(key, Key) {
    const CopySource = `${Bucket}/${key.split("/").map(encodeURIComponent).join("/")}`;
    await client.send(new s3.CopyObjectCommand({ Bucket, Key, CopySource }));
  },
  async delete(Key) {
    await client.send(new s3.DeleteObjectCommand({ Bucket, Key }));
  },
  async version() {
    console.log(require("@aws-sdk/client-s3/package.json").version);
  },
};

const [operation, ...words] = process.argv.slice(2);
operations[operation](...words).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
