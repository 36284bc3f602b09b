"""Downloads, archives and checksums, against a server on this machine."""

import gzip
import hashlib
import io
import random
import stat
import struct
import tarfile
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from gcfed.data.datasets import official as official
from gcfed.data.downloads import fetch as fetching
from gcfed.data.downloads.archives import members
from gcfed.data.downloads.catalog import PUBLICATIONS, File, Publication, data_dir, sources
from gcfed.data.downloads.download import download
from gcfed.data.downloads.fetch import FileStatus, check, ensure, fetch, info, install
from gcfed.errors import InputError

pytest_plugins = ["serving"]

BODY = random.Random(0).randbytes(1_024_000)


def md5(blob: bytes) -> str:
    return hashlib.md5(blob).hexdigest()


def source(server, file="set/file.bin", body=BODY, **changes):
    return replace(server.publish(file, body), **changes)


def files_in(root: Path) -> set[str]:
    found = (p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
    return {name for name in found if not name.startswith(".gcfed-cache/")}


def test_a_download_is_verified_and_shown(server, tmp_path, capfd):
    assert download(source(server), tmp_path, progress=True).read_bytes() == BODY
    assert files_in(tmp_path) == {"set/file.bin"}
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1] == "set/file.bin: 100 % of 1.0 MB" and len(lines) == 11
    download(source(server), tmp_path, progress=True)
    assert server.asked == [None] and not capfd.readouterr().err


def test_silence_can_be_asked_for(server, tmp_path, capfd):
    download(source(server), tmp_path, progress=False)
    assert capfd.readouterr() == ("", "")


