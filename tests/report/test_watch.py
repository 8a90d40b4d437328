"""The live page: real requests on loopback, the attacks it must withstand, and a run that goes on while it is open."""

import argparse
import hashlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from browser import VIEWS, open_view, opened, settle
from divopd.cli import watch
from divopd.errors import InputError
from divopd.report.page import data
from divopd.report.page.server import make_server
from divopd.report.run_comparison import compare_runs
from divopd.report.runs import read_run
from divopd.run.doing import Now, forget_now, write_now
from divopd.store import Store
from divopd.store.views import StoreViews
from evil_runs import SCRIPT, make_evil_run
from fake_runs import evaluation, make_run, replace_record


class Client:
    """Asks a server one thing at a time."""

    def __init__(self, folder: Path) -> None:
        self.server, self.address = make_server(folder, token="secret")
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def ask(self, path: str, *, method: str = "GET", headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=10)
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content

    def get(self, view: str) -> Any:
        status, content = self.ask(f"/secret/api/{view}")
        assert status == 200, content
        return json.loads(content)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three runs, one of them hostile; beside it, a run that must not be reached."""
    outside = tmp_path_factory.mktemp("outside")
    make_run(outside / "private")
    folder = outside / "runs"
    make_run(folder / "vanilla", method="vanilla", rates=[10, 20, 44])
    make_run(folder / "divopd", rates=[10, 40, 50, 60])
    make_evil_run(folder / f"evil {SCRIPT.replace('/', '')}")
    return folder


@pytest.fixture
def client(folder: Path) -> Iterator[Client]:
    client = Client(folder)
    yield client
    client.close()


def test_the_page_gets_what_the_commands_say(client: Client, folder: Path) -> None:
    """Comparison, flow and a rollout are those of compare, the account and why; a second ask is the same."""
    runs = [read_run(folder / name) for name in ("divopd", "vanilla")]
    assert client.get("comparison") == data.plain(compare_runs(runs).as_json())
    assert client.get("comparison/vanilla/divopd") == data.plain(compare_runs(runs[::-1]).as_json())
    with StoreViews.open(folder / "divopd") as store:
        assert client.get("run/divopd/flow")["account"] == store.account()._asdict()
        rollout = store.journal(3).selected[0][0]
        assert client.get(f"run/divopd/rollout/{quote(rollout, safe='')}")["rollout"] == rollout
        assert client.get("run/divopd/batch/3") == data.plain(data.batch(store, update=3))
    assert client.get("run/divopd/updates?after=4")["first"] == 5
    with StoreViews.open(folder / "divopd") as store:
        starved = [record.starved_s for record in store.update_records().values()]
    assert client.get("run/divopd/updates")["columns"]["starved_s"] == starved
    assert any(starved)
    assert client.get("run/divopd/flow") == client.get("run/divopd/flow")


def test_news_tell_of_every_change(tmp_path: Path) -> None:
    """A put, an update and an evaluation each change what `news` says; a new run in the folder appears."""
    make_run(tmp_path / "one")
    client = Client(tmp_path)
    try:
        seen = [client.get("news")]
        with Store.open(tmp_path / "one") as store:
            assert store.record_evaluation(evaluation(9, 1.0))
            seen.append(client.get("news"))
            store.note("note", {})
            seen.append(client.get("news"))
        make_run(tmp_path / "two")
        seen.append(client.get("news"))
        assert [run["name"] for run in client.get("runs")["runs"]] == ["one", "two"]
        assert len({json.dumps(one) for one in seen}) == len(seen)
    finally:
        client.close()


def test_news_tell_what_each_role_does(tmp_path: Path) -> None:
    """In words, with how long ago it said so; a run that is over says nothing."""
    run = make_run(tmp_path / "one")
    client = Client(tmp_path)
    try:
        assert client.get("news")["doing"] == {"one": []}
        write_now(run / "now", "evaluator", Now("evaluator", "evaluating version 0", 35, 140, at=time.time() - 90))
        [said] = client.get("news")["doing"]["one"]
        assert (said["process"], said["role"]) == ("evaluator", "evaluator")
        assert said["sentence"] == "evaluating version 0: 35 of 140"
        assert 90 <= said["ago_s"] < 3600
    finally:
        client.close()


@pytest.mark.browser
def test_a_live_page_says_what_each_role_does(tmp_path: Path) -> None:
    """Above the view, without drawing it anew; gone when the run is over."""
    run = make_run(tmp_path / "one")
    write_now(run / "now", "evaluator", Now("evaluator", "evaluating version 0", 35, 140, at=time.time()))
    write_now(run / "now", "explorer-1", Now("explorer", f"playing {SCRIPT}", 7, None, at=time.time()))
    client = Client(tmp_path)
    try:
        with opened(client.address) as page:
            now = page.get_by_label("What the roles do now")
            assert "evaluator evaluating version 0: 35 of 140" in now.text_content()
            assert f"explorer-1 playing {SCRIPT}, 7 so far" in now.text_content()
            forget_now(run / "now")
            now.wait_for(state="hidden")
    finally:
        client.close()


@pytest.mark.parametrize("path", ["/", "/secret", "/secre/", "/other/", "/Secret/", "/secret/../secret/", "/?/secret/"])
def test_without_the_token_there_is_nothing(client: Client, path: str) -> None:
    """Another path gets 404, with or without a view behind it."""
    assert client.ask(path)[0] == 404
    assert client.ask(f"{path.rstrip('/')}x/api/runs")[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:80"])
def test_another_host_name_is_refused(client: Client, host: str) -> None:
    """A page of another site whose name was pointed at loopback gets 403 even with the token."""
    assert client.ask("/secret/api/runs", headers={"Host": host})[0] == 403
    assert client.ask("/secret/", headers={"Host": host})[0] == 403


@pytest.mark.parametrize(
    "view",
    [
        "run/..%2Fprivate/flow",
        "run/%2Fetc/flow",
        "run/../private/flow",
        "run/none/flow",
        "run/divopd/nothing",
        "run/divopd/batch/99",
        "run/divopd/batch/-9",
        "run/divopd/batch/1e9",
        "run/divopd/rollout/..%2F..",
        "run/divopd/rollouts?order=r.id%3BDROP",
        "run/divopd/rollouts?first=99999999999999999999",
        "run/divopd/rollouts?fate=%27",
        "run/divopd/updates?after=x",
        "run",
        "",
        "../../config.yaml",
        "%00",
    ],
)
def test_what_is_not_there_is_refused(client: Client, view: str) -> None:
    """Names out of the folder, unknown views, numbers that are none and SQL get one line, and the server goes on."""
    status, content = client.ask(f"/secret/api/{view}")
    assert status == 404
    assert "\n" not in json.loads(content)["error"]
    assert client.ask("/secret/api/runs")[0] == 200


ODD_LINES = [
    "GET //[ HTTP/1.1",
    "GET //[/secret/api/runs HTTP/1.1",
    "GET http://[::/secret/ HTTP/1.1",
    "GET /secret//[ HTTP/1.1",
    "GET /secret/api/run/divopd/updates?after=--5 HTTP/1.1",
    "GET /secret/api/run/divopd/batch/--0 HTTP/1.1",
    "GET /secret/api/run/divopd/rollouts?count=-1 HTTP/1.1",
    "GET /secret/api/run/divopd/rollouts?first=-1&count=-1 HTTP/1.1",
    "GET /secret/api/run/divopd/batches?first=-1&count=-1 HTTP/1.1",
    "GET /secret/api/run/divopd/batches?count=0 HTTP/1.1",
    "GET /secret/api/run/divopd/batch/-1 HTTP/1.1",
    "GET /secret/api/run/divopd/updates?after=99999999999 HTTP/1.1",
    "GET /secret/api/run/divopd/rollouts?text=%00%ff%ed%a0%80 HTTP/1.1",
    "GET /secret/api/run/divopd/rollouts?order=%00&fate=%00 HTTP/1.1",
    "GET /secret/api/run/divopd/rollout/%00 HTTP/1.1",
    "GET /secret/api/run/divopd/rollout/%ed%a0%80 HTTP/1.1",
    "GET /secret/api/comparison/divopd/divopd HTTP/1.1",
    "GET /secret/api/comparison/%00/%ff HTTP/1.1",
    "GET /secret/api/runs?" + "&".join(f"a{n}=1" for n in range(99)) + " HTTP/1.1",
    "GET /secret/api/" + "x/" * 20_000 + " HTTP/1.1",
    "GET /" + "x" * 70_000 + " HTTP/1.1",
    "GET /\xe9\xff HTTP/1.1",
    "HEAD /secret/ HTTP/1.1",
    "OPTIONS * HTTP/1.1",
    "GET",
    "GET /secret/ HTTP/9.9",
    "\x00\x01\x02",
]


@pytest.mark.parametrize("line", ODD_LINES, ids=lambda line: repr(line[:50]))
def test_no_request_ends_in_a_traceback(client: Client, line: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Odd paths, numbers, names and lines, byte by byte as they are: an answer or a closed door, and not a word."""
    port = client.server.server_port
    for headers in (f"Host: 127.0.0.1:{port}\r\n", "Host: \r\n", "X: y\r\n" * 200, f"Host: {'x' * 70_000}\r\n"):
        # it may close the door before all is sent
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection, suppress(OSError):
            connection.sendall(f"{line}\r\n{headers}Connection: close\r\n\r\n".encode("latin-1"))
            while connection.recv(65_536):
                pass
    assert client.ask("/secret/api/runs")[0] == 200
    assert capfd.readouterr().err == ""


