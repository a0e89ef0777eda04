# SPDX-License-Identifier: Apache-2.0
"""Folders for record files, and whether this build has a disk tier."""
import os
import re
import shutil
import tempfile

import pytest

NO_DISK = {"tmpfs", "ramfs", "overlay", "fuse", "9p"}  # no O_DIRECT, or not what a disk does


def file_system(path):
    """The type of the file system that @path lies on."""
    with open("/proc/self/mountinfo", encoding="utf-8") as f:
        rows = [(line.split()[4], line.split(" - ")[1].split()[0]) for line in f]
    path = os.path.realpath(path) + "/"
    return max((row for row in rows if path.startswith(row[0].rstrip("/") + "/")), key=lambda row: len(row[0]))[1]


def folder(tmp_path, build):
    """A new folder on a real file system: the test's own, or one in the build folder that the caller removes."""
    if file_system(tmp_path) not in NO_DISK:
        path = str(tmp_path / "disk")
        os.mkdir(path)
        return path
    if file_system(build) not in NO_DISK:
        return tempfile.mkdtemp(prefix="disk-", dir=build)
    pytest.skip("neither the scratch nor the build folder lies on a real file system")
    return None


def remove(path):
    shutil.rmtree(path, ignore_errors=True)


def tier(d):
    """The figures of the line `disk` of `tiers`; None: it has none."""
    found = re.search(r"^disk (.*)$", d.read("tiers"), re.M)
    return dict(word.split("=", 1) for word in found[1].split(" ")) if found else None


def need(d):
    """Skips the test while the store behind the mount has no disk tier."""
    if tier(d) is None:
        pytest.skip("this build has no disk tier yet")
