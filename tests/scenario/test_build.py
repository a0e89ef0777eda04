# SPDX-License-Identifier: Apache-2.0
"""What the build leaves behind is what a user counts on."""
import glob
import os
import re
import subprocess

import pytest

# A library of the sanitizers, of the C library's own, or libsodium, which hashes longer keys (pfs_key_from_bytes).
AT_HOME = re.compile(r"(libc|libpthread|libm|libdl|librt|ld-linux.*|libasan|libubsan|libtsan|libgcc_s|libsodium)\.so\.\d+")


def dynamic(path, tag):
    text = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True).stdout
    return re.findall(rf"\({tag}\).*\[(.*)\]", text)


def test_client_library_needs_libc_and_libsodium_alone(build):
    found = glob.glob(os.path.join(build, "fs", "client", "libprefixfs.so"))
    if not found:
        pytest.skip("libprefixfs.so is not built")
    assert [n for n in dynamic(found[0], "NEEDED") if not AT_HOME.fullmatch(n)] == []
    assert dynamic(found[0], "SONAME") == ["libprefixfs.so.0"]


def test_client_library_shows_its_own_names_alone(build):
    path = os.path.join(build, "fs", "client", "libprefixfs.so")
    if not os.path.exists(path):
        pytest.skip("libprefixfs.so is not built")
    text = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    names = [line.split()[-1].split("@")[0] for line in text.splitlines()]
    assert [n for n in names if not n.startswith(("pfs_", "prefixfs_"))] == []
    assert names


@pytest.mark.parametrize("name", ["prefixfs", "prefixfsd"])
def test_programs_are_hardened(program, name):
    text = subprocess.run(["readelf", "-dlW", program(name)], capture_output=True, text=True, check=True).stdout
    assert "GNU_RELRO" in text
    assert re.search(r"FLAGS_1.*NOW.*PIE", text)


def test_what_comes_along_is_installed(program, build, tmp_path):
    program("prefixfs")
    subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", str(tmp_path)], check=True,
                   capture_output=True)
    there = {os.path.relpath(p, tmp_path) for p in glob.glob(f"{tmp_path}/**", recursive=True)}
    for wanted in ("bin/prefixfs", "bin/prefixfsd", "share/man/man1/prefixfs.1", "share/man/man3/prefixfs.3",
                   "share/man/man5/prefixfs-layout.5", "share/man/man7/prefixfs-control.7", "share/man/man8/prefixfsd.8",
                   "share/bash-completion/completions/prefixfs", "share/bash-completion/completions/prefixfsd",
                   "share/prefixfs/layouts/Qwen3-8B-tp1.json", "include/prefixfs.h"):
        assert any(p.endswith(wanted) for p in there), wanted
