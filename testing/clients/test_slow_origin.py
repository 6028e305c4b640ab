"""A glob over many small objects, over a slow origin: Polars and pyarrow wait for its responses concurrently.

The origin is a second Bywash over a folder, behind a proxy that holds each request back; both count.
"""

import asyncio
import contextlib
import os
import threading
import urllib.parse

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from harness import ACCESS_KEY, REGION, SECRET_KEY, Bywash
from pyarrow.fs import S3FileSystem

# Enough for a result within seconds; BYWASH_GLOB_OBJECTS=10000 is the full measurement.
OBJECTS = int(os.environ.get("BYWASH_GLOB_OBJECTS", "500"))
ROWS = 20
# Delay of each request.
LATENCY_SECONDS = 0.05
# Minimum number of concurrent requests. Until it is reached, each request waits this long for the others: a slow client could
# otherwise get its first response before it sends its last request.
MIN_CONCURRENT = 8
MAX_WAIT_SECONDS = 2
# Requests besides those of the objects: pages of listings, and HEADs.
OTHER_REQUESTS = 20 + OBJECTS // 100


class SlowProxy:
    """Proxy that delays requests and counts how many wait concurrently. HTTP/1.1, so one at a time per connection."""

    def __init__(self, target):
        self.target = urllib.parse.urlsplit(target)
        self.waiting = self.max_waiting = 0
        self.enough = asyncio.Event()
        self.loop = asyncio.new_event_loop()
        self.server = self.loop.run_until_complete(asyncio.start_server(self.connection, "127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self.server.sockets[0].getsockname()[1]
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    async def connection(self, client, to_client):
        origin, to_origin = await asyncio.open_connection(self.target.hostname, self.target.port)
        state = {"started": False}

        async def up():
            while data := await client.read(1 << 16):
                if not state["started"]:
                    state["started"] = True
                    self.waiting += 1
                    self.max_waiting = max(self.max_waiting, self.waiting)
                    if self.waiting >= MIN_CONCURRENT:
                        self.enough.set()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.enough.wait(), MAX_WAIT_SECONDS)
                    await asyncio.sleep(LATENCY_SECONDS)
                to_origin.write(data)
            to_origin.close()

        async def down():
            while data := await origin.read(1 << 16):
                if state["started"]:
                    state["started"] = False
                    self.waiting -= 1
                to_client.write(data)
            to_client.close()

        await asyncio.gather(up(), down(), return_exceptions=True)

    async def connections_end(self):
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    def stop(self):
        """Stops after all clients have disconnected."""
        self.server.close()
        asyncio.run_coroutine_threadsafe(self.connections_end(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """A server of a folder of small Parquet files."""
    folder, files = tmp_path_factory.mktemp("origin"), tmp_path_factory.mktemp("files")
    (files / "glob").mkdir()
    for number in range(OBJECTS):
        table = pa.table({"number": range(number * ROWS, (number + 1) * ROWS)})
        pq.write_table(table, files / "glob" / f"{number:05}.parquet")
    server = Bywash(folder, f"slow={files.as_uri()}")
    yield server
    assert server.stop() == 0


@pytest.fixture
def slow(origin, start):
    """A new server over the slow origin."""
    proxy = SlowProxy(origin.url)
    environment = {
        "AWS_ENDPOINT_URL": proxy.url, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": REGION,
    }
    server = start("s3://slow", env=environment)
    server.proxy = proxy
    yield server
    server.stop()
    proxy.stop()


def sum_by_polars(server):
    options = {
        "aws_endpoint_url": server.url, "aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY,
        "aws_region": REGION, "aws_allow_http": "true",
    }
    frame = pl.scan_parquet("s3://slow/glob/*.parquet", storage_options=options)
    return frame.select(pl.col("number").sum()).collect().item()


def sum_by_pyarrow(server):
    pa.set_io_thread_count(32)  # as its documentation advises for remote files; the default is 8
    fs = S3FileSystem(
        access_key=ACCESS_KEY, secret_key=SECRET_KEY, region=REGION, scheme="http",
        endpoint_override=urllib.parse.urlsplit(server.url).netloc,
    )
    return pc.sum(ds.dataset("slow/glob", filesystem=fs).to_table(fragment_readahead=32)["number"]).as_py()


@pytest.mark.parametrize("client", [sum_by_polars, sum_by_pyarrow])
def test_glob_fetches_many_objects_concurrently(origin, slow, client):
    requests = origin.bucket_stats("slow")["requests"]
    assert client(slow) == sum(range(OBJECTS * ROWS))
    cold = slow.bucket_stats("slow")
    requests = origin.bucket_stats("slow")["requests"] - requests
    print(f"{client.__name__}: {cold['requests']} requests, {requests} at the origin, {slow.proxy.max_waiting} at once")
    assert requests <= OBJECTS + OTHER_REQUESTS, "one request to the origin per object, however often the client reads it"
    assert slow.proxy.max_waiting >= MIN_CONCURRENT
    assert client(slow) == sum(range(OBJECTS * ROWS))
    warm = slow.bucket_stats("slow")
    assert warm["origin_data_requests"] == cold["origin_data_requests"]
