# SPDX-License-Identifier: Apache-2.0
"""The commands and options that `prefixfs` has, as its own --help lists them."""
import re
import subprocess


def help_of(prefixfs, words=""):
    answer = subprocess.run([prefixfs] + words.split() + ["--help"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def commands(prefixfs, above=""):
    """Each command, a group of commands before those in it: {"ns": {}, "ns list": {"mount": "DIR", "json": None}, ...}."""
    found = {}
    for name in re.findall(r"^  ([a-z]\S*)  +\S", help_of(prefixfs, above), re.M):
        words = f"{above} {name}".strip()
        text = help_of(prefixfs, words)
        options = re.findall(r"^  --(\S+)(?: (\S+))?", text, re.M)
        found[words] = {name: argument or None for name, argument in options if name != "help"}
        if re.search(r"^Each command has --help", text, re.M):
            found.update(commands(prefixfs, words))
    return found
