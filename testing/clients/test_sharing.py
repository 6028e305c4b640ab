"""Many readers of one cold object cost the origin as much as one."""

import http.client
import threading
import urllib.parse

import pytest
from harness import MIB, payload, until

SIZE = 64 * MIB
READERS = 32


@pytest.fixture(scope="module")
def body():
    return memoryview(b"".join(payload(8 * MIB, number) for number in range(SIZE // (8 * MIB))))


@pytest.fixture(params=["folder", "s3"])
def cold(request, start, tmp_path, body):
    """A new server over an origin with the object."""
    if request.param == "folder":
        (tmp_path / "origin").mkdir()
        (tmp_path / "origin/big").write_bytes(body)
        server = start(f"sharing=file://{tmp_path}/origin", "--memory", "1GiB")
        logged_gets = None
    else:
        moto = request.getfixturevalue("moto")
        moto.s3.create_bucket(Bucket="sharing")
        moto.s3.put_object(Bucket="sharing", Key="big", Body=bytes(body))
        server = start("s3://sharing", "--memory", "1GiB", env=moto.environment())
        def logged_gets():
            return moto.gets("sharing", "big")
    return server, logged_gets


def test_32_cold_readers_fetch_each_byte_once(cold, body):
    server, logged_gets = cold
    url = urllib.parse.urlsplit(server.presigned("get_object", "sharing", "big"))
    start, faults = threading.Barrier(READERS), []

    def reads():
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=300)
        connection.connect()
        start.wait()
        connection.request("GET", f"{url.path}?{url.query}")
        response = connection.getresponse()
        buffer, at = memoryview(bytearray(MIB)), 0
        while count := response.readinto(buffer):
            if buffer[:count] != body[at : at + count]:
                faults.append(f"wrong bytes near {at}")
                break
            at += count
        if (response.status, at) != (200, SIZE):
            faults.append(f"status {response.status}, {at} bytes")
        connection.close()

    threads = [threading.Thread(target=reads) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    stats = server.bucket_stats("sharing")
    assert stats["origin_bytes"] == SIZE
    assert stats["bytes"] == READERS * SIZE
    if logged_gets:
        # Its log arrives through a pipe.
        until("moto has logged every request", lambda: logged_gets() >= stats["origin_data_requests"], 60)
        assert stats["origin_data_requests"] == logged_gets()
