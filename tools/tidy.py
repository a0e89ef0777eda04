#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the rooms promise each other, checked: who includes whom, which library is seen where, headers that stand alone.

tools/tidy.py [--root DIR] [--cc CMD...] [--no-compile]   print every breach, exit 1 if there is one
tools/tidy.py --report                                    print lengths of files and functions, which are no rule
"""
import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys

# A room and the rooms that it may include. The longest folder that fits a path is its room.
ROOMS = {
    "store/base": {"store/base"},
    "index": {"index", "store/base"},
    "store": {"store", "index", "store/base"},
    "fs/client": {"fs/client"},
    "fs": {"fs", "store", "index", "store/base", "fs/client"},
    "kernels": {"kernels", "public"},
    "tools": {"tools", "kernels", "fs/client"},
    "tests": None,  # anything
}
# Single headers of other rooms, whose sources the room compiles into itself: pure functions that both sides must agree on.
LENT = {"tools": {"store/base/sizing.h"}}

PUBLIC = {"fs/client/prefixfs.h", "fs/client/prefixfs_abi.h", "fs/client/prefixfs_stats.h",
          "kernels/prefixfs_gpu.h"}

# Headers of others: pattern, folders that may include it, folders under those that may not, at most one file?
LIBRARIES = [
    (r"(fuse3/|linux/)?fuse[a-z_]*\.h", ["fs", "tests/fuzz", "tests/unit"], ["fs/client"], False),
    (r"liburing(/.*)?\.h", ["store"], ["store/base"], True),
    (r"sqlite3\.h", ["index"], [], True),
    (r"xxhash\.h", ["store/base/hash.c"], [], True),
    (r"sodium(/.*)?\.h", ["store/base/digest.c", "fs/client/key.c"], [], False),
    (r"(cuda|cublas|cufile|nvml|driver_types|cooperative_groups)[A-Za-z0-9_]*\.h", ["kernels"], [], False),
    (r"jansson\.h", ["index", "fs", "tools", "tests"], ["fs/client"], False),
    (r"cmocka\.h", ["tests/unit"], [], False),
]

PACKAGES = ["fuse3", "jansson", "libsodium", "libxxhash", "liburing", "sqlite3", "cmocka"]
C_FILES = (".c", ".h", ".cu", ".cuh")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]')


class Tree:
    def __init__(self, root):
        self.root = root
        self.breaches = []
        self.files = []
        for folder, subfolders, names in os.walk(root):
            subfolders[:] = sorted(d for d in subfolders if not skipped(folder, d))
            for name in sorted(names):
                self.files.append(os.path.relpath(os.path.join(folder, name), root))

    def text(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8", errors="replace", newline="") as f:
            return f.read()

    def say(self, path, line, what):
        self.breaches.append(f"{path}:{line}: {what}")

    def sources(self):
        return [f for f in self.files if f.endswith(C_FILES)]


def skipped(folder, name):
    return (name.startswith(".") and name != ".ci") or name.startswith("build") or name in ("__pycache__", "shared") or (
        os.path.isfile(os.path.join(folder, name, "build.ninja")))


def room_of(path):
    fits = [r for r in ROOMS if path.startswith(r + "/")]
    return max(fits, key=len) if fits else None


def under(path, folders):
    return any(path == f or path.startswith(f + "/") for f in folders)


def includes(text):
    for number, line in enumerate(text.split("\n"), 1):
        m = INCLUDE.match(line)
        if m:
            yield number, m[1] == '"', m[2]


def check_rooms(tree):
    for path in tree.sources():
        room = room_of(path)
        if room is None:
            tree.say(path, 1, "lies in no room; the rooms are " + ", ".join(sorted(ROOMS)))
            continue
        for number, quoted, target in includes(tree.text(path)):
            if not quoted:
                if "fs/client/" + target in PUBLIC and room != "tests":
                    tree.say(path, number, f'<{target}> is for users; here it is "fs/client/{target}"')
                continue
            if path in PUBLIC:  # stands in one folder on a user's machine
                if os.path.dirname(path) + "/" + target not in PUBLIC:
                    tree.say(path, number, f'a public header includes "{target}", which is not one; name it without folder')
                continue
            if not os.path.isfile(os.path.join(tree.root, target)):
                tree.say(path, number, f'"{target}": no such file under the root; includes carry the folder')
                continue
            allowed = ROOMS[room]
            if allowed is None or room_of(target) in allowed or target in LENT.get(room, ()) or ("public" in allowed and target in PUBLIC):
                continue
            tree.say(path, number, f'{room} may not include "{target}"')


def check_libraries(tree):
    users = [set() for _ in LIBRARIES]
    for path in tree.sources():
        for number, quoted, target in includes(tree.text(path)):
            if quoted:
                continue
            for i, (pattern, yes, no, _) in enumerate(LIBRARIES):
                if not re.fullmatch(pattern, target):
                    continue
                users[i].add(path)
                if not under(path, yes) or under(path, no):
                    tree.say(path, number, f"<{target}> is seen in {', '.join(yes)} only")
    for (pattern, _, _, single), files in zip(LIBRARIES, users):
        if single and len(files) > 1:
            tree.say(sorted(files)[1], 1, f"one file alone includes /{pattern}/: {', '.join(sorted(files))}")


def check_lists(tree):
    """A source that its meson.build does not list is never built, and a test that is not listed never fails."""
    lists = {}
    for path in tree.sources():
        room = room_of(path)
        if not path.endswith((".c", ".cu")) or room is None:
            continue
        folder = "tests/unit" if under(path, ["tests/unit"]) else room
        if folder == "tests":
            continue
        build = folder + "/meson.build"
        if build not in lists:
            lists[build] = tree.text(build) if build in tree.files else ""
        name = os.path.relpath(path, folder)
        if folder == "tests/unit":
            if not name.startswith("test_"):
                continue
            name = name[len("test_"):-len(".c")]
        if f"'{name}'" not in lists[build]:
            tree.say(path, 1, f"{build} does not list '{name}'")


def check_text(tree):
    for path in tree.files:
        text = tree.text(path)
        is_c = path.endswith(C_FILES)
        script = path.endswith((".py", "meson.build")) or (text.startswith("#!") and not is_c)
        if is_c and not text.startswith("/* SPDX-License-Identifier: Apache-2.0"):
            tree.say(path, 1, "does not begin with /* SPDX-License-Identifier: Apache-2.0")
        if script and "# SPDX-License-Identifier: Apache-2.0" not in text.split("\n")[:3]:
            tree.say(path, 1, "has no line # SPDX-License-Identifier: Apache-2.0 at its top")
        if not (is_c or script) or not text:
            continue
        if not text.endswith("\n"):
            tree.say(path, text.count("\n") + 1, "does not end with a newline")
        comment = False
        for number, line in enumerate(text.split("\n"), 1):
            if line != line.rstrip():
                tree.say(path, number, "ends in white space")
            indent = line[:len(line) - len(line.lstrip())]
            if " \t" in indent:
                tree.say(path, number, "has a tab after a space")
            if is_c and not comment and indent.startswith("  "):
                tree.say(path, number, "is indented with spaces; tabs indent")
            if path.endswith((".py", "meson.build")) and "\t" in indent:
                tree.say(path, number, "is indented with tabs; spaces indent here")
            if is_c:
                rest = line
                while True:
                    at = rest.find("*/" if comment else "/*")
                    if at < 0:
                        break
                    rest, comment = rest[at + 2:], not comment


def check_readme(tree):
    if "README.md" not in tree.files:
        return
    for number, line in enumerate(tree.text("README.md").split("\n"), 1):
        for command in re.findall(r"(?<![\w/.-])(?:\./)?((?:tools|\.ci)/[\w.-]*\w|docs/[\w./-]+\.md)", line):
            path = os.path.join(tree.root, command)
            if not os.path.exists(path):
                tree.say("README.md", number, f"{command} does not exist")
            elif command.startswith(("tools/", ".ci/")) and "." not in os.path.basename(command) and (
                    not os.access(path, os.X_OK)):
                tree.say("README.md", number, f"{command} cannot be executed")


def package_flags():
    flags = []
    for package in PACKAGES:
        try:
            answer = subprocess.run(["pkg-config", "--cflags", package], capture_output=True, text=True, check=False)
        except OSError:
            break
        flags += [f.replace("-I", "-isystem", 1) for f in shlex.split(answer.stdout)]
    return flags


def compile_one(tree, path, command, what, source):
    answer = subprocess.run(command + ["-fsyntax-only", "-"], input=source, capture_output=True, text=True,
                            cwd=tree.root, check=False)
    if answer.returncode:
        tree.say(path, 1, f"does not compile alone as {what}:\n{answer.stderr.rstrip()}")


def check_headers(tree, cc, cxx):
    strict = ["-Wall", "-Wextra", "-pedantic-errors", "-Werror"]
    flags = package_flags()
    for path in (f for f in tree.sources() if f.endswith(".h")):
        if path in PUBLIC:
            source = f"#include <{os.path.basename(path)}>\n"
            place = ["-I", os.path.dirname(path)]
            compile_one(tree, path, cc + ["-xc", "-std=c11"] + strict + place, "C11", source)
            if cxx:
                compile_one(tree, path, cxx + ["-xc++", "-std=c++17"] + strict + place, "C++17", source)
        elif not any(re.match("cuda", target) for _, _, target in includes(tree.text(path))):
            # Twice: the guard of a header is part of it.
            compile_one(tree, path, cc + ["-xc", "-std=gnu17", "-D_GNU_SOURCE", "-I."] + flags, "C17",
                        f'#include "{path}"\n#include "{path}"\n')


def report(tree):
    rows = []
    for path in tree.sources():
        lines = tree.text(path).split("\n")
        print(f"{len(lines) - 1:6} {path}" + "".join(
            f"  line {n} has {w} columns" for n, w in (
                (n, len(l.expandtabs(8))) for n, l in enumerate(lines, 1)) if w > 120))
        start, name = None, ""
        for number, line in enumerate(lines, 1):
            m = re.match(r"[A-Za-z_].*?(\w+)\(", line)
            if m:
                name = m[1]
            if line == "{":
                start = number
            elif line == "}" and start:
                rows.append((number - start - 1, name, path, start))
                start = None
    print("\nfunctions, longest first:")
    for length, name, path, start in sorted(rows, reverse=True)[:40]:
        print(f"{length:6} {name}  {path}:{start}")


def check(root, cc=None, cxx=None):
    tree = Tree(root)
    check_rooms(tree)
    check_libraries(tree)
    check_lists(tree)
    check_text(tree)
    check_readme(tree)
    if cc:
        check_headers(tree, cc, cxx)
    return tree.breaches


def main():
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--root", default=here)
    options.add_argument("--cc", nargs="+", default=["cc"])
    options.add_argument("--no-compile", action="store_true")
    options.add_argument("--report", action="store_true")
    args = options.parse_args()
    if args.report:
        report(Tree(args.root))
        return 0
    cxx = next(([c] for c in ("c++", "g++", "clang++") if shutil.which(c)), None)
    if cxx is None:
        print("no C++ compiler: public headers are checked as C alone")
    breaches = check(args.root, None if args.no_compile else args.cc, cxx)
    for breach in breaches:
        print(breach)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
