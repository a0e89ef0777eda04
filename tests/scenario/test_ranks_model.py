# SPDX-License-Identifier: Apache-2.0
"""The store does what the model of docs/ranks-and-classes.md does, operation by operation. PREFIXFS_MODEL_OPERATIONS: how many."""
import os
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = os.path.join(ROOT, "tests/model/ranks_model.py")
OPERATIONS = int(os.environ.get("PREFIXFS_MODEL_OPERATIONS", "20000"))


def compare(program, seed, operations, *options):
    with subprocess.Popen([sys.executable, MODEL, "--operations", str(operations), "--seed", str(seed), "--emit", *options],
                          stdout=subprocess.PIPE) as model:
        answer = subprocess.run([program("tests/model/drive_ranks")], stdin=model.stdout, capture_output=True,
                                text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert model.returncode == 0
    assert int(answer.stderr.split()[0]) > operations, answer.stderr


@pytest.mark.limit(60 + OPERATIONS // 1000)
def test_the_store_does_what_the_model_does(program, seed):
    compare(program, seed, OPERATIONS)


@pytest.mark.limit(60 + OPERATIONS // 1000)
def test_and_so_does_who_adopts_it(program, seed):
    """Some thirty times in a thousand operations the serving process dies."""
    compare(program, seed, OPERATIONS // 4, "--deaths")


def test_the_examples_hold():
    subprocess.run([sys.executable, os.path.join(ROOT, "tests/model/ranks_examples.py")], check=True, stdout=subprocess.DEVNULL)
