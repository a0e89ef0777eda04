# SPDX-License-Identifier: Apache-2.0
"""The page that replay --report writes: as a file, as HTML, and as a browser shows it."""
import html.parser
import itertools
import json
import os
import re
import subprocess

import pytest

import browser

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SESSIONS = os.path.join(ROOT, "tests/data/coding_sessions.jsonl")
SMALL = ["--model", "Qwen3-8B", "--tp", "2", "--one-rank", "--plane-divisor", "512"]
FIGURES = ["hits", "capacity", "latency", "evictions", "bytes"]


@pytest.fixture
def replay(program, daemon):
    mount = daemon("--memory=64M").mount

    def run(*words, rc=0, model=tuple(SMALL)):
        answer = subprocess.run([program("prefixfs"), "replay", SESSIONS, "--mount", mount, "--ns", "a", *model, *words],
                                capture_output=True, text=True, check=False)
        assert answer.returncode == rc, answer.stdout + answer.stderr
        return answer.stdout if rc == 0 else answer.stderr
    run.mount = mount
    return run


@pytest.fixture
def page(replay, tmp_path):
    path = tmp_path / "report.html"
    replay("--requests", "200", "--group-pages", "64", "--report", str(path))
    return path


class Parser(html.parser.HTMLParser):
    """Tags that are closed in order, and the pieces of each figure."""
    EMPTY = {"meta", "link"}

    def __init__(self):
        super().__init__()
        self.open, self.figures, self.figure, self.texts = [], {}, None, []

    def handle_starttag(self, tag, attrs):
        if tag not in self.EMPTY:
            self.open.append(tag)
        attrs = dict(attrs)
        if tag == "figure":
            self.figure = self.figures[attrs["id"]] = {"pieces": [], "texts": []}
        elif self.figure is not None:
            self.figure["pieces"].append((tag, attrs))

    def handle_startendtag(self, tag, attrs):
        if self.figure is not None:
            self.figure["pieces"].append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]} at {self.getpos()}"
        self.open.pop()
        if tag == "figure":
            self.figure = None

    def handle_data(self, data):
        if self.figure is not None and data.strip():
            self.figure["texts"].append((self.open[-1], data.strip()))
        self.texts.append(data)


def parse(path):
    text = path.read_text(encoding="utf-8")
    parser = Parser()
    parser.feed(text)
    parser.close()
    assert parser.open == [] and text.startswith("<!DOCTYPE html>")
    return text, parser


def test_the_page_has_every_figure_with_data(page):
    text, parser = parse(page)
    assert list(parser.figures) == FIGURES
    for name, figure in parser.figures.items():
        tags = [tag for tag, _ in figure["pieces"]]
        captions = [text for tag, text in figure["texts"] if tag == "figcaption"]
        ticks = [a for tag, a in figure["pieces"] if tag == "text" and a.get("class") == "tick"]
        data = [a for tag, a in figure["pieces"] if tag in ("path", "rect") and
                re.match(r"(line|area|bar) ", a.get("class", "")) and len(a.get("d", "x" * 60)) > 50]
        assert tags[0] == "h2" and "svg" in tags and len("".join(captions)) > 80, name
        assert len(ticks) >= 8 and data, name
    assert len([a for _, a in parser.figures["latency"]["pieces"] if a.get("class") == "line p99"]) >= 5
    assert not re.search(r"https?:|<script|nan|inf\b|@import|url\(", text), "it needs nothing else, and each number is one"


def test_the_numbers_are_those_of_the_replay(replay, tmp_path):
    path = tmp_path / "report.html"
    result = json.loads(replay("--requests", "50", "--json", "--report", str(path)))
    text = "".join(parse(path)[1].texts)
    assert result["report"] == str(path) and result["wrong_values"] == 0
    assert f"{result['block_references']:,}" in text and f"{100 * result['hit_ratio']:.2f} %" in text
    assert "coding_sessions.jsonl" in text and "64 MiB" in text and "kv: dense" in text
    assert sorted(os.listdir(tmp_path)) == ["report.html"], "nothing else is left"


