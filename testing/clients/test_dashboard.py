"""The page in a real browser: what a person sees, by mouse, by keys, and with a screen reader's eyes."""

import os
import time
from pathlib import Path

import pytest
import requests

from browser import Browser
from harness import ACCESS_KEY, MIB, SECRET_KEY

KEY = (ACCESS_KEY, SECRET_KEY)
# Artifacts of a run, to be looked at.
SHOTS = Path(os.environ.get("BYWASH_SCREENSHOTS", Path(__file__).parents[2] / "target" / "screenshots"))
TAB, ENTER = "\ue004", "\ue007"
END, HOME, LEFT, RIGHT, ESCAPE = "\ue010", "\ue011", "\ue012", "\ue014", "\ue00c"


@pytest.fixture
def browser(tmp_path):
    running = Browser(tmp_path)
    yield running
    running.stop()


@pytest.fixture
def server(start):
    """A server with a bucket, some traffic and a day of a user's series."""
    server = start()
    server.s3.create_bucket(Bucket="shop")
    for number in range(4):
        server.s3.put_object(Bucket="shop", Key=f"orders/{number}.parquet", Body=os.urandom(MIB))
    for number in [0, 0, 0, 1, 2, 0, 1]:
        server.s3.get_object(Bucket="shop", Key=f"orders/{number}.parquet")["Body"].read()
    now = int(time.time())
    lines = [f"weather,place=garden temperature={15 + minute % 60 / 10} {now - 60 * minute}" for minute in range(1440)]
    response = requests.post(server.admin + "/write?precision=s", data="\n".join(lines), auth=KEY, timeout=30)
    assert response.status_code == 204, response.text
    return server


def log_in(browser, server, path="/"):
    browser.open(server.admin + path)
    assert "/login" in browser.url()
    browser.type("#access_key", ACCESS_KEY)
    browser.type("#secret_key", SECRET_KEY + ENTER)
    browser.until("the page", "return location.pathname == '/' && document.querySelector('#live')")


def quiet(browser):
    messages = [line["message"] for line in browser.console()]
    assert messages == [], messages


def test_shows_what_happens(server, browser):
    log_in(browser, server)
    # A point of the history is written every ten seconds; the page fetches itself.
    browser.until("a chart is drawn", "return document.querySelectorAll('figure polyline:not([stroke=\"#DDDDDA\"]), figure circle').length > 3")
    text = browser.text()
    for part in ["Hit ratio", "shop", "orders/0.parquet", "No upload is open", "weather,place=garden/temperature"]:
        assert part in text, f"{part} is not in {text}"
    browser.screenshot(SHOTS / "page.png")
    browser.resize(390, 844)
    wide = browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"on a phone the page is {wide} px too wide"
    browser.screenshot(SHOTS / "phone.png")
    quiet(browser)


def test_a_bucket_is_picked_and_kept(server, browser):
    server.s3.create_bucket(Bucket="archive")
    log_in(browser, server)
    assert "The server is well." in browser.text(".health")
    browser.click("a[href*='bucket=shop']")
    browser.until("the bucket is picked", "return document.querySelector('main').innerText.includes('bucket shop')")
    rows = "return [...document.querySelectorAll('[aria-labelledby=buckets] tbody th')].map(it => it.innerText)"
    assert browser.run(rows) == ["shop"]
    browser.click("#range-6h")
    browser.until("the range is picked", "return document.querySelector('[aria-current]').innerText == '6 h'")
    assert "bucket=shop" in browser.url() and browser.run(rows) == ["shop"]
    browser.screenshot(SHOTS / "bucket.png")
    quiet(browser)


def test_an_origin_that_fails_is_named(start, browser):
    # Nothing listens there.
    server = start("gone=http://127.0.0.1:1/")
    with pytest.raises(requests.exceptions.Timeout):
        # The server repeats requests to its origin meanwhile.
        requests.get(server.presigned("get_object", "gone", "a"), timeout=3)
    log_in(browser, server)
    health = browser.text(".health")
    assert "The server is degraded." in health and "the origin of bucket gone fails" in health, health
    browser.screenshot(SHOTS / "degraded.png")
    quiet(browser)