def test_it_only_reads(client: Client, folder: Path) -> None:
    """No other method is served, and after every view the store is the same, byte for byte."""

    def digest() -> list[str]:
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*/store.db"))]

    before = digest()
    for view in ("learning", "updates", "flow", "experience", "depths", "ages", "batches", "batch/2", "rollouts"):
        client.get(f"run/divopd/{view}")
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.ask("/secret/api/runs", method=method)[0] == 501
    assert digest() == before


def test_a_folder_without_runs_and_a_taken_port_are_refused(client: Client, folder: Path, tmp_path: Path) -> None:
    """One line each, before anything is served."""
    with pytest.raises(InputError, match="no run in it"):
        make_server(tmp_path)
    with pytest.raises(InputError, match="cannot listen"):
        make_server(folder, port=client.server.server_port)
    with pytest.raises(InputError, match="no such run"):
        make_server(tmp_path / "missing")
    parser = argparse.ArgumentParser()
    watch.add_arguments(parser)
    with pytest.raises(InputError, match="no run in it"):
        watch.run(parser.parse_args([str(tmp_path)]))


def test_a_store_that_is_damaged_does_not_hide_the_others(tmp_path: Path) -> None:
    """It is listed with what is wrong with it; the other runs are shown."""
    make_run(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "store.db").write_bytes(b"no store at all" * 20)
    client = Client(tmp_path)
    try:
        runs = {run["name"]: run for run in client.get("runs")["runs"]}
        assert "not a store" in runs["bad"]["error"]
        assert "error" not in runs["good"]
        assert client.get("comparison")["standings"][0]["run"] == "good"
        assert client.ask("/secret/api/run/bad/flow")[0] == 404
    finally:
        client.close()


