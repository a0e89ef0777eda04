# SPDX-License-Identifier: Apache-2.0
"""A page in a real browser: Debian's chromium, without a display. What it draws, what it says, where things lie."""
import html
import json
import os
import re
import shutil
import struct
import subprocess
import zlib

import pytest

# Appended to a copy of a page: leaves in the title where each picture and each text of a picture lies.
MEASURE = """<script>
const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
document.title = JSON.stringify({
  height: document.documentElement.scrollHeight, width: document.documentElement.scrollWidth,
  pictures: [...document.querySelectorAll("svg")].map(s => ({
    figure: s.closest("figure").id, box: box(s),
    texts: [...s.querySelectorAll("text")].filter(t => t.textContent).map(t => ({text: t.textContent, box: box(t)}))}))});
</script></body>"""


class Browser:
    def __init__(self, scratch, slower):
        self.program = shutil.which("chromium")
        if self.program is None:
            pytest.skip("chromium is not installed (tools/setup --test installs it where it may)")
        self.scratch, self.slower = str(scratch), slower

    def run(self, page, *options, width=1280, height=1000):
        answer = subprocess.run(
            [self.program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
             "--disable-dev-shm-usage", "--user-data-dir=" + os.path.join(self.scratch, "profile"),
             "--enable-logging=stderr", f"--window-size={width},{height}", *options, "file://" + str(page)],
            capture_output=True, text=True, timeout=60 * self.slower, check=False)
        assert answer.returncode == 0, answer.stderr
        return answer

    @staticmethod
    def console(answer):
        return [line for line in answer.stderr.splitlines() if "CONSOLE" in line]

    def measure(self, page, width=1280):
        with open(page, encoding="utf-8") as f:
            text = f.read()
        copy = os.path.join(self.scratch, "measured.html")
        with open(copy, "w", encoding="utf-8") as f:
            f.write(text.replace("</body>", MEASURE))
        answer = self.run(copy, "--dump-dom", width=width)
        return json.loads(html.unescape(re.search(r"<title>(.*?)</title>", answer.stdout, re.S)[1]))

    def screenshot(self, page, *options, width=1280, height=1000):
        """Half as large as it is, for pixels are decoded here."""
        path = os.path.join(self.scratch, "shot.png")
        answer = self.run(page, "--screenshot=" + path, "--force-device-scale-factor=0.5", *options, width=width,
                          height=height)
        return Image(path), answer


class Image:
    """An 8-bit RGB or RGBA image: rows of pixels, each of them bytes."""

    def __init__(self, path):
        with open(path, "rb") as f:
            data = f.read()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        at, packed = 8, b""
        while at < len(data):
            length, kind = struct.unpack(">I4s", data[at:at + 8])
            if kind == b"IHDR":
                self.width, self.height, depth, colours, _, _, interlaced = struct.unpack(">IIBBBBB", data[at + 8:at + 21])
                assert depth == 8 and colours in (2, 6) and not interlaced
                self.channels = 3 if colours == 2 else 4
            elif kind == b"IDAT":
                packed += data[at + 8:at + 8 + length]
            at += 12 + length
        self.rows = self.unfilter(zlib.decompress(packed))

    def unfilter(self, raw):
        step, size = self.channels, self.width * self.channels
        before, rows = bytearray(size), []
        for y in range(self.height):
            kind, row = raw[y * (size + 1)], bytearray(raw[y * (size + 1) + 1:(y + 1) * (size + 1)])
            if kind == 1:
                for i in range(step, size):
                    row[i] = (row[i] + row[i - step]) & 255
            elif kind == 2:
                row = bytearray((a + b) & 255 for a, b in zip(row, before))
            elif kind == 3:
                for i in range(size):
                    row[i] = (row[i] + ((row[i - step] if i >= step else 0) + before[i]) // 2) & 255
            elif kind == 4:
                for i in range(size):
                    a, b, c = (row[i - step], before[i], before[i - step]) if i >= step else (0, before[i], 0)
                    row[i] = (row[i] + paeth(a, b, c)) & 255
            rows.append(bytes(row))
            before = row
        return rows

    def pixel(self, x, y):
        return self.rows[y][x * self.channels:x * self.channels + 3]

    def colours(self, box=None):
        """How many pixels there are of each colour in a box of left, top, right, bottom."""
        left, top, right, bottom = (max(0, int(v)) for v in box or (0, 0, self.width, self.height))
        count = {}
        for y in range(top, min(bottom, self.height)):
            for x in range(left, min(right, self.width)):
                colour = self.pixel(x, y)
                count[colour] = count.get(colour, 0) + 1
        return count


def paeth(a, b, c):
    near = a + b - c
    pa, pb, pc = abs(near - a), abs(near - b), abs(near - c)
    return a if pa <= pb and pa <= pc else b if pb <= pc else c
