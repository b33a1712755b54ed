#!/bin/bash
# Makes the secrets of compose.yaml in ./secrets, each once: a second run changes nothing. To have them made anew,
# delete `tokens`.
set -euo pipefail
cd "$(dirname "$0")"
umask 077
mkdir -p secrets

secret() { head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n'; }

# Who may do what at the hub: a person, this machine's agent, Prometheus and Grafana that read, Alertmanager that reports.
if [ ! -e secrets/tokens ]; then
    admin=$(secret) agent=$(secret) scrape=$(secret) webhook=$(secret) grafana=$(secret)
    printf '%s\n' "admin admin $admin" "agent agent $agent" "prometheus viewer $scrape" "grafana viewer $grafana" \
        "alertmanager agent $webhook" >secrets/tokens
    printf 'WATCHKEEPER_TOKEN=%s\n' "$grafana" >secrets/grafana.env
    printf 'WATCHKEEPER_TOKEN=%s\n' "$agent" >secrets/agent.env
    printf '%s' "$scrape" >secrets/scrape
    printf '%s' "$webhook" >secrets/webhook
    echo "made secrets/tokens; the console's is on the line of admin"
fi
[ -e secrets/grafana ] || { printf '%s' "$(secret)" >secrets/grafana && echo "made secrets/grafana, the password of admin"; }
# The name of this machine, which a container does not know; Compose reads the file by itself.
[ -e .env ] || printf 'NODE_NAME=%s\n' "$(hostname)" >.env
# Containers run as users of their own and must be able to read them; the folder is closed to everybody else.
chmod 0700 secrets
chmod 0644 secrets/*
