#!/usr/bin/env bash
# usage: fuzz.sh FUZZER SECONDS FOUND CORPUS...
# Runs one fuzzer. It adds to the first corpus, starts from all of them, and leaves an input that breaks something as
# FOUND…. A file claims, an allocation follows: what asks for more than 64 MiB at once has believed it.
set -euo pipefail
exec "$1" -max_total_time="$2" -artifact_prefix="$3" -max_len=65536 -timeout=10 -malloc_limit_mb=64 -rss_limit_mb=1024 \
  -verbosity=0 -print_final_stats=1 "${@:4}"
