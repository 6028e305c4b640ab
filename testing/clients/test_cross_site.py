"""A page of another site in a real browser: it uploads by a presigned PUT, and reads back."""

import functools
import http.server
import threading

import pytest
from browser import Browser

# Sends one request, and leaves its outcome where the test finds it.
SEND = """
window.outcome = null;
fetch(arguments[0], arguments[1]).then(async (response) => {
    window.outcome = [response.status, response.headers.get("ETag"), await response.text()];
}, (error) => { window.outcome = ["blocked", null, String(error)]; });
return true;
"""


@pytest.fixture
def page(tmp_path):
    """The address of an empty page, on another origin than the server's."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "index.html").write_text("<title>site</title>")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{site.server_port}"
        site.shutdown()


@pytest.fixture
def browser(tmp_path):
    running = Browser(tmp_path)
    yield running
    running.stop()


def test_page_uploads_by_a_presigned_put_and_reads_back(start, page, browser):
    server = start()
    server.s3.create_bucket(Bucket="site")

    def send(operation, **request):
        url = server.presigned(operation, "site", "from a page.txt")
        # Not from the browser's cache.
        browser.run(SEND, url, request | {"cache": "no-store"})
        return browser.until("a response", "return window.outcome")

    browser.open(page)
    upload = {"method": "PUT", "body": "grüße", "headers": {"Content-Type": "text/plain"}}
    assert send("put_object", **upload)[0] == "blocked", "no rule allows it yet"
    rule = {"AllowedMethods": ["GET", "PUT"], "AllowedOrigins": [page], "AllowedHeaders": ["content-type"], "ExposeHeaders": ["ETag"]}
    server.s3.put_bucket_cors(Bucket="site", CORSConfiguration={"CORSRules": [rule]})
    status, etag, _ = send("put_object", **upload)
    assert (status, etag) == (200, server.s3.head_object(Bucket="site", Key="from a page.txt")["ETag"])
    assert send("get_object", method="GET") == [200, etag, "grüße"]
    server.s3.delete_bucket_cors(Bucket="site")
    assert send("get_object", method="GET")[0] == "blocked"
