#!/bin/sh
# What tests/packaging/roots.sh runs in a root, as an ordinary user: in_root.sh install|train|restricted ...
set -eu
fail() {
  echo "FAILED: $1" >&2
  exit 1
}
# A small training on two ranks, with checkpoints.
train_two() {  # LOG OPTION...
  log=$1
  shift
  NPROC=2 hyperion-launch debug_model --training.seq_len=256 --training.local_batch_size=4 --checkpoint.enable --checkpoint.interval=4 \
    --lr_scheduler.total_steps=12 "$@" >"$log" 2>&1 || {
    code=$?
    tail "$log"
    fail "code $code"
  }
}
losses() { sed -n 's/.*step: *[0-9]* .*loss: *\([0-9.]*\).*/\1/p' "$1"; }
falls() { awk 'NR == 1 { first = $1 } { last = $1 } END { printf "  %d steps, loss %s to %s\n", NR, first, last; exit !(NR > 1 && last < first) }'; }
refused() {  # CODE TEXT COMMAND...
  code=0
  wanted=$1 text=$2
  shift 2
  "$@" >/tmp/said 2>&1 || code=$?
  tail -n 2 /tmp/said | sed 's/^/  /'
  [ $code = "$wanted" ] || fail "code $code instead of $wanted: $*"
  grep -e "$text" /tmp/said >/dev/null || fail "it does not say '$text': $*"
}

install_it() {
  for compiler in cc gcc g++ clang; do
    ! command -v $compiler >/dev/null || fail "there is a compiler"
  done
  rm -rf ~/venv ~/work
  python3 -m venv ~/venv
  ~/venv/bin/pip install -q --no-deps /given/*.whl
  refused 2 'has no torch' ~/venv/bin/hyperion train debug_model
  ~/venv/bin/pip install -q --no-compile torch==2.11.0 /given/*.whl
  ~/venv/bin/hyperion --version | head -n 1
}

train_it() {
  PATH=$HOME/venv/bin:$PATH
  mkdir -p ~/work
  cd ~/work
  refused 2 'did you mean debug_model?' hyperion train debug_modle
  echo "1 rank:"
  hyperion train debug_model >one.log
  losses one.log | falls
  echo "2 ranks, with checkpoints, then resumed:"
  train_two two.log --training.steps=8
  losses two.log | falls
  train_two resumed.log --training.steps=12
  grep -e 'Training starts at step 9' resumed.log >/dev/null || fail "not resumed"
  losses resumed.log | tail -n 1
  hyperion generate outputs/checkpoint/step-12 --prompt 'It is a truth' --max-tokens 8
}

restricted() {
  PATH=$HOME/venv/bin:$PATH
  cd ~/work
  echo "read-only home:"
  refused 73 'Read-only file system' hyperion train debug_model --checkpoint.enable
  cd /tmp
  echo "without /dev/shm, temporary folder noexec:"
  train_two two.log --training.steps=4
  losses two.log | falls
}

for part in "$@"; do
  case $part in
    install) install_it ;;
    train) train_it ;;
    restricted) restricted ;;
    *) fail "no part '$part'" ;;
  esac
done
