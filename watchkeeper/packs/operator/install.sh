#!/bin/bash
# Installs the GPU Operator, kube-prometheus-stack and Watchkeeper into the cluster of the current context, from the files
# beside this script. Every step can be repeated; what is there already is brought up to date.
#   ./install.sh --check      look whether the cluster is ready for it, change nothing
#   ./install.sh --dry-run    say what would be run, change nothing
#   ./install.sh              do it
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
namespace=@namespace@
gpu_namespace=gpu-operator
monitoring=monitoring
operator_version=@operatorVersion@
is_dry=''
only_check=''
troubles=0

for word in "$@"; do
    case $word in
        --check) only_check=yes ;;
        --dry-run) is_dry=yes ;;
        *) sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done

say() { printf '%s\n' "$*"; }
good() { say "  ok      $*"; }
bad() { say "  wrong   $*"; troubles=$((troubles + 1)); }
note() { say "  note    $*"; }
run() {
    if [ -n "$is_dry" ]; then
        say "would run: $*"
    else
        say "+ $*"
        "$@"
    fi
}

# How many there are; none where the question fails, as for a kind that the cluster does not know.
count() { kubectl get "$@" --no-headers 2>/dev/null | grep -c . || true; }

# Each check says what is so, and what to do where it is not as it must be.
check_programs() {
    local program
    for program in kubectl helm; do
        if command -v "$program" >/dev/null; then good "$program is here"; else bad "$program is not installed"; fi
    done
}

check_cluster() {
    local version minor
    if ! version=$(kubectl get --raw /version 2>&1); then
        bad "the API server does not answer: ${version:0:200}"
        return 1
    fi
    version=$(printf %s "$version" | sed -n 's/.*"gitVersion": *"v\([0-9.]*\).*/\1/p')
    minor=$(printf %s "$version" | cut -d. -f2)
    if [ "${minor:-0}" -ge 25 ]; then good "Kubernetes $version"; else bad "Kubernetes ${version:-of unknown version}; 1.25 is the oldest for these manifests"; fi
}

check_rights() {
    local what
    for what in "create namespaces" "create clusterroles.rbac.authorization.k8s.io" "create customresourcedefinitions.apiextensions.k8s.io"; do
        # shellcheck disable=SC2086 # verb and resource are two words
        if kubectl auth can-i $what >/dev/null 2>&1; then good "you may $what"; else bad "you may not $what; ask for the role cluster-admin"; fi
    done
}

check_nodes() {
    local nodes gpus
    nodes=$(count nodes)
    gpus=$(count nodes -l nvidia.com/gpu.present=true)
    if [ "$nodes" -eq 0 ]; then bad "the cluster has no nodes"; else good "$nodes nodes"; fi
    if [ "$gpus" -eq 0 ]; then
        note "no node has the label nvidia.com/gpu.present=true yet; the GPU Operator sets it, and agents wait for it"
    else
        good "$gpus nodes with GPUs"
    fi
    if [ "$nodes" -gt 0 ] && ! kubectl get nodes -o 'jsonpath={range .items[*]}{.spec.taints[*].key}{"\n"}{end}' | grep -qv -e control-plane -e master; then
        note "every node has the taint of the control plane; a cluster of one machine must take it off: kubectl taint nodes --all node-role.kubernetes.io/control-plane-"
    fi
}

check_storage() {
    if kubectl get storageclass -o 'jsonpath={.items[*].metadata.annotations}' 2>/dev/null | grep -q 'is-default-class":"true"'; then
        good "there is a default storage class"
    else
        bad "no storage class is the default, and the hub's volume asks for none: set hub.storage.className"
    fi
}

check_others() {
    if [ "$(count daemonset -A -l app=nvidia-dcgm-exporter)" -gt 0 ]; then
        note "a dcgm-exporter runs already; it and our agent would both be read, and both take port 9400 of their own pod"
    fi
    if [ "$(count daemonset -A -l name=nvidia-device-plugin-ds)" -gt 0 ]; then
        bad "the static device plugin runs in this cluster; it and the operator's would both offer the same GPUs. Delete it first"
    fi
    if kubectl get crd prometheuses.monitoring.coreos.com >/dev/null 2>&1; then
        note "a Prometheus Operator is there already; its own release may have to pick up our monitors (label release)"
    fi
}

say "Is the cluster ready?"
check_programs
if [ "$troubles" -eq 0 ] && check_cluster; then
    check_rights
    check_nodes
    check_storage
    check_others
fi
if [ "$troubles" -gt 0 ]; then
    say "$troubles of these must be put right first; nothing was changed."
    exit 1
fi
[ -z "$only_check" ] || exit 0

say "Namespaces and configuration"
for name in "$gpu_namespace" "$monitoring"; do
    if ! kubectl get namespace "$name" >/dev/null 2>&1; then run kubectl create namespace "$name"; fi
done
# The operator's pods are privileged.
run kubectl label --overwrite namespace "$gpu_namespace" pod-security.kubernetes.io/enforce=privileged
run kubectl apply -f "$here/sharing.yaml" -f "$here/mig.yaml" -f "$here/dcgm-metrics.yaml"

say "Charts"
run helm repo add --force-update nvidia https://helm.ngc.nvidia.com/nvidia
run helm repo add --force-update prometheus-community https://prometheus-community.github.io/helm-charts
run helm upgrade --install kube-prometheus-stack prometheus-community/kube-prometheus-stack \
    -n "$monitoring" -f "$here/kube-prometheus-stack-values.yaml" --wait --timeout 15m
run helm upgrade --install gpu-operator nvidia/gpu-operator --version "$operator_version" \
    -n "$gpu_namespace" -f "$here/gpu-operator-values.yaml" --wait --timeout 20m
run helm upgrade --install watchkeeper "$here/chart/watchkeeper" -n "$namespace" --create-namespace \
    --set prometheusOperator.enabled=true --set dashboards.enabled=true
run kubectl label --overwrite namespace "$namespace" pod-security.kubernetes.io/enforce=privileged
run "$here/chart/secrets.sh" "$namespace"

say "Done. The console: kubectl -n $namespace port-forward svc/watchkeeper-hub 9480"
