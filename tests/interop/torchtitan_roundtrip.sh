#!/usr/bin/env bash
# Checkpoints from torchtitan into Hyperion and back: see torchtitan_roundtrip.py, which takes the same arguments.
exec "$(dirname "${BASH_SOURCE[0]}")/run.sh" torchtitan_roundtrip.py "$@"
