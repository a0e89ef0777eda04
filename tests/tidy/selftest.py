# SPDX-License-Identifier: Apache-2.0
"""tools/tidy.py finds what it is there to find."""
import os
import shutil
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import tidy  # noqa: E402

SPDX = "/* SPDX-License-Identifier: Apache-2.0 */\n"
GUARD = "#pragma once\n"


class TidyFinds(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="tidy.")
        self.addCleanup(shutil.rmtree, self.root)
        for room in tidy.ROOMS:
            name = room.replace("/", "_")
            self.put(f"{room}/{name}.h", SPDX + GUARD + "int x;\n")
        self.put("fs/client/prefixfs_abi.h", SPDX + GUARD + "struct pfs_key { unsigned char bytes[32]; };\n")

    def put(self, path, text):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as f:
            f.write(text)

    def source(self, path, *lines):
        self.put(path, SPDX + "".join(line + "\n" for line in lines))
        folder = tidy.room_of(path)
        build = os.path.join(self.root, folder, "meson.build")
        with open(build, "a", encoding="utf-8") as f:
            if os.path.getsize(build) == 0:
                f.write("# SPDX-License-Identifier: Apache-2.0\n")
            f.write(f"'{os.path.relpath(path, folder)}'\n")

    def expect(self, *pieces, compilers=(None, None)):
        found = tidy.check(self.root, *compilers)
        self.assertEqual(len(found), len(pieces), found)
        for piece in pieces:
            self.assertTrue(any(piece in breach for breach in found), (piece, found))

    def test_a_clean_tree_is_clean(self):
        self.source("store/a.c", '#include "index/index.h"', '#include "store/base/store_base.h"')
        self.source("fs/b.c", '#include "store/store.h"', "#include <fuse_lowlevel.h>")
        self.source("kernels/c.c", '#include "fs/client/prefixfs_abi.h"')
        self.expect()

    def test_a_room_that_includes_upwards(self):
        self.source("index/a.c", '#include "store/store.h"')
        self.source("store/base/a.c", '#include "index/index.h"')
        self.source("tools/a.c", '#include "store/base/store_base.h"')
        self.source("fs/client/a.c", '#include "store/base/store_base.h"')
        self.source("kernels/a.c", '#include "fs/client/fs_client.h"')
        self.expect("index may not", "store/base may not", "tools may not", "fs/client may not", "kernels may not")

    def test_an_include_without_its_folder(self):
        self.source("store/a.c", '#include "store.h"')
        self.expect("includes carry the folder")

    def test_libraries_out_of_place(self):
        self.source("store/a.c", "#include <fuse_lowlevel.h>")
        self.source("index/a.c", "#include <xxhash.h>")
        self.source("fs/a.c", "#include <cuda_runtime.h>")
        self.source("fs/client/a.c", "#include <jansson.h>")
        self.expect("<fuse_lowlevel.h>", "<xxhash.h>", "<cuda_runtime.h>", "<jansson.h>")

    def test_a_library_in_two_files(self):
        self.source("store/a.c", "#include <liburing.h>")
        self.source("store/b.c", "#include <liburing.h>")
        self.expect("one file alone")

    def test_a_source_that_is_not_built(self):
        self.put("store/meson.build", "# SPDX-License-Identifier: Apache-2.0\n'other.c'\n")
        self.put("store/lost.c", SPDX)
        self.expect("does not list 'lost.c'")

    def test_text(self):
        self.put("tests/a.h", "int x;\n")
        self.put("tests/b.h", SPDX + "struct b {\n        int x;\n};\n")
        self.put("tests/c.h", SPDX + "int x; \n")
        self.put("tests/d.h", SPDX + "/* a picture:\n   may be indented so */\n")
        self.put("tests/e.py", "pass\n")
        self.expect("a.h:1: does not begin", "b.h:3: is indented", "c.h:2: ends in white", "e.py:1: has no line")

    def test_readme_that_names_what_is_not_there(self):
        self.put("README.md", "Run `tools/nothing`.\n")
        self.expect("tools/nothing does not exist")

    @unittest.skipUnless(shutil.which("cc") and shutil.which("c++"), "needs cc and c++")
    def test_headers_that_do_not_stand_alone(self):
        self.put("index/b.h", SPDX + "uint32_t b;\n")
        self.put("fs/client/prefixfs.h", SPDX + GUARD + "int pfs_f(int class);\n")
        self.expect("index/b.h:1: does not compile alone as C17", "prefixfs.h:1: does not compile alone as C++17",
                    compilers=(["cc"], ["c++"]))


if __name__ == "__main__":
    unittest.main()