def test_a_range_is_picked_and_kept(server, browser):
    log_in(browser, server, "/?series=weather%2Cplace%3Dgarden%2Ftemperature")
    points = """return document.querySelector('figure polyline[stroke="#0B62A8"]').getAttribute('points').split(' ').length"""
    hour = browser.run(points)
    browser.click("#range-24h")
    browser.until("the range is picked", "return document.querySelector('[aria-current]').innerText == '24 h'")
    assert "series=weather" in browser.url() and browser.run(points) > hour
    assert "temperature: 15" in browser.text("figure"), "the newest point as a number"
    browser.screenshot(SHOTS / "series.png")
    quiet(browser)


def test_any_range_is_shown_in_the_zone_of_the_server(server, browser):
    log_in(browser, server, "/?series=weather%2Cplace%3Dgarden%2Ftemperature")
    points = """return document.querySelector('figure polyline[stroke="#0B62A8"]').getAttribute('points').split(' ').length"""
    hour = browser.run(points)
    browser.click("#between summary")
    began = time.time() - 3 * 3600
    browser.set("#from", time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(began)))
    browser.click("#between button")
    browser.until("the range is shown", "return location.search.includes('from=')")
    shown = browser.text("#between summary")
    assert time.strftime("%H:%M:%S", time.localtime(began)) in shown and "series=weather" in browser.url(), shown
    browser.click("#between summary")
    assert "UTC" in browser.text("nav form")
    assert browser.run(points) > 2 * hour
    browser.screenshot(SHOTS / "range.png")
    browser.click("#between summary")
    browser.open(server.admin + "/?from=2026-11-22T08%3A00&to=2026-11-22T07%3A00")
    assert "From must be before To" in browser.text("[role=alert]")
    assert "Charts of the last 1 h" in browser.text(), "the rest is shown nevertheless"
    quiet(browser)


def test_values_are_shown_under_the_pointer_and_by_keys(server, browser):
    log_in(browser, server, "/?series=weather%2Cplace%3Dgarden%2Ftemperature")
    values = "return document.querySelector('.values').innerText"
    assert browser.run(values) == ""
    browser.point(".plot", 0, 0)
    under = browser.until("a value under the pointer", values)
    assert "temperature 1" in under or "temperature 2" in under, under
    assert browser.run("return document.querySelectorAll('.crosshair').length") == 1
    browser.screenshot(SHOTS / "crosshair.png")
    # A refresh of the page keeps it.
    browser.run("document.querySelector('#live').mark = true")
    browser.until("the page is refreshed", "return !document.querySelector('#live').mark")
    assert browser.run(values).startswith("temperature") is False and browser.run(values) != ""
    browser.point("h1", 0, 0)
    browser.until("it is gone with the pointer", "return !document.querySelector('.crosshair')")
    browser.run("document.querySelector('.plot').focus()")
    browser.press(END)
    last = browser.run(values)
    browser.press(LEFT + LEFT)
    before = browser.run(values)
    browser.press(RIGHT)
    assert len({last, before, browser.run(values)}) == 3
    browser.press(HOME)
    first = browser.run(values)
    browser.press(LEFT)
    assert browser.run(values) == first != last
    browser.press(ESCAPE)
    assert browser.run(values) == ""
    quiet(browser)


def test_a_restart_is_marked(start, browser):
    server = start()
    starts = "return [...document.querySelectorAll('.legend li')].filter(it => it.innerText.includes('server started')).length"
    marks = "return document.querySelector('.plot svg').querySelectorAll('polyline[stroke=\"#555552\"]').length"
    log_in(browser, server)
    browser.until("a point is written", starts)
    first = browser.run(marks)
    server.stop()
    server.start()
    log_in(browser, server)
    browser.until("the second start", "return (() => { " + marks + " })() > arguments[0]", first)
    browser.screenshot(SHOTS / "restart.png")
    quiet(browser)


