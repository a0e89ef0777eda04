# SPDX-License-Identifier: Apache-2.0
"""bash completes what prefixfs takes: the line is given to the function as bash would."""
import os
import re
import shutil
import subprocess

import pytest

import commands

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "tools/completion/prefixfs.bash")
SESSIONS = os.path.join(ROOT, "tests/data/coding_sessions.jsonl")

# As readline does: the function that `complete -p` names is called with the command, the word and the one before it.
DRIVER = r"""
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
COMP_LINE="${COMP_WORDS[*]}"
COMP_POINT=${#COMP_LINE}
name=${COMP_WORDS[0]##*/}
function=$(complete -p "$name" | sed 's/.* -F \([^ ]*\) .*/\1/')
"$function" "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def complete(program, tmp_path):
    if not shutil.which("bash"):
        pytest.skip("bash is not installed")
    path = program("prefixfs")

    def run(line, program=path, mount=None):
        # bash cuts words at "=" too; the last word is the one that is being typed.
        words = [w for word in line.split(" ") for w in re.split("(=)", word) if w or word == ""]
        if line.endswith("="):
            words.append("")
        env = {k: v for k, v in os.environ.items() if k != "PREFIXFS_MOUNT"}
        if mount:
            env["PREFIXFS_MOUNT"] = mount
        answer = subprocess.run(["bash", "-u", "-c", DRIVER, "bash", SCRIPT, program, *words], env=env, cwd=tmp_path,
                                capture_output=True, text=True, timeout=60, check=False)
        assert answer.stderr == "", answer.stderr
        return [word for word in answer.stdout.split("\n") if word]
    return run


def test_commands_and_every_option(complete, program):
    there = commands.commands(program("prefixfs"))
    assert sorted(complete("")) == sorted({c.split()[0] for c in there} | {"--help"})
    assert complete("unm") == ["unmount"] and complete("xyz") == []
    for words, options in there.items():
        if words == "mount":
            assert {f"--{o}" for o in options} <= set(complete("mount --"))
        elif any(c.startswith(words + " ") for c in there):
            inner = {c.split()[1] for c in there if c.startswith(words + " ")}
            assert set(complete(words + " ")) == inner | {"--help"}
        else:
            assert set(complete(words + " --")) == {f"--{o}" for o in options} | {"--help"}, words


def test_options_of_the_daemon(complete, program):
    daemon = program("prefixfsd")
    help_text = subprocess.run([daemon, "--help"], capture_output=True, text=True, check=True).stdout
    there = {f"--{name}=" for name in re.findall(r"^  --([a-z-]+) ", help_text, re.M)}
    assert len(there) > 15 and there <= set(complete("mount --")) and there <= set(complete("--", program=daemon))
    assert complete("mount --huge") == ["--hugepages="]
    assert complete("mount --hugepages=") == ["auto", "never", "thp", "require"]
    assert complete("/mnt --log-level=w", program=daemon) == ["warning"]
    assert complete("mount --populate f") == ["false"]


def test_layouts_orders_and_files(complete, build, tmp_path):
    models = {re.sub(r"-tp\d+\.json$", "", name) for name in os.listdir(os.path.join(build, "tools/layouts"))}
    assert set(complete("ns create x --model ")) == models
    assert set(complete("replay --model=Qwen3-N")) == {"Qwen3-Next-80B-A3B"}
    assert complete("replay trace --order l") == ["lookups"]
    (tmp_path / "trace.jsonl").touch()
    (tmp_path / "folder").mkdir()
    assert complete("replay tr") == ["trace.jsonl"] and complete("replay x --report tr") == ["trace.jsonl"]
    assert complete("mount fo") == ["folder"] and complete("stat --mount fo") == ["folder"]


def test_what_is_in_the_mount(complete, daemon, program):
    mount = daemon().mount
    prefixfs = program("prefixfs")
    for name in ("alpha", "beta"):
        subprocess.run([prefixfs, "ns", "create", name, "--mount", mount, "--model", "Qwen3-8B", "--tp", "2", "--one-rank",
                        "--plane-divisor", "1024"], check=True)
    subprocess.run([prefixfs, "replay", SESSIONS, "--mount", mount, "--ns", "alpha", "--requests", "20"], check=True,
                   stdout=subprocess.DEVNULL)
    records = os.listdir(os.path.join(mount, "ns/alpha/records"))
    for line in ("stat ", "ns show ", "ns remove ", "evict ", "probe ", "replay x --ns ", "replay x --ns="):
        assert complete(line, mount=mount) == ["alpha", "beta"], line
    assert complete(f"stat --mount {mount} al") == ["alpha"]
    assert complete(f"stat --mount={mount} --json b") == ["beta"]
    assert sorted(complete("evict alpha ", mount=mount)) == sorted(records)
    assert complete(f"evict alpha --json {records[0][:40]}", mount=mount) == [r for r in records if r[:40] == records[0][:40]]
    assert sorted(complete("probe alpha ", mount=mount)) == sorted(r.split("-")[1] for r in records)
    assert mount in complete("unmount ")
    assert complete("evict beta ", mount=mount) == [] and complete("stat alpha ", mount=mount) == []
    assert complete("ns create ", mount=mount) == [] and complete("stat ", mount="/nowhere") == []
