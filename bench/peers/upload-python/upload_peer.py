"""Uploads objects by Google's own client."""

import sys

from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from upload_rounds import serve_rounds

CHUNK_BYTES = 16 << 20


def main():
    endpoint, at_once = sys.argv[1], int(sys.argv[2])
    client = storage.Client(
        project="bench", credentials=AnonymousCredentials(), client_options={"api_endpoint": endpoint}
    )
    bucket = client.bucket("bench")

    def upload(turn, at, file, size):
        blob = bucket.blob(f"python-{turn}-{at}", chunk_size=CHUNK_BYTES)
        blob.upload_from_file(file, size=size, checksum=None)

    serve_rounds(at_once, upload)


main()
