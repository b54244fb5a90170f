#!/usr/bin/env bash
# One rank of scripts/train.slurm in a shell of its own on its node: prolog, log, the program, and how it ended.
usage='usage: slurm_rank.sh PROGRAM ARGUMENT...
  srun starts it for scripts/train.slurm, whose --help explains the HYPERION_ variables. It writes into HYPERION_LOG_DIR
  (rank_N.NODE.log) and HYPERION_FAILURE_DIR (rank_N.end: node, exit code, seconds), both on storage that all nodes see.'
case ${1:-} in -h | --help) echo "$usage"; exit 0 ;; esac

# Names that a prolog will hardly use.
rank_number=$SLURM_PROCID
rank_node=${SLURMD_NODENAME:-$(hostname -s)}
rank_log=$HYPERION_LOG_DIR/rank_$rank_number.$rank_node.log
rank_end=$HYPERION_FAILURE_DIR/rank_$rank_number.end
printf '%s\n' "$rank_node" >"$rank_end"
end_rank() {
  printf '%s %s %s\n' "$rank_node" "$1" "$(date +%s.%N)" >"$rank_end"
  trap '' USR1 TERM INT
  exec >&- 2>&-  # so that tee comes to its end
  if [ -n "$rank_tee" ]; then wait "$rank_tee"; fi
}
trap 'end_rank $?' EXIT

# Standard output and error become the log of this rank, and the job's log too where LOG_RANK says so. SLURM's signals reach
# every process of the step, but tee must not lose the last lines.
case ,${LOG_RANK:-0}, in
  *,"$rank_number",*) exec > >(trap '' USR1 TERM INT; exec tee -a "$rank_log") 2>&1; rank_tee=$! ;;
  *) exec >>"$rank_log" 2>&1; rank_tee= ;;
esac

refuse() {  # PROBLEM REMEDY
  printf '[slurm_rank] rank %s on %s: %s\n  remedy: %s\n' "$rank_number" "$rank_node" "${1//[[:cntrl:]]/?}" "$2" >&2
  exit 2
}
if [ -n "${HYPERION_PROLOG:-}" ]; then
  [ -r "$HYPERION_PROLOG" ] || refuse "HYPERION_PROLOG=$HYPERION_PROLOG cannot be read" "put the file where all nodes see it"
  # shellcheck disable=SC1090  # the user's
  . "$HYPERION_PROLOG" || refuse "HYPERION_PROLOG=$HYPERION_PROLOG ended with code $?" "see what it says above"
fi
rank_command=()
if [ -n "${HYPERION_WRAPPER:-}" ]; then
  mapfile -d '' rank_command < <(xargs -r printf '%s\0' <<<"$HYPERION_WRAPPER")
  wait $! || refuse "HYPERION_WRAPPER cannot be split into words (see above): $HYPERION_WRAPPER" "close every quote"
fi
if [ ${#rank_command[@]} -gt 0 ] && ! command -v "${rank_command[0]}" >/dev/null; then
  refuse "HYPERION_WRAPPER starts with '${rank_command[0]}', which is no program here" "install it, or load its module in HYPERION_PROLOG"
fi
rank_command+=("$@")

# This shell waits for the program, whatever signal comes.
trap : USR1 TERM INT
"${rank_command[@]}"
