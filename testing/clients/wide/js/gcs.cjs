// One operation of Google's storage library for JavaScript, with the credentials of its environment.
"use strict";
const fs = require("node:fs");
const { Storage, TransferManager } = require("@google-cloud/storage");
const { GoogleAuth } = require("google-auth-library");

const chunk = 4 << 20;
// It exchanges assertions at Google alone, whatever token_uri the key file has, so it signs its tokens itself.
const authClient = new GoogleAuth({ scopes: "https://www.googleapis.com/auth/devstorage.full_control", projectId: "p" });
authClient.useJWTAccessWithScope = true;
const client = new Storage({ apiEndpoint: process.env.WIDE_GCS, useAuthWithCustomEndpoint: true, authClient, projectId: "p" });
// Its starts of sessions look for the option here, where the constructor does not put it.
client.useAuthWithCustomEndpoint = true;
const bucket = client.bucket(process.env.WIDE_BUCKET);
const manager = new TransferManager(bucket);

const operations = {
  async put(file, key) {
    await bucket.upload(file, { destination: key, resumable: false });
  },
  async upload(file, key) {
    // An upload that starts its session itself sends no token to an endpoint of one's own; one of a given session needs none.
    const [uri] = await bucket.file(key).createResumableUpload();
    await bucket.upload(file, { destination: key, resumable: true, chunkSize: chunk, uri });
  },
  async get(key, file) {
    await bucket.file(key).download({ destination: file });
  },
  async pieces(key, file) {
    const options = { destination: file, chunkSizeBytes: chunk, concurrencyLimit: 4, noReturnData: true, validation: "crc32c" };
    await manager.downloadFileInChunks(key, options);
  },
  async range(key, first, count, file) {
    const [bytes] = await bucket.file(key).download({ start: Number(first), end: Number(first) + Number(count) - 1 });
    fs.writeFileSync(file, bytes);
  },
  async list(prefix) {
    const [files] = await bucket.getFiles({ prefix });
    for (const file of files) console.log(file.name);
  },
  async copy(key, to) {
    await bucket.file(key).copy(bucket.file(to));
  },
  async delete(key) {
    await bucket.file(key).delete();
  },
  async generation(key) {
    const [metadata] = await bucket.file(key).getMetadata();
    console.log(metadata.generation);
  },
  // Writes if the object has the generation, 0 if there is none; prints whether it was written. A number would lose its last digits.
  async write(file, key, generation) {
    const options = { destination: key, resumable: false, preconditionOpts: { ifGenerationMatch: generation } };
    const refused = await bucket.upload(file, options).then(
      () => false,
      (error) => {
        if (error.code !== 412) throw error;
        return true;
      },
    );
    console.log(refused ? "refused" : "written");
  },
  async version() {
    const path = require.resolve("@google-cloud/storage").replace(/storage\/build\/.*/, "storage/package.json");
    console.log(JSON.parse(fs.readFileSync(path)).version);
  },
};

const [operation, ...words] = process.argv.slice(2);
operations[operation](...words).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
