"""The page of results is made of files that ``gcfed reproduce`` wrote."""

from made_reproductions import made
from make_results import DOCS, RESULTS, draw, page, picture, read_all, read_remarks

from gcfed.paper.beside import Beside


def write(folder, name, **how):
    folder.mkdir(exist_ok=True)
    finals = {"FedAvg": [66.0, 66.4, 66.8], "GC-Fed": [72.0, 72.1, 72.2], "FedLC": [60.0, 61.0]}
    found = made(finals, seconds=3700.0, device="a card", commit="0123456789abcdef", **how)
    (folder / f"{name}.json").write_text(Beside(found).render("json"))


def test_the_page_is_made_of_what_is_there():
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    made_now = page(read_all(RESULTS), read_remarks(RESULTS))
    assert text == made_now, "python tools/make_results.py makes the page again"


def test_a_page_of_two_tables(tmp_path):
    write(tmp_path / "results", "small")
    write(tmp_path / "results", "alike", item="baseline-validation", cell="cifar10 5/100 1")
    found = read_all(tmp_path / "results")
    assert list(found) == ["alike", "small"]  # in the order of the paper
    (tmp_path / "results" / "small.txt").write_text("Found out: nothing.\n")
    text = page(found, read_remarks(tmp_path / "results"))
    assert text.count("Found out: nothing.") == 1
    assert "66.44 (1.40)" in text and "66.40 (0.40)" in text and "2 of 3" in text
    assert "a card" in text and "commit 0123456789" in text and "$ gcfed reproduce" in text
    (tmp_path / "images").mkdir()
    draw(found, tmp_path)
    for name in found:
        assert f"]({picture(name)})" in text
        assert (tmp_path / picture(name)).stat().st_size > 1000


def test_an_empty_page_says_so(tmp_path):
    assert "No table has been done yet" in page(read_all(tmp_path), {})


def test_tables_of_one_item_are_told_apart_by_what_is_changed(tmp_path):
    write(tmp_path, "plain", changes={"engine": "fused", "precision": "bf16"})
    write(tmp_path, "short", rounds=400, changes={"engine": "fused", "epochs": 2})
    text = page(read_all(tmp_path), {})
    title = "## Small models, strong heterogeneity: cifar10 5/100 0.1"
    assert f"{title}\n" in text and f"{title}, 400 rounds, epochs = 2\n" in text
