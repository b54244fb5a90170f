#!/usr/bin/env bash
# Packs the seeds of a fuzz target, one file per input, into tests/goldens/fuzz/TARGET.tar.gz. The same files give the same bytes.
#
#   mkdir more && tar -xzf tests/goldens/fuzz/pickle.tar.gz -C more && cp crash-pickle-1234 more/
#   tests/fuzz/pack_seeds.sh pickle more
set -euo pipefail
[ $# = 2 ] && [ -d "$2" ] || { echo "usage: tests/fuzz/pack_seeds.sh TARGET FOLDER_OF_SEEDS" >&2; exit 2; }
(cd "$2" && find . -type f -printf '%P\n') | LC_ALL=C sort |
  tar --create --format=ustar --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=644 --directory="$2" --files-from=- |
  gzip -9 --no-name >"$(dirname "$(readlink -f "$0")")/../goldens/fuzz/$1.tar.gz"