def test_a_run_on_its_first_update_has_no_figures_yet(tmp_path: Path) -> None:
    """Its batch is journalled before it is trained: nothing is computed in place of what will be recorded."""
    make_evil_run(tmp_path / "run")
    client = Client(tmp_path)
    try:
        assert client.get("run/run/updates")["columns"] == {}
        assert client.get("run/run/batches")["total"] == 1
        replace_record(tmp_path / "run", "update", 0, {"of": "another version"})
        status, content = client.ask("/secret/api/run/run/updates")
        assert (status, "not those of this version" in json.loads(content)["error"]) == (404, True)
    finally:
        client.close()


# ── in a browser ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.browser
def test_every_view_of_a_folder_opens(client: Client) -> None:
    """All views by a click, one run hidden and shown again, a rollout read, hostile names as texts."""
    with opened(client.address) as page:
        assert "live" in page.locator(".live").text_content()
        for name in VIEWS:
            open_view(page, name)
            assert page.locator(".error").count() == 0, name
        open_view(page, "time")
        assert "of it with nothing to train" in page.locator("main").text_content()
        open_view(page, "flow")
        assert page.locator("figure").count() == 6
        page.locator(".chip").first.click()
        settle(page)
        page.wait_for_function("() => document.querySelectorAll('figure').length === 4")
        open_view(page, "rollouts")
        page.get_by_role("button", name="turns").first.click()
        settle(page)
        page.locator("tbody a").first.click()
        page.wait_for_selector(".turn")
        assert page.locator("main img, main b, main script").count() == 0


