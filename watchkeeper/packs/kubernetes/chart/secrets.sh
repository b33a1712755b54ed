#!/bin/sh
# Makes the tokens of a hub and of its agents and readers, and puts them into the cluster as Secrets; nothing is written
# to a file. What exists stays, so a second run changes nothing.
#   ./secrets.sh [NAMESPACE] [--dry-run]
# The person's token is printed once, at the end.
set -eu

namespace=@namespace@
is_dry=
for word in "$@"; do
    case $word in
        --dry-run) is_dry=yes ;;
        -*) echo "usage: $0 [NAMESPACE] [--dry-run]" >&2; exit 2 ;;
        *) namespace=$word ;;
    esac
done

for program in kubectl openssl; do
    command -v "$program" >/dev/null || { echo "$0: $program is not installed" >&2; exit 1; }
done

exists() { kubectl -n "$namespace" get secret "$1" >/dev/null 2>&1; }

if exists @secrets.hub@; then
    echo "Secret @secrets.hub@ is there already; nothing was changed. Delete the three secrets to make new tokens."
    exit 0
fi
if [ -n "$is_dry" ]; then
    echo "Would create the Secrets @secrets.hub@, @secrets.agent@ and @secrets.reader@ in $namespace"
    exit 0
fi

admin=$(openssl rand -hex 32)
agent=$(openssl rand -hex 32)
reader=$(openssl rand -hex 32)
hash() { printf %s "$1" | openssl dgst -sha256 -r | cut -d' ' -f1; }

# The hub needs to know no token, only the hash of each. Values reach kubectl on its standard input: a command line
# can be read by everyone on the machine.
make() { # NAME KEY < VALUE
    kubectl -n "$namespace" create secret generic "$1" --from-file="$2=/dev/stdin"
}
printf 'admin admin sha256:%s\nagents agent sha256:%s\nreaders viewer sha256:%s\n' \
    "$(hash "$admin")" "$(hash "$agent")" "$(hash "$reader")" | make @secrets.hub@ tokens
printf %s "$agent" | make @secrets.agent@ token
printf %s "$reader" | make @secrets.reader@ token
echo "Sign in to the console with: $admin"
