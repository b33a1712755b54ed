#!/bin/bash
# Slurm's HealthCheckProgram: looks at the whole node every HealthCheckInterval seconds and drains it if it is unhealthy.
# slurmd ends it after 60 s. How many GPUs there should be is what Slurm itself has promised to jobs (Gres of this node).
set -u

# slurmd does not say where slurm.conf is; at an unusual place, name it here: export SLURM_CONF=…
node=${SLURMD_NODENAME:-$(hostname -s)}

# Gres=gpu:h200:8(S:0-1),gpu:2 becomes 10; nothing where Slurm cannot be asked or has no GPUs here.
promised() {
    local gres entry count total=0
    gres=$(timeout 10 scontrol --oneliner show node "$node" 2>/dev/null | grep -o 'Gres=[^ ]*') || return 0
    gres=${gres#Gres=}
    # Sockets and cores stand in brackets, and may hold commas.
    while [[ $gres =~ \([^\)]*\) ]]; do gres=${gres/"${BASH_REMATCH[0]}"/}; done
    local IFS=,
    for entry in $gres; do
        case $entry in
            gpu:*)
                count=${entry##*:}
                [[ $count =~ ^[0-9]+$ ]] || count=1
                total=$((total + count))
                ;;
        esac
    done
    [ "$total" -eq 0 ] || echo "$total"
}

options=(--slurm-health --drain)
expected=@EXPECTED@
[ -n "$expected" ] || expected=$(promised)
[ -z "$expected" ] || options+=(--expected-gpus "$expected")

said=$(timeout --kill-after=3 45 @WATCHKEEPER@ scan "${options[@]}" 2>&1)
code=$?
if [ "$code" -ne 0 ] || [ "${said%%$'\n'*}" != "This node is healthy." ]; then
    logger -t watchkeeper -- "health of $node: $said" 2>/dev/null || echo "$said" >&2
fi
exit 0
