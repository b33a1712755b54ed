#!/bin/bash
# Slurm's Prolog and Epilog: are the GPUs of this job healthy? Slurm drains the node and requeues the job when a prolog
# fails, so only a sure fault may fail: a scan that takes too long, cannot tell or is not installed lets the job start.
# What it says is in the system log: journalctl -t watchkeeper
set -u

when=@WHEN@
gpus=${SLURM_JOB_GPUS:-}

say() { logger -t watchkeeper -- "$when of job ${SLURM_JOB_ID:-?}: $*" 2>/dev/null || echo "$when: $*" >&2; }

# Jobs without GPUs are none of its business.
[ -n "$gpus" ] || exit 0

# 45 s is below the minute that people wait for a prompt; counters are watched by the agent, not by a prolog.
said=$(timeout --kill-after=5 45 @WATCHKEEPER@ scan "--slurm-$when" --watch 0 -i "$gpus" 2>&1)
code=$?
if [ "$code" -eq 1 ]; then
    say "unhealthy, the node is drained: $said"
    exit 1
fi
[ "$code" -eq 0 ] || say "cannot tell (exit code $code): $said"
exit 0