def test_an_unlimited_cache_hits_what_is_computed(replay, tmp_path):
    """All fits: what was measured, the leaf-first LRU and the optimum are one number."""
    path = tmp_path / "report.html"
    replay("--requests", "30", "--report", str(path), model=[*SMALL[:-1], "2048"])
    text = " ".join(parse(path)[1].texts)
    found = re.findall(r"(?:measured, up to here|leaf-first LRU|optimum|unlimited): ([\d.]+) %", text)
    assert len(found) >= 4 and len(set(found)) == 1, found
    assert "nothing was evicted" in text and "100.0 %" in text


def test_two_ranks_with_rows_and_names_that_are_no_html(replay, tmp_path):
    path = tmp_path / "<b>&.html"
    replay("--requests", "20", "--clients", "2", "--order", "free", "--planes", "--report", str(path),
           model=["--model", "Qwen3-Next-80B-A3B", "--tp", "2", "--plane-divisor", "1024"])
    assert "state" in "".join(parse(path)[1].texts)


@pytest.mark.parametrize("place, sentence", [
    ("no/such/folder.html", "No such file or directory"), ("folder", "it is a folder"), ("/dev/null", "no ordinary file")])
def test_a_place_where_it_cannot_be_written_is_refused_before_the_replay(replay, tmp_path, place, sentence):
    (tmp_path / "folder").mkdir()
    said = replay("--report", os.path.join(tmp_path, place), rc=1)
    assert "the report cannot be written to " in said and sentence in said
    assert os.listdir(os.path.join(replay.mount, "ns")) == [], "nothing was begun"


# ---- in a browser ----------------------------------------------------------------------------------------------------

@pytest.fixture
def chromium(tmp_path, slower):
    return browser.Browser(tmp_path, slower)


def apart(a, b):
    return a[2] <= b[0] + 1 or b[2] <= a[0] + 1 or a[3] <= b[1] + 2 or b[3] <= a[1] + 2


@pytest.mark.parametrize("width", [1280, 600])
def test_texts_lie_inside_their_picture_and_apart(chromium, page, width):
    layout = chromium.measure(page, width)
    assert {p["figure"] for p in layout["pictures"]} == set(FIGURES)
    assert layout["width"] <= width, "nothing sticks out of the window"
    for picture in layout["pictures"]:
        left, top, right, bottom = picture["box"]
        for t in picture["texts"]:
            assert left - 1 <= t["box"][0] and t["box"][2] <= right + 1 and top - 1 <= t["box"][1] and (
                t["box"][3] <= bottom + 1), f"{picture['figure']}: {t} is cut off"
        for a, b in itertools.combinations(picture["texts"], 2):
            assert apart(a["box"], b["box"]), f"{picture['figure']}: {a} covers {b}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_drawn_in_a_browser(chromium, page, scheme):
    layout = chromium.measure(page)
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    image, answer = chromium.screenshot(page, *dark, height=layout["height"])
    assert chromium.console(answer) == []
    assert len(image.colours()) > 200
    paper = sum(image.pixel(1, 1))
    assert paper < 200 if scheme == "dark" else paper > 700
    for picture in layout["pictures"]:
        count = image.colours([v / 2 for v in picture["box"]])
        others = sum(count.values()) - max(count.values())
        # Something coloured is drawn there, and not text and rules alone, which are grey.
        coloured = sum(n for c, n in count.items() if max(c) - min(c) > 60)
        assert len(count) > 30 and others > sum(count.values()) / 50 and coloured > 100, (picture["figure"], coloured)


def test_what_a_page_says_on_the_console_is_seen(chromium, tmp_path):
    """Else the test above would see nothing wrong ever."""
    broken = tmp_path / "broken.html"
    broken.write_text("<!DOCTYPE html><title>x</title><script>nothing.at.all()</script>")
    assert chromium.console(chromium.screenshot(broken)[1])
