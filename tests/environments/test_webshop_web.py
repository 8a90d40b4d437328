"""The page on which a person shops: real requests on loopback, and the attacks it must withstand."""

import http.client
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import replace

import pytest

pytest.importorskip("bm25s", reason="for want of the extra webshop")
pytest.importorskip("Stemmer", reason="for want of the extra webshop")
pytest.importorskip("rapidfuzz", reason="for want of the extra webshop")

from divopd.environments.webshop import FULL, HORIZON, make_catalogue, stock_shop
from divopd.environments.webshop.web import Visit, make_server

EVIL = "<script>alert(1)</script>\"'&"


class Browser:
    """Sends one request at a time and keeps the last answer."""

    def __init__(self, visit: Visit) -> None:
        self.server, self.address = make_server(visit, token="secret")
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def ask(
        self, method: str, path: str = "/secret/", *, body: str = "", headers: dict[str, str] | None = None
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=10)
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        self.page = answer.read().decode()
        connection.close()
        return answer

    def post(self, **fields: str) -> str:
        """As a browser does it: post, follow to the page."""
        answer = self.ask("POST", body=urllib.parse.urlencode(fields))
        assert (answer.status, answer.headers["Location"]) == (303, "/secret/")
        self.ask("GET")
        return self.page


@pytest.fixture
def visit() -> Visit:
    """A shop whose products try to break out of the page."""
    products = [
        replace(product, title=f"{product.title} {EVIL}", description=EVIL, options={"color": ("red", EVIL.lower())})
        for product in make_catalogue(products=30)
    ]
    shop = stock_shop(tuple(products))
    return Visit(shop, shop.tasks("test"), layout=FULL)


@pytest.fixture
def browser(visit: Visit) -> Iterator[Browser]:
    browser = Browser(visit)
    yield browser
    browser.close()


def test_a_slow_client_keeps_nobody_waiting(browser: Browser) -> None:
    """One that opens a connection and sends half a request, and one that sends nothing: others are answered."""
    place = ("127.0.0.1", browser.server.server_port)
    with socket.create_connection(place), socket.create_connection(place) as half:
        half.sendall(f"POST /secret/ HTTP/1.1\r\nHost: 127.0.0.1:{place[1]}\r\nContent-Length: 99\r\n\r\n".encode())
        assert browser.ask("GET").status == 200
        browser.post(query="mug")


def test_a_person_can_shop(browser: Browser, visit: Visit) -> None:
    """Search, open, choose, buy, next task: the same pages and reward as the agent's, and nothing unescaped."""
    wanted = visit._environment.shop.goal(visit.task)
    browser.ask("GET")
    assert "Search</button>" in browser.page
    pages = [browser.post(query=wanted.product.query), browser.post(action=f"click[{wanted.product.id.lower()}]")]
    pages += [browser.post(action="click[description]"), browser.post(action="click[< prev]")]
    pages += [browser.post(action=f"click[{wanted.options[0]}]"), browser.post(action="click[buy now]")]
    for page in pages:
        assert "<script" not in page
    assert "&lt;script&gt;" in pages[1]
    assert visit.observation.done
    assert f"{visit.observation.reward:.3f}" in pages[-1]
    first = visit.task
    browser.post(next="1")
    assert visit.task != first


def test_reloading_does_not_act_again(browser: Browser, visit: Visit) -> None:
    """Only a POST takes a turn, and it answers with a redirect to the page."""
    browser.post(query="shirt")
    for _ in range(3):
        assert browser.ask("GET").status == 200
    assert visit.turns == 1


def test_the_horizon_ends_the_task(browser: Browser, visit: Visit) -> None:
    """After the last turn the task is lost and further actions do nothing."""
    for _ in range(HORIZON + 3):
        page = browser.post(action="click[nonsense]")
    assert visit.turns == HORIZON
    assert "the task is lost" in page


@pytest.mark.parametrize("path", ["/", "/secret", "/secre/", "/other/", "/secret/../secret/", "/secret/?x=1"])
def test_without_the_token_there_is_nothing(browser: Browser, visit: Visit, path: str) -> None:
    """Another path gets 404 for GET and POST alike, and no turn is taken."""
    assert browser.ask("GET", path).status == 404
    assert browser.ask("POST", path, body="query=shirt").status == 404
    assert visit.turns == 0


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:80"])
def test_another_host_name_is_refused(browser: Browser, visit: Visit, host: str) -> None:
    """A page of another site whose name was pointed at loopback gets 403 even with the token."""
    assert browser.ask("GET", headers={"Host": host}).status == 403
    assert browser.ask("POST", body="query=shirt", headers={"Host": host}).status == 403
    assert visit.turns == 0


def test_the_page_forbids_scripts_and_leaks_no_token(browser: Browser) -> None:
    """The policy headers are there, and the address says loopback."""
    headers = browser.ask("GET").headers
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert headers["Referrer-Policy"] == "no-referrer"
    assert browser.address.startswith("http://127.0.0.1:")


def test_a_large_or_broken_request_is_contained(browser: Browser, visit: Visit) -> None:
    """100 kB, no length, a wrong length, bytes that are no text: refused or harmless, and the server goes on."""
    assert browser.ask("POST", body="action=" + "x" * 100_000).status == 413
    assert browser.ask("POST", headers={"Content-Length": "-5"}).status == 413
    assert browser.ask("POST", body="action=%ff%fe%00").status == 303
    assert not visit.observation.valid
    assert "not possible here" in browser.post(action=EVIL)
    assert browser.ask("GET").status == 200
