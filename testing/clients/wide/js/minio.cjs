// One operation of MinIO's library for JavaScript.
"use strict";
const fs = require("node:fs");
const { pipeline } = require("node:stream/promises");
const Minio = require("minio");

const bucket = process.env.WIDE_BUCKET;
const url = new URL(process.env.WIDE_URL);
const client = new Minio.Client({
  endPoint: url.hostname,
  port: Number(url.port),
  useSSL: false,
  region: process.env.AWS_REGION,
  accessKey: process.env.AWS_ACCESS_KEY_ID,
  secretKey: process.env.AWS_SECRET_ACCESS_KEY,
  partSize: 5 << 20,
});

const operations = {
  async put(file, key) {
    await client.fPutObject(bucket, key, file);
  },
  async upload(file, key) {
    await client.fPutObject(bucket, key, file);
  },
  async get(key, file) {
    await client.fGetObject(bucket, key, file);
  },
  async range(key, first, count, file) {
    const body = await client.getPartialObject(bucket, key, Number(first), Number(count));
    await pipeline(body, fs.createWriteStream(file));
  },
  async list(prefix) {
    for await (const entry of client.listObjectsV2(bucket, prefix, true)) console.log(entry.name);
  },
  async copy(key, to) {
    // It encodes the name itself.
    await client.copyObject(bucket, to, `/${bucket}/${key}`, new Minio.CopyConditions());
  },
  async delete(key) {
    await client.removeObject(bucket, key);
  },
  async version() {
    const path = require.resolve("minio").replace(/node_modules\/minio\/.*/, "node_modules/minio/package.json");
    console.log(JSON.parse(fs.readFileSync(path)).version);
  },
};

const [operation, ...words] = process.argv.slice(2);
operations[operation](...words).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
