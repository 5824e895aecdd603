#!/usr/bin/env bash
# Test packages under the race detector. A report counts when one of the two accesses, or a goroutine's creation, passes through this
# module; the other ones are races of Kubernetes with itself, which are listed and let pass.
set -u
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
GORACE="log_path=$logs/race" "${GO:-go}" test -race -vet=off -count=1 -timeout 9m "$@" >"$logs/out" 2>&1
code=$?
cat "$logs/out"
[ $code -eq 0 ] && exit 0

# Each report goes from one line of = to the next; the accesses end where the creation of their goroutines begins.
reports=0 ours=0
for file in "$logs"/race.*; do
  [ -e "$file" ] || continue
  read -r seen mine < <(awk '
    /^WARNING: DATA RACE/ { seen++; inside = 1; hit = 0 }
    /^Goroutine .* created at/ { inside = 0 }
    inside && /coach\.dev\/scheduler-plugins\/pkg/ { hit = 1 }
    /^==================$/ { if (hit) mine++; hit = 0; inside = 0 }
    END { print seen + 0, mine + 0 }' "$file")
  reports=$((reports + seen)) ours=$((ours + mine))
done
# Who failed for anything else than a race?
failed=$(grep -c '^ *[a-z_]*\.go:[0-9]*: ' "$logs/out")
races=$(grep -c 'race detected during execution of test' "$logs/out")
if [ "$reports" -gt 0 ] && [ "$ours" -eq 0 ] && [ "$failed" -eq "$races" ] && ! grep -q 'panic:\|build failed' "$logs/out"; then
  echo "$reports races of Kubernetes with itself, none of ours"
  exit 0
fi
cat "$logs"/race.* 2>/dev/null
echo "$ours of $reports races are ours" >&2
exit $code