def test_a_bar_on_a_terminal(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    download(source(server), tmp_path, progress=True)
    assert "set/file.bin" in capsys.readouterr().err


@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_download_goes_on(server, tmp_path, ranges):
    wanted = source(server)
    server.cut, server.ranges = 300_000, ranges
    with pytest.raises(InputError, match="cut; fetch again"):
        download(wanted, tmp_path, progress=False)
    assert files_in(tmp_path) == {"set/file.bin.part"}
    had = (tmp_path / "set/file.bin.part").stat().st_size
    assert 0 < had <= 300_000
    server.cut = None
    assert download(wanted, tmp_path, progress=False).read_bytes() == BODY
    assert server.asked == [None, f"bytes={had}-"] and files_in(tmp_path) == {"set/file.bin"}


def test_a_part_that_is_whole_is_not_fetched_again(server, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set/file.bin.part").write_bytes(BODY)
    assert download(source(server), tmp_path, progress=False).read_bytes() == BODY
    assert server.asked == []


@pytest.mark.parametrize("part", [b"something else" * 9, b"x" * (len(BODY) + 1)], ids=len)
def test_a_part_of_something_else_does_not_survive(server, tmp_path, part):
    (tmp_path / "set").mkdir()
    (tmp_path / "set/file.bin.part").write_bytes(part)
    if len(part) < len(BODY):
        with pytest.raises(InputError, match="wrong md5"):
            download(source(server), tmp_path, progress=False)
        assert files_in(tmp_path) == set()
    assert download(source(server), tmp_path, progress=False).read_bytes() == BODY


def test_wrong_contents_are_not_kept(server, tmp_path):
    server.files["/set/file.bin"] = BODY[::-1]
    with pytest.raises(InputError, match=r"set/file.bin could not be fetched.*wrong md5"):
        download(source(server), tmp_path, progress=False)
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize("body", [b"an error page", BODY + b"x"], ids=len)
def test_contents_of_another_length_are_not_kept(server, tmp_path, body):
    server.files["/set/file.bin"] = body
    with pytest.raises(InputError, match=r"not the published file \(wrong md5\)"):
        download(source(server), tmp_path, progress=False)
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize("announces", [True, False])
def test_what_is_far_too_long_is_not_fetched(server, tmp_path, announces):
    server.announces = announces
    with pytest.raises(InputError, match=r"[\d,]+ bytes are offered instead of 1,000"):
        download(source(server, size=1000), tmp_path, progress=False)
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize("announces", [True, False])
@pytest.mark.parametrize("size", [len(BODY) - 7, len(BODY) + 7, 2 * len(BODY)])
def test_the_md5_decides_and_not_the_size(server, tmp_path, size, announces, capfd):
    server.announces = announces
    wanted = source(server, size=size)
    assert download(wanted, tmp_path, progress=True).read_bytes() == BODY
    lines = capfd.readouterr().err.splitlines()
    assert not announces or lines[-1] == "set/file.bin: 100 % of 1.0 MB"
    (tmp_path / "set/file.bin").rename(tmp_path / "set/file.bin.part")
    assert download(wanted, tmp_path, progress=False).read_bytes() == BODY
    assert len(server.asked) == 1


@pytest.mark.parametrize("announces", [True, False])
@pytest.mark.parametrize("size", [len(BODY) - 7, len(BODY) + 7])
def test_a_cut_download_goes_on_though_its_size_is_not_known(server, tmp_path, size, announces):
    wanted = source(server, size=size)
    server.cut, server.announces = 300_000, announces
    with pytest.raises(InputError, match="cut; fetch again"):
        download(wanted, tmp_path, progress=False)
    server.cut = None
    assert download(wanted, tmp_path, progress=False).read_bytes() == BODY
    assert server.asked[1].startswith("bytes=") and files_in(tmp_path) == {"set/file.bin"}


def test_a_part_longer_than_the_file_is_fetched_anew(server, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set/file.bin.part").write_bytes(BODY + b"x")
    wanted = source(server, size=len(BODY) + 7)
    assert download(wanted, tmp_path, progress=False).read_bytes() == BODY
    assert server.asked == [f"bytes={len(BODY) + 1}-", None]


def test_compressed_files_stay_as_they_are(server, tmp_path):
    server.encoding = "gzip"
    body = gzip.compress(BODY)
    assert download(source(server, body=body), tmp_path, progress=False).read_bytes() == body


def test_a_mirror_stands_in(server, tmp_path):
    good = source(server)
    gone = good.urls[0].replace("file.bin", "gone.bin")
    assert download(replace(good, urls=(gone, *good.urls)), tmp_path, progress=False).exists()
    with pytest.raises(InputError, match=r"gone.bin: the server answers 404"):
        download(replace(good, file="other", urls=(gone,)), tmp_path, progress=False)
    assert files_in(tmp_path) == {"set/file.bin"}


def test_no_server_at_all(server, tmp_path):
    wanted = source(server, urls=("http://127.0.0.1:9/file",))
    with pytest.raises(InputError, match="no connection"):
        download(wanted, tmp_path, progress=False)
    assert files_in(tmp_path) == set()


def tar_of(*entries) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for entry, body in entries:
            entry = tarfile.TarInfo(entry) if isinstance(entry, str) else entry
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))
    return out.getvalue()


def zip_of(*entries, compression=zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for entry, body in entries:
            archive.writestr(entry, body)
    return out.getvalue()


FILES = {"set/one": b"1" * 5000, "set/two": BODY}


@pytest.fixture(params=[tar_of, zip_of], ids=["tar", "zip"])
def published(request, server):
    """A data set of two files in an archive, which also holds one that nobody wants."""
    body = request.param(("set/readme", b"hello"), *FILES.items())
    archive = source(server, "set.archive", body, members={n: n for n in FILES})
    files = tuple(File(name, md5(blob)) for name, blob in FILES.items())
    return Publication("mine", (archive,), files)


def test_an_archive_is_installed_and_goes_away(published, server, tmp_path):
    assert published.missing(tmp_path) == ("set/one", "set/two")
    install(published, tmp_path, progress=False)
    assert files_in(tmp_path) == set(FILES)
    assert all((tmp_path / n).read_bytes() == body for n, body in FILES.items())
    install(published, tmp_path, progress=False)
    assert len(server.asked) == 1


def test_an_archive_that_lies_there_is_used_and_kept(published, server, tmp_path, monkeypatch):
    monkeypatch.setenv("GCFED_OFFLINE", "1")
    (tmp_path / "set.archive").write_bytes(server.files["/set.archive"])
    assert ensure(published, published.files, tmp_path) == {n: tmp_path / n for n in FILES}
    assert server.asked == [] and files_in(tmp_path) == {"set.archive", *FILES}


def test_a_wrong_archive_that_lies_there_is_named(published, server, tmp_path):
    (tmp_path / "set.archive").write_bytes(b"mine")
    with pytest.raises(InputError, match=r"set.archive is not the published file"):
        install(published, tmp_path, progress=False)
    assert (tmp_path / "set.archive").read_bytes() == b"mine"


def test_what_is_there_is_left_alone(published, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set/one").write_bytes(b"mine")
    install(published, tmp_path, progress=False)
    assert (tmp_path / "set/one").read_bytes() == b"mine"
    assert (tmp_path / "set/two").read_bytes() == BODY


def test_nothing_is_installed_if_one_file_is_wrong(published, tmp_path):
    wrong = replace(published, files=(published.files[0], File("set/two", md5(b""))))
    with pytest.raises(InputError, match=r"set/two in set.archive is not the published file"):
        install(wrong, tmp_path, progress=False)
    assert files_in(tmp_path) == {"set.archive"}
    assert [p for p in tmp_path.iterdir() if p.name.startswith(".unpacking")] == []


def test_nothing_is_installed_if_one_file_is_missing(published, tmp_path):
    (archive,) = published.sources
    more = replace(archive, members={**archive.members, "set/three": "set/three"})
    with pytest.raises(InputError, match=r"does not hold set/three"):
        install(replace(published, sources=(more,)), tmp_path, progress=False)
    assert files_in(tmp_path) == {"set.archive"}


def test_processes_that_want_the_same_wait_for_each_other(published, server, tmp_path):
    threads = [
        threading.Thread(target=install, args=(published, tmp_path, False)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.asked) == 1 and files_in(tmp_path) == set(FILES)


def special(name, kind, target=""):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


def zip_link(name):
    entry = zipfile.ZipInfo(name)
    entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return entry


def lying(blob: bytes) -> bytes:
    """The same zip, of which every entry says that it unpacks to ten bytes."""
    for mark, offset in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        start = blob.index(mark) + offset
        blob = blob[:start] + struct.pack("<I", 10) + blob[start + 4 :]
    return blob


ONE = ("one", b"1")
UNSAFE = {
    "tar, up": tar_of(ONE, ("../two", b"x")),
    "tar, up from below": tar_of(ONE, ("a/../../two", b"x")),
    "tar, absolute": tar_of(ONE, ("/tmp/two", b"x")),
    "tar, link": tar_of((special("one", tarfile.SYMTYPE, "/etc/passwd"), b"")),
    "tar, link of a folder": tar_of((special("a", tarfile.SYMTYPE, "/"), b""), ONE),
    "tar, hard link": tar_of((special("one", tarfile.LNKTYPE, "/etc/passwd"), b"")),
    "tar, device": tar_of((special("one", tarfile.CHRTYPE), b"")),
    "tar, pipe": tar_of(ONE, (special("two", tarfile.FIFOTYPE), b"")),
    "tar, bomb": tar_of(ONE, ("two", bytes(20_000_000))),
    "zip, up": zip_of(ONE, ("../two", b"x")),
    "zip, backslashes": zip_of(ONE, ("..\\two", b"x")),
    "zip, absolute": zip_of(ONE, ("/two", b"x")),
    "zip, drive": zip_of(ONE, ("C:/two", b"x")),
    "zip, link": zip_of((zip_link("one"), b"/etc/passwd")),
    "zip, bomb": zip_of(("one", bytes(20_000_000))),
}
DAMAGED = {
    "tar, cut": tar_of(ONE, ("two", BODY))[:-50],
    "tar, a folder": tar_of((special("one", tarfile.DIRTYPE), b"")),
    "zip, cut": zip_of(ONE, ("two", BODY))[:-50],
    "zip, contents": zip_of(("one", b"one two three"), compression=0).replace(b"three", b"THREE"),
    "zip, longer than it says": lying(zip_of(("one", BODY))),
    "neither": b"<html>",
    "nothing": b"",
}


@pytest.mark.parametrize("blob", {**UNSAFE, **DAMAGED}.values(), ids={**UNSAFE, **DAMAGED})
def test_archives_that_are_unsafe_or_damaged(blob, tmp_path, request):
    name = request.node.callspec.id
    inside = tmp_path / "data"
    inside.mkdir()
    (inside / "archive").write_bytes(blob)
    reason = "is not safe" if name in UNSAFE else "cannot be unpacked|as a folder|cut short"
    with (
        pytest.raises(InputError, match=rf"/archive .*({reason})"),
        members(inside / "archive", {"one": "one"}, inside, 10_000_000),
    ):
        pytest.fail("it was unpacked")
    assert files_in(tmp_path) == {"data/archive"}


def test_the_folder_of_data(monkeypatch, tmp_path):
    monkeypatch.delenv("GCFED_DATA", raising=False)
    assert data_dir().name == "gcfed" and data_dir(tmp_path) == tmp_path
    monkeypatch.setenv("GCFED_DATA", "~/sets")
    assert data_dir() == Path.home() / "sets" and data_dir(tmp_path) == tmp_path


def test_every_publication_can_be_fetched_whole():
    for published in PUBLICATIONS.values():
        given = {name for s in published.sources for name in s.gives}
        assert given == {f.name for f in published.files}
        for s in published.sources:
            assert len(s.md5) == 32 and s.size > 1000
            assert all(url.startswith(("http://", "https://")) for url in s.urls)


def test_sources_and_info(tmp_path):
    assert sources("fashion10k") == () and len(sources("mnist")) == 4
    found = info("cifar10", tmp_path)
    assert found.size == 170_498_071 and len(found.missing) == 7 and found.present == ()
    assert found.description.startswith("CIFAR-10, 50,000 train")
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py/test_batch").touch()
    assert info("cifar10", tmp_path).present == ("cifar-10-batches-py/test_batch",)
    assert info("synthetic", tmp_path).missing == ()


def test_check_compares_with_what_was_published(tmp_path, monkeypatch):
    (tmp_path / "emnist").mkdir()
    idx = b"\0\0\x08\x01" + struct.pack(">I", 3) + b"abc"
    (tmp_path / "emnist/emnist-letters-test-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx))
    (tmp_path / "emnist/emnist-letters-train-labels-idx1-ubyte").write_bytes(idx[:-1])
    found = {s.file: s.status for s in check("emnist", tmp_path)}
    assert found["emnist/emnist-letters-test-labels-idx1-ubyte"] == "unverified"
    assert found["emnist/emnist-letters-train-labels-idx1-ubyte"] == "different"
    assert found["emnist/emnist-byclass-train-labels-idx1-ubyte"] == "missing"
    published = Publication("mine", (), (File("a", md5(b"a")), File("b", md5(b"b"))))
    monkeypatch.setitem(fetching.PUBLICATIONS, "mine", published)
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"c"))
    assert check("mine", tmp_path) == [
        FileStatus("a", "verified", tmp_path / "a"),
        FileStatus("b", "different", tmp_path / "b.gz"),
    ]
    with pytest.raises(InputError, match=r"unknown published data set: 'cifar'.*mean 'cifar10'"):
        check("cifar", tmp_path)


def test_fetch_finds_a_publication_by_name(published, tmp_path, monkeypatch):
    monkeypatch.setitem(fetching.PUBLICATIONS, "mine", published)
    fetch("mine", tmp_path, progress=False)
    assert files_in(tmp_path) == set(FILES)


def test_what_is_missing_is_explained(published, server, tmp_path, monkeypatch):
    server.files.clear()
    message = r"set/one and 1 more are missing from .*answers 404.*gcfed data fetch mine.*http:"
    with pytest.raises(InputError, match=message):
        ensure(published, published.files, tmp_path)
    monkeypatch.setenv("GCFED_OFFLINE", "1")
    with pytest.raises(InputError, match=r"set/two is missing from .*GCFED_OFFLINE is set"):
        ensure(published, published.files[1:], tmp_path)
    assert len(server.asked) == 1


def test_a_folder_that_cannot_be_written(published, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"mine cannot be put into .*/file"):
        install(published, tmp_path / "file", progress=False)