def test_buttons_warm_drop_explain_and_abort(server, browser):
    upload = {"Bucket": "shop", "Key": "videos/big <1>.mp4"}
    upload["UploadId"] = server.s3.create_multipart_upload(**upload)["UploadId"]
    server.s3.upload_part(PartNumber=1, Body=bytes(5 * MIB), **upload)
    log_in(browser, server)
    browser.click("[aria-labelledby=hottest] a")
    browser.until("the reasons", "return document.querySelector('.why')?.innerText.includes('a read would be a hit')")
    browser.screenshot(SHOTS / "why.png")
    browser.click("button[formaction='/actions/drop']")
    browser.until("what was dropped", "return document.body.innerText.includes('Dropped from memory: 1 object, 1 MiB')")
    browser.screenshot(SHOTS / "dropped.png")
    browser.click("main a")
    browser.type("#action-prefix", "orders/3" + ENTER)
    browser.until("what was read", "return document.body.innerText.includes('Read into memory: 1 object, 1 MiB')")
    browser.open(server.admin + "/")
    browser.click("#abort-0 summary")
    browser.screenshot(SHOTS / "abort.png")
    browser.click("#abort-0 button")
    browser.until("the abort", "return document.body.innerText.includes('Aborted the upload of shop/videos/big <1>.mp4')")
    assert "Uploads" not in server.s3.list_multipart_uploads(Bucket="shop")
    quiet(browser)


def test_another_site_presses_no_button(server, browser, tmp_path):
    """A form of another site, sent with this browser's session, changes nothing."""
    log_in(browser, server)
    form = f"<form method=post action='{server.admin}/actions/drop'><input name=bucket value=shop><button>x</button></form>"
    (tmp_path / "evil.html").write_text(form)
    browser.open((tmp_path / "evil.html").as_uri())
    browser.click("button")
    browser.until("the refusal", "return document.body.innerText.includes('pages of other sites are refused')")
    assert requests.get(server.admin + "/stats", timeout=30).json()["pool"]["resident_blocks"] > 0


def test_an_upload_is_seen_moving(server, browser):
    upload = {"Bucket": "shop", "Key": "videos/big.mp4"}
    upload["UploadId"] = server.s3.create_multipart_upload(**upload)["UploadId"]
    server.s3.upload_part(PartNumber=1, Body=bytes(5 * MIB), **upload)
    log_in(browser, server)
    browser.until("the upload is there", "return document.body.innerText.includes('videos/big.mp4')")
    assert "5 MiB" in browser.text()
    browser.run("window.untouched = true")
    server.s3.upload_part(PartNumber=2, Body=bytes(7 * MIB), **upload)
    browser.until("it moved by itself", "return document.body.innerText.includes('12 MiB')")
    browser.screenshot(SHOTS / "upload.png")
    server.s3.abort_multipart_upload(**upload)
    browser.until("it is gone", "return document.body.innerText.includes('No upload is open')")
    assert browser.run("return window.untouched"), "the page was not loaded anew"
    quiet(browser)


def test_keys_and_screen_readers_get_everywhere(server, browser):
    log_in(browser, server)
    seen = []
    for _ in range(10):
        browser.press(TAB)
        seen.append(browser.run("return document.activeElement.innerText"))
    assert seen == ["To the content", "Bywash", "15 min", "1 h", "6 h", "24 h", "7 d", "Other range", "Pause", "Log out"]
    unnamed = browser.run(
        "return [...document.querySelectorAll('[role=img], meter, progress, nav, table')]"
        ".filter(it => !it.getAttribute('aria-label') && !it.getAttribute('aria-labelledby') && !it.closest('details'))"
        ".map(it => it.outerHTML.slice(0, 80))"
    )
    assert unnamed == []
    levels = browser.run("return [...document.querySelectorAll('h1, h2, h3')].map(it => Number(it.tagName[1]))")
    assert levels[0] == 1 and all(after <= before + 1 for before, after in zip(levels, levels[1:])), levels
    quiet(browser)


def test_a_wrong_key_and_a_logout_show_nothing(server, browser):
    browser.open(server.admin + "/?range=6h")
    browser.type("#access_key", ACCESS_KEY)
    browser.type("#secret_key", "wrong" + ENTER)
    browser.until("the refusal", "return document.querySelector('.wrong')?.innerText.includes('not the key')")
    assert browser.cookies() == []
    browser.type("#access_key", ACCESS_KEY)
    browser.type("#secret_key", SECRET_KEY + ENTER)
    browser.until("the requested page", "return location.search == '?range=6h'")
    (cookie,) = browser.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
    browser.click("form[action='/logout'] button")
    browser.until("the form again", "return document.querySelector('#access_key')")
    browser.open(server.admin + "/")
    assert "/login" in browser.url()