@pytest.mark.slow  # a run beside the page; test_a_live_page_says_what_each_role_does is cheaper
@pytest.mark.browser
def test_a_run_is_seen_going_on(models: Path, tmp_path: Path) -> None:
    """`divopd train` and `divopd watch` as processes: the open page counts on by itself."""
    from small_runs import config

    settings = config(models, learner={"updates": 200}, evaluation={"every": 5, "tasks": 2})
    (tmp_path / "config.yaml").write_text(settings.to_yaml(), encoding="utf-8")
    run = tmp_path / "runs" / "one"
    train = subprocess.Popen(
        [sys.executable, "-m", "divopd", "train", str(tmp_path / "config.yaml"), "--out", str(run)],
        stdout=subprocess.DEVNULL,
    )
    watched = None
    try:
        _wait_for(lambda: (run / "store.db").exists())
        command = [sys.executable, "-m", "divopd", "watch", str(run.parent)]
        watched = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert watched.stdout is not None
        with opened(watched.stdout.readline().strip()) as page:
            done = "() => Number(document.querySelector('.run-card .small').textContent.match(/\\d+/)[0])"
            first = page.evaluate(done)
            page.wait_for_function(f"first => ({done})() > first + 1", arg=first, timeout=180_000)
            assert train.poll() is None, "the run was over before it was seen to go on"
    finally:
        train.kill()
        train.wait()
        if watched is not None:
            watched.terminate()
            watched.communicate()


@pytest.mark.browser
def test_a_live_page_asks_for_new_updates_only(client: Client) -> None:
    """What it has already and what is new make the whole, column by column."""
    part = """async (known) => {
        const all = structuredClone(await server.updates("divopd"));
        const some = Object.fromEntries(Object.entries(all.columns).map(([name, own]) => [name, own.slice(0, known)]));
        seenUpdates.set("divopd", { columns: some, pressure: null, clock: null, count: known });
        return [all, await server.updates("divopd")];
    }"""
    with opened(client.address) as page:
        for known in (0, 4, 9):
            at_once, joined = page.evaluate(part, known)
            assert joined["count"] == len(joined["columns"]["update"]) == 9
            assert joined["columns"] == at_once["columns"]


@pytest.mark.browser
def test_a_server_that_is_gone_is_told(client: Client) -> None:
    """What was shown stays, with a line that says so, until the server answers again."""
    with opened(client.address, expected="ERR_CONNECTION_REFUSED") as page:
        client.close()
        page.wait_for_selector(".banner:not([hidden])")
        assert "does not answer" in page.locator(".banner").text_content()
        assert page.locator(".run-card").count() == 3


def _wait_for(condition: Any, *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
