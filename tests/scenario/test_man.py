# SPDX-License-Identifier: Apache-2.0
"""The manual pages say what there is: every command, option, key, function and ioctl, and no others."""
import glob
import os
import re
import shutil
import subprocess

import pytest

import commands

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGES = sorted(glob.glob(os.path.join(ROOT, "docs/man/*.[1-9]")))


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def sections(text, macro="Sh"):
    """What follows each heading, up to the next one."""
    pieces = re.split(rf"^\.{macro} (.*)\n", text, flags=re.M)
    return dict(zip(pieces[1::2], pieces[2::2]))


def test_every_command_and_option_of_prefixfs(program):
    there = commands.commands(program("prefixfs"))
    assert len(there) > 10
    told = sections(sections(read("docs/man/prefixfs.1"))["COMMANDS"], "Ss")
    assert sorted(told) == sorted(there)
    for name, options in there.items():
        rows = re.findall(r"^\.It Fl -(\S+)(?: Ar (\S+))?$", told[name], re.M)
        assert {option: argument or None for option, argument in rows} == options, name


def test_every_key_of_prefixfsd():
    keys = re.findall(r"^\tx\(\w+, (\w+), ", read("fs/config.h"), re.M)
    told = sections(read("docs/man/prefixfsd.8"))["CONFIGURATION"]
    assert len(keys) > 10 and re.findall(r"^\.It Cm (\w+) ", told, re.M) == keys


@pytest.mark.parametrize("header, name, least", [("fs/client/prefixfs.h", "prefixfs.3", 20), ("kernels/prefixfs_gpu.h", "prefixfs-gpu.3", 15)])
def test_every_function_of_the_libraries(header, name, least):
    header = re.sub(r"/\*.*?\*/", "", read(header), flags=re.S)
    functions = re.findall(r"^[a-z][\w ]*[ *](pfs_\w+)\(", header, re.M)
    page = sections(read("docs/man", name))
    assert len(functions) > least
    assert re.findall(r"^\.Fo (\w+)$", page["SYNOPSIS"], re.M) == functions
    assert sorted(re.findall(r"^\.It Fn (\w+)", page["DESCRIPTION"], re.M)) == sorted(functions)


def test_every_ioctl():
    ioctls = re.findall(r"^#define (PFS_IOC_\w+) _IO\w*\(PFS_IOC_TYPE, (\d+)", read("fs/client/prefixfs_abi.h"), re.M)
    told = sections(read("docs/man/prefixfs-control.7"))["IOCTLS"]
    assert len(ioctls) > 10
    assert sorted(re.findall(r"^\.It Dv (PFS_IOC_\w+) Pq (\d+)$", told, re.M)) == sorted(ioctls)


def test_every_member_of_a_layout():
    members = set(re.findall(r'"(\w+)":', re.search(r"As JSON.*?`identity`", read("index/layout.h"), re.S)[0]))
    told = sections(read("docs/man/prefixfs-layout.5"))["DESCRIPTION"]
    assert len(members) > 15 and [m for m in members if not re.search(rf"^\.(It )?Cm .*\b{m}\b", told, re.M)] == []


@pytest.mark.parametrize("path", PAGES, ids=os.path.basename)
def test_each_page_has_its_sections(path):
    wanted = {"NAME", "DESCRIPTION", "FILES", "EXAMPLES", "SEE ALSO"}
    wanted |= {"1": {"SYNOPSIS", "ENVIRONMENT", "EXIT STATUS", "DIAGNOSTICS"}, "3": {"RETURN VALUES", "ERRORS"},
               "8": {"ENVIRONMENT", "EXIT STATUS", "DIAGNOSTICS"}}.get(path[-1], set())
    assert wanted - set(sections(read(path))) == set()
    assert f"'{os.path.basename(path)}'" in read("docs/man/meson.build"), "it is installed"


@pytest.mark.parametrize("path", PAGES, ids=os.path.basename)
def test_each_page_is_rendered_without_a_warning(path):
    commands_there = [c for c in (["mandoc", "-T", "lint", "-W", "warning", path],
                                  ["man", "--warnings", "-l", "-Tutf8", path]) if shutil.which(c[0])]
    if not commands_there:
        pytest.skip("neither mandoc nor man is installed")
    for command in commands_there:
        answer = subprocess.run(command, capture_output=True, text=True, check=False,
                                env=dict(os.environ, LC_ALL="C.UTF-8", MANPAGER="cat"))
        said = answer.stderr + (answer.stdout if "lint" in command else "")
        assert answer.returncode == 0 and said == "", said


@pytest.mark.parametrize("path", PAGES, ids=os.path.basename)
def test_pages_refer_to_pages_that_are_there(path):
    ours = {os.path.basename(p) for p in PAGES}
    for name, section in re.findall(r"^\.Xr (\S+) (\d)", read(path), re.M):
        assert not name.startswith("prefixfs") or f"{name}.{section}" in ours
