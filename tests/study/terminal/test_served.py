"""`study watch`: what the server gives, to whom."""

import html
import http.client
import re
import threading

import pytest

from study.errors import UsageError
from study.terminal import served


@pytest.fixture
def ask(tmp_path):
    """Asks the server of a results folder; returns (status, Location or body)."""
    results = tmp_path / "results"
    (results / "tables").mkdir(parents=True)
    (results / "tables/cost.csv").write_text("batch_size,steps\n")
    (tmp_path / "secret.txt").write_text("secret")
    (results / "link.txt").symlink_to(tmp_path / "secret.txt")
    server = served.server(results, 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()

    def get(path, host="127.0.0.1"):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        found = answer.status, answer.getheader("Location") or answer.read().decode()
        connection.close()
        return found

    get.results = results
    yield get
    server.shutdown()
    thread.join()
    server.server_close()


def test_before_the_first_report_it_says_so_and_looks_again(ask):
    status, body = ask("/")
    assert status == 200
    assert 'http-equiv="refresh"' in body
    assert "There is no report yet" in body
    assert "python -m study report" in body  # no sweep writes one for an import


def test_a_folder_of_results_folders_is_a_list(ask):
    names = ["b & c", "50% #1", "why?"]
    for name in names:
        (ask.results / name).mkdir()
        (ask.results / name / "report.html").write_text(name)
    links = re.findall('<a href="(.*?)">(.*?)</a>', ask("/")[1])
    assert {html.unescape(name) for _, name in links} == {*names}
    assert {html.unescape(name): ask(html.unescape(link))[1] for link, name in links} == {name: name for name in names}


@pytest.mark.parametrize(
    ("path", "host", "expected"),
    [
        ("/", "127.0.0.1", (302, "/report.html")),
        ("/report.html", "localhost", (200, "<p>report")),  # at port 80 browsers name none
        ("/report.html", "localhost:8000", (200, "<p>report")),
        ("/report.html", "127.0.0.1:8000", (200, "<p>report")),
        ("/tables/cost.csv", "127.0.0.1", (200, "batch_size,steps\n")),
        ("/", "evil.example", (403, None)),
        ("/", "evil.example:8000", (403, None)),
        ("/tables/", "127.0.0.1", (404, None)),
        ("/../secret.txt", "127.0.0.1", (404, None)),
        ("/%2e%2e/secret.txt", "127.0.0.1", (404, None)),
        ("/link.txt", "127.0.0.1", (404, None)),
    ],
)
def test_only_files_of_the_folder_go_to_this_machine(ask, path, host, expected):
    (ask.results / "report.html").write_text("<p>report")
    status, body = ask(path, host)
    assert status == expected[0]
    assert "secret" not in body
    assert expected[1] in (None, body)


def test_a_port_that_is_taken_is_replaced(tmp_path):
    with served.server(tmp_path, 0) as first, served.server(tmp_path, first.server_port) as second:
        assert first.server_address[0] == "127.0.0.1"
        assert second.server_port != first.server_port


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"there is no folder .*none; give the folder"):
        served.server(tmp_path / "none", 0)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_cannot_be_is_refused(tmp_path, port):
    with pytest.raises(UsageError, match=f"--port must be from 0 .a free one. to 65535, but got {port}"):
        served.server(tmp_path, port)
