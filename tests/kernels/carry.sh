#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a machine with a GPU needs that has neither this source nor its libraries: carry.sh BUILD FOLDER. There:
#   FOLDER/run check_twins cuda        FOLDER/run prefixfs bench gpu --paths
#   FOLDER/faults.py FOLDER cuda
#   FOLDER/session.py OUT 520                   all of it
set -eu
build=$1 folder=$2
mkdir -p "$folder/lib"
cp "$build/prefixfs" "$build/prefixfsd" "$build"/tests/kernels/check_twins "$build"/tests/kernels/check_faults \
	"$build"/tests/kernels/check_killed "$build"/tests/kernels/check_plans "$(dirname "$0")/session.py" "$(dirname "$0")/faults.py" "$(dirname "$0")/mps.py" "$folder/"
for library in jansson sodium sqlite3 uring fuse3 xxhash; do
	ldd "$build/prefixfsd" "$build/prefixfs" | awk -v name="lib$library" 'index($1, name) == 1 { print $3 }' | sort -u |
		while read -r path; do cp -L "$path" "$folder/lib/"; done
done
cp -L "$(command -v fusermount3 || echo /dev/null)" "$folder/fusermount3" 2>/dev/null || true
cat > "$folder/run" <<'END'
#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
program=$1
shift
LD_LIBRARY_PATH=$here/lib PATH=$here:$PATH exec "$here/$program" "$@"
END
chmod +x "$folder/run"
