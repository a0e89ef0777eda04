#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A file as bytes in C: embed.py NAME IMAGE C_FILE."""
import sys

with open(sys.argv[2], "rb") as image:
    data = image.read()
with open(sys.argv[3], "w", encoding="ascii") as out:
    out.write(f"extern const unsigned char {sys.argv[1]}[];\nconst unsigned char {sys.argv[1]}[] __attribute__((aligned(64))) = {{\n")
    for at in range(0, len(data), 24):
        out.write("\t" + "".join(f"{byte}," for byte in data[at:at + 24]) + "\n")
    out.write("};\n")
