// One operation of version 2 of the AWS SDK for JavaScript.
"use strict";
process.env.AWS_SDK_JS_SUPPRESS_MAINTENANCE_MODE_MESSAGE = "1";
const fs = require("node:fs");
const { pipeline } = require("node:stream/promises");
const AWS = require("aws-sdk");

const Bucket = process.env.WIDE_BUCKET;
const client = new AWS.S3({
  endpoint: process.env.WIDE_URL,
  region: process.env.AWS_REGION,
  s3ForcePathStyle: true,
  signatureVersion: "v4",
  maxRetries: 0,
});

const operations = {
  async put(file, Key) {
    await client.putObject({ Bucket, Key, Body: fs.readFileSync(file) }).promise();
  },
  async upload(file, Key) {
    await client.upload({ Bucket, Key, Body: fs.createReadStream(file) }, { partSize: 5 << 20 }).promise();
  },
  async get(Key, file, Range) {
    await pipeline(client.getObject({ Bucket, Key, Range }).createReadStream(), fs.createWriteStream(file));
  },
  async range(key, first, count, file) {
    await operations.get(key, file, `bytes=${first}-${Number(first) + Number(count) - 1}`);
  },
  async list(Prefix) {
    for (let Marker; ; ) {
      const page = await client.listObjects({ Bucket, Prefix, Marker }).promise();
      for (const entry of page.Contents) console.log(entry.Key);
      if (!page.IsTruncated) return;
      Marker = page.NextMarker ?? page.Contents.at(-1).Key;
    }
  },
  async copy(key, Key) {
    const CopySource = `${Bucket}/${key.split("/").map(encodeURIComponent).join("/")}`;
    await client.copyObject({ Bucket, Key, CopySource }).promise();
  },
  async delete(Key) {
    await client.deleteObject({ Bucket, Key }).promise();
  },
  async version() {
    console.log(AWS.VERSION);
  },
};

const [operation, ...words] = process.argv.slice(2);
operations[operation](...words).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
